//! What this system can keep, found out by trying: a program is started that wants out, and says whether it got there.
//!
//! The program is the shim under another argument, so that nothing else has to be installed.

use std::path::Path;
#[cfg(target_os = "linux")]
use std::time::Duration;

#[cfg(target_os = "linux")]
use crate::{Breach, Child, Confinement, Containment, Enforced, Files, Limits, SpawnError, Spec};

/// What was found out about one protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which it is.
    pub protection: Protection,
    /// How it is kept, or why it is not.
    pub outcome: Result<String, String>,
    /// Why it is not kept better, and what would help; nothing if it cannot be better.
    pub better: Option<String>,
}

impl Finding {
    fn plain(protection: Protection, outcome: Result<String, String>) -> Self {
        Self { protection, outcome, better: None }
    }
}

/// What a system may be able to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Whole trees of processes end with the gateway.
    Tree,
    /// Memory of a tree.
    Memory,
    /// Processes of a tree.
    Processes,
    /// Files.
    Files,
    /// The network.
    Network,
    /// Sockets of other programs of the machine.
    Sockets,
    /// Signals to others.
    Signals,
    /// System calls that lead around the rest.
    Calls,
    /// Privileges of root.
    Privileges,
}

impl Protection {
    /// As people and programs read it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::Files => "files",
            Self::Network => "network",
            Self::Sockets => "sockets",
            Self::Signals => "signals",
            Self::Calls => "calls",
            Self::Privileges => "privileges",
        }
    }

    /// What it is good for.
    #[must_use]
    pub const fn purpose(self) -> &'static str {
        match self {
            Self::Tree => "all processes of a server end with it, and with the gateway",
            Self::Memory => "`max_memory_mb`",
            Self::Processes => "`max_processes`",
            Self::Files => "`files`",
            Self::Network => "`network = \"none\"`",
            Self::Sockets => {
                "no way to other programs by sockets of this machine, where `files` or `network` is written"
            }
            Self::Signals => {
                "no signal to the gateway or other servers, where `files` or `network` is written"
            }
            Self::Calls => "no system call around the rest, where `files` or `network` is written",
            Self::Privileges => "a server of root has no privileges, where `files` or `network` is written",
        }
    }

    /// What makes it work where it does not.
    #[must_use]
    pub const fn cure(self) -> &'static str {
        match self {
            Self::Tree | Self::Memory | Self::Processes => {
                "install `bridgehead-shim` beside `bridgehead`; it exists for Linux only"
            }
            Self::Files => {
                "a kernel with Landlock of version 3 (6.2 or later, with `landlock` in `lsm=`); in a container, a runtime whose \
                 seccomp profile allows its calls (Docker 20.10.8 or later)"
            }
            Self::Network | Self::Sockets | Self::Calls => {
                "a kernel with seccomp filters (`CONFIG_SECCOMP_FILTER`), on x86_64, aarch64 or riscv64"
            }
            Self::Signals => "a kernel whose Landlock has scopes (version 6, from 6.12 on)",
            Self::Privileges => {
                "run the gateway as a user other than root, or with `CAP_SETPCAP` (Docker: `--cap-add SETPCAP`)"
            }
        }
    }
}

/// The argument that makes a shim the program that wants out.
#[cfg(target_os = "linux")]
const ASKED: &str = "try-to-get-out";
/// How long a trial may take.
#[cfg(target_os = "linux")]
const PATIENCE: Duration = Duration::from_secs(20);

/// Tries everything. `outside` is a file that a confined program is not given.
///
/// Must be called within a tokio runtime that has its I/O and time drivers enabled.
pub async fn try_all(outside: &Path) -> Vec<Finding> {
    #[cfg(target_os = "linux")]
    {
        let mut findings = vec![tree().await, memory().await, processes().await];
        findings.extend(walls(outside).await);
        findings
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = outside;
        use Protection as P;
        [
            P::Tree,
            P::Memory,
            P::Processes,
            P::Files,
            P::Network,
            P::Sockets,
            P::Signals,
            P::Calls,
            P::Privileges,
        ]
        .map(|protection| Finding::plain(protection, Err("this is not Linux".to_owned())))
        .to_vec()
    }
}

/// Becomes the program that wants out, if it was started as one.
#[cfg(target_os = "linux")]
pub(crate) fn main_if_asked() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|argument| argument != ASKED) {
        return;
    }
    let about = arguments.next().unwrap_or_default();
    let code = match about.to_str().and_then(|about| about.parse::<usize>().ok()) {
        Some(megabytes) => take(megabytes),
        None => i32::from(get_out(Path::new(&about)).is_err()),
    };
    std::process::exit(code);
}

/// Takes memory, and holds it for as long as it takes to be noticed.
#[cfg(target_os = "linux")]
fn take(megabytes: usize) -> i32 {
    let mut taken = Vec::new();
    for number in 0..megabytes {
        taken.push(vec![u8::try_from(number & 127).unwrap_or(1) | 1; 1 << 20]);
    }
    std::thread::sleep(PATIENCE / 2);
    i32::from(taken.is_empty())
}

#[cfg(target_os = "linux")]
fn get_out(outside: &Path) -> std::io::Result<()> {
    use std::io::{ErrorKind, Write};
    use std::net::TcpListener;
    use std::os::unix::net::UnixDatagram;

    fn refused<T>(outcome: std::io::Result<T>) -> bool {
        outcome.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    }
    let parent = rustix::process::getppid().map_or(Ok(()), rustix::process::test_kill_process);
    let memory_file = rustix::fs::memfd_create("trial", rustix::fs::MemfdFlags::CLOEXEC);
    let powerless = rustix::thread::capabilities(None).is_ok_and(|has| has.permitted.is_empty());
    let held = [
        (Protection::Files, refused(std::fs::File::open(outside))),
        (Protection::Network, refused(TcpListener::bind("127.0.0.1:0"))),
        (Protection::Sockets, refused(UnixDatagram::unbound())),
        (Protection::Signals, refused(parent.map_err(Into::into))),
        (Protection::Calls, refused(memory_file.map_err(Into::into))),
        (Protection::Privileges, powerless),
    ];
    let mut out = std::io::stdout();
    for (protection, held) in held {
        writeln!(out, "{} {held}", protection.as_str())?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn spec(argument: &Path, limits: Limits, confinement: Option<Confinement>) -> Option<Spec> {
    let program = crate::keeper::chosen()?;
    Some(Spec {
        program: program.to_str()?.to_owned(),
        args: vec![ASKED.to_owned(), argument.to_str()?.to_owned()],
        env: std::collections::BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cwd: Some("/".into()),
        limits,
        confinement,
    })
}

#[cfg(target_os = "linux")]
const NO_SHIM: &str = "the shim is not installed";

#[cfg(target_os = "linux")]
async fn start(spec: Option<Spec>) -> Result<Child, String> {
    let spec = spec.ok_or_else(|| NO_SHIM.to_owned())?;
    crate::start(&spec, Box::new(|_| {})).await.map_err(|error| match error {
        SpawnError::Ungrouped { why, .. } => why.to_owned(),
        other => other.to_string(),
    })
}

/// Waits for the end of one that has to be ended by its limits.
#[cfg(target_os = "linux")]
async fn breach(mut child: Child) -> (Option<Breach>, Child) {
    let _ = tokio::time::timeout(PATIENCE, child.wait()).await;
    (child.breach(), child)
}

#[cfg(target_os = "linux")]
async fn tree() -> Finding {
    let outcome = match start(spec(Path::new("0"), Limits::default(), None)).await {
        Ok(child) => match child.containment() {
            Containment::Tree => Ok("by a shim, which nothing below it can leave".to_owned()),
            Containment::Group => Err("servers are kept as process groups, which daemons leave".to_owned()),
        },
        Err(reason) => Err(reason),
    };
    Finding::plain(Protection::Tree, outcome)
}

#[cfg(target_os = "linux")]
fn kept(enforced: Option<Enforced>) -> String {
    match enforced {
        Some(Enforced::Hard) => "hard, by a control group".to_owned(),
        _ => "sampled: the tree is looked at, and killed when it has too much".to_owned(),
    }
}

#[cfg(target_os = "linux")]
async fn memory() -> Finding {
    let limits = |hard_memory| Limits { memory: Some(48 << 20), hard_memory, ..Limits::default() };
    let (child, better) = start_hard_or_not(|hard| spec(Path::new("96"), limits(hard), None)).await;
    let outcome = match child {
        Err(reason) => Err(reason),
        Ok(child) => match breach(child).await {
            (Some(Breach::Memory { .. }), child) => Ok(kept(child.effective().memory)),
            _ => Err("a program that took twice what it may was not ended".to_owned()),
        },
    };
    Finding { protection: Protection::Memory, outcome, better }
}

/// Starts what `wanted` gives for a limit that the system itself keeps, or else for one that does not have to be; and
/// says why not, then.
#[cfg(target_os = "linux")]
async fn start_hard_or_not(wanted: impl Fn(bool) -> Option<Spec>) -> (Result<Child, String>, Option<String>) {
    match start(wanted(true)).await {
        Ok(child) => (Ok(child), None),
        Err(why) => match start(wanted(false)).await {
            Ok(child) => (Ok(child), Some(why)),
            Err(reason) => (Err(reason), None),
        },
    }
}

#[cfg(target_os = "linux")]
async fn processes() -> Finding {
    let wanted = |hard_processes| {
        let limits = Limits { processes: Some(2), hard_processes, ..Limits::default() };
        spec(Path::new("0"), limits, None).map(|spec| Spec {
            program: "sh".to_owned(),
            args: ["-c", "sleep 10 & sleep 10 & sleep 10 & wait"].map(str::to_owned).to_vec(),
            ..spec
        })
    };
    let (child, better) = start_hard_or_not(wanted).await;
    let outcome = match child {
        Err(reason) => Err(reason),
        Ok(child) => match breach(child).await {
            (Some(Breach::Processes { .. }), child) => Ok(kept(child.effective().processes)),
            _ => Err("a program that started more than it may was not ended".to_owned()),
        },
    };
    Finding { protection: Protection::Processes, outcome, better }
}

/// Everything that a confined program is kept from.
#[cfg(target_os = "linux")]
async fn walls(outside: &Path) -> Vec<Finding> {
    use tokio::io::AsyncReadExt;

    let confinement =
        Confinement { files: Some(Files::default()), network: false, signals: false, degrade: true };
    let mut said = String::new();
    let tried = match start(spec(outside, Limits::default(), Some(confinement))).await {
        Err(reason) => Err(reason),
        Ok(mut child) => {
            if let Some(mut stdout) = child.take_stdout() {
                let _ = tokio::time::timeout(PATIENCE, stdout.read_to_string(&mut said)).await;
            }
            Ok(child.effective().confined.unwrap_or_default())
        }
    };
    let each = [
        (Protection::Files, "by Landlock"),
        (Protection::Network, "by a filter of system calls"),
        (Protection::Sockets, "by a filter of system calls"),
        (Protection::Signals, "by Landlock"),
        (Protection::Calls, "by a filter of system calls"),
        (Protection::Privileges, "no capabilities, and none are gained"),
    ];
    let finding = |(protection, how): (Protection, &str)| {
        let outcome = match &tried {
            Err(reason) => Err(reason.clone()),
            Ok(confined) => {
                let held = said.lines().any(|line| line == format!("{} true", protection.as_str()));
                if held && protection == Protection::Files && !confined.files {
                    let version = confined.landlock;
                    let why = format!(
                        "version {version} of Landlock lets any file be cut to nothing; `files` needs 3"
                    );
                    return Finding::plain(protection, Err(why));
                }
                let version = match (how, confined.landlock) {
                    ("by Landlock", version @ 1..) => format!(", version {version}"),
                    _ => String::new(),
                };
                match held {
                    true => Ok(format!("{how}{version}")),
                    false => Err(format!("a confined program got out{version}")),
                }
            }
        };
        Finding::plain(protection, outcome)
    };
    each.into_iter().map(finding).collect()
}
