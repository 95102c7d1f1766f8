//! What a program and its descendants may use together, how that is enforced, and what happens on a breach.
//!
//! Memory and processes are limits of the whole tree. Where the gateway has a control group that it may divide, each such
//! tree gets its own: the system enforces its memory limit, and its process limit too if `hard_processes` is set (the system
//! counts threads, not processes, so that is opt-in). Elsewhere the limits are *sampled*: the shim checks the tree many
//! times a second and kills all of it on a breach, so a limit can be exceeded for a moment. The system also refuses memory
//! to a single process that alone reaches the limit. Open files and file sizes are always enforced by the system, for
//! each process.

use std::fmt;

use crate::Confined;

/// What a program and its descendants may use. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory of the tree that is not backed by a file, in bytes.
    pub memory: Option<u64>,
    /// Refuse to start unless the system itself enforces the memory limit.
    pub hard_memory: bool,
    /// How many processes the tree may have.
    pub processes: Option<u32>,
    /// Refuse to start unless the system itself enforces the process limit. Each thread then counts as a process.
    pub hard_processes: bool,
    /// How many descriptors each process may have open.
    pub open_files: Option<u32>,
    /// How large a file may become by writing, in bytes.
    pub file_size: Option<u64>,
    /// How much CPU time each process may take, in seconds.
    pub cpu_seconds: Option<u32>,
    /// How much of the end of standard error is kept, in bytes; 64 KiB if absent.
    pub log: Option<usize>,
}

impl Limits {
    /// Whether a limit is set that needs a shim.
    #[must_use]
    pub fn is_bounding(&self) -> bool {
        let Self { open_files, file_size, cpu_seconds, .. } = self;
        let of_each = file_size.is_some() || open_files.is_some() || cpu_seconds.is_some();
        of_each || self.is_of_tree()
    }

    /// How many threads a tree may have where the system counts threads and not processes; `None` without a limit. Nobody knows how
    /// many threads a process needs. So unless a hard limit was asked for, this only stops a tree that multiplies faster than the
    /// shim counts.
    #[cfg(target_os = "linux")]
    pub(crate) fn threads(&self) -> Option<u32> {
        /// For each process that there may be.
        const THREADS: u32 = 64;
        /// However few processes there may be.
        const FEWEST: u32 = 1024;
        let generous = |count: u32| count.saturating_mul(THREADS).max(FEWEST);
        self.processes.map(|count| if self.hard_processes { count } else { generous(count) })
    }

    /// Whether a limit of the tree as a whole is set.
    pub(crate) fn is_of_tree(&self) -> bool {
        let Self { memory, hard_memory, processes, hard_processes, .. } = *self;
        memory.is_some() || processes.is_some() || hard_memory || hard_processes
    }
}

/// How a limit is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforced {
    /// By the system: it is never exceeded.
    Hard,
    /// By sampling: it may be exceeded for a moment before the tree is killed.
    Sampled,
}

impl fmt::Display for Enforced {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Hard => "hard",
            Self::Sampled => "sampled",
        })
    }
}

/// How the limits of a running program are enforced, as its shim reports. `None` for a limit that was not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effective {
    /// Memory of the tree.
    pub memory: Option<Enforced>,
    /// Processes of the tree.
    pub processes: Option<Enforced>,
    /// Open files of each process.
    pub open_files: Option<Enforced>,
    /// Size of files.
    pub file_size: Option<Enforced>,
    /// How it is confined; `None` if it is not.
    pub confined: Option<Confined>,
}

/// The limit for which a tree was killed, or of which it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// It used too much memory.
    Memory {
        /// How much it used.
        bytes: u64,
    },
    /// It had too many processes.
    Processes {
        /// How many there were.
        count: u32,
    },
}

impl fmt::Display for Breach {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { bytes } => {
                write!(formatter, "it reached its memory limit (it had {} MB)", bytes >> 20)
            }
            Self::Processes { count } => write!(formatter, "it exceeded its process limit (it had {count})"),
        }
    }
}

#[cfg(target_os = "linux")]
impl Effective {
    /// Two bits for each limit, one bit for whether there is a confinement, and the encoded confinement.
    pub(crate) fn encode(self) -> u32 {
        let Self { memory, processes, open_files, file_size, confined } = self;
        let walls = confined.map_or(0, |confined| confined.encode() << 9 | 1 << 8);
        let bits = |enforced| match enforced {
            None => 0,
            Some(Enforced::Sampled) => 1,
            Some(Enforced::Hard) => 2,
        };
        [memory, processes, open_files, file_size]
            .into_iter()
            .fold(0, |word, enforced| word << 2 | bits(enforced))
            | walls
    }

    pub(crate) fn decode(word: u32) -> Option<Self> {
        let enforced = |place: u32| match word >> (2 * place) & 3 {
            0 => Some(None),
            1 => Some(Some(Enforced::Sampled)),
            2 => Some(Some(Enforced::Hard)),
            _ => None,
        };
        Some(Self {
            memory: enforced(3)?,
            processes: enforced(2)?,
            open_files: enforced(1)?,
            file_size: enforced(0)?,
            confined: (word >> 8 & 1 == 1).then(|| Confined::decode(word >> 9)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_effective_survives_the_way() {
        let ways = [None, Some(Enforced::Sampled), Some(Enforced::Hard)];
        for memory in ways {
            for file_size in ways {
                for confined in
                    [None, Some(Confined::default()), Some(Confined { landlock: 9, ..Confined::default() })]
                {
                    let processes = Some(Enforced::Sampled);
                    let effective = Effective { memory, processes, open_files: None, file_size, confined };
                    assert_eq!(Effective::decode(effective.encode()), Some(effective));
                }
            }
        }
        assert_eq!(Effective::decode(3), None);
    }

    /// BOX-3: each limit needs somebody who keeps it; those of the tree as a whole, and the demand that the system keeps them, need
    /// somebody who keeps the tree.
    #[test]
    fn which_limits_are_of_the_tree() {
        let none = Limits::default();
        for (limits, of_tree) in [
            (Limits { memory: Some(1), ..none }, true),
            (Limits { hard_memory: true, ..none }, true),
            (Limits { processes: Some(1), ..none }, true),
            (Limits { hard_processes: true, ..none }, true),
            (Limits { open_files: Some(1), ..none }, false),
            (Limits { file_size: Some(1), ..none }, false),
            (Limits { cpu_seconds: Some(1), ..none }, false),
        ] {
            assert!(limits.is_bounding(), "{limits:?}");
            assert_eq!(limits.is_of_tree(), of_tree, "{limits:?}");
        }
        let log = Limits { log: Some(1), ..none };
        assert_eq!((log.is_bounding(), log.is_of_tree()), (false, false));
    }

    #[test]
    fn a_breach_is_readable() {
        assert_eq!(
            Breach::Memory { bytes: 300 << 20 }.to_string(),
            "it reached its memory limit (it had 300 MB)"
        );
        assert_eq!(Breach::Processes { count: 65 }.to_string(), "it exceeded its process limit (it had 65)");
        assert!(!Limits { log: Some(1), ..Limits::default() }.is_bounding());
    }
}
