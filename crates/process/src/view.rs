//! A look at a running program from outside: its tree and memory, for whoever reports on it.
//!
//! Owns nothing and ends nothing. A pid that has become somebody else's is not looked at.

#[cfg(target_os = "linux")]
use crate::descent;
#[cfg(target_os = "linux")]
use crate::message::Birth;
use crate::{Containment, Effective};

/// A running program as others may look at it. It may have ended meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessView {
    pid: u32,
    /// When it was started; with the pid it names a process.
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

    /// What of its descendants ends with it.
    #[must_use]
    pub fn containment(&self) -> Containment {
        self.containment
    }

    /// How its limits are kept.
    #[must_use]
    pub fn effective(&self) -> Effective {
        self.effective
    }

    /// The pids of the program and its descendants now, the program first; none once it has ended. Systems other
    /// than Linux tell only the program itself.
    #[must_use]
    pub fn tree(&self) -> Vec<u32> {
        #[cfg(target_os = "linux")]
        {
            if self.born.is_none() || descent::born(self.pid) != self.born {
                return Vec::new();
            }
            // Below the shim are also those that left the program; but only while it is still the shim.
            let root = self.shim.filter(|&shim| descent::parent(self.pid) == Some(shim)).unwrap_or(self.pid);
            let others = descent::below(root).into_iter().map(|member| member.pid);
            std::iter::once(self.pid).chain(others.filter(|&pid| pid != self.pid)).collect()
        }
        #[cfg(not(target_os = "linux"))]
        {
            vec![self.pid]
        }
    }

    /// The memory of the whole tree that is in RAM now, where the system tells. What they share is counted for
    /// each of them.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        resident_bytes(&self.tree())
    }
}

/// The memory of these processes that is in RAM, where the system tells.
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
