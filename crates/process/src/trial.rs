//! Finds out by trial which protections work on this system: starts a confined program that tries to break out, and reads
//! what it could do.
//!
//! The program is the shim with another argument, so that nothing else has to be installed.

use std::path::Path;
#[cfg(target_os = "linux")]
use std::time::Duration;

#[cfg(target_os = "linux")]
use crate::{Breach, Child, Confinement, Containment, Enforced, Files, Limits, SpawnError, Spec};

/// The result of the trial of one protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The protection.
    pub protection: Protection,
    /// How it is enforced, or why it is not.
    pub outcome: Result<String, String>,
    /// Why it is not enforced better, and what would help; `None` if it cannot be better.
    pub better: Option<String>,
}

impl Finding {
    fn plain(protection: Protection, outcome: Result<String, String>) -> Self {
        Self { protection, outcome, better: None }
    }
}

/// A protection that a system may be able to enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Whole process trees end with the gateway.
    Tree,
    /// The memory of a tree is limited.
    Memory,
    /// The number of processes of a tree is limited.
    Processes,
    /// Other files cannot be used.
    Files,
    /// The network is blocked.
    Network,
    /// Sockets of other programs on the machine cannot be reached.
    Sockets,
    /// Other processes cannot be signalled.
    Signals,
    /// System calls that would bypass the confinement are refused.
    Calls,
    /// Root has no privileges.
    Privileges,
}

impl Protection {
    /// The name for people and programs.
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

    /// What it protects, or the configuration key that uses it.
    #[must_use]
    pub const fn purpose(self) -> &'static str {
        match self {
            Self::Tree => "all processes of a server end with it, and with the gateway",
            Self::Memory => "`max_memory_mb`",
            Self::Processes => "`max_processes`",
            Self::Files => "`files`",
            Self::Network => "`network = \"none\"`",
            Self::Sockets => {
                "no connection to other programs over local sockets, if `files` or `network` is configured"
            }
            Self::Signals => {
                "no signals to the gateway or to other servers, if `files` or `network` is configured"
            }
            Self::Calls => "no system calls around the rest, if `files` or `network` is configured",
            Self::Privileges => "no privileges even for root, if `files` or `network` is configured",
        }
    }

    /// What is needed to make it work.
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

/// The argument that makes a shim the program that tries to break out.
#[cfg(target_os = "linux")]
const ASKED: &str = "try-to-get-out";
/// How long a trial may take.
#[cfg(target_os = "linux")]
const PATIENCE: Duration = Duration::from_secs(20);

/// Tries every protection. `outside` is a file that the confined program must not be able to read.
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

/// Becomes the program that tries to break out, if it was started as one.
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

/// Allocates memory and holds it long enough for the limit to be noticed.
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
        // A pair of datagrams reaches any named socket, as a socket of its own does.
        (Protection::Sockets, refused(UnixDatagram::unbound()) && refused(UnixDatagram::pair())),
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

/// Waits for a child to be ended by its limits.
#[cfg(target_os = "linux")]
async fn breach(mut child: Child) -> (Option<Breach>, Child) {
    let _ = tokio::time::timeout(PATIENCE, child.wait()).await;
    (child.breach(), child)
}

#[cfg(target_os = "linux")]
async fn tree() -> Finding {
    let outcome = match start(spec(Path::new("0"), Limits::default(), None)).await {
        Ok(child) => match child.containment() {
            Containment::Tree => Ok("by a shim; no process below it can leave".to_owned()),
            Containment::Group => Err("servers run as process groups, which daemons can leave".to_owned()),
        },
        Err(reason) => Err(reason),
    };
    Finding::plain(Protection::Tree, outcome)
}

#[cfg(target_os = "linux")]
fn kept(enforced: Option<Enforced>, by: &str) -> String {
    match enforced {
        Some(Enforced::Hard) => format!("hard, by {by}"),
        _ => "sampled: the tree is checked at intervals, and stopped and killed when it has too much"
            .to_owned(),
    }
}

#[cfg(target_os = "linux")]
const BY_GROUP: &str = "a control group";
#[cfg(target_os = "linux")]
const BY_OWN_USERS: &str = "`RLIMIT_NPROC` in a user namespace of its own, which refuses one more";
#[cfg(target_os = "linux")]
const NOT_ENDED: &str = "a program that started more processes than its limit was not ended";

#[cfg(target_os = "linux")]
async fn memory() -> Finding {
    let limits = |hard_memory| Limits { memory: Some(48 << 20), hard_memory, ..Limits::default() };
    let (child, better) = start_hard_or_not(|hard| spec(Path::new("96"), limits(hard), None)).await;
    let outcome = match child {
        Err(reason) => Err(reason),
        Ok(child) => match breach(child).await {
            (Some(Breach::Memory { .. }), child) => Ok(kept(child.effective().memory, BY_GROUP)),
            _ => Err("a program that took twice its limit was not ended".to_owned()),
        },
    };
    Finding { protection: Protection::Memory, outcome, better }
}

/// Starts `wanted` with a hard limit. If that is refused, starts it with a sampled one and also returns the reason.
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
            (Some(Breach::Processes { .. }), child) => Ok(kept(child.effective().processes, BY_GROUP)),
            // A control group ends a tree that wants more. A namespace refuses what it wants, and the shell gives up.
            (None, mut child) => {
                let hard = child.effective().processes.filter(|enforced| *enforced == Enforced::Hard);
                match hard {
                    Some(_) if !child.wait().await.is_success() => Ok(kept(hard, BY_OWN_USERS)),
                    _ => Err(NOT_ENDED.to_owned()),
                }
            }
            _ => Err(NOT_ENDED.to_owned()),
        },
    };
    Finding { protection: Protection::Processes, outcome, better }
}

/// Tries every protection of a confined program.
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
                        "version {version} of Landlock lets any file be truncated; `files` needs version 3"
                    );
                    return Finding::plain(protection, Err(why));
                }
                let version = match (how, confined.landlock) {
                    ("by Landlock", version @ 1..) => format!(", version {version}"),
                    _ => String::new(),
                };
                match held {
                    true => Ok(format!("{how}{version}")),
                    false => Err(format!("a confined program was not stopped{version}")),
                }
            }
        };
        Finding::plain(protection, outcome)
    };
    each.into_iter().map(finding).collect()
}
