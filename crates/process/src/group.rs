//! Runs a program as the leader of a process group, for systems without a shim.
//!
//! The id of the group is the pid of the leader. The system may reuse it as soon as the leader is reaped and the group
//! is empty. Therefore the end of the leader is only *observed* (`waitid` with `WNOWAIT`, woken by `SIGCHLD`): while
//! the leader is a zombie its pid stays taken, and signals to the group are safe. The group gets SIGKILL, then the
//! zombie is reaped, and after that no more signals are sent.
//!
//! This does not find a descendant that makes itself leader of a new group or session. And if the gateway itself is
//! killed, the group keeps running.

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
    /// If it is dropped before the end was seen, tokio reaps the process in the background.
    inner: tokio::process::Child,
    children: SignalStream,
    /// Known once the leader is reaped. From then on the pid must not be used.
    exit: Option<Exit>,
}

impl Group {
    pub(crate) fn start(spec: &Spec, program: PathBuf) -> Result<(Self, Pipes), SpawnError> {
        let other = |source| SpawnError::Other { program: spec.program.clone(), source };
        // Registered before the child exists, so that its end cannot be missed.
        let children = signal(SignalKind::child()).map_err(other)?;

        #[expect(clippy::disallowed_methods, reason = "this is one of the places that start programs")]
        let mut command = std::process::Command::new(&program);
        command.args(&spec.args).env_clear().envs(&spec.env).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(cwd) = &spec.cwd {
            command.current_dir(cwd);
        }
        #[cfg(target_os = "linux")]
        let mut known = crate::orphans::Known::lock();
        let mut command = tokio::process::Command::from(command);
        let mut inner = command.kill_on_drop(true).spawn().map_err(|source| spec.refused(program, source))?;

        let pid = inner
            .id()
            .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
            .ok_or_else(|| other(io::Error::other("the new process has no id")))?;
        #[cfg(target_os = "linux")]
        known.note(pid.as_raw_pid().unsigned_abs(), crate::orphans::Kind::Started);
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

    /// Sends SIGTERM to the group, waits a second, and sends SIGKILL. The group gets SIGKILL in any case, because its
    /// members may outlive their leader.
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
            // A signal that arrived since the last check is still pending here. A closed stream means that the
            // runtime is shutting down, and this task with it.
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
                    // Other code in this process has reaped it, so the group id may have been reused.
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
        #[cfg(target_os = "linux")]
        crate::orphans::Known::lock().forget(self.pid());
        exit
    }

    fn signal(&self, signal: Signal) {
        if self.exit.is_none() {
            // Fails if the group is already empty, which is the goal.
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The runtime reaps the leader: tokio takes over children that are dropped before their end.
        self.signal(Signal::KILL);
    }
}
