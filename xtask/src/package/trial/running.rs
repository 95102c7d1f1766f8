//! A program that runs while it is observed.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::foreign::{command, wait};
use crate::shown;

/// Generous, because machines are busy.
const LIMIT: Duration = Duration::from_secs(120);

/// A running program. Dropping it kills it, if it still runs.
pub(super) struct Running {
    child: Child,
    input: Option<ChildStdin>,
    /// What it prints, on both streams.
    lines: Receiver<String>,
    /// What was read of it so far, for messages.
    said: Vec<String>,
}

impl Running {
    pub(super) fn start(mut program: Command) -> Result<Self> {
        let piped = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = piped.with_context(|| format!("{program:?} could not be started"))?;
        let (sender, lines) = channel();
        read(child.stdout.take(), sender.clone());
        read(child.stderr.take(), sender);
        Ok(Self { input: child.stdin.take(), child, lines, said: Vec::new() })
    }

    /// Starts a gateway and waits until it serves; returns also its address.
    pub(super) fn serve(program: Command) -> Result<(Self, String)> {
        let mut running = Self::start(program)?;
        let address = running.until("serves MCP at ")?;
        Ok((running, address))
    }

    /// Waits for a line with these words, and returns what follows them.
    pub(super) fn until(&mut self, words: &str) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                bail!("the program did not print `{words}`, but:\n{}", self.said.join("\n"));
            };
            let after = line.split_once(words).map(|(_, after)| after.trim().to_owned());
            self.said.push(line);
            if let Some(after) = after {
                return Ok(after);
            }
        }
    }

    pub(super) fn write(&mut self, text: &str) -> Result<()> {
        let input = self.input.as_mut().context("the input is closed already")?;
        input.write_all(text.as_bytes())?;
        Ok(input.flush()?)
    }

    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Sends a signal to the process that was started, and only to it.
    pub(super) fn signal(&self, signal: &str) -> Result<()> {
        send(signal, self.child.id())
    }

    /// The processes that it started.
    pub(super) fn children(&self) -> Result<Vec<u32>> {
        let id = self.child.id();
        let listed = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        listed.split_whitespace().map(|id| id.parse().context("a process id is a number")).collect()
    }

    /// Waits for its end with this code.
    pub(super) fn ends_with(self, code: i32) -> Result<()> {
        self.ends_with_one_of(&[code])
    }

    /// Waits for its end with one of these codes.
    pub(super) fn ends_with_one_of(self, codes: &[i32]) -> Result<()> {
        let (status, said) = self.end()?;
        let expected = status.code().is_some_and(|code| codes.contains(&code));
        ensure!(expected, "it ended with {status}, not with {codes:?}:\n{said}");
        Ok(())
    }

    /// Waits for its end by SIGKILL.
    pub(super) fn ends_killed(self) -> Result<()> {
        let (status, said) = self.end()?;
        ensure!(status.signal() == Some(9), "it ended with {status}, not by SIGKILL:\n{said}");
        Ok(())
    }

    fn end(mut self) -> Result<(ExitStatus, String)> {
        let ended = wait(&mut self.child, LIMIT)?;
        self.said.extend(self.lines.try_iter());
        let said = self.said.join("\n");
        let status = ended.with_context(|| format!("it did not end within {LIMIT:?}:\n{said}"))?;
        Ok((status, said))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if it has already ended; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to one process.
pub(super) fn send(signal: &str, id: u32) -> Result<()> {
    let status = shown::status(command("kill").args(["-s", signal, &id.to_string()]))?;
    ensure!(status.success(), "kill ended with {status}");
    Ok(())
}

fn read(stream: Option<impl Read + Send + 'static>, to: Sender<String>) {
    let Some(stream) = stream else { return };
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // Nobody listens any more once the program has ended.
            let _ = to.send(line);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Running {
        let mut program = command("sh");
        program.args(["-c", script]);
        Running::start(program).unwrap()
    }

    /// JOIN-7: the trial of the packages notices an end with another code, and an end by a signal.
    #[test]
    fn ends_are_told_apart() {
        shell("exit 3").ends_with(3).unwrap();
        shell("exit 3").ends_with_one_of(&[0, 3]).unwrap();
        shell("kill -9 $$").ends_killed().unwrap();
        let error = shell("exit 3").ends_with(0).unwrap_err().to_string();
        assert_eq!(error, "it ended with exit status: 3, not with [0]:\n");
        assert!(shell("kill -9 $$").ends_with(0).is_err());
        assert!(shell("kill -15 $$").ends_killed().is_err());
        assert!(shell("exit 9").ends_killed().is_err());
    }

    #[test]
    fn what_it_prints_is_awaited_on_both_streams_and_its_input_written() {
        let mut running = shell("read line; echo got $line >&2; read end; echo done");
        running.write("this\n").unwrap();
        assert_eq!(running.until("got").unwrap(), "this");
        running.close_input();
        running.until("done").unwrap();
        let error = running.until("more").unwrap_err().to_string();
        assert!(error.contains("did not print `more`, but:\ngot this\ndone"), "{error}");
        running.ends_with(0).unwrap();
    }
}
