//! A running child: its pipes, its last words and its end.

use std::time::Duration;

use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::keeper::{Containment, Keeper};
use crate::stderr::{LineCallback, Stderr, collect};
use crate::view::{self, ProcessView};
use crate::{Breach, Effective, Exit, SpawnError, Spec};

/// How long a child may take to obey SIGTERM.
pub(crate) const AFTER_TERM: Duration = Duration::from_secs(1);
/// How long SIGKILL may take to work. Longer means that the child hangs in the kernel; it is reaped later.
pub(crate) const AFTER_KILL: Duration = Duration::from_secs(5);

/// A running program. Dropping it kills the program and its descendants, as far as [`Child::containment`] says,
/// at once.
#[derive(Debug)]
pub struct Child {
    keeper: Keeper,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Stderr,
    collector: Option<Collector>,
}

/// Our ends of a new program's pipes.
#[derive(Debug)]
pub(crate) struct Pipes {
    pub(crate) stdin: ChildStdin,
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
}

/// The task that reads standard error; dropping `ended` tells it that the child is gone.
#[derive(Debug)]
struct Collector {
    ended: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// Starts a program with pipes for its input and output. Each line of its standard error is shown to
/// `on_line`, which must not block; a program that writes very many is shown in part.
///
/// Many can start at the same time, as the thread is free while the shim does its part. Dropping the future
/// ends what it has started. Must be called within a tokio runtime that has its I/O and time drivers enabled.
///
/// # Errors
/// When the program was not started; nothing is left behind then.
pub async fn start(spec: &Spec, on_line: LineCallback) -> Result<Child, SpawnError> {
    Ok(Child::new(Keeper::start(spec).await?, on_line, spec))
}

/// Starts a program like [`start`], but blocks the thread until it runs: a millisecond or two.
///
/// Must be called within a tokio runtime that has its I/O and time drivers enabled.
///
/// # Errors
/// When the program was not started; nothing is left behind then.
pub fn spawn(spec: &Spec, on_line: LineCallback) -> Result<Child, SpawnError> {
    Ok(Child::new(Keeper::start_blocking(spec)?, on_line, spec))
}

impl Child {
    fn new((keeper, pipes): (Keeper, Pipes), on_line: LineCallback, spec: &Spec) -> Self {
        let stderr = Stderr::keeping(spec.limits.log);
        let (ended, gone) = oneshot::channel();
        let task = tokio::spawn(collect(pipes.stderr, stderr.clone(), on_line, gone));
        let collector = Some(Collector { ended: Some(ended), task });
        Self { keeper, stdin: Some(pipes.stdin), stdout: Some(pipes.stdout), stderr, collector }
    }

    /// The pid of the program, which also is the id of its process group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.keeper.pid()
    }

    /// What of the program's descendants ends with it.
    #[must_use]
    pub fn containment(&self) -> Containment {
        self.keeper.containment()
    }

    /// How its limits are kept, as its keeper says.
    #[must_use]
    pub fn effective(&self) -> Effective {
        self.keeper.effective()
    }

    /// What it and its descendants had too much of, if that is why they are gone.
    #[must_use]
    pub fn breach(&self) -> Option<Breach> {
        self.keeper.end().0
    }

    /// How many processes had to be killed at its end, where that is known.
    #[must_use]
    pub fn killed(&self) -> u32 {
        self.keeper.end().1
    }

    /// The pids of the program and its descendants now; none once its end is known. Systems other than Linux
    /// tell only the program itself.
    #[must_use]
    pub fn tree(&self) -> Vec<u32> {
        self.keeper.members()
    }

    /// The memory of the program and its descendants that is in RAM now, where the system tells. What they
    /// share is counted for each of them.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        view::resident_bytes(&self.tree())
    }

    /// The same for others to look at, while this handle is elsewhere.
    #[must_use]
    pub fn view(&self) -> ProcessView {
        self.keeper.view()
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

    /// The last lines of standard error, at most 64 KiB or what its limits say.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        self.stderr.tail()
    }

    /// Waits until the child ends by itself, kills what it leaves behind, and reaps it.
    ///
    /// Once this returns, the tail of standard error is complete. May be dropped and called again.
    pub async fn wait(&mut self) -> Exit {
        let exit = self.keeper.gone().await;
        self.last_words().await;
        exit
    }

    /// Ends the child: closes its input and waits `grace` for it to go; then SIGTERM to it and its descendants,
    /// a second to obey, and SIGKILL. What outlives a child that went by itself gets SIGKILL at once.
    pub async fn stop(mut self, grace: Duration) -> Exit {
        drop(self.stdin.take());
        let exit = self.keeper.stop(grace).await;
        self.last_words().await;
        exit
    }

    /// Kills the child and its descendants without asking, and waits until they are gone.
    pub async fn kill(mut self) -> Exit {
        let exit = self.keeper.kill().await;
        self.last_words().await;
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
}
