//! A view of a running program's tree and memory, for reports.
//!
//! It owns nothing and ends nothing. It never reports on a pid that has been reused.

#[cfg(target_os = "linux")]
use crate::descent;
#[cfg(target_os = "linux")]
use crate::message::Birth;
use crate::{Containment, Effective};

/// A running program, seen by code that does not own it. The program may have ended meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessView {
    pid: u32,
    /// When it was started; together with the pid this identifies a process.
    #[cfg(target_os = "linux")]
    born: Option<u32>,
    #[cfg(target_os = "linux")]
    shim: Option<u32>,
    containment: Containment,
    effective: Effective,
}

impl ProcessView {
    #[cfg(target_os = "linux")]
    pub(crate) fn below_shim(program: Birth, shim: Birth, effective: Effective) -> Self {
        let (pid, born) = (program.pid, Some(program.born));
        Self { pid, born, shim: Some(shim.pid), containment: Containment::Tree, effective }
    }

    pub(crate) fn of_group(pid: u32) -> Self {
        Self {
            pid,
            #[cfg(target_os = "linux")]
            born: descent::born(pid),
            #[cfg(target_os = "linux")]
            shim: None,
            containment: Containment::Group,
            effective: Effective::default(),
        }
    }

    /// The pid of the program.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Which of its descendants end with it.
    #[must_use]
    pub fn containment(&self) -> Containment {
        self.containment
    }

    /// How its limits are enforced.
    #[must_use]
    pub fn effective(&self) -> Effective {
        self.effective
    }

    /// The current pids of the program and its descendants, the program first; empty once it has ended. On systems other
    /// than Linux it contains only the program itself.
    #[must_use]
    pub fn tree(&self) -> Vec<u32> {
        #[cfg(target_os = "linux")]
        {
            if self.born.is_none() || descent::born(self.pid) != self.born {
                return Vec::new();
            }
            // Below the shim are also processes that left the program. Its pid is valid only while it is the parent.
            let root = self.shim.filter(|&shim| descent::parent(self.pid) == Some(shim)).unwrap_or(self.pid);
            let others = descent::below(root).into_iter().map(|member| member.pid);
            std::iter::once(self.pid).chain(others.filter(|&pid| pid != self.pid)).collect()
        }
        #[cfg(not(target_os = "linux"))]
        {
            vec![self.pid]
        }
    }

    /// The resident memory of the whole tree, where the system reports it. Shared memory is counted for each process.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        resident_bytes(&self.tree())
    }
}

/// The resident memory of these processes, where the system reports it.
pub(crate) fn resident_bytes(pids: &[u32]) -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        pids.iter().filter_map(|&pid| descent::resident_bytes(pid)).reduce(|sum, bytes| sum + bytes)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = pids;
        None
    }
}
