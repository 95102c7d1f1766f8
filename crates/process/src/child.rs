//! A running child and its end.
//!
//! A child leads a process group of its own, so that its descendants can be signalled with it. The id of the
//! group is the pid of the child, and the system may give it to a stranger as soon as the child is reaped and
//! the group is empty. Therefore the child is only *observed* to have ended (`waitid` with `WNOWAIT`, woken by
//! `SIGCHLD`); while it is a zombie its pid is taken and the group can be signalled safely. The group gets
//! SIGKILL, then the zombie is reaped, and after that no signal is sent any more.

use std::future::poll_fn;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::stderr::{LineCallback, Stderr, collect};
use crate::{Exit, SpawnError, Spec};

/// How long a child may take to obey SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(1);
/// How long SIGKILL may take to work. Longer means that the child hangs in the kernel; it is reaped later.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// A running program. Dropping it kills the program and its process group at once.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    /// Reaps in the background when it is dropped before the end was seen.
    inner: tokio::process::Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Stderr,
    collector: Option<Collector>,
    children: SignalStream,
    /// Known once the child is reaped; from then on the pid means nothing.
    exit: Option<Exit>,
}

/// The task that reads standard error; dropping `ended` tells it that the child is gone.
#[derive(Debug)]
struct Collector {
    ended: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// Starts a program with pipes for its input and output. Each line of its standard error is shown to
/// `on_line`, which must not block.
///
/// Must be called within a tokio runtime that has its I/O and time drivers enabled.
///
/// # Errors
/// When the program was not started; nothing is left behind then.
pub fn spawn(spec: &Spec, on_line: LineCallback) -> Result<Child, SpawnError> {
    let program = spec.resolve()?;
    let other = |source| SpawnError::Other { program: spec.program.clone(), source };
    // Listens before the child exists, so that its end cannot be missed.
    let children = signal(SignalKind::child()).map_err(other)?;

    #[expect(clippy::disallowed_methods, reason = "this is the one place that starts programs")]
    let mut command = std::process::Command::new(&program);
    command.args(&spec.args).env_clear().envs(&spec.env).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    let mut command = tokio::process::Command::from(command);
    let mut inner = command.kill_on_drop(true).spawn().map_err(|source| spec.refused(program, source))?;

    let pid = inner
        .id()
        .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        .ok_or_else(|| other(io::Error::other("the new process has no id")))?;
    let stderr = Stderr::default();
    let collector = inner.stderr.take().map(|pipe| {
        let (ended, gone) = oneshot::channel();
        Collector { ended: Some(ended), task: tokio::spawn(collect(pipe, stderr.clone(), on_line, gone)) }
    });
    let (stdin, stdout) = (inner.stdin.take(), inner.stdout.take());
    Ok(Child { pid, inner, stdin, stdout, stderr, collector, children, exit: None })
}

impl Child {
    /// The pid, which also is the id of the process group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// The child's standard input, once. Whoever takes it must drop it before [`Child::stop`] if the child is
    /// to be asked politely.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    /// The child's standard output, once.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    /// What the child says on standard error; may be kept beyond the child's end.
    #[must_use]
    pub fn stderr(&self) -> Stderr {
        self.stderr.clone()
    }

    /// The last lines of standard error, at most 64 KiB.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        self.stderr.tail()
    }

    /// Waits until the child ends by itself, kills what it leaves behind in its group, and reaps it.
    ///
    /// Once this returns, the tail of standard error is complete. May be dropped and called again.
    pub async fn wait(&mut self) -> Exit {
        self.ended().await;
        let exit = self.finish();
        self.last_words().await;
        exit
    }

    /// Ends the child: closes its input and waits `grace` for it to go; then SIGTERM to its group, a second to
    /// obey, and SIGKILL. The group gets SIGKILL in any case, as its members may outlive their leader.
    pub async fn stop(mut self, grace: Duration) -> Exit {
        drop(self.stdin.take());
        if timeout(grace, self.ended()).await.is_err() {
            self.signal_group(Signal::TERM);
            if timeout(AFTER_TERM, self.ended()).await.is_err() {
                self.signal_group(Signal::KILL);
                if timeout(AFTER_KILL, self.ended()).await.is_err() {
                    return Exit::KILLED;
                }
            }
        }
        let exit = self.finish();
        self.last_words().await;
        exit
    }

    /// Waits until the child has ended, without reaping it.
    async fn ended(&mut self) {
        while self.exit.is_none() && !self.has_ended() {
            // A signal that came since the last look is still pending here. A closed stream would mean that
            // the runtime is going down, and with it everybody who waits.
            poll_fn(|context| self.children.poll_recv(context)).await;
        }
    }

    fn has_ended(&mut self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            return match rustix::process::waitid(WaitId::Pid(self.pid), look) {
                Ok(status) => status.is_some(),
                Err(Errno::INTR) => continue,
                Err(_) => {
                    // Somebody else in this process has reaped it: the group may be a stranger's by now.
                    self.exit = Some(Exit { code: None, signal: None });
                    true
                }
            };
        }
    }

    /// Kills the rest of the group of an ended child, then reaps it.
    fn finish(&mut self) -> Exit {
        if let Some(exit) = self.exit {
            return exit;
        }
        self.signal_group(Signal::KILL);
        let exit = match self.inner.try_wait() {
            Ok(Some(status)) => status.into(),
            Ok(None) | Err(_) => Exit { code: None, signal: None },
        };
        self.exit = Some(exit);
        exit
    }

    /// Waits until standard error is read to its end, or has been given up.
    async fn last_words(&mut self) {
        if let Some(Collector { ended, task }) = &mut self.collector {
            drop(ended.take());
            // A task that panicked in the callback has nothing more to say.
            let _ = task.await;
        }
        // Only now, so that a wait that is dropped here can be repeated.
        self.collector = None;
    }

    fn signal_group(&self, signal: Signal) {
        if self.exit.is_none() {
            // Fails when nobody in the group is left to be signalled, which is what was wanted.
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The leader is reaped by the runtime, which takes over children that are dropped unfinished.
        self.signal_group(Signal::KILL);
    }
}
