//! Where secrets come from, and that they go nowhere else.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed assumption is a failed test")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bridgehead_config::{Config, ConfigError, Environment, Launch, Remote, Stdio, TokenSource, load};

const SECRET: &str = "hunter2-of-the-file";
const PRINTED: &str = "hunter2-of-the-command";

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: &str, mode: u32) {
        std::fs::write(self.path(name), content).unwrap();
        std::fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
    }

    fn load(&self, text: &str, environment: &Environment) -> Result<Config, ConfigError> {
        std::fs::write(self.path("bridgehead.toml"), text).unwrap();
        load(Some("bridgehead.toml".as_ref()), environment, self.0.path())
    }

    #[track_caller]
    fn read(&self, text: &str, environment: &Environment) -> Config {
        self.load(text, environment).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn variables() -> Environment {
    let variables = [
        ("HOME", "/home/x"),
        ("GITHUB_TOKEN", "t"),
        ("PLAIN", "p"),
        ("ODD", "ghp_0123456789abcdefghijABCDEFGHIJ012345"),
    ];
    Environment::read(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into()).unwrap()
}

/// An environment whose commands print a secret, and how often they ran.
fn running(answer: Result<&'static str, &'static str>) -> (Environment, Arc<AtomicUsize>) {
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let environment = variables().running(Arc::new(move |command| {
        count.fetch_add(1, Ordering::Relaxed);
        assert_eq!((command.program, command.args), ("pass", ["show".to_owned(), "x".to_owned()].as_slice()));
        assert_eq!((command.within, command.most), (Duration::from_secs(10), 64 << 10));
        assert!(command.folder.join("bridgehead.toml").is_file());
        answer.map(|text| text.as_bytes().to_vec()).map_err(str::to_owned)
    }));
    (environment, ran)
}

#[track_caller]
fn stdio(config: &Config) -> &Stdio {
    match &config.servers[0].launch {
        Launch::Stdio(stdio) => stdio,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn remote(config: &Config) -> &Remote {
    match &config.servers[0].launch {
        Launch::Remote(remote) => remote,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn reason(config: &Config) -> &str {
    match &config.servers[0].launch {
        Launch::Unusable { reason } => reason,
        other => panic!("{other:?}"),
    }
}

const COMMANDS: &str = "[secrets]\ncommands = { vault = [\"pass\", \"show\", \"x\"] }\n";

/// ACC-8: files and listed commands fill in values beside variables; a command runs once for a load, and again for the next.
#[test]
fn secrets_are_filled_in() {
    let place = Place::new();
    place.file("token", &format!("{SECRET}\n"), 0o600);
    let (environment, ran) = running(Ok("hunter2-of-the-command\n"));
    let text = format!(
        "{COMMANDS}[servers.a]\ncommand = 'x'\n\
         env = {{ A = 'Bearer ${{file:token}}', B = '${{cmd:vault}}', C = '${{cmd:vault}}${{PLAIN}}', D = '$${{file:token}}' }}\n"
    );
    let read = place.read(&text, &environment);
    let expose = |name: &str| stdio(&read).env[name].expose().to_owned();
    assert_eq!(expose("A"), format!("Bearer {SECRET}"));
    assert_eq!((expose("B"), expose("C")), (PRINTED.to_owned(), format!("{PRINTED}p")));
    assert_eq!(expose("D"), "${file:token}");
    assert_eq!(ran.load(Ordering::Relaxed), 1);
    assert!(read.secrets.used && read.secrets.commands.contains_key("vault"));
    assert_eq!(read.interpolated.into_iter().collect::<Vec<_>>(), ["PLAIN"]);

    place.file("token", "other", 0o400);
    let again = place.read(&text, &environment);
    assert_eq!(stdio(&again).env["A"].expose(), "Bearer other");
    assert_eq!(ran.load(Ordering::Relaxed), 2);
    assert!(!place.read(COMMANDS, &environment).secrets.used);
    assert_eq!(ran.load(Ordering::Relaxed), 2, "a command that no value refers to does not run");
}

/// ACC-8: secrets of remote servers and of the gateway itself.
#[test]
fn secrets_of_addresses_and_clients() {
    let place = Place::new();
    place.file("token", SECRET, 0o600);
    let (environment, _) = running(Ok(PRINTED));
    let text = format!(
        "{COMMANDS}[servers.a]\nurl = 'https://h/${{file:token}}'\nproxy = 'http://me:${{cmd:vault}}@proxy:1'\n\
         headers = {{ Authorization = 'Bearer ${{cmd:vault}}' }}\n\
         [auth.issuers.corp]\nissuer = 'https://a'\naudiences = ['a']\n\
         introspection = {{ client_id = 'me', client_secret = '${{file:token}}' }}\n"
    );
    let read = place.read(&text, &environment);
    assert_eq!(remote(&read).url.target(), format!("/{SECRET}"));
    assert_eq!(remote(&read).headers["Authorization"].expose(), format!("Bearer {PRINTED}"));
    assert!(remote(&read).proxy.is_some());
    let client = read.auth.issuers[0].introspection.as_ref().unwrap();
    assert_eq!(client.client_secret.expose(), SECRET);
    let printed = format!("{read:?}");
    assert!(!printed.contains("hunter2"), "{printed}");
}

/// ACC-8: a secret file that others can read disables its server, with the cure; `allow_group_read` admits the group.
#[test]
fn exposed_files() {
    let place = Place::new();
    let text = "[servers.a]\ncommand = 'x'\nenv = { A = '${file:token}' }\n";
    let path = place.path("token");
    for (mode, alone, with_group) in [(0o600, true, true), (0o640, false, true), (0o644, false, false)] {
        place.file("token", SECRET, mode);
        for (head, usable) in [("", alone), ("[secrets]\nallow_group_read = true\n", with_group)] {
            let read = place.read(&format!("{head}{text}"), &variables());
            if usable {
                assert_eq!(stdio(&read).env["A"].expose(), SECRET);
                assert!(read.warnings.is_empty());
                continue;
            }
            assert!(reason(&read).contains(&format!("(mode {mode:o})")), "{}", reason(&read));
            let told = ConfigError(read.warnings.clone()).to_string();
            assert!(told.contains(&format!("run `chmod 600 {}`", path.display())), "{told}");
            assert!(!told.contains(SECRET) && !format!("{read:?}").contains(SECRET), "{told}");
        }
    }
}

/// ACC-8: a token file, a TLS key and a client's secret that others can read are errors with the cure, at their place.
#[test]
fn exposed_files_of_the_gateway() {
    let place = Place::new();
    place.file("token", SECRET, 0o644);
    place.file("key.pem", SECRET, 0o640);
    let cure = |name: &str| format!("run `chmod 600 {}`", place.path(name).display());
    let introspected = "[auth.issuers.corp]\nissuer = 'https://a'\naudiences = ['a']\n\
                        introspection = { client_id = 'me', client_secret = '${file:token}' }\n";
    let tls = "[http.listeners.a]\nlisten = '127.0.0.1:1'\ntls.cert_file = 'c'\ntls.key_file = 'key.pem'\n";
    for (text, name, key, line) in [
        ("[http]\ntoken_file = 'token'\n", "token", "`token_file`:", "bridgehead.toml:2:14"),
        (tls, "key.pem", "`key_file`:", "bridgehead.toml:4:16"),
        (introspected, "token", "`client_secret`:", "bridgehead.toml:4:53"),
    ] {
        let told = place.load(text, &variables()).unwrap_err().to_string();
        for part in [key, line, cure(name).as_str()] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains(SECRET), "{told}");
    }
    let allowed = format!("[secrets]\nallow_group_read = true\n{tls}");
    let read = place.read(&allowed, &variables());
    assert!(read.http.allow_group_read && read.auth.allow_group_read && read.http.listeners[0].tls.is_some());
    place.file("token", SECRET, 0o600);
    let read = place.read("[http]\ntoken_file = 'token'\n", &variables());
    assert_eq!(read.http.token, TokenSource::File(place.path("token")));
    assert!(!read.http.allow_group_read && !read.auth.allow_group_read);
}

/// ACC-8: what cannot be read disables its server, without a word of what a command printed.
#[test]
fn secrets_that_cannot_be_read() {
    let place = Place::new();
    let (fails, _) = running(Err("it ended with exit status 1"));
    let long: &'static str = "x".repeat((64 << 10) + 1).leak();
    let (prints_too_much, _) = running(Ok(long));
    let server = |value: &str| format!("{COMMANDS}[servers.a]\ncommand = 'x'\nenv = {{ A = '{value}' }}\n");
    place.file("long", long, 0o600);
    for (value, environment, expected) in [
        ("${file:missing}", &fails, "cannot be read"),
        ("${file:long}", &fails, "longer than 65536 bytes"),
        ("${file:.}", &fails, "not a regular file"),
        ("${cmd:vault}", &fails, "gave no secret: it ended with exit status 1"),
        ("${cmd:vault}", &prints_too_much, "printed more than 65536 bytes"),
        ("${cmd:vault}", &variables(), "cannot run here"),
    ] {
        let read = place.read(&server(value), environment);
        assert!(reason(&read).contains(expected), "{expected}: {}", reason(&read));
        assert_eq!(read.warnings.len(), 1);
        assert!(!ConfigError(read.warnings).to_string().contains("xxx"));
    }
    std::fs::write(place.path("bytes"), [0xff]).unwrap();
    std::fs::set_permissions(place.path("bytes"), Permissions::from_mode(0o600)).unwrap();
    assert!(reason(&place.read(&server("${file:bytes}"), &fails)).contains("UTF-8"));
}

/// One mistake: its message and a part of the cure.
#[track_caller]
fn check(text: &str, message: &str, contains: &str) {
    let place = Place::new();
    let (environment, ran) = running(Ok(PRINTED));
    let error = place.load(text, &environment).unwrap_err();
    let told = error.to_string();
    assert_eq!(error.0.len(), 1, "{told}");
    assert_eq!(error.0[0].message, message);
    assert!(told.contains(contains), "{contains:?} is missing: {told}");
    assert_eq!(ran.load(Ordering::Relaxed), 0, "the secret was read: {told}");
}

/// ACC-8: a secret does not belong into arguments, nor anywhere else where others would see it; the error names `env`.
#[test]
fn arguments_hold_no_secrets() {
    let args =
        |argument: &str| format!("{COMMANDS}[servers.a]\ncommand = 'x'\nargs = ['-y', '{argument}']\n");
    let seen = |what: &str| {
        format!("`args`: `{what}` is a secret, and every user of this machine can see arguments")
    };
    check(&args("--token=${file:t}"), &seen("${file:…}"), "pass it in `env`");
    check(&args("${cmd:vault}"), &seen("${cmd:…}"), "env = { NAME = \"${cmd:…}\" }");
    check(&args("${GITHUB_TOKEN}"), &seen("${GITHUB_TOKEN}"), "env = { NAME = \"${GITHUB_TOKEN}\" }");
    check(&args("${API_KEY:-none}"), &seen("${API_KEY}"), "pass it in `env`");
    check(&args("${ODD}"), &seen("${ODD}"), "pass it in `env`");
    let key = |line: &str| format!("{COMMANDS}[servers.a]\n{line}\n");
    let here = |key: &str| format!("`{key}`: `${{cmd:…}}` is a secret, which does not belong here");
    check(&key("command = '${cmd:vault}'"), &here("command"), "`env`, `headers`, `url` or `proxy`");
    check(&key("command = 'x'\ncwd = '${cmd:vault}'"), &here("cwd"), "`env`");
    check(&key("command = 'x'\nenv_file = '${cmd:vault}'"), &here("env_file"), "`env`");
    check(&key("command = 'x'\nroots = ['${cmd:vault}']"), &here("roots"), "`env`");

    let place = Place::new();
    let plain = "[servers.a]\ncommand = 'x'\nargs = ['${HOME}', '${PLAIN}', '$${file:x}', '${NO:-d}']\n";
    assert_eq!(stdio(&place.read(plain, &variables())).args, ["/home/x", "p", "${file:x}", "d"]);
}

/// ACC-8: mistakes in `[secrets]` and in references to it.
#[test]
fn mistakes() {
    let value = |value: &str| format!("{COMMANDS}[servers.a]\ncommand = 'x'\nenv = {{ A = '{value}' }}\n");
    check(
        &value("${cmd:valt}"),
        "`env.A`: there is no command `valt` in `[secrets]`",
        "did you mean `${cmd:vault}`?",
    );
    check(
        &value("${cmd:other}"),
        "`env.A`: there is no command `other` in `[secrets]`",
        "commands = { other =",
    );
    check(&value("${cmd:}"), "`env.A`: a `${` does not begin a variable", "`${cmd:NAME}`");
    check("[secrets]\ncommands = { 'a b' = ['x'] }\n", "`a b` cannot be the name of a command", "letters");
    check("[secrets]\ncommands = { a = [] }\n", "the command `a` has no program", "arguments");
    check("[secrets]\ncommands = { a = [''] }\n", "the command `a` has no program", "arguments");
    check(
        "[secrets]\ncommands = { a = 'pass show' }\n",
        "`commands` must be a table of lists of strings, found a string",
        "expected a table of lists",
    );
}

/// ACC-8: a file that nobody has agreed to is looked at without reading a file or running a command.
#[test]
fn looking_reads_no_secrets() {
    let place = Place::new();
    let (environment, ran) = running(Ok(PRINTED));
    let text = format!(
        "{COMMANDS}[servers.a]\ncommand = 'x'\nenv = {{ A = '${{cmd:vault}}', B = '${{file:missing}}' }}\n\
         [servers.b]\nurl = 'https://h/${{file:missing}}'\nheaders = {{ X = '${{cmd:vault}}' }}\n"
    );
    let read = place.read(&text, &environment.without_secrets());
    assert_eq!(stdio(&read).env["A"].expose(), "${cmd:vault}");
    assert_eq!(stdio(&read).env["B"].expose(), format!("${{file:{}}}", place.path("missing").display()));
    assert!(matches!(read.servers[1].launch, Launch::Remote(_)), "{:?}", read.servers[1]);
    assert!(read.secrets.used && read.warnings.is_empty());
    assert_eq!(ran.load(Ordering::Relaxed), 0);
}

/// JOIN-3: variables of `env_file` fill in values before those of the environment; they are not variables of the environment, and
/// a server gets only those that its own values name.
#[test]
fn variables_of_a_file() {
    let place = Place::new();
    place.file("own.env", &format!("# tokens\nMY_TOKEN='{SECRET}'\nPLAIN=of-the-file\n"), 0o600);
    let text = "[secrets]\nenv_file = 'own.env'\n[servers.a]\ncommand = 'x'\nargs = ['${HOME}']\n\
                env = { A = 'Bearer ${MY_TOKEN}', B = '${PLAIN}', C = '${GITHUB_TOKEN}' }\n";
    let read = place.read(text, &variables());
    let expose = |name: &str| stdio(&read).env[name].expose().to_owned();
    assert_eq!(expose("A"), format!("Bearer {SECRET}"));
    assert_eq!((expose("B"), expose("C")), ("of-the-file".to_owned(), "t".to_owned()));
    assert_eq!(stdio(&read).env.len(), 3);
    assert_eq!(read.interpolated.iter().collect::<Vec<_>>(), ["GITHUB_TOKEN", "HOME"]);
    assert_eq!(read.secrets.env_file, Some(place.path("own.env")));
    assert!(read.secrets.used && read.warnings.is_empty());
    assert!(!format!("{read:?}").contains(SECRET));

    let looked_at = place.read(text, &variables().without_secrets());
    assert_eq!(stdio(&looked_at).env["A"].expose(), "Bearer ${MY_TOKEN}");
    assert_eq!(
        looked_at.interpolated, read.interpolated,
        "the id of a configuration does not depend on who reads it"
    );
    assert!(looked_at.secrets.used && looked_at.warnings.is_empty());
    let unused = "[secrets]\nenv_file = 'own.env'\n[servers.a]\ncommand = 'x'\n";
    assert!(!place.read(unused, &variables()).secrets.used);
}

/// JOIN-3: a value of `env_file` does not belong into arguments, and a file that cannot be used disables the servers that need it.
#[test]
fn variables_of_a_file_that_cannot_be_used() {
    let place = Place::new();
    place.file("own.env", "MINE=abc\n", 0o600);
    let server =
        |line: &str| format!("[secrets]\nenv_file = 'own.env'\n[servers.a]\ncommand = 'x'\n{line}\n");
    let told = place.load(&server("args = ['${MINE}']"), &variables()).unwrap_err().to_string();
    assert!(told.contains("`args`: `${MINE}` is a secret"), "{told}");
    let text = server("env = { A = '${MINE}' }\n[servers.b]\ncommand = 'x'");
    for (content, mode, expected) in [
        ("MINE=abc\n", 0o644, "`env_file`: others than its owner can use"),
        ("MINE=abc\nhunter2\n", 0o600, "`env_file`: line 2 is not `NAME=value`"),
        ("OTHER=abc\n", 0o600, "the variable `MINE` is not set"),
    ] {
        place.file("own.env", content, mode);
        let read = place.read(&text, &variables());
        assert!(reason(&read).contains(expected), "{expected}: {}", reason(&read));
        assert!(
            matches!(read.servers[1].launch, Launch::Stdio(_)),
            "only the server that needs it is disabled"
        );
        let told = ConfigError(read.warnings).to_string();
        assert!(!told.contains("abc") && !told.contains("hunter2"), "{told}");
    }
    std::fs::remove_file(place.path("own.env")).unwrap();
    let read = place.read(&text, &variables());
    assert!(reason(&read).contains("own.env` cannot be read"), "{}", reason(&read));
}

/// ACC-8: a client's file refers to no secrets, and may still have variables of any name in its arguments.
#[test]
fn a_client_file_has_variables_only() {
    let place = Place::new();
    place.file("token", SECRET, 0o600);
    let text = r#"{"mcpServers": {
        "a": {"command": "x", "env": {"A": "${file:token}"}},
        "b": {"command": "x", "env": {"A": "${cmd:vault}"}},
        "c": {"command": "x", "args": ["--token", "${GITHUB_TOKEN}"]}
    }}"#;
    std::fs::write(place.path(".mcp.json"), text).unwrap();
    let (environment, ran) = running(Ok(PRINTED));
    let read = load(Some(".mcp.json".as_ref()), &environment, place.0.path()).unwrap();
    assert!(reason(&read).contains("`${file:…}` works only in a `bridgehead.toml`"), "{}", reason(&read));
    assert!(
        matches!(&read.servers[1].launch, Launch::Unusable { reason } if reason.contains("`${cmd:…}` works only"))
    );
    assert!(matches!(&read.servers[2].launch, Launch::Stdio(stdio) if stdio.args == ["--token", "t"]));
    assert_eq!(ran.load(Ordering::Relaxed), 0);
}

/// ACC-8: a confined server that could write a secret, the command of one, the keys of clients or a TLS key is refused.
#[test]
fn what_a_confined_server_must_not_write() {
    let place = Place::new();
    let folder = place.0.path().canonicalize().unwrap();
    for inner in ["secrets", "bin", "work", "etc"] {
        std::fs::create_dir(folder.join(inner)).unwrap();
    }
    place.file("secrets/token", SECRET, 0o600);
    place.file("bin/pass", "", 0o700);
    for (write, expected) in [
        ("work", None),
        ("secrets", Some("the secret `")),
        ("bin", Some("the command of a secret `")),
        ("etc/keys", Some("the keys of clients in `")),
        ("etc/tls", Some("the TLS key `")),
    ] {
        let text = format!(
            "[secrets]\ncommands = {{ vault = ['bin/pass'] }}\n[auth]\nkeys_file = 'etc/keys/keys.toml'\n\
             [http.listeners.a]\nlisten = 'unix:s'\n[http.listeners.b]\nlisten = '127.0.0.1:1'\n\
             tls.cert_file = 'etc/tls/cert'\ntls.key_file = 'etc/tls/key'\n\
             [servers.a]\ncommand = '/bin/true'\nenv = {{ A = '${{file:secrets/token}}' }}\n\
             [servers.a.files]\nwrite = ['{write}']\n"
        );
        let read = place.read(&text, &variables());
        let found = match &read.servers[0].launch {
            Launch::Unusable { reason } => Some(reason.clone()),
            _ => None,
        };
        match (&found, expected) {
            (None, None) => {}
            (Some(reason), Some(expected)) if reason.contains(expected) => {}
            _ => panic!("{write}: expected {expected:?}, found {found:?}"),
        }
    }
}
