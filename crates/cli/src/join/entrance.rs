//! The way into a gateway: joins one that runs, or starts one and joins that.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bridgehead::control::running;
use bridgehead::{Config, Control};
use bridgehead_front::{JOIN, LINES};
use bridgehead_process::{Detached, detach};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, UPGRADE};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::folder::{self, Lock};
use super::pipe::{Entered, Gateways};
use crate::exit::Exit;
use crate::log;
use crate::output::{self, one_line};
use crate::trust::digest;
use crate::world::World;

/// How long a running gateway may take to answer a request to join: the client waits meanwhile.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// The same for a gateway that was just started, and for which there is no other.
const STARTED_ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// The largest refusal that is read.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// How much of what a starting gateway says is kept.
const MAX_WORDS: u64 = 64 * 1024;
/// How often a gateway is looked for and started before this counts as a failure: its file may change meanwhile.
const ATTEMPTS: usize = 3;
/// Opens the executable that is running, on Linux, even if its file was replaced or removed.
const ITSELF: &str = "/proc/self/exe";

/// Finds and starts gateways for one client.
#[derive(Debug)]
pub(crate) struct Entrance<'w> {
    pub(crate) world: &'w World,
    /// The file that the command line names.
    pub(crate) explicit: Option<&'w Path>,
    /// The warnings about the configuration that the user has seen. They lack those that need its secrets.
    pub(crate) shown: Vec<Value>,
}

/// Why no gateway was entered.
#[derive(Debug)]
pub(crate) enum NotEntered {
    /// This client must be served by this process.
    Alone(String),
    /// It failed; the reason has been told.
    Failed(Exit),
}

/// The connection to a gateway.
type Connection = Entered<OwnedReadHalf, OwnedWriteHalf>;

impl Gateways for Entrance<'_> {
    type Reader = OwnedReadHalf;
    type Writer = OwnedWriteHalf;

    async fn enter(&mut self) -> Result<Connection, Exit> {
        // Most attempts fail for the same reason.
        output::only_once(true);
        let entered = match self.world.without_secrets(self.explicit) {
            Ok(config) => self.find(&config).await.map_err(|refused| match refused {
                NotEntered::Failed(exit) => exit,
                NotEntered::Alone(reason) => {
                    output::talk(&format!("error: no gateway can be joined: {reason}"));
                    Exit::Failure
                }
            }),
            Err(error) => Err(output::configuration_error(&error, false)),
        };
        output::only_once(entered.is_err());
        entered
    }
}

impl Entrance<'_> {
    /// Joins the gateway that serves `config`, or starts one.
    pub(crate) async fn find(&self, config: &Config) -> Result<Connection, NotEntered> {
        let Some(folder) = Control::directory(&self.world.variables) else {
            return Err(NotEntered::Alone("neither XDG_RUNTIME_DIR nor HOME is set".to_owned()));
        };
        folder::check(&folder).map_err(NotEntered::Alone)?;
        let identity = self.world.identity(config);
        let mut looked = Looked::default();
        if let Some(joined) = looked.join_running(&folder, &identity).await {
            return Ok(joined);
        }
        // Clients that start at the same time agree on one of them, which starts the gateway.
        let name = &digest(identity.to_string().as_bytes())[..16];
        let _lock = Lock::take(&folder, name).await.map_err(|error| {
            NotEntered::Alone(format!("`{}` cannot be written: {error}", folder.display()))
        })?;
        for _ in 0..ATTEMPTS {
            if let Some(joined) = looked.join_running(&folder, &identity).await {
                return Ok(joined);
            }
            if let Some(reason) = &looked.differs {
                output::talk(&format!("note: starting another gateway, because {reason}"));
            }
            let socket = self.start(config).await?;
            match join(&socket, &identity, STARTED_ANSWERS_WITHIN).await {
                Ok(joined) => return Ok(joined),
                Err(refused) => tracing::debug!(?refused, "the gateway that was started is another one"),
            }
        }
        output::talk(
            "error: the gateway that was started cannot be joined; its configuration may have changed meanwhile",
        );
        Err(NotEntered::Failed(Exit::Failure))
    }

    /// Starts a detached gateway; returns its control socket when it serves.
    async fn start(&self, config: &Config) -> Result<PathBuf, NotEntered> {
        let failed = |reason: String| {
            output::talk(&format!("error: cannot start a gateway: {reason}"));
            NotEntered::Failed(Exit::Failure)
        };
        let own = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let (folder, file) = self.world.where_to_serve(self.explicit, config);
        let mut arguments: Vec<OsString> = ["serve", "--detached"].map(OsString::from).to_vec();
        arguments.extend(log::options().into_iter().map(OsString::from));
        if let Some(file) = file {
            arguments.extend(["--config".into(), file.into_os_string()]);
        }
        let mut gateway = detach(program(&own, Path::new(ITSELF)), arguments, &folder)
            .map_err(|error| failed(not_started(&own, &error)))?;
        let pid = gateway.pid().unwrap_or_default();
        match hear(&mut gateway).await {
            Ok(ready) => {
                let warnings = ready["warnings"].as_array().into_iter().flatten();
                let is_new = |told: &&Value| !self.shown.iter().any(|shown| is_same(shown, told));
                warnings.filter(is_new).for_each(output::show_told);
                let log =
                    ready["log"].as_str().map_or("no log".to_owned(), |log| format!("its log is {log}"));
                output::talk(&format!(
                    "started a gateway for the clients of this configuration: pid {pid}, {log}"
                ));
                Ok(PathBuf::from(ready["socket"].as_str().unwrap_or_default()))
            }
            Err(words) => {
                let told: Vec<&str> =
                    words.lines().filter(|line| !line.starts_with("configuration: ")).collect();
                if !told.is_empty() {
                    output::relay(&told.join("\n"));
                }
                let exit = gateway.wait().await.map_err(|error| failed(error.to_string()))?;
                match exit.code {
                    Some(1..) if !words.is_empty() => Err(NotEntered::Failed(Exit::of_code(exit.code))),
                    _ => Err(failed(format!("it ended with {exit}"))),
                }
            }
        }
    }
}

/// Whether two warnings are the same. The path of the file may be written in another way.
fn is_same(one: &Value, other: &Value) -> bool {
    ["message", "line", "column"].iter().all(|name| one[*name] == other[*name])
}

/// The program to start, which is this one. If its file is gone, as after an update, that is the executable itself: a gateway of
/// another version could not be joined.
fn program<'p>(own: &'p Path, itself: &'p Path) -> &'p Path {
    if own.exists() || !itself.exists() { own } else { itself }
}

/// Why this program, by its path, cannot be started.
fn not_started(own: &Path, error: &io::Error) -> String {
    if own.exists() {
        return error.to_string();
    }
    // Linux adds a word to the path of a file that is gone.
    let path = own.display().to_string();
    let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
    format!("the program {path} was replaced or removed ({error}); restart this client")
}

/// Waits until a starting gateway serves; returns what it says about itself, or its last words.
async fn hear(gateway: &mut Detached) -> Result<Value, String> {
    let (Some(stdout), Some(stderr)) = (gateway.take_stdout(), gateway.take_stderr()) else {
        return Err(String::new());
    };
    let mut ready = String::new();
    let mut words = Vec::new();
    let hearing = async {
        // Read to its end, so that the gateway never waits for us; what is too much is dropped.
        let mut stderr = stderr;
        let _ = (&mut stderr).take(MAX_WORDS).read_to_end(&mut words).await;
        let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
    };
    let mut stdout = BufReader::new(stdout.take(MAX_WORDS));
    let (_, ()) = tokio::join!(stdout.read_line(&mut ready), hearing);
    serde_json::from_str(&ready).map_err(|_| String::from_utf8_lossy(&words).into_owned())
}

/// What a client has seen of the running gateways.
#[derive(Debug, Default)]
struct Looked {
    /// Why none was joined, if there was one: how the nearest one differs.
    differs: Option<String>,
    /// The sockets of gateways that cannot be reached, and why. They are not asked again.
    unreachable: HashMap<PathBuf, &'static str>,
}

impl Looked {
    /// Joins the first running gateway that is the same.
    async fn join_running(&mut self, folder: &Path, identity: &Value) -> Option<Connection> {
        self.differs = None;
        let mut nearest = (true, usize::MAX);
        for instance in running(folder) {
            let pid = instance.pid;
            let refused = if !instance.is_own() {
                Refusal::Unreachable("its socket belongs to another user")
            } else if identity["version"] != instance.version.as_str() {
                // Not asked: it may not know the question.
                Refusal::Differs { names: vec!["version".to_owned()], message: String::new() }
            } else if let Some(why) = self.unreachable.get(&instance.socket) {
                Refusal::Unreachable(why)
            } else {
                match join(&instance.socket, identity, ANSWERS_WITHIN).await {
                    Ok(joined) => {
                        output::talk(&format!("joined the running gateway with pid {pid}"));
                        return Some(joined);
                    }
                    Err(refused) => refused,
                }
            };
            let (far, what) = match refused {
                Refusal::Differs { names, message } => {
                    let what = if names.is_empty() { one_line(&message, 200) } else { words(&names) };
                    ((names.iter().any(|name| name == "file"), names.len()), what)
                }
                // Nearer than one that certainly serves another file.
                Refusal::Unreachable(why) => {
                    self.unreachable.insert(instance.socket, why);
                    ((true, 0), why.to_owned())
                }
                Refusal::Gone(error) => {
                    tracing::debug!(pid, error, "a gateway cannot be joined");
                    continue;
                }
            };
            if far < nearest {
                nearest = far;
                self.differs = Some(format!("the running one (pid {pid}) cannot be joined: {what}"));
            }
        }
        None
    }
}

/// How a gateway or client differs from another one, for people, and why that counts. Names of variables come from the
/// configuration or from a fixed list; values are not told.
pub(crate) fn words(differs: &[String]) -> String {
    let mut parts = Vec::new();
    let has = |name: &str| differs.iter().any(|one| one == name);
    // With another file the digests of everything else differ too, whatever was digested.
    let other_file = has("file");
    for (name, text, told) in [
        ("version", "it has another version", true),
        ("file", "it has another configuration file", true),
        ("text", "it has another content or mode of the configuration", !other_file),
    ] {
        if told && has(name) {
            parts.push(text.to_owned());
        }
    }
    let below = |prefix: &'static str| differs.iter().filter_map(move |one| one.strip_prefix(prefix));
    let (personal, named): (Vec<&str>, Vec<&str>) =
        below("variables.").partition(|name| bridgehead_process::is_personal(name));
    let programs: Vec<&str> = below("programs.").collect();
    for (names, what, why) in [
        (named, "other values of", "which the configuration names"),
        (personal, "other values of", "which every server gets"),
        (programs, "another PATH, with another program for", ""),
    ] {
        if !names.is_empty() && !other_file {
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            parts.push(format!("it has {what} {}{why}", one_line(&names.join(", "), 400)));
        }
    }
    if parts.is_empty() {
        parts.push("it differs".to_owned());
    }
    parts.join("; ")
}

/// Why a gateway was not joined.
#[derive(Debug)]
enum Refusal {
    /// It is not the same; the names of what differs.
    Differs { names: Vec<String>, message: String },
    /// It runs, but not for this client; why.
    Unreachable(&'static str),
    /// It has just ended.
    Gone(String),
}

/// Joins the gateway behind a socket, which has to answer within a time.
async fn join(socket: &Path, identity: &Value, within: Duration) -> Result<Connection, Refusal> {
    let joining = async {
        let stream = UnixStream::connect(socket).await.map_err(|error| error.to_string())?;
        let user = stream.peer_cred().map_err(|error| error.to_string())?.uid();
        if user != rustix::process::geteuid().as_raw() {
            return Ok(Err(Refusal::Unreachable("it runs as another user")));
        }
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
        tokio::spawn(connection.with_upgrades());
        let request = Request::builder()
            .method("POST")
            .uri(JOIN)
            .header(HOST, "localhost")
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, LINES)
            .body(Full::new(Bytes::from(identity.to_string())))
            .map_err(|error| error.to_string())?;
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upgraded = hyper::upgrade::on(answer).await.map_err(|error| error.to_string())?;
            let parts = upgraded.downcast::<TokioIo<UnixStream>>();
            let parts = parts.map_err(|_| "the connection is lost".to_owned())?;
            let (reader, writer) = parts.io.into_inner().into_split();
            return Ok(Ok(Entered { reader, writer, early: parts.read_buf }));
        }
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        let refused: Value = serde_json::from_slice(&body).unwrap_or_default();
        let names = refused["error"]["differs"].as_array().into_iter().flatten();
        let names = names.filter_map(Value::as_str).map(str::to_owned).collect();
        let message = refused["error"]["message"].as_str().unwrap_or("it takes no clients in").to_owned();
        Ok(Err(Refusal::Differs { names, message }))
    };
    match tokio::time::timeout(within, joining).await {
        Ok(Ok(answered)) => answered,
        Ok(Err(error)) => Err(Refusal::Gone(error)),
        Err(_) => Err(Refusal::Unreachable("it does not answer")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// JOIN-4: the program is started by its path, by its executable if that file is gone, and an error says what to do.
    #[test]
    fn the_program_to_start() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str| place.path().join(name);
        std::fs::write(file("bridgehead"), "").unwrap();
        std::fs::write(file("itself"), "").unwrap();
        let (there, gone) = (file("bridgehead"), file("bridgehead (deleted)"));
        assert_eq!(program(&there, &file("itself")), there);
        assert_eq!(program(&gone, &file("itself")), file("itself"));
        assert_eq!(program(&gone, &file("no system for it")), gone);
        let error = io::Error::other("no");
        assert_eq!(not_started(&there, &error), "no");
        let expected = "was replaced or removed (no); restart this client";
        assert_eq!(not_started(&gone, &error), format!("the program {} {expected}", there.display()));
        let removed = file("removed");
        assert_eq!(not_started(&removed, &error), format!("the program {} {expected}", removed.display()));
    }

    /// JOIN-4: a warning is recognised by what it says and where.
    #[test]
    fn the_same_warning() {
        let told = |message: &str, line: u8, column: u8, file: &str| -> Value {
            json!({"message": message, "line": line, "column": column, "file": file})
        };
        let one = told("a", 1, 2, "x.toml");
        assert!(is_same(&one, &told("a", 1, 2, "/y/x.toml")));
        for other in [told("b", 1, 2, "x.toml"), told("a", 3, 2, "x.toml"), told("a", 1, 3, "x.toml")] {
            assert!(!is_same(&one, &other), "{other}");
        }
    }

    /// JOIN-4: what differs is told in words, variables by name.
    #[test]
    fn differences_in_words() {
        #[track_caller]
        fn check(names: &[&str], expected: &str) {
            assert_eq!(words(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()), expected);
        }
        check(&["version"], "it has another version");
        check(
            &["text", "variables.HOME"],
            "it has another content or mode of the configuration; it has other values of HOME (which every server gets)",
        );
        check(&["file", "text", "variables.HOME", "programs.a"], "it has another configuration file");
        check(&["version", "file"], "it has another version; it has another configuration file");
        check(
            &["programs.a", "programs.b", "variables.KEY", "variables.HOME", "variables.NO_PROXY"],
            "it has other values of KEY (which the configuration names); it has other values of HOME, NO_PROXY (which every \
             server gets); it has another PATH, with another program for a, b",
        );
        check(&["variables"], "it differs");
    }
}
