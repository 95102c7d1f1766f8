//! Starts processes, reads what the kernel reports about them and the machine, and ends them by their id.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::{client, family};

/// How long a process may take to answer for the first time. Even on a busy machine only a hanging process takes this long.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How long it may take to end after SIGTERM.
const END_WITHIN: Duration = Duration::from_secs(30);
/// How long a process may take to become idle after a load.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// How long a process must be idle to count as settled. The kernel counts CPU time in hundredths of a second.
const QUIET: Duration = Duration::from_millis(40);
/// The pause between two requests to a starting process.
const POLL: Duration = Duration::from_micros(200);

/// A free port on the loopback interface. If another program takes it before it is used, the start fails and says so.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// A running process; dropping it ends the process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    started: Instant,
    words: PathBuf,
}

impl Process {
    /// Starts a program. Its stderr goes to the file `words`.
    #[expect(clippy::disallowed_methods, reason = "the benchmark starts the gateway itself, from outside")]
    pub fn start(program: &Path, arguments: &[&str], words: PathBuf) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&words)?);
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot start `{}`", program.display()))?;
        Ok(Self { child, started, words })
    }

    /// Its id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Repeats `request` until `accepts` takes the answer; returns the time since the start.
    pub fn answers(
        &mut self,
        address: SocketAddr,
        request: &[u8],
        accepts: impl Fn(&[u8]) -> bool,
    ) -> Result<Duration> {
        loop {
            let answer = client::once(address, request);
            let elapsed = self.started.elapsed();
            if answer.as_ref().is_ok_and(|(body, _)| accepts(body)) {
                return Ok(elapsed);
            }
            let ended = self.child.try_wait()?;
            if ended.is_some() || elapsed > READY_WITHIN {
                let words = fs::read_to_string(&self.words).unwrap_or_default();
                let last =
                    answer.map_or_else(|error| format!("{error:#}"), |_| "an incomplete answer".to_owned());
                bail!("it did not become ready ({ended:?}); last: {last}; its stderr:\n{words}");
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends SIGTERM and waits for the end; fails if the exit status is not success.
    pub fn end(mut self) -> Result<()> {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).context("it has ended already")?;
        self.succeeds().map(drop)
    }

    /// Waits until it has ended, after the caller has asked it to.
    pub fn wait(&mut self) -> Result<()> {
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(asked.elapsed() < READY_WITHIN, "it did not end within {READY_WITHIN:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits until it ends, which must be with success; returns the time since the start.
    pub fn succeeds(&mut self) -> Result<Duration> {
        let status = self.child.wait()?;
        let elapsed = self.started.elapsed();
        let words = || fs::read_to_string(&self.words).unwrap_or_default();
        ensure!(status.success(), "it ended with {status}; its stderr:\n{}", words());
        Ok(elapsed)
    }

    /// A value of its status file in kilobytes, such as `VmRSS` or `VmHWM`.
    pub fn memory_kb(&self, name: &str) -> Result<u64> {
        family::memory_kb(self.pid(), name).with_context(|| format!("the kernel does not report `{name}`"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let id = rustix::process::Pid::from_child(&self.child);
        // Fails if it has already ended by itself.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < END_WITHIN {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The CPU time of a process, user and system.
#[derive(Debug, Clone, Copy)]
pub struct CpuTime {
    ticks: u64,
}

impl CpuTime {
    /// What the process has used so far.
    pub fn of(pid: u32) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
            .context("the process has ended, or this is not Linux")?;
        Self::read(&stat).context("the kernel does not report the CPU time")
    }

    fn read(stat: &str) -> Option<Self> {
        // The name in brackets may contain any character; user and system time are the 12th and 13th field after it.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
        let user: u64 = fields.next()?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        Some(Self { ticks: user + system })
    }

    /// Waits until a process is idle. Work that it defers until there are no requests must not run while another process is
    /// measured.
    pub fn settle(pid: u32) -> Result<()> {
        let until = Instant::now() + SETTLE_WITHIN;
        let mut used = Self::of(pid)?;
        while Instant::now() < until {
            std::thread::sleep(QUIET);
            let now = Self::of(pid)?;
            if now.ticks == used.ticks {
                break;
            }
            used = now;
        }
        Ok(())
    }

    /// What was used since `earlier`.
    pub fn since(self, earlier: Self) -> Duration {
        let ticks = self.ticks.saturating_sub(earlier.ticks);
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

/// The kernel's load average of the last minute.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

/// How the CPUs of this machine have spent their time since boot. On a virtual machine the host can take some of it away.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostTime {
    all: u64,
    taken: u64,
}

impl HostTime {
    /// The time spent so far.
    pub fn now() -> Self {
        Self::read(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn read(stat: &str) -> Self {
        // user, nice, system, idle, iowait, irq, softirq, steal; the fields after them are already part of the first two.
        let first = stat.lines().next().unwrap_or_default().split_ascii_whitespace().skip(1).take(8);
        let times: Vec<u64> = first.filter_map(|time| time.parse().ok()).collect();
        Self { all: times.iter().sum(), taken: times.get(7).copied().unwrap_or_default() }
    }

    /// The share of the time since `earlier` that the host took away, in percent.
    pub fn taken_since(self, earlier: Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all).max(1);
        self.taken.saturating_sub(earlier.taken) as f64 * 100.0 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_the_host_takes_is_found() {
        let before = HostTime::read("cpu  10 0 5 80 1 0 2 2 0 0\ncpu0 1 1 1 1\n");
        let after = HostTime::read("cpu  30 0 15 130 1 0 2 22 7 0\n");
        assert!((after.taken_since(before) - 20.0).abs() < 1e-9);
        assert!(after.taken_since(after).abs() < 1e-9);
        assert_eq!(HostTime::read("cpu 1 2 3").taken, 0);
    }

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 9 0 0 0 17 5 3 2 20 0 1 0 100 1 1";
        assert_eq!(CpuTime::read(stat).map(|time| time.ticks), Some(22));
        assert!(CpuTime::read("42 (a) S 1").is_none());
    }

    #[test]
    fn a_failure_is_no_success() {
        let words = tempfile::NamedTempFile::new().unwrap();
        let ends =
            |program| Process::start(Path::new(program), &[], words.path().to_owned()).unwrap().succeeds();
        ends("true").unwrap();
        ends("false").unwrap_err();
    }

    #[test]
    fn this_process_has_used_some_memory() {
        let words = tempfile::NamedTempFile::new().unwrap();
        let process = Process::start(Path::new("sleep"), &["10"], words.path().to_owned()).unwrap();
        assert!(process.memory_kb("VmHWM").unwrap() > 0);
        process.memory_kb("VmNone").unwrap_err();
        CpuTime::of(process.pid()).unwrap();
        CpuTime::settle(process.pid()).unwrap();
    }
}
