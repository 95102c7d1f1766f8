//! Measures the cost of a separate process tree for each call, of a large gateway, and of a large tree.
//!
//! As with the loads, each figure alternates with its reference within one run.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bridgehead_process::{Limits, Spec, base_environment};
use tokio::io::AsyncReadExt;

use crate::client::{check, once};
use crate::request::{Ask, Era, Template};
use crate::statistics::median;

/// The pause between calls: long enough for the next process to start.
const PACE: Duration = Duration::from_millis(20);
/// How many megabytes make a gateway large.
const LARGE: usize = 1024;
/// How many processes make a tree large.
pub const TREE: usize = 100;

/// What was measured. A part that was not requested is empty.
#[derive(Debug, Default)]
pub struct Isolation {
    /// A call to a shared process, and an isolated call.
    pub calls: Vec<(Duration, Duration)>,
    /// How many isolated calls complete in a second, one right after the other.
    pub per_second: Option<f64>,
    /// From the start of a program to its first byte, started by a small process and by one with a gigabyte.
    pub starts: Vec<(Duration, Duration)>,
    /// From the order to kill a tree of a hundred processes until the last one is reaped.
    pub kills: Vec<Duration>,
}

impl Isolation {
    /// What isolation adds to a call, in milliseconds: at the median, and at the 95th percentile.
    pub fn added_millis(&self) -> Option<(f64, f64)> {
        let mut shared: Vec<f64> = self.calls.iter().map(|(shared, _)| millis(*shared)).collect();
        let mut alone: Vec<f64> = self.calls.iter().map(|(_, alone)| millis(*alone)).collect();
        (!shared.is_empty()).then(|| {
            let mut at = |share: f64| percentile(&mut alone, share) - percentile(&mut shared, share);
            (at(0.5).max(0.0), at(0.95).max(0.0))
        })
    }

    /// How many times longer a start takes in a large process.
    pub fn start_ratio(&self) -> Option<f64> {
        let small = median(self.starts.iter().map(|(small, _)| millis(*small)));
        let large = median(self.starts.iter().map(|(_, large)| millis(*large)));
        (!self.starts.is_empty()).then(|| large / small)
    }

    /// The median duration of a kill, in milliseconds.
    pub fn kill_millis(&self) -> Option<f64> {
        (!self.kills.is_empty()).then(|| median(self.kills.iter().copied().map(millis)))
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Alternates between shared and isolated calls, each after a pause.
pub(crate) fn calls(
    shared: SocketAddr,
    alone: SocketAddr,
    pairs: usize,
) -> Result<Vec<(Duration, Duration)>> {
    let call = |address: SocketAddr| -> Result<Duration> {
        let template = Template::named(address, Era::Modern, Ask::Call, None, "s0__echo");
        std::thread::sleep(PACE);
        let begun = Instant::now();
        let (body, _) = once(address, template.bytes())?;
        let took = begun.elapsed();
        check(Ask::Call, 0, &body)?;
        Ok(took)
    };
    (0..pairs).map(|_| Ok((call(shared)?, call(alone)?))).collect()
}

/// How many calls one client makes in a second without pauses. From the third call on, each waits for a process to start.
pub(crate) fn back_to_back(alone: SocketAddr, calls: usize) -> Result<f64> {
    let template = Template::named(alone, Era::Modern, Ask::Call, None, "s0__echo");
    let begun = Instant::now();
    for _ in 0..calls {
        let (body, _) = once(alone, template.bytes())?;
        check(Ask::Call, 0, &body)?;
    }
    Ok(calls as f64 / begun.elapsed().as_secs_f64())
}

/// Alternates between starts without and with a gigabyte of memory held.
pub(crate) fn starts(
    pairs: usize,
    start: impl Fn() -> Result<Duration>,
) -> Result<Vec<(Duration, Duration)>> {
    let mut found = Vec::new();
    for _ in 0..pairs {
        let small = start()?;
        let held: Vec<Vec<u8>> = (0..LARGE).map(|number| vec![(number % 200) as u8 | 1; 1 << 20]).collect();
        let large = start()?;
        ensure!(held.iter().all(|block| block[4096] != 0), "the memory was not held");
        found.push((small, large));
    }
    Ok(found)
}

/// Starts a tree of a hundred processes and kills it.
pub(crate) async fn kill() -> Result<Duration> {
    let env = base_environment(&std::env::vars().collect());
    let script = format!("for i in $(seq {}); do sleep 60 & done; echo up; wait", TREE - 1);
    let spec = Spec {
        program: "sh".to_owned(),
        args: vec!["-c".to_owned(), script],
        env,
        cwd: None,
        limits: Limits::default(),
        confinement: None,
    };
    let mut child = bridgehead_process::start(&spec, Box::new(|_| {})).await?;
    let mut up = [0; 2];
    child.take_stdout().context("no output")?.read_exact(&mut up).await?;
    ensure!(child.tree().len() >= TREE, "the tree has {} processes", child.tree().len());
    let begun = Instant::now();
    child.kill().await;
    Ok(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_isolation_adds_is_a_difference() {
        let ms = Duration::from_millis;
        let calls = (0..100).map(|number| (ms(1), if number < 90 { ms(2) } else { ms(5) })).collect();
        let found = Isolation { calls, per_second: None, starts: vec![(ms(2), ms(3))], kills: vec![ms(7)] };
        assert_eq!(found.added_millis(), Some((1.0, 4.0)));
        assert_eq!((found.start_ratio(), found.kill_millis()), (Some(1.5), Some(7.0)));
        let nothing = Isolation::default();
        assert_eq!(
            (nothing.added_millis(), nothing.start_ratio(), nothing.kill_millis()),
            (None, None, None)
        );
    }
}
