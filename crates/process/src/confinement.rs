//! What a program and its descendants may reach, and how much of that the system enforces.
//!
//! Every confined program gains no privilege by what it executes and has no capabilities, even as root. It cannot signal
//! or inspect processes outside its tree, where the system can enforce that. System calls that would bypass the
//! confinement are refused. The shim applies all of this.

use std::io;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicU8, Ordering};

use crate::paths;

/// What a program and its descendants may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// The files that it may use, besides those that every program needs. `None` means all files.
    pub files: Option<Files>,
    /// Whether it may use the network.
    pub network: bool,
    /// Whether the program must be unable to signal processes outside its tree. If false, signals are still blocked where
    /// the system can do it, and [`Confined::gaps`] reports where it cannot.
    pub signals: bool,
    /// Whether the program starts even if the system cannot enforce everything. This does not relax `signals`.
    pub degrade: bool,
}

/// Files and folders, the latter with everything in them. The shim follows no symbolic link in these paths: the caller
/// resolves them first, and a start that meets a link is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// What may be read and executed.
    pub read: Vec<PathBuf>,
    /// What may also be changed.
    pub write: Vec<PathBuf>,
}

/// How much of a confinement is enforced, as the shim reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confined {
    /// Only the given files can be used.
    pub files: bool,
    /// The network is blocked.
    pub network: bool,
    /// No process outside the tree can be signalled.
    pub signals: bool,
    /// System calls that would bypass the confinement are refused.
    pub calls: bool,
    /// The program has no capabilities.
    pub privileges: bool,
    /// The version of Landlock in use; 0 if the system has none.
    pub landlock: u8,
}

impl Confined {
    /// What the system lacks to enforce `asked`, in words. Empty if all of it is enforced.
    #[must_use]
    pub fn missing(&self, asked: &Confinement) -> Vec<&'static str> {
        let gaps = [
            (asked.files.is_some() && !self.files, Feature::Landlock),
            (asked.signals && !self.signals, Feature::Scopes),
            (!asked.network && !self.network, Feature::Seccomp),
            (!self.calls, Feature::Seccomp),
            (!self.privileges, Feature::Capabilities),
        ];
        let mut missing: Vec<_> =
            gaps.into_iter().filter(|(gap, _)| *gap).map(|(_, feature)| feature.name()).collect();
        missing.dedup();
        missing
    }

    /// What a newer system would also enforce, although `asked` does not require it.
    #[must_use]
    pub fn gaps(&self, asked: &Confinement) -> Vec<&'static str> {
        let gap = !asked.signals && !self.signals;
        gap.then(|| Feature::Scopes.name()).into_iter().collect()
    }

    /// One bit for each flag, and four for the version.
    #[cfg(target_os = "linux")]
    pub(crate) fn encode(self) -> u32 {
        let Self { files, network, signals, calls, privileges, landlock } = self;
        let flags = [files, network, signals, calls, privileges];
        flags.into_iter().fold(u32::from(landlock.min(15)), |word, flag| word << 1 | u32::from(flag))
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn decode(word: u32) -> Self {
        let flag = |place: u32| word >> place & 1 == 1;
        Self {
            files: flag(4),
            network: flag(3),
            signals: flag(2),
            calls: flag(1),
            privileges: flag(0),
            landlock: u8::try_from(word >> 5 & 15).unwrap_or_default(),
        }
    }
}

/// What a system must have for a confinement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    Landlock,
    Scopes,
    Seccomp,
    Capabilities,
}

impl Feature {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Landlock => "Landlock of version 3 or later (files)",
            Self::Scopes => "Landlock of version 6 or later (signals to other processes)",
            Self::Seccomp => "seccomp filters (network and system calls)",
            Self::Capabilities => "dropping capabilities (running as root)",
        }
    }

    /// How to start without it.
    #[cfg(target_os = "linux")]
    pub(crate) const fn way_out(self) -> &'static str {
        match self {
            Self::Scopes => "take `signals` out of `require`",
            Self::Landlock | Self::Seccomp | Self::Capabilities => {
                "write `on_missing = \"degrade\"` to go without"
            }
        }
    }
}

/// The newest version of Landlock to use, even if the system has a newer one.
#[cfg(target_os = "linux")]
static NEWEST_LANDLOCK: AtomicU8 = AtomicU8::new(ANY_LANDLOCK);
/// Higher than any existing version, and still fits into four bits.
#[cfg(target_os = "linux")]
pub(crate) const ANY_LANDLOCK: u8 = 15;

/// Uses Landlock as if the system had no newer version than this. Tests use it to simulate older systems.
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub fn pretend_landlock(version: u8) {
    NEWEST_LANDLOCK.store(version.min(ANY_LANDLOCK), Ordering::Relaxed);
}

#[cfg(target_os = "linux")]
pub(crate) fn newest_landlock() -> u8 {
    NEWEST_LANDLOCK.load(Ordering::Relaxed)
}

impl Files {
    /// The first path that cannot be given to a program, and why.
    pub(crate) fn unusable(&self) -> Option<(&Path, io::Error)> {
        self.each().find_map(|path| Some((path, paths::unusable(path)?)))
    }

    /// All paths, in the order by which both ends of the control socket number them.
    pub(crate) fn each(&self) -> impl Iterator<Item = &Path> {
        self.read.iter().chain(&self.write).map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Confined =
        Confined { files: true, network: true, signals: true, calls: true, privileges: true, landlock: 7 };

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_kept_survives_the_way() {
        for confined in [
            ALL,
            Confined::default(),
            Confined { files: true, landlock: 2, ..Confined::default() },
            Confined { privileges: true, ..Confined::default() },
        ] {
            assert_eq!(Confined::decode(confined.encode()), confined);
        }
    }

    /// WALL-4: an unenforced protection counts as a gap if it was not required, and as missing if it was.
    #[test]
    fn signals_are_a_gap_unless_they_are_required() {
        let old = Confined { signals: false, landlock: 5, ..ALL };
        let asked = Confinement { files: Some(Files::default()), ..Confinement::default() };
        let required = Confinement { signals: true, ..asked.clone() };
        let name = "Landlock of version 6 or later (signals to other processes)";
        assert_eq!((old.missing(&asked), old.gaps(&asked)), (vec![], vec![name]));
        assert_eq!((old.missing(&required), old.gaps(&required)), (vec![name], vec![]));
        assert_eq!((ALL.missing(&required), ALL.gaps(&asked)), (vec![], vec![]));
    }

    #[test]
    fn what_is_missing_is_named() {
        #[track_caller]
        fn check(confined: Confined, files: bool, network: bool, expected: &[&str]) {
            let asked = Confinement { files: files.then(Files::default), network, ..Confinement::default() };
            assert_eq!(confined.missing(&asked), expected);
        }
        check(ALL, true, false, &[]);
        check(Confined { files: false, ..ALL }, true, false, &["Landlock of version 3 or later (files)"]);
        check(Confined { files: false, ..ALL }, false, false, &[]);
        let unfiltered = Confined { network: false, calls: false, ..ALL };
        check(unfiltered, true, false, &["seccomp filters (network and system calls)"]);
        check(
            Confined { privileges: false, ..ALL },
            false,
            true,
            &["dropping capabilities (running as root)"],
        );
    }
}
