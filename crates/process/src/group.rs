//! Keeps a program as the leader of a process group: what can be done where there is no shim.
//!
//! The id of the group is the pid of the leader, and the system may give it to a stranger as soon as the leader
//! is reaped and the group is empty. Therefore the leader is only *observed* to have ended (`waitid` with
//! `WNOWAIT`, woken by `SIGCHLD`); while it is a zombie its pid is taken and the group can be signalled safely.
//! The group gets SIGKILL, then the zombie is reaped, and after that no signal is sent any more.
//!
//! A descendant that makes itself leader of a new group or session is not found, and nobody kills the group
//! when the gateway itself is killed.

use std::future::poll_fn;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::timeout;

use crate::child::{AFTER_KILL, AFTER_TERM, Pipes};
use crate::{Exit, SpawnError, Spec};

/// A running program and its group.
#[derive(Debug)]
pub(crate) struct Group {
    pid: Pid,
    /// Reaps in the background when it is dropped before the end was seen.
    inner: tokio::process::Child,
    children: SignalStream,
    /// Known once the leader is reaped; from then on the pid means nothing.
    exit: Option<Exit>,
}

impl Group {
    pub(crate) fn start(spec: &Spec, program: PathBuf) -> Result<(Self, Pipes), SpawnError> {
        let other = |source| SpawnError::Other { program: spec.program.clone(), source };
        // Listens before the child exists, so that its end cannot be missed.
        let children = signal(SignalKind::child()).map_err(other)?;

        #[expect(clippy::disallowed_methods, reason = "this is one of the places that start programs")]
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
        let pipes = inner.stdin.take().zip(inner.stdout.take()).zip(inner.stderr.take());
        let ((stdin, stdout), stderr) =
            pipes.ok_or_else(|| other(io::Error::other("the new process has no pipes")))?;
        Ok((Self { pid, inner, children, exit: None }, Pipes { stdin, stdout, stderr }))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// The exit of the leader, once it is reaped.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// Waits until the leader ends, kills what it leaves behind in its group, and reaps it.
    pub(crate) async fn gone(&mut self) -> Exit {
        self.ended().await;
        self.finish()
    }

    /// SIGTERM to the group, a second to obey, and SIGKILL. The group gets SIGKILL in any case, as its members
    /// may outlive their leader.
    pub(crate) async fn terminate(&mut self) -> Exit {
        self.signal(Signal::TERM);
        if timeout(AFTER_TERM, self.ended()).await.is_err() {
            return self.kill().await;
        }
        self.finish()
    }

    pub(crate) async fn kill(&mut self) -> Exit {
        self.signal(Signal::KILL);
        if timeout(AFTER_KILL, self.ended()).await.is_err() {
            return Exit::KILLED;
        }
        self.finish()
    }

    /// Waits until the leader has ended, without reaping it.
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
                    self.exit = Some(Exit::UNKNOWN);
                    true
                }
            };
        }
    }

    /// Kills the rest of the group of an ended leader, then reaps it.
    fn finish(&mut self) -> Exit {
        if let Some(exit) = self.exit {
            return exit;
        }
        self.signal(Signal::KILL);
        let exit = match self.inner.try_wait() {
            Ok(Some(status)) => status.into(),
            Ok(None) | Err(_) => Exit::UNKNOWN,
        };
        self.exit = Some(exit);
        exit
    }

    fn signal(&self, signal: Signal) {
        if self.exit.is_none() {
            // Fails when nobody in the group is left to be signalled, which is what was wanted.
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The leader is reaped by the runtime, which takes over children that are dropped unfinished.
        self.signal(Signal::KILL);
    }
}
