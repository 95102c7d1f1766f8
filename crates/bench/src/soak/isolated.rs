//! Calls that have a process tree each, one after the other: the gateway must be as large after many as after a few, with
//! as many processes, and no zombie.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::gateway::Gateway;
use super::{BACK_WITHIN, Holdings, POLL, SETTLE, Victim, zombies};
use crate::family;

/// Processes below a gateway at rest: what keepers come from; and a keeper and a server each for lists and for the two
/// that wait.
const AT_REST: usize = 7;

/// What was seen.
#[derive(Debug, Clone, Copy)]
pub struct Isolated {
    /// How many calls there were.
    pub calls: usize,
    /// After the first of them.
    pub early: Holdings,
    /// After the last.
    pub late: Holdings,
    /// Below the gateway, after the last.
    pub zombies: usize,
}

/// Calls so often; the configuration gives every call a process tree.
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
        // Before that, caches are still filling.
        if number == (calls / 10).max(1) {
            early = Some(at_rest(&gateway)?);
        }
    }
    let late = at_rest(&gateway)?;
    let zombies = zombies(gateway.pid());
    gateway.end(Signal::TERM)?;
    Ok(Isolated { calls, early: early.context("there were no calls")?, late, zombies })
}

/// What the gateway holds once the last process of a call is gone and another waits in its place. The number alone would
/// not tell: while one ends and another begins it can be right by chance. So the same processes must be there for a while.
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
        ensure!(Instant::now() < deadline, "{} processes do not become {AT_REST}", before.len());
        std::thread::sleep(POLL);
    }
    Ok(Holdings {
        descriptors: family::descriptors(pid),
        threads: family::threads(pid),
        own_kb: family::memory_kb(pid, "RssAnon").unwrap_or_default(),
        processes: AT_REST,
    })
}
