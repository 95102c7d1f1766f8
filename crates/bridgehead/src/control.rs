//! The control socket of a running gateway, and the file beside it that describes the gateway.
//!
//! Only the owner can enter the folder. A process that can open the socket is an operator, and may also be a client. Whoever can
//! only read the files is neither: they hold no secret, because a confined server may be allowed to read everything. The
//! gateway removes its files when it ends; the next gateway or command removes the files of one that was killed. If the
//! socket cannot be created, the gateway warns and still serves its clients.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bridgehead_front::serve_control;
pub(crate) use bridgehead_front::{Api, Operators};
use bridgehead_gateway::Gateway;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

/// A file younger than this may belong to a gateway that is just starting.
const YOUNG: Duration = Duration::from_secs(2);

/// The settings of a control socket.
#[derive(Debug, Clone)]
pub struct Control {
    directory: PathBuf,
    config: Option<PathBuf>,
}

impl Control {
    /// A socket in this folder. The folder is created if needed, and must belong to the user alone.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), config: None }
    }

    /// Tells operators which configuration is used.
    #[must_use]
    pub fn config(mut self, file: Option<PathBuf>) -> Self {
        self.config = file;
        self
    }

    /// The folder for these variables: `$XDG_RUNTIME_DIR/bridgehead`, else `$XDG_STATE_HOME/bridgehead/run`, else
    /// `~/.local/state/bridgehead/run`.
    pub fn directory(variables: &BTreeMap<String, String>) -> Option<PathBuf> {
        let folder = |name: &str| variables.get(name).map(Path::new).filter(|path| path.is_absolute());
        folder("XDG_RUNTIME_DIR")
            .map(|runtime| runtime.join("bridgehead"))
            .or_else(|| folder("XDG_STATE_HOME").map(|state| state.join("bridgehead/run")))
            .or_else(|| folder("HOME").map(|home| home.join(".local/state/bridgehead/run")))
    }
}

/// A running gateway, as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// The id of this run.
    pub instance: String,
    /// Its process.
    pub pid: u32,
    /// When it started, in UTC.
    pub started: String,
    /// Its version.
    pub version: String,
    /// Where clients reach it over HTTP.
    pub addresses: Vec<SocketAddr>,
    /// Its configuration file.
    pub config: Option<PathBuf>,
    /// Its control socket.
    pub socket: PathBuf,
    /// Always empty. Programs of release 0.1.0 remove the files of a gateway whose description lacks it.
    #[serde(default)]
    token: String,
}

impl Instance {
    /// Whether its socket belongs to the current user, so that this gateway acts for that user.
    pub fn is_own(&self) -> bool {
        fs::symlink_metadata(&self.socket).is_ok_and(|file| file.uid() == rustix::process::geteuid().as_raw())
    }
}

/// The running gateways of this user, the longest-running first. Removes the files of gateways that are gone.
pub fn running(directory: &Path) -> Vec<Instance> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let young = entry.metadata().and_then(|file| file.modified()).is_ok_and(|time| {
            // A time in the future counts as young.
            time.elapsed().unwrap_or_default() < YOUNG
        });
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => {
                match fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Instance>(&text).ok()) {
                    Some(instance) if answers(&instance.socket) => found.push(instance),
                    _ if young => {}
                    // A gateway of another release, which describes itself otherwise.
                    None if answers(&path.with_extension("sock")) => {}
                    _ => drop((fs::remove_file(&path), fs::remove_file(path.with_extension("sock")))),
                }
            }
            Some("sock") if !young && !path.with_extension("json").exists() && !answers(&path) => {
                drop(fs::remove_file(&path));
            }
            _ => {}
        }
    }
    found.sort_by(|one, other| one.started.cmp(&other.started));
    found
}

/// The control socket of a gateway in this folder.
pub fn socket(directory: &Path, instance: &str) -> PathBuf {
    directory.join(format!("{instance}.sock"))
}

/// Tells operators that a running gateway in this folder now uses another configuration.
///
/// # Errors
/// The file that describes the gateway cannot be read or written.
pub fn set_config(directory: &Path, instance: &str, file: PathBuf) -> io::Result<()> {
    let about = socket(directory, instance).with_extension("json");
    let mut described: Instance = serde_json::from_slice(&fs::read(&about)?)?;
    described.config = Some(file);
    describe(&described, &about)
}

/// Whether a gateway listens on the socket. One that is too busy to accept counts as listening.
fn answers(socket: &Path) -> bool {
    match UnixStream::connect(socket) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// The API of a gateway and, if a control socket is wanted, the task that serves it there.
pub(crate) fn open(
    control: Option<&Control>,
    gateway: &Gateway,
    addresses: &[SocketAddr],
    version: &str,
    operators: Operators,
    max_message_bytes: usize,
    shutdown: &CancellationToken,
) -> (Api, Option<Serving>) {
    let api = Api::new(gateway.clone(), operators, shutdown.clone());
    let Some(Control { directory, config }) = control.cloned() else { return (api, None) };
    let id = gateway.instance();
    let instance = Instance {
        instance: id.to_owned(),
        pid: std::process::id(),
        started: format!("{:.3}", jiff::Timestamp::now()),
        version: version.to_owned(),
        addresses: addresses.to_vec(),
        config,
        socket: socket(&directory, id),
        token: String::new(),
    };
    let (served, gateway, shutdown) = (api.clone(), gateway.clone(), shutdown.clone());
    let (tell, opened) = oneshot::channel();
    // In the background, so that clients do not wait for the file system.
    let serving = tokio::spawn(async move {
        let socket = instance.socket.display().to_string();
        let made = tokio::task::spawn_blocking(move || Files::create(&directory, &instance)).await;
        let listening = made.map_err(io::Error::other).flatten().and_then(|(listener, files)| {
            listener.set_nonblocking(true)?;
            Ok((tokio::net::UnixListener::from_std(listener)?, files))
        });
        match listening {
            Ok((listener, files)) => {
                debug!(socket, "operators are served");
                drop(tell.send(Ok(())));
                serve_control(gateway, listener, served, max_message_bytes, shutdown).await;
                drop(files);
            }
            Err(error) => {
                warn!(socket, %error, "no control socket, so `bridgehead status` does not find this gateway");
                drop(tell.send(Err(error)));
            }
        }
    });
    (api, Some(Serving { task: AbortOnDropHandle::new(serving), opened: Some(opened) }))
}

/// A control socket that is served, or is about to be.
#[derive(Debug)]
pub(crate) struct Serving {
    task: AbortOnDropHandle<()>,
    opened: Option<oneshot::Receiver<io::Result<()>>>,
}

impl Serving {
    /// Waits until the socket can be used; the first call returns why it cannot.
    pub(crate) async fn opened(&mut self) -> io::Result<()> {
        let Some(opened) = self.opened.take() else { return Ok(()) };
        opened.await.unwrap_or_else(|_| Err(io::Error::other("the gateway stops")))
    }

    /// Waits for its end.
    pub(crate) async fn ended(self) {
        drop(self.task.await);
    }
}

/// The files of one gateway; dropping this removes them.
#[derive(Debug)]
struct Files {
    socket: PathBuf,
    about: PathBuf,
}

impl Files {
    fn create(directory: &Path, instance: &Instance) -> io::Result<(UnixListener, Self)> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let folder = fs::metadata(directory)?;
        if folder.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("its folder belongs to another user"));
        }
        if folder.mode() & 0o077 != 0 {
            fs::set_permissions(directory, Permissions::from_mode(0o700))?;
        }
        // Removes the files of gateways that are gone.
        drop(running(directory));
        let listener = UnixListener::bind(&instance.socket)?;
        let files = Self { socket: instance.socket.clone(), about: instance.socket.with_extension("json") };
        fs::set_permissions(&files.socket, Permissions::from_mode(0o600))?;
        describe(instance, &files.about)?;
        Ok((listener, files))
    }
}

/// Writes the file that describes a gateway. Under another name first, so that no reader sees half of it.
fn describe(instance: &Instance, about: &Path) -> io::Result<()> {
    let draft = about.with_extension("draft");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(&serde_json::to_vec_pretty(instance)?)?;
    fs::rename(&draft, about)
}

impl Drop for Files {
    fn drop(&mut self) {
        drop((fs::remove_file(&self.about), fs::remove_file(&self.socket)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_follows_the_variables() {
        #[track_caller]
        fn check(variables: &[(&str, &str)], expected: Option<&str>) {
            let variables =
                variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(Control::directory(&variables).as_deref(), expected.map(Path::new));
        }
        let all = [("XDG_RUNTIME_DIR", "/run/user/7"), ("XDG_STATE_HOME", "/state"), ("HOME", "/home/me")];
        check(&all, Some("/run/user/7/bridgehead"));
        check(&all[1..], Some("/state/bridgehead/run"));
        check(&all[2..], Some("/home/me/.local/state/bridgehead/run"));
        check(&[("XDG_RUNTIME_DIR", ""), ("HOME", "relative")], None);
        check(&[], None);
    }

    fn instance(directory: &Path, id: &str) -> Instance {
        Instance {
            instance: id.to_owned(),
            pid: 1,
            started: id.to_owned(),
            version: "1".to_owned(),
            addresses: Vec::new(),
            config: None,
            socket: directory.join(format!("{id}.sock")),
            token: String::new(),
        }
    }

    /// AUD-5: each gateway has its own files, which only their owner may read, and which it removes at its end.
    #[test]
    fn the_files_of_several_gateways() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("deep/run");
        let made: Vec<_> = ["b", "a"]
            .iter()
            .map(|id| Files::create(&directory, &instance(&directory, id)).unwrap())
            .collect();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        assert_eq!((mode(&directory.join("a.sock")), mode(&directory.join("a.json"))), (0o600, 0o600));
        let ids: Vec<String> = running(&directory).into_iter().map(|instance| instance.instance).collect();
        assert_eq!(ids, ["a", "b"], "the oldest first");
        drop(made);
        assert_eq!(running(&directory), []);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }

    /// AUD-5: the files of a killed gateway are removed, but not files that are just being created.
    #[test]
    fn stale_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let (listener, files) = Files::create(directory, &instance(directory, "gone")).unwrap();
        drop(listener);
        std::mem::forget(files);
        drop(UnixListener::bind(directory.join("alone.sock")).unwrap());
        fs::write(directory.join("broken.json"), "{").unwrap();
        let other_release = UnixListener::bind(directory.join("other.sock")).unwrap();
        fs::write(directory.join("other.json"), "{}").unwrap();
        assert_eq!(running(directory), []);
        assert_eq!(fs::read_dir(directory).unwrap().count(), 6, "all are too young to be judged");
        let old = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let no_flags = rustix::fs::AtFlags::empty();
            rustix::fs::utimensat(rustix::fs::CWD, entry.path(), &times, no_flags).unwrap();
        }
        assert_eq!(running(directory), []);
        assert_eq!(fs::read_dir(directory).unwrap().count(), 2, "a gateway that answers keeps its files");
        drop(other_release);
        assert_eq!(running(directory), []);
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_others_may_enter_is_closed_to_them() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let made = Files::create(folder.path(), &instance(folder.path(), "a")).unwrap();
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
        drop(made);
        let long = folder.path().join("x".repeat(120));
        assert!(Files::create(&long, &instance(&long, "a")).is_err(), "sockets have short paths");
    }
}
