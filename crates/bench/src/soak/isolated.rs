//! Makes many isolated calls, one after the other, and checks that the gateway does not grow, keeps its number of
//! processes, and leaves no zombie.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::gateway::Gateway;
use super::{BACK_WITHIN, Holdings, POLL, SETTLE, Victim, zombies};
use crate::family;

/// The number of processes below an idle gateway: the nursery, and a shim and a server each for lists and for the two
/// processes that wait for calls.
const AT_REST: usize = 7;

/// The findings.
#[derive(Debug, Clone, Copy)]
pub struct Isolated {
    /// How many calls there were.
    pub calls: usize,
    /// The holdings after the first tenth of the calls.
    pub early: Holdings,
    /// The holdings after the last call.
    pub late: Holdings,
    /// Zombies below the gateway after the last call.
    pub zombies: usize,
}

/// Makes this many calls; the configuration gives every call a process tree.
pub(super) fn run(
    program: &Path,
    config: &Path,
    folder: &Path,
    victim: &Victim,
    calls: usize,
) -> Result<Isolated> {
    let gateway = Gateway::start(program, config, folder)?;
    gateway.all_ready(std::slice::from_ref(victim))?;
    let (tool, arguments, expected) = &victim.prompt;
    let call = (tool.clone(), arguments.clone());
    let mut early = None;
    for number in 1..=calls {
        let answer = gateway.call(&victim.name, &call)?.to_string();
        ensure!(answer.contains(expected), "call {number}: {answer}");
        // Before this call, caches are still filling.
        if number == (calls / 10).max(1) {
            early = Some(at_rest(&gateway)?);
        }
    }
    let late = at_rest(&gateway)?;
    let zombies = zombies(gateway.pid());
    gateway.end(Signal::TERM)?;
    Ok(Isolated { calls, early: early.context("there were no calls")?, late, zombies })
}

/// The holdings of the gateway once the last process of a call is gone and another waits in its place. The number of
/// processes alone is not enough: it can be right by chance while one ends and another starts. So the same processes must
/// exist for a while.
fn at_rest(gateway: &Gateway) -> Result<Holdings> {
    let deadline = Instant::now() + BACK_WITHIN;
    let pid = gateway.pid();
    let born = || -> Vec<(u32, u64)> {
        let running = family::below(pid).into_iter().filter(|seen| seen.state != 'Z');
        running.map(|seen| (seen.pid, seen.born)).collect()
    };
    loop {
        let before = born();
        if before.len() == AT_REST {
            std::thread::sleep(SETTLE);
            if born() == before && zombies(pid) == 0 {
                break;
            }
        }
        ensure!(Instant::now() < deadline, "there are still {} processes instead of {AT_REST}", before.len());
        std::thread::sleep(POLL);
    }
    Ok(Holdings {
        descriptors: family::descriptors(pid),
        threads: family::threads(pid),
        own_kb: family::memory_kb(pid, "RssAnon").unwrap_or_default(),
        processes: AT_REST,
    })
}
