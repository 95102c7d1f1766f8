//! Runs a program for what it prints, and ends it if it takes too long or prints too much.

use std::io;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::{Exit, SpawnError, Spec, start};

/// Why a program gave no output. Says nothing of what it printed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// It was not started.
    #[error(transparent)]
    Start(#[from] SpawnError),
    /// It still ran after its time, and was killed.
    #[error("it did not end within {} s and was killed", .0.as_secs_f32())]
    Late(Duration),
    /// It did not end with exit code 0.
    #[error("it ended with {0}")]
    Failed(Exit),
    /// It printed too much, and was killed.
    #[error("it printed more than {0} bytes and was killed")]
    TooLong(usize),
    /// Its output could not be read.
    #[error("its output cannot be read: {0}")]
    Read(#[from] io::Error),
}

/// Runs a program without input and returns what it wrote to standard output, at most `most` bytes. What it wrote to standard
/// error is dropped. When this returns, the program and its descendants are gone.
///
/// Must be called within a tokio runtime that has its I/O and time drivers enabled.
///
/// # Errors
/// If it cannot be started, fails, prints more, or does not end in time.
pub async fn output(spec: &Spec, most: usize, within: Duration) -> Result<Vec<u8>, OutputError> {
    let running = async {
        let mut child = start(spec, Box::new(|_| ())).await?;
        drop(child.take_stdin());
        let mut printed = Vec::new();
        if let Some(stdout) = child.take_stdout() {
            stdout.take(most as u64 + 1).read_to_end(&mut printed).await?;
        }
        if printed.len() > most {
            child.kill().await;
            return Err(OutputError::TooLong(most));
        }
        match child.wait().await {
            exit if exit.is_success() => Ok(printed),
            exit => Err(OutputError::Failed(exit)),
        }
    };
    // Dropping the child kills it.
    timeout(within, running).await.unwrap_or(Err(OutputError::Late(within)))
}

/// Runs a program like [`output`], on a thread and a runtime of its own, and blocks this thread until it has ended.
///
/// # Errors
/// Those of [`output`].
pub fn output_blocking(spec: &Spec, most: usize, within: Duration) -> Result<Vec<u8>, OutputError> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(output(spec, most, within))
    };
    std::thread::scope(|scope| match scope.spawn(run).join() {
        Ok(outcome) => outcome,
        Err(_) => Err(OutputError::Read(io::Error::other("the thread that read it ended"))),
    })
}
