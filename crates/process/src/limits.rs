//! What a program and all below it may use together, how that is kept, and what happens to one that takes more.
//!
//! Memory and processes are limits of the whole tree. Where the gateway has a control group to divide, the tree is in
//! one of its own: the system keeps its memory, and its processes too if that is asked for (the system counts threads,
//! not processes, so it is not what everybody means). Elsewhere the shim looks at the tree many times a second and kills
//! all of it when there is too much; memory is refused to a single process too, by the system, once that process
//! alone has all of it. So memory is *sampled* there: it can be exceeded for a moment. Open files and file sizes are
//! kept by the system alone, for each process.

use std::fmt;

use crate::Confined;

/// What a program and all below it may use; what is absent is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory of all of them that is not of a file, in bytes.
    pub memory: Option<u64>,
    /// Start nothing unless the system itself keeps the memory.
    pub hard_memory: bool,
    /// How many processes they may be.
    pub processes: Option<u32>,
    /// Start nothing unless the system itself keeps their number; each thread counts as one then.
    pub hard_processes: bool,
    /// How many descriptors each may have open.
    pub open_files: Option<u32>,
    /// How large each file that they write may become, in bytes.
    pub file_size: Option<u64>,
    /// How much processor time each may take, in seconds.
    pub cpu_seconds: Option<u32>,
    /// How much of the end of their error output is kept, in bytes; 64 KiB if absent.
    pub log: Option<usize>,
}

impl Limits {
    /// Whether something must be kept by a shim.
    #[must_use]
    pub fn is_bounding(&self) -> bool {
        let Self { open_files, file_size, cpu_seconds, .. } = self;
        let of_each = file_size.is_some() || open_files.is_some() || cpu_seconds.is_some();
        of_each || self.is_of_tree()
    }

    /// Whether something of the tree as a whole must be kept.
    pub(crate) fn is_of_tree(&self) -> bool {
        let Self { memory, hard_memory, processes, hard_processes, .. } = *self;
        memory.is_some() || processes.is_some() || hard_memory || hard_processes
    }
}

/// How a limit is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforced {
    /// By the system: it is never exceeded.
    Hard,
    /// By looking: it is exceeded for a moment before all are killed.
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

/// How the limits of a running program are kept, as its keeper says; nothing for those that were not set.
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
    /// What it may reach; nothing if it may reach everything.
    pub confined: Option<Confined>,
}

/// Why a tree was killed by its keeper, or died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// It had so many bytes of memory.
    Memory {
        /// What it had.
        bytes: u64,
    },
    /// It had so many processes.
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
    /// Two bits for each, a bit whether there is a confinement, and what it is.
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
