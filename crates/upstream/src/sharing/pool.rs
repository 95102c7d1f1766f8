//! Processes that wait for a call; each serves one.
//!
//! A process that has served a call is killed with its whole tree, whatever the result, and a new one is started in
//! its place. Started means: it runs, its protocol is negotiated and its tools are listed, so a call finds it warm.
//! Whatever a call leaves behind, in memory or in processes, is gone before the next.
//!
//! A process that ends while it waits is dropped at once and replaced. If this keeps happening before any call
//! comes, the replacements come after longer and longer delays, by the server's restart policy. Tools with limits
//! of their own have separate processes, which start once such a tool was called.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bridgehead_config::{Isolation, Limits, ServerConfig};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use crate::server::{Upstream, UpstreamState};

/// How many processes wait.
const IDLE: usize = 2;

/// The waiting processes of a server, grouped by their limits.
#[derive(Debug)]
pub(crate) struct Pools {
    /// The first pool is for tools without limits of their own.
    pools: Vec<Pool>,
}

/// Which of a server's pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolNumber(usize);

impl Pools {
    pub(crate) fn new(server: &ServerConfig) -> Self {
        let mut pools = vec![Pool::new(server.limits)];
        if server.isolation == Isolation::Call {
            for tool in server.tools.values() {
                let limits = tool.limits.or(server.limits);
                match pools.iter_mut().find(|pool| of_processes(pool.limits) == of_processes(limits)) {
                    Some(pool) => pool.limits.execution = longer(pool.limits.execution, limits.execution),
                    None => pools.push(Pool::new(limits)),
                }
            }
        }
        Self { pools }
    }

    /// The pool of a tool.
    pub(crate) fn of(&self, server: &ServerConfig, tool: &str) -> PoolNumber {
        let limits = server.tools.get(tool).map(|tool| of_processes(tool.limits.or(server.limits)));
        let at =
            limits.and_then(|limits| self.pools.iter().position(|pool| of_processes(pool.limits) == limits));
        PoolNumber(at.unwrap_or(0))
    }

    pub(crate) fn get(&self, number: PoolNumber) -> &Pool {
        &self.pools[number.0]
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = PoolNumber> + use<> {
        (0..self.pools.len()).map(PoolNumber)
    }

    /// How many wait, and how many calls found none.
    pub(crate) fn count(&self) -> (usize, u64) {
        self.pools
            .iter()
            .map(Pool::count)
            .fold((0, 0), |(idle, misses), (more, missed)| (idle + more, misses + missed))
    }

    /// Ends all waiting processes.
    pub(crate) fn empty(&self) {
        self.pools.iter().for_each(Pool::empty);
    }
}

/// The limits that a process is started with. How long a call may run is not among them: the call has its own
/// clock, and its process only has to be able to run that long.
fn of_processes(limits: Limits) -> Limits {
    Limits { execution: None, ..limits }
}

/// The longer of two durations; `None` means no bound.
fn longer(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.zip(other).map(|(one, other)| one.max(other))
}

/// The waiting processes with the same limits, the longest waiting first.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The limits of each.
    pub(crate) limits: Limits,
    idle: Mutex<VecDeque<Waiting>>,
    misses: AtomicU64,
    /// How many have ended since the last one that served a call.
    vain: AtomicU32,
}

/// A waiting process, and the task that notices its end.
#[derive(Debug)]
struct Waiting {
    number: u64,
    instance: Upstream,
    _watch: AbortOnDropHandle<()>,
}

impl Waiting {
    fn serves(&self) -> bool {
        matches!(self.instance.state(), UpstreamState::Ready(ready) if ready.link.is_open())
    }
}

impl Pool {
    fn new(limits: Limits) -> Self {
        Self { limits, idle: Mutex::default(), misses: AtomicU64::new(0), vain: AtomicU32::new(0) }
    }

    /// A process that is ready, or else one that is starting.
    pub(crate) fn take(&self) -> Option<Upstream> {
        let taken = {
            let mut idle = self.idle.lock();
            let starts =
                |waiting: &Waiting| matches!(waiting.instance.state(), UpstreamState::Starting { .. });
            let ready = idle.iter().position(Waiting::serves);
            if ready.is_some() {
                self.vain.store(0, Ordering::Relaxed);
            }
            let at = ready.or_else(|| idle.iter().position(starts))?;
            idle.remove(at)
        };
        taken.map(|waiting| waiting.instance)
    }

    pub(crate) fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// How many wait and are ready, and how many calls found none.
    pub(crate) fn count(&self) -> (usize, u64) {
        let idle = self.idle.lock().iter().filter(|waiting| waiting.serves()).count();
        (idle, self.misses.load(Ordering::Relaxed))
    }

    /// Whether another process may wait.
    pub(crate) fn wants(&self) -> bool {
        self.idle.lock().len() < IDLE
    }

    /// Adds a waiting process under a unique number; `watch` notices its end.
    pub(crate) fn put(&self, number: u64, instance: Upstream, watch: AbortOnDropHandle<()>) {
        self.idle.lock().push_back(Waiting { number, instance, _watch: watch });
    }

    /// Drops a process that has ended. Returns how many have ended in a row before it; `None` if it was not
    /// waiting.
    pub(crate) fn lost(&self, number: u64) -> Option<u32> {
        let lost = {
            let mut idle = self.idle.lock();
            let at = idle.iter().position(|waiting| waiting.number == number)?;
            idle.remove(at)?
        };
        lost.instance.release();
        Some(self.vain.fetch_add(1, Ordering::Relaxed))
    }

    /// Ends all waiting processes.
    fn empty(&self) {
        let ended = std::mem::take(&mut *self.idle.lock());
        ended.iter().for_each(|waiting| waiting.instance.release());
    }
}

/// A unique number for a process.
pub(crate) fn number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// A process for one call. Dropping it kills the process and starts another that waits for the next call.
#[derive(Debug)]
pub struct OneShot {
    pub(crate) instance: Upstream,
    pub(crate) of: Upstream,
    pub(crate) pool: PoolNumber,
}

impl Deref for OneShot {
    type Target = Upstream;

    fn deref(&self) -> &Upstream {
        &self.instance
    }
}

impl Drop for OneShot {
    fn drop(&mut self) {
        self.instance.release();
        self.of.refill(self.pool);
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_config::{GatewaySettings, Launch, Stdio, ToolOverride};

    use super::*;
    use crate::testing;

    fn seconds(count: u64) -> Limits {
        Limits { execution: Some(Duration::from_secs(count)), ..Limits::default() }
    }

    fn waiting() -> (Upstream, AbortOnDropHandle<()>) {
        let instance = Upstream::start(testing::unusable(), testing::surroundings());
        (instance, AbortOnDropHandle::new(tokio::spawn(std::future::pending())))
    }

    /// BOX-5: two wait, no more. The one that has waited longest is taken first, and one that has ended is dropped.
    #[tokio::test]
    async fn two_wait_for_their_calls() {
        let pool = Pool::new(Limits::default());
        let mut put = Vec::new();
        for number in [10, 11] {
            assert!(pool.wants(), "{number}");
            let (instance, watch) = waiting();
            put.push(instance.clone());
            pool.put(number, instance, watch);
        }
        assert!(!pool.wants());
        assert_eq!((pool.lost(12), pool.lost(11), pool.lost(11)), (None, Some(0), None));
        assert!(put[1].is_released() && pool.wants());
        let taken = pool.take().unwrap();
        assert!(taken.is(&put[0]) && pool.take().is_none());
        let (instance, watch) = waiting();
        pool.put(13, instance, watch);
        assert_eq!(pool.lost(13), Some(1), "the second in a row");
        let (instance, watch) = waiting();
        pool.put(14, instance.clone(), watch);
        pool.empty();
        assert!(instance.is_released() && pool.wants());
        assert!(!taken.is_released(), "a call is using it");
    }

    /// BOX-1: tools that differ only in how long they may run share processes, each of which may run as long as the
    /// longest of them; that also bounds the processor time of a process.
    #[test]
    fn a_process_may_run_as_long_as_any_of_its_tools() {
        let launch = Launch::Stdio(Stdio::new("true", [""; 0]));
        let mut server = ServerConfig::new("a".parse().unwrap(), launch, &GatewaySettings::default());
        (server.isolation, server.limits) = (Isolation::Call, seconds(30));
        let small = Limits { memory: Some(1 << 20), ..seconds(5) };
        for (tool, limits) in [("quick", seconds(1)), ("slow", seconds(600)), ("small", small)] {
            server.tools.insert(tool.to_owned(), ToolOverride { limits, ..ToolOverride::default() });
        }
        let pools = Pools::new(&server);
        let of = |tool: &str| pools.get(pools.of(&server, tool)).limits;
        for tool in ["quick", "slow", "other"] {
            assert_eq!(of(tool), seconds(600), "{tool}");
        }
        assert_eq!(of("small"), small);
        assert_eq!(longer(None, Some(Duration::from_secs(1))), None);
    }
}
