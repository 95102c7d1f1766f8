//! Sets the limits of a tree that each of its processes carries along, and looks whether it keeps those that the system
//! does not keep for it.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::cgroup::Group;
use crate::descent::{self, Descendant};
use crate::{Breach, Effective, Enforced, Limits, sys};

/// How often a tree is looked at.
const PACE: Duration = Duration::from_millis(50);
/// How often one is looked at that has half of what it may.
const FASTER: Duration = Duration::from_millis(10);

/// Sets what the system keeps, for this process and all that it starts, and says how each limit is kept. `grouped` says
/// that the tree is in a control group.
///
/// The number of processes is left to the group or the watch: for this the system counts all of a user's, and none of
/// root's.
pub(super) fn set(limits: &Limits, grouped: bool) -> rustix::io::Result<Effective> {
    let Limits { memory, hard_processes, processes, open_files, file_size, cpu_seconds, .. } = *limits;
    let most = |resource: Resource, value: u64| {
        let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let value = Some(value.min(ceiling));
        setrlimit(resource, Rlimit { current: value, maximum: value })
    };
    if limits.is_bounding() {
        // What one that dies leaves behind is no file of anybody's.
        most(Resource::Core, 0)?;
    }
    if let (Some(bytes), false) = (memory, grouped) {
        // Private memory that may be written to. Address space is not limited: much of it is only reserved.
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
        // A second between being told and being killed.
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

/// Looks at a tree now and then.
pub(super) struct Watch {
    /// Of the tree, in bytes, whoever keeps it.
    memory: Option<u64>,
    /// What is looked for.
    sampled: Sampled,
    next: Instant,
}

/// Limits that are kept by looking.
struct Sampled {
    memory: Option<u64>,
    processes: Option<u32>,
}

impl Watch {
    /// Looks for those limits that are kept by looking.
    pub(super) fn new(limits: &Limits, effective: &Effective) -> Self {
        let looking = |kept: Option<Enforced>| kept == Some(Enforced::Sampled);
        let sampled = Sampled {
            memory: limits.memory.filter(|_| looking(effective.memory)),
            processes: limits.processes.filter(|_| looking(effective.processes)),
        };
        Self { memory: limits.memory, sampled, next: Instant::now() + FASTER }
    }

    /// When it looks again; never, if there is nothing to look for.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.sampled.memory.is_some() || self.sampled.processes.is_some()).then_some(self.next)
    }

    /// Looks at the tree below this process, which may be in a group. Says what it has too much of.
    pub(super) fn look(&mut self, group: Option<&Group>) -> Option<Breach> {
        let Sampled { memory, processes } = self.sampled;
        // A group knows how many threads there are, and there are no more processes than that.
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
        // What they share was counted for each. Where that is not told, more than enough is enough.
        let fair = sum(descent::fair_bytes);
        let bytes = if fair > 0 { fair } else { own };
        (bytes > most).then_some(Breach::Memory { bytes })
    }

    /// Whether memory is what ended somebody who died: the largest of them had nearly all of it.
    pub(super) fn died_of(&self) -> Option<Breach> {
        let most = self.memory?;
        let bytes = sys::largest_of_ended();
        (bytes >= most / 10 * 9).then_some(Breach::Memory { bytes })
    }
}
