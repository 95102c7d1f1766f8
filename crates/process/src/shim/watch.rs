//! Sets the limits that every process of a tree inherits, and samples the tree for limits that the system does not
//! enforce.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::cgroup::Group;
use crate::descent::{self, Descendant};
use crate::{Breach, Effective, Enforced, Limits, sys};

/// The interval between two checks of a tree.
const PACE: Duration = Duration::from_millis(50);
/// The interval for a tree that uses more than half of a limit.
const FASTER: Duration = Duration::from_millis(10);

/// Sets the limits that the system enforces, for this process and all that it starts, and returns how each limit is
/// enforced. `grouped` says that the tree is in a control group.
///
/// The number of processes is left to the group or the watch: `RLIMIT_NPROC` counts all processes of a user, and does not
/// apply to root.
pub(super) fn set(limits: &Limits, grouped: bool) -> rustix::io::Result<Effective> {
    let Limits { memory, hard_processes, processes, open_files, file_size, cpu_seconds, .. } = *limits;
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
    let by_group = |grouped: bool| if grouped { Enforced::Hard } else { Enforced::Sampled };
    Ok(Effective {
        memory: memory.map(|_| by_group(grouped)),
        processes: processes.map(|_| by_group(grouped && hard_processes)),
        open_files: open_files.map(|_| Enforced::Hard),
        file_size: file_size.map(|_| Enforced::Hard),
        confined: None,
    })
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
    /// Watches those limits that are enforced by sampling.
    pub(super) fn new(limits: &Limits, effective: &Effective) -> Self {
        let looking = |kept: Option<Enforced>| kept == Some(Enforced::Sampled);
        let sampled = Sampled {
            memory: limits.memory.filter(|_| looking(effective.memory)),
            processes: limits.processes.filter(|_| looking(effective.processes)),
        };
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
        let tree = descent::below(std::process::id());
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
        // The first sum counts shared memory once for each process, so a fair sum decides. Where the system does not
        // report one, the first sum decides.
        let fair = sum(descent::fair_bytes);
        let bytes = if fair > 0 { fair } else { own };
        (bytes > most).then_some(Breach::Memory { bytes })
    }

    /// Whether a process died of the memory limit: the largest process that ended had at least 90 % of it.
    pub(super) fn died_of(&self) -> Option<Breach> {
        let most = self.memory?;
        let bytes = sys::largest_of_ended();
        (bytes >= most / 10 * 9).then_some(Breach::Memory { bytes })
    }
}
