//! What a confined server must not be able to write: files that configure, record or authorize the gateway, and code that
//! runs less confined than the server itself. A server that can write a folder can also replace the files in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::World;
use super::reach::{Placed, Refusal, writable};
use crate::server::{Confinement, Launch, Network, OnMissing, ServerConfig, Stdio};
use crate::settings::{AuditSettings, HttpSettings, TokenSource};
use crate::trail::Trail;

/// Variables that tell interpreters and loaders where to take code from. docs/isolation.md lists them too.
const CODE_VARIABLES: &[&str] = &[
    "BASH_ENV",
    "BUNDLE_GEMFILE",
    "BUN_INSTALL",
    "CLASSPATH",
    "DENO_DIR",
    "DOTNET_ROOT",
    "DOTNET_STARTUP_HOOKS",
    "ENV",
    "GEM_HOME",
    "GEM_PATH",
    "JAVA_HOME",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LUA_CPATH",
    "LUA_PATH",
    "NODE_OPTIONS",
    "NODE_PATH",
    "NPM_CONFIG_CACHE",
    "NPM_CONFIG_PREFIX",
    "NPM_CONFIG_USERCONFIG",
    "PATH",
    "PERL5LIB",
    "PERL5OPT",
    "PIPX_HOME",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONUSERBASE",
    "RUBYLIB",
    "RUBYOPT",
    "UV_CACHE_DIR",
    "UV_CONFIG_FILE",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_TOOL_DIR",
    "VIRTUAL_ENV",
    "npm_config_cache",
    "npm_config_prefix",
    "npm_config_userconfig",
];

/// Places in a home folder from which programs take code and settings.
const CODE_AT_HOME: &[&str] =
    &[".npm", ".npmrc", ".cache/uv", ".config/uv", ".local/share/uv", ".local/bin", ".local/lib"];

/// Programs that look for code in the folder they run in.
const LAUNCHERS: &[&str] = &[
    "bun", "bunx", "bundle", "cargo", "deno", "dotnet", "go", "make", "npm", "npx", "pnpm", "pnpx", "poetry",
    "rake", "uv", "uvx", "yarn",
];

/// Something that a confined server must not write.
struct Guarded {
    trail: Trail,
    /// Its description, which follows "and with it" in the message.
    what: String,
    /// Whether it is a folder whose contents must not be written either.
    folder: bool,
    /// The server that it belongs to; the gateway, if absent.
    of: Option<usize>,
}

/// The parts of the configuration beside its servers that matter here.
#[derive(Clone, Copy)]
pub(crate) struct Besides<'c> {
    pub(crate) http: &'c HttpSettings,
    pub(crate) audit: &'c AuditSettings,
    pub(crate) keys_file: Option<&'c Path>,
    /// The files that `${file:…}` names.
    pub(crate) secret_files: &'c [PathBuf],
    /// The commands that `${cmd:…}` may name.
    pub(crate) secret_commands: &'c BTreeMap<String, Vec<String>>,
}

/// The servers that may write something guarded, each with the reason.
pub(super) fn refused(
    file: &Path,
    placed: &[Placed<'_>],
    besides: Besides<'_>,
    world: World<'_>,
) -> Vec<(usize, Refusal)> {
    if placed.iter().all(|one| writable(&one.server).is_empty()) {
        return Vec::new();
    }
    let mut guarded = of_the_gateway(file, placed, besides, world);
    for (index, one) in placed.iter().enumerate() {
        if let Launch::Stdio(stdio) = &one.server.launch {
            guarded.extend(of_a_server(index, &one.server, stdio, world));
        }
    }
    let reason = |index: usize, server: &ServerConfig| {
        writable(server).iter().find_map(|place| {
            let covers = |guarded: &&Guarded| {
                let less_confined = guarded.of.is_none_or(|other| {
                    other != index && !is_as_confined(&placed[other].server, server.confinement.as_ref())
                });
                less_confined
                    && (guarded.trail.is_covered_by(place)
                        || guarded.folder && place.starts_with(&guarded.trail.end))
            };
            guarded.iter().find(covers).map(|found| refusal(place, found, placed))
        })
    };
    placed.iter().enumerate().filter_map(|(index, one)| Some((index, reason(index, &one.server)?))).collect()
}

fn refusal(place: &Path, found: &Guarded, placed: &[Placed<'_>]) -> Refusal {
    let (why, cure) = match found.of {
        None => {
            let cure = "move that out of the folder, or give the server a narrower `write`";
            ("which it could use to get out of its confinement".to_owned(), cure.to_owned())
        }
        Some(other) => {
            let name = &placed[other].server.name;
            let cure = format!(
                "give the server a narrower `write`, move that out of the folder, or confine `{name}` as tightly"
            );
            (format!("and `{name}` is less confined"), cure)
        }
    };
    Refusal { reason: format!("it may write `{}`, and with it {}, {why}", place.display(), found.what), cure }
}

/// Whether the server is confined at least as tightly as `than`.
fn is_as_confined(server: &ServerConfig, than: Option<&Confinement>) -> bool {
    let (Some(asked), Some(than)) = (&server.confinement, than) else { return false };
    let files = match (&asked.files, &than.files) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(files), Some(than)) => {
            let below =
                |path: &PathBuf, among: &[PathBuf]| among.iter().any(|folder| path.starts_with(folder));
            files.write.iter().all(|path| below(path, &than.write))
                && files.read.iter().all(|path| below(path, &than.read) || below(path, &than.write))
        }
    };
    let network = asked.network == Network::None || than.network == Network::Full;
    let kept = asked.on_missing == OnMissing::Refuse || than.on_missing == OnMissing::Degrade;
    files && network && kept
}

fn of_the_gateway(
    file: &Path,
    placed: &[Placed<'_>],
    besides: Besides<'_>,
    world: World<'_>,
) -> Vec<Guarded> {
    let Besides { http, audit, keys_file, secret_files, secret_commands } = besides;
    let env_file = |one: &Placed<'_>| {
        // The path is not shown: it may contain the value of a variable.
        let what = format!("the `env_file` of server `{}`", one.server.name);
        let trail = Trail::of(&absolute(world.base, one.env_file.as_ref()?));
        Some(Guarded { trail, what, folder: false, of: None })
    };
    let mut guarded: Vec<Guarded> = placed.iter().filter_map(env_file).collect();
    let mut add = |path: PathBuf, what: &str, folder: bool| {
        let what = format!("{what} `{}`", path.display());
        guarded.push(Guarded { trail: Trail::of(&path), what, folder, of: None });
    };
    add(file.to_owned(), "the configuration", false);
    if let TokenSource::File(file) = &http.token {
        add(absolute(world.base, file), "the token", false);
    }
    if let Some(file) = keys_file {
        add(absolute(world.base, file), "the keys of clients in", false);
    }
    for tls in http.listeners.iter().filter_map(|listener| listener.tls.as_ref()) {
        add(absolute(world.base, &tls.key_file), "the TLS key", false);
        add(absolute(world.base, &tls.cert_file), "the TLS certificate", false);
    }
    for file in secret_files {
        add(absolute(world.base, file), "the secret", false);
    }
    for program in secret_commands.values().filter_map(|words| words.first()) {
        if let Some(program) = self::program(program, world.environment.variable("PATH"), world.base) {
            add(program, "the command of a secret", false);
        }
    }
    for (file, what) in
        [(&audit.signing_key_file, "the signing key"), (&audit.checkpoint_file, "the checkpoints")]
    {
        if let Some(file) = file {
            add(absolute(world.base, file), what, false);
        }
    }
    if let Some(folder) = &audit.folder {
        add(absolute(world.base, folder), "the record of calls in", true);
    }
    let folder =
        |name: &str| world.environment.variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let in_home = |rest: &str| folder("HOME").map(|home| home.join(rest));
    if let Some(state) = folder("XDG_STATE_HOME").or_else(|| in_home(".local/state")) {
        add(state.join("bridgehead"), "the gateway's state in", true);
    }
    if let Some(runtime) = folder("XDG_RUNTIME_DIR") {
        add(runtime.join("bridgehead"), "the gateway's control socket in", true);
    }
    if let Some(config) = folder("XDG_CONFIG_HOME").or_else(|| in_home(".config")) {
        add(config.join("bridgehead"), "the user's configuration in", true);
    }
    if let Ok(program) = std::env::current_exe() {
        add(program.with_file_name("bridgehead-shim"), "the gateway's shim", false);
        add(program, "the gateway's program", false);
    }
    guarded
}

/// The files and folders that decide which code a server runs. Their descriptions show no configured values.
fn of_a_server(index: usize, server: &ServerConfig, stdio: &Stdio, world: World<'_>) -> Vec<Guarded> {
    let cwd = absolute(world.cwd, stdio.cwd.as_deref().unwrap_or(world.cwd));
    let mut guarded = Vec::new();
    let mut add = |path: PathBuf, what: String, folder: bool| {
        guarded.push(Guarded { trail: Trail::of(&path), what, folder, of: Some(index) });
    };
    let variable = |name: &str| match stdio.env.get(name) {
        Some(value) => Some(value.expose()),
        None => world.environment.variable(name),
    };
    let of = |what: &str| format!("{what} of server `{}`", server.name);
    if let Some(program) = program(&stdio.command, variable("PATH"), &cwd) {
        if let Some(interpreter) = interpreter(&program) {
            add(interpreter, of("the interpreter"), false);
        }
        add(program, of("the command"), false);
    }
    for (number, argument) in stdio.args.iter().enumerate() {
        for path in paths_in(argument, &cwd) {
            add(path, of(&format!("argument {}", number + 1)), false);
        }
    }
    for name in CODE_VARIABLES {
        for path in variable(name).into_iter().flat_map(|value| paths_in(value, &cwd)) {
            add(path, of(&format!("`{name}`")), *name != "PATH");
        }
    }
    if let Some(home) = variable("HOME").map(PathBuf::from).filter(|home| home.is_absolute()) {
        for place in CODE_AT_HOME {
            add(home.join(place), of(&format!("`~/{place}`")), true);
        }
    }
    if looks_where_it_runs(stdio) {
        add(cwd, of("the working folder (its program looks for code there)"), false);
    }
    guarded
}

fn absolute(base: &Path, path: &Path) -> PathBuf {
    let path = base.join(path);
    std::path::absolute(&path).unwrap_or(path)
}

/// The program that a command names, found the same way as when the server starts.
fn program(command: &str, search: Option<&str>, cwd: &Path) -> Option<PathBuf> {
    if command.contains('/') {
        return Some(absolute(cwd, Path::new(command)));
    }
    let mut found = std::env::split_paths(search?).map(|folder| absolute(cwd, &folder.join(command)));
    found.find(|path| path.is_file())
}

/// The interpreter that a script names in its first line.
fn interpreter(script: &Path) -> Option<PathBuf> {
    use std::io::Read;

    let mut start = Vec::new();
    std::fs::File::open(script).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = std::str::from_utf8(line).ok()?.split_ascii_whitespace().next()?;
    name.starts_with('/').then(|| PathBuf::from(name))
}

/// The paths in an argument or a variable: texts written as paths, and names of existing files.
fn paths_in<'t>(text: &'t str, cwd: &Path) -> Vec<PathBuf> {
    let apart = |character: char| character.is_whitespace() || "'\"`;|&()<>=:,".contains(character);
    let is_path = |part: &&str| {
        let written = part.starts_with('/') || part.starts_with("./") || part.starts_with("../");
        // The `//…` after `https:` is not a path.
        !part.is_empty() && !part.starts_with("//") && (written || cwd.join(part).symlink_metadata().is_ok())
    };
    // Splitting at `:` leaves `///path` of `file:///path`.
    let without_host =
        |part: &'t str| part.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(part);
    let parts = std::iter::once(text).chain(text.split(apart)).map(without_host);
    let mut paths: Vec<PathBuf> = parts.filter(is_path).map(|part| absolute(cwd, Path::new(part))).collect();
    paths.dedup();
    paths
}

/// Whether the program takes code from the folder that it runs in.
fn looks_where_it_runs(stdio: &Stdio) -> bool {
    let name = Path::new(&stdio.command).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let first = stdio
        .args
        .iter()
        .map(String::as_str)
        .find(|argument| !argument.starts_with('-') || matches!(*argument, "-m" | "-c"));
    match name {
        name if LAUNCHERS.contains(&name) => true,
        // With a script, Python looks in the script's folder instead.
        name if name.starts_with("python") || name.starts_with("pypy") => {
            matches!(first, None | Some("-m" | "-c"))
        }
        _ => false,
    }
}
