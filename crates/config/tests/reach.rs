//! How the paths of all confinements are resolved, and what a confined server must not be able to write.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed expectation of a test")]

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use bridgehead_config::{Config, Environment, FileAccess, Launch, load};

/// A folder with a project in it, a configuration beside that, and a home.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        for folder in ["project/out", "project/in", "home", "elsewhere"] {
            std::fs::create_dir_all(place.path().join(folder)).unwrap();
        }
        Self(place)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(path)
    }

    fn file(&self, path: &str, text: &str) -> PathBuf {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    fn link(&self, from: &str, to: impl AsRef<Path>) {
        symlink(to, self.path(from)).unwrap();
    }

    /// Reads a configuration that lies beside the project.
    fn load(&self, text: &str) -> Config {
        self.load_as("bridgehead.toml", text, &[])
    }

    fn load_as(&self, file: &str, text: &str, more: &[(&str, &str)]) -> Config {
        self.file(file, text);
        let mut variables = BTreeMap::from([
            ("HOME".to_owned(), self.path("home").to_str().unwrap().to_owned()),
            ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
        ]);
        variables.extend(more.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
        let environment = Environment::read(variables).unwrap();
        let file = self.path(file);
        load(Some(&file), &environment, &self.path("elsewhere")).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn files(config: &Config, index: usize) -> &FileAccess {
    config.servers[index].confinement.as_ref().unwrap().files.as_ref().unwrap()
}

/// Why a server is refused; `None` if it is not.
fn reason(config: &Config, name: &str) -> Option<String> {
    let server = config.servers.iter().find(|server| server.name.as_str() == name).unwrap();
    match &server.launch {
        Launch::Unusable { reason } => Some(reason.clone()),
        _ => None,
    }
}

/// WALL-2: paths are resolved when the configuration is read. A path inside a folder that the server may write anyway is
/// dropped, so a link to the root that the server put there gives it nothing.
#[test]
fn paths_are_resolved_once_and_nested_ones_are_dropped() {
    let place = Place::new();
    place.link("project/out/cache", "/");
    place.link("by", "project");
    let text = r#"
[servers.a]
command = "x"
files = { read = ["by/in", "project/out/cache/etc", "project/none/yet"], write = ["project/out", "project/out/cache", "by/out"] }
"#;
    let config = place.load(text);
    assert_eq!(reason(&config, "a"), None);
    let expected = FileAccess {
        read: vec![place.path("project/in"), place.path("project/none/yet")],
        write: vec![place.path("project/out")],
    };
    assert_eq!(*files(&config, 0), expected);
}

/// WALL-2: a path is refused if a link leads it through a folder that the server may write and out again. A circular link
/// is refused too.
#[test]
fn a_path_that_the_server_decides_is_refused() {
    let place = Place::new();
    place.link("project/out/cache", "/");
    place.link("by", "project");
    place.link("circle", "circle");
    for (files, expected) in [
        ("{ write = ['project/out', 'by/out/cache'] }", "leads through"),
        ("{ write = ['project/out'], read = ['by/out/cache/etc'] }", "leads through"),
        ("{ read = ['circle'] }", "lead in a circle"),
    ] {
        let config =
            place.load(&format!("[servers.a]\ncommand = 'x'\nfiles = {files}\n[servers.b]\ncommand = 'y'\n"));
        let reason = reason(&config, "a").unwrap_or_else(|| panic!("{files} was accepted"));
        assert!(reason.contains(expected), "{reason}");
        assert!(config.warnings[0].message.starts_with("server `a` cannot start: "), "{:?}", config.warnings);
        assert!(matches!(config.servers[1].launch, Launch::Stdio(_)), "the other server runs");
    }
}

/// WALL-2: no server may have a path inside a folder that another server may write, directly or through a link in it. Two
/// servers may share exactly the same folder.
#[test]
fn a_path_within_what_another_server_writes_is_refused() {
    let place = Place::new();
    place.link("project/to", place.path("elsewhere"));
    let both = |one: &str, other: &str| {
        place.load(&format!(
            "[servers.a]\ncommand = 'x'\nfiles = {one}\n[servers.b]\ncommand = 'y'\nfiles = {other}\n"
        ))
    };
    for inside in ["{ read = ['project/in'] }", "{ write = ['project/in'] }", "{ read = ['project/to'] }"] {
        let config = both(inside, "{ write = ['project'] }");
        let reason = reason(&config, "a").unwrap_or_else(|| panic!("{inside} was accepted"));
        let project = place.path("project");
        assert!(
            reason.contains(&format!("lies in `{}`, which server `b` may write", project.display())),
            "{reason}"
        );
        assert!(reason.contains("a narrower `write`"), "{reason}");
        assert!(matches!(config.servers[1].launch, Launch::Stdio(_)));
    }
    for beside in ["{ write = ['project'] }", "{ read = ['project'] }", "{ read = ['elsewhere', '/usr'] }"] {
        assert_eq!(reason(&both(beside, "{ write = ['project'] }"), "a"), None, "{beside}");
    }
}

/// WALL-1: a confined server that may write files that configure, record or authorize the gateway is refused, and only that
/// server. The reason names the folder, the guarded file in it, and the cure.
#[test]
fn what_the_gateway_lives_by_cannot_be_written() {
    let place = Place::new();
    place.file("project/.env", "A=1\n");
    let token = place.file("project/token", "t\n");
    std::fs::set_permissions(token, Permissions::from_mode(0o600)).unwrap();
    place.link("home/linked.toml", place.path("project/real.toml"));
    let state = place.path("project/state");
    let workspace = "[servers.a]\ncommand = 'x'\ncwd = '{project}'\nprofile = 'workspace'\n";
    let offline = "[servers.a]\ncommand = 'x'\ncwd = '{project}'\nprofile = 'offline-workspace'\n";
    let narrow = "[servers.a]\ncommand = 'x'\nfiles = { write = ['{project}/out'] }\n";
    let other = "[servers.other]\ncommand = '/usr/bin/true'\n";
    let project = place.path("project");
    let project = project.to_str().unwrap();
    let state = state.to_str().unwrap();
    let check = |file: &str, text: &str, variables: &[(&str, &str)], expected: Option<&str>| {
        let config = place.load_as(file, &(text.replace("{project}", project) + other), variables);
        match (reason(&config, "a"), expected) {
            (None, None) => {}
            (Some(reason), Some(expected)) => {
                assert!(reason.starts_with(&format!("it may write `{project}")), "{reason}");
                assert!(reason.contains(expected), "{reason}");
                assert!(
                    reason.contains("move that out of the folder, or give the server a narrower `write`"),
                    "{reason}"
                );
                let told =
                    config.warnings.iter().any(|told| told.message.contains("server `a` cannot start"));
                assert!(told, "{:?}", config.warnings);
            }
            (found, _) => panic!("{text}: {found:?} instead of {expected:?}"),
        }
        assert_eq!(reason(&config, "other"), None, "only that server is refused");
    };
    check("bridgehead.toml", workspace, &[], None);
    check("project/bridgehead.toml", workspace, &[], Some("the configuration `"));
    check("project/bridgehead.toml", offline, &[], Some("the configuration `"));
    check("project/bridgehead.toml", narrow, &[], None);
    // A link to the configuration is followed, wherever the link itself lies.
    std::fs::write(place.path("project/real.toml"), "").unwrap();
    check("home/linked.toml", workspace, &[], Some("the configuration `"));
    check(
        "bridgehead.toml",
        &format!("{workspace}env_file = 'project/.env'\n"),
        &[],
        Some("the `env_file` of server `a`"),
    );
    check(
        "bridgehead.toml",
        &format!("[http]\ntoken_file = 'project/token'\n{workspace}"),
        &[],
        Some("the token `"),
    );
    check(
        "bridgehead.toml",
        &format!("[audit]\nfolder = 'project/out/audit'\n{workspace}"),
        &[],
        Some("the record of calls in `"),
    );
    check(
        "bridgehead.toml",
        &format!("[audit]\nfolder = 'project'\n{narrow}"),
        &[],
        Some("the record of calls in `"),
    );
    check(
        "bridgehead.toml",
        &format!("[audit]\nsigning_key_file = 'project/key'\n{workspace}"),
        &[],
        Some("the signing key `"),
    );
    check("bridgehead.toml", workspace, &[("XDG_STATE_HOME", state)], Some("the gateway's state in `"));
    check(
        "bridgehead.toml",
        workspace,
        &[("XDG_RUNTIME_DIR", project)],
        Some("the gateway's control socket in `"),
    );
    check(
        "bridgehead.toml",
        workspace,
        &[("XDG_CONFIG_HOME", project)],
        Some("the user's configuration in `"),
    );

    let program = std::env::current_exe().unwrap();
    let beside = program.parent().unwrap().to_str().unwrap();
    let text = format!("[servers.a]\ncommand = 'x'\nfiles = {{ write = ['{beside}'] }}\n");
    let config = place.load(&text);
    assert!(reason(&config, "a").unwrap().contains("the gateway's"), "{config:?}");
}

/// WALL-1: a confined server must not write what a less confined server runs: its command, paths in its arguments, variables
/// of its interpreter, and its working folder if its program looks for code there. A server that is confined as tightly
/// needs no such protection. No configured value of the other server is shown.
#[test]
fn what_a_less_confined_server_runs_cannot_be_written() {
    let place = Place::new();
    let project = place.path("project");
    let project = project.to_str().unwrap();
    place.file("project/run.py", "");
    place.file("tools/script", &format!("#!{project}/venv/bin/python\n"));
    place.link("tools/link", place.path("project/run.py"));
    let tools = place.path("tools");
    let tools = tools.to_str().unwrap();
    let above = place.path("");
    let above = above.to_str().unwrap().trim_end_matches('/');
    let check = |other: &str, expected: Option<&str>| {
        let text = format!(
            "[servers.a]\ncommand = 'x'\ncwd = '{project}'\nprofile = 'offline-workspace'\n[servers.other]\n{other}\n"
        );
        let config = place.load(&text);
        match (reason(&config, "a"), expected) {
            (None, None) => {}
            (Some(reason), Some(expected)) => {
                assert!(reason.contains(&format!("and with it {expected} of server `other`")), "{reason}");
                assert!(reason.contains("`other` is less confined"), "{reason}");
                assert!(!reason.contains("run.py"), "a value is shown: {reason}");
            }
            (found, _) => panic!("{other}: {found:?} instead of {expected:?}"),
        }
        assert_eq!(reason(&config, "other"), None);
    };
    check(&format!("command = '{project}/run'"), Some("the command"));
    check(&format!("command = './run'\ncwd = '{project}'"), Some("the command"));
    check(&format!("command = '{tools}/link'"), Some("the command"));
    check(&format!("command = '{tools}/script'"), Some("the interpreter"));
    check(&format!("command = 'python3'\nargs = ['-u', '{project}/run.py']"), Some("argument 2"));
    check(&format!("command = 'python3'\nargs = ['run.py']\ncwd = '{project}'"), Some("argument 1"));
    check(&format!("command = 'sh'\nargs = ['-c', 'cd / && exec {project}/run.py']"), Some("argument 2"));
    check(&format!("command = 'node'\nargs = ['--import=file://{project}/run.py', 'x']"), Some("argument 1"));
    check(&format!("command = 'y'\nenv = {{ PYTHONPATH = '/usr/x:{project}/lib' }}"), Some("`PYTHONPATH`"));
    check(&format!("command = 'y'\nenv = {{ PATH = '/usr/bin:{project}/bin' }}"), Some("`PATH`"));
    check(
        &format!("command = 'y'\nenv = {{ NODE_OPTIONS = '--require {project}/run.py' }}"),
        Some("`NODE_OPTIONS`"),
    );
    check(&format!("command = 'y'\nenv = {{ HOME = '{project}' }}"), Some("`~/.npm`"));
    check(
        &format!("command = 'npx'\nargs = ['-y', '@a/b']\ncwd = '{project}'"),
        Some("the working folder (its program looks for code there)"),
    );
    check(
        &format!("command = 'python3'\nargs = ['-m', 'b']\ncwd = '{project}'"),
        Some("the working folder (its program looks for code there)"),
    );
    // With a script, Python looks in the script's folder, whatever options come before it.
    check(&format!("command = 'python3'\nargs = ['-u', '/usr/x.py']\ncwd = '{project}'"), None);
    check(
        &format!("command = 'python3'\nargs = ['-u']\ncwd = '{project}'"),
        Some("the working folder (its program looks for code there)"),
    );
    // A folder in `PATH` counts only if it can be replaced; a code folder counts also if something in it can be written.
    check(&format!("command = 'y'\nenv = {{ PYTHONPATH = '{above}' }}"), Some("`PYTHONPATH`"));
    check(&format!("command = 'y'\nenv = {{ PATH = '/usr/bin:{above}' }}"), None);
    // Nothing in the folder is run.
    check(&format!("command = '/usr/bin/true'\nargs = ['@a/b', 'https://host/x']\ncwd = '{project}'"), None);
    check("command = 'npx'\nargs = ['-y', '@a/b']", None);
    // Confined as tightly, or more tightly.
    let same = format!("cwd = '{project}'\nprofile = 'offline-workspace'");
    check(&format!("command = '{project}/run'\n{same}"), None);
    check(&format!("command = '{project}/run'\ncwd = '{project}'\nprofile = 'offline-readonly'"), None);
    check(&format!("command = '{project}/run'\n{same}\non_missing = 'degrade'"), Some("the command"));
    check(
        &format!("command = '{project}/run'\ncwd = '{project}'\nprofile = 'workspace'"),
        Some("the command"),
    );
    check(&format!("command = '{project}/run'\nnetwork = 'none'"), Some("the command"));
    // The first may read more, the second may write more.
    let files = |read: &str, write: &str| {
        format!(
            "command = '{project}/run'\nnetwork = 'none'\nfiles = {{ read = ['{read}'], write = ['{write}'] }}"
        )
    };
    check(&files("/etc", project), Some("the command"));
    check(&files(project, tools), Some("the command"));
}
