//! Sets the limits that every process of a tree inherits, and samples the tree for limits that the system does not
//! enforce.
//!
//! A look at a tree takes a bounded time, however fast the tree grows: it ends with the first process too many. The watcher runs
//! before what it watches.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::cgroup::Group;
use super::own_users;
use crate::descent::{self, Descendant};
use crate::{Breach, Effective, Enforced, Limits, sys};

/// The interval between two checks of a tree.
const PACE: Duration = Duration::from_millis(50);
/// The interval for a tree that uses more than half of a limit.
const FASTER: Duration = Duration::from_millis(10);

/// By what the processes of a tree are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// Its control group.
    Group,
    /// `RLIMIT_NPROC`, in a user namespace of its own. Elsewhere that would count all processes of a user.
    OwnUsers,
    /// This watch alone.
    Sampling,
}

/// Sets the limits that the system enforces, for this process and all that it starts.
pub(super) fn set(limits: &Limits, counted: Counted) -> std::io::Result<()> {
    let Limits { memory, open_files, file_size, cpu_seconds, .. } = *limits;
    let grouped = counted == Counted::Group;
    let most = |resource: Resource, value: u64| {
        let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let value = Some(value.min(ceiling));
        setrlimit(resource, Rlimit { current: value, maximum: value })
    };
    if limits.is_bounding() {
        // A crash must not write a core file.
        most(Resource::Core, 0)?;
    }
    if let (Some(bytes), false) = (memory, grouped) {
        // Limits private writable memory. Address space is not limited, because programs reserve much that they never use.
        most(Resource::Data, bytes)?;
    }
    if let Some(count) = open_files {
        most(Resource::Nofile, count.into())?;
    }
    if let Some(bytes) = file_size {
        sys::survive_large_files();
        most(Resource::Fsize, bytes)?;
    }
    if let Some(seconds) = cpu_seconds {
        // One second between SIGXCPU and SIGKILL.
        let ceiling = getrlimit(Resource::Cpu).maximum.unwrap_or(u64::MAX);
        let (soft, hard) = (u64::from(seconds).min(ceiling), (u64::from(seconds) + 1).min(ceiling));
        setrlimit(Resource::Cpu, Rlimit { current: Some(soft), maximum: Some(hard) })?;
    }
    if counted == Counted::OwnUsers
        && let Some(threads) = limits.threads()
    {
        own_users::limit(threads)?;
    }
    Ok(())
}

/// How each limit is enforced.
pub(super) fn effective(limits: &Limits, counted: Counted) -> Effective {
    let Limits { memory, hard_processes, processes, open_files, file_size, .. } = *limits;
    let by_system = |holds: bool| if holds { Enforced::Hard } else { Enforced::Sampled };
    Effective {
        memory: memory.map(|_| by_system(counted == Counted::Group)),
        processes: processes.map(|_| by_system(counted != Counted::Sampling && hard_processes)),
        open_files: open_files.map(|_| Enforced::Hard),
        file_size: file_size.map(|_| Enforced::Hard),
        confined: None,
    }
}

/// Checks a tree at intervals.
pub(super) struct Watch {
    /// The memory limit of the tree in bytes, whether sampled or hard.
    memory: Option<u64>,
    /// The limits to check.
    sampled: Sampled,
    next: Instant,
}

/// Limits that are enforced by sampling.
struct Sampled {
    memory: Option<u64>,
    processes: Option<u32>,
}

impl Watch {
    /// Watches those limits that are enforced by sampling. If there are any, this process runs before others from now on.
    pub(super) fn new(limits: &Limits, effective: &Effective) -> Self {
        let looking = |kept: Option<Enforced>| kept == Some(Enforced::Sampled);
        let sampled = Sampled {
            memory: limits.memory.filter(|_| looking(effective.memory)),
            processes: limits.processes.filter(|_| looking(effective.processes)),
        };
        if sampled.memory.is_some() || sampled.processes.is_some() {
            sys::run_before_others();
        }
        Self { memory: limits.memory, sampled, next: Instant::now() + FASTER }
    }

    /// When the next check is due; `None` if there is nothing to check.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.sampled.memory.is_some() || self.sampled.processes.is_some()).then_some(self.next)
    }

    /// Checks the tree below this process, which may be in a group. Returns the limit that it exceeds.
    pub(super) fn look(&mut self, group: Option<&Group>) -> Option<Breach> {
        let Sampled { memory, processes } = self.sampled;
        // A group knows its number of threads, and there are never more processes than threads.
        if memory.is_none()
            && let Some(threads) = group.and_then(Group::threads)
            && processes.is_some_and(|most| threads <= u64::from(most))
        {
            self.next = Instant::now() + FASTER;
            return None;
        }
        let enough = processes.map_or(usize::MAX, |most| most as usize).saturating_add(1);
        let tree = descent::up_to(std::process::id(), enough);
        let count = u32::try_from(tree.len()).unwrap_or(u32::MAX);
        let sum = |bytes: fn(u32) -> Option<u64>| {
            tree.iter().filter_map(|member: &Descendant| bytes(member.pid)).sum::<u64>()
        };
        let own = memory.map_or(0, |_| sum(descent::own_bytes));
        let many = processes.is_some_and(|most| count > most / 2);
        let much = memory.is_some_and(|most| own > most / 2);
        self.next = Instant::now() + if many || much { FASTER } else { PACE };
        if processes.is_some_and(|most| count > most) {
            return Some(Breach::Processes { count });
        }
        let most = memory.filter(|&most| own > most)?;
        // The first sum counts shared memory once for each process, so a fair sum decides. It is not reported for every process;
        // the others count in full, so that none can hide.
        let bytes = sum(|pid| descent::fair_bytes(pid).or_else(|| descent::own_bytes(pid)));
        (bytes > most).then_some(Breach::Memory { bytes })
    }

    /// Whether a process died of the memory limit: the largest process that ended had at least 90 % of it.
    pub(super) fn died_of(&self) -> Option<Breach> {
        let most = self.memory?;
        let bytes = sys::largest_of_ended();
        (bytes >= most / 10 * 9).then_some(Breach::Memory { bytes })
    }
}
