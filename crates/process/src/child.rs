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
/// How long SIGKILL may take to work. A child that takes longer hangs in the kernel and is reaped later.
pub(crate) const AFTER_KILL: Duration = Duration::from_secs(5);

/// A running program. Dropping it immediately kills the program and those descendants that [`Child::containment`]
/// covers.
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

/// Starts a program with pipes for its input and output. Each line of its standard error is passed to
/// `on_line`, which must not block. If a program writes very many lines, only some of them are passed on.
///
/// Many programs can start at the same time, because the thread is free while the shim works. Dropping the future
/// ends what it has started. Must be called within a tokio runtime that has its I/O and time drivers enabled.
///
/// # Errors
/// When the program was not started. Nothing is left behind then.
pub async fn start(spec: &Spec, on_line: LineCallback) -> Result<Child, SpawnError> {
    Ok(Child::new(Keeper::start(spec).await?, on_line, spec))
}

/// Starts a program like [`start`], but blocks the thread until it runs: a millisecond or two.
///
/// Must be called within a tokio runtime that has its I/O and time drivers enabled.
///
/// # Errors
/// When the program was not started. Nothing is left behind then.
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

    /// The pid of the program, which is also the id of its process group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.keeper.pid()
    }

    /// Which of the program's descendants end with it.
    #[must_use]
    pub fn containment(&self) -> Containment {
        self.keeper.containment()
    }

    /// How its limits are enforced, as reported by the shim.
    #[must_use]
    pub fn effective(&self) -> Effective {
        self.keeper.effective()
    }

    /// The limit that ended the program and its descendants, if one did.
    #[must_use]
    pub fn breach(&self) -> Option<Breach> {
        self.keeper.end().0
    }

    /// How many processes had to be killed at its end; 0 where that is not known.
    #[must_use]
    pub fn killed(&self) -> u32 {
        self.keeper.end().1
    }

    /// The current pids of the program and its descendants; empty once its end is known. On systems other than
    /// Linux it contains only the program itself.
    #[must_use]
    pub fn tree(&self) -> Vec<u32> {
        self.keeper.members()
    }

    /// The resident memory of the program and its descendants, where the system reports it. Memory that they
    /// share is counted for each of them.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        view::resident_bytes(&self.tree())
    }

    /// A copyable view of the tree and its memory, for code that does not have this handle.
    #[must_use]
    pub fn view(&self) -> ProcessView {
        self.keeper.view()
    }

    /// The child's standard input; `None` after the first call. The caller must drop it before [`Child::stop`],
    /// or the child does not see its input close.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    /// The child's standard output; `None` after the first call.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    /// What the child writes to standard error. The value may outlive the child.
    #[must_use]
    pub fn stderr(&self) -> Stderr {
        self.stderr.clone()
    }

    /// The last lines of standard error, at most 64 KiB or what [`Limits::log`](crate::Limits::log) says.
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

    /// Resolves when the shim has ended without ending the child's processes, which only a server that is not confined can bring
    /// about. They are killed then, and [`Child::wait`] returns soon. May be dropped and called again.
    pub async fn abandoned(&mut self) {
        self.keeper.abandoned().await;
    }

    /// Ends the child. Closes its input and waits up to `grace`; then sends SIGTERM to it and its descendants,
    /// waits a second, and sends SIGKILL. Descendants that outlive a child that ended by itself get SIGKILL at once.
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

    /// Waits until standard error has been read to its end, or its reader has timed out.
    async fn last_words(&mut self) {
        if let Some(Collector { ended, task }) = &mut self.collector {
            drop(ended.take());
            // If the callback panicked, there is nothing more to read.
            let _ = task.await;
        }
        // Cleared only now, so that a wait that is dropped above can be repeated.
        self.collector = None;
    }
}
