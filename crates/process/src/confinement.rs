//! What a program and all below it may reach, how much of that is kept, and why a program was not started if it
//! cannot be.
//!
//! Whoever is confined at all also gains no privilege by what it executes, has no capabilities even as root, cannot
//! signal or inspect anybody outside of its tree where the system can see to that, and is refused the calls that lead
//! around the rest. Making it so is the shim's part.

use std::io;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicU8, Ordering};

use crate::paths;

/// What a program and all below it may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// The files that it may use, besides those that every program needs; all, if absent.
    pub files: Option<Files>,
    /// Whether it may use the network.
    pub network: bool,
    /// Whether it must be kept from signalling others. Where it is not, that is done if the system can, and told if not.
    pub signals: bool,
    /// Whether it is started all the same where the system cannot keep all of it; what must be kept is not part of that.
    pub degrade: bool,
}

/// Files and folders, with all that is in them. No link is followed in their paths, so they have to be resolved by whoever
/// gives them; a start that meets one is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// What may be read and executed.
    pub read: Vec<PathBuf>,
    /// What may be changed, too.
    pub write: Vec<PathBuf>,
}

/// How much of a confinement is kept, as the shim says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confined {
    /// The files are.
    pub files: bool,
    /// The network is shut.
    pub network: bool,
    /// Nobody outside of the tree can be signalled.
    pub signals: bool,
    /// Calls of the system that lead around the rest are refused.
    pub calls: bool,
    /// There are no capabilities.
    pub privileges: bool,
    /// Which version of Landlock the system has; 0 if none.
    pub landlock: u8,
}

impl Confined {
    /// What of `asked` is not kept, in words that name what the system lacks. Nothing if all is.
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

    /// What is not kept though it would be on a newer system, and nobody said that it must be.
    #[must_use]
    pub fn gaps(&self, asked: &Confinement) -> Vec<&'static str> {
        let gap = !asked.signals && !self.signals;
        gap.then(|| Feature::Scopes.name()).into_iter().collect()
    }

    /// A bit for each, and four for the version.
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

    /// How to go without it.
    pub(crate) const fn way_out(self) -> &'static str {
        match self {
            Self::Scopes => "take `signals` out of `require`",
            Self::Landlock | Self::Seccomp | Self::Capabilities => {
                "write `on_missing = \"degrade\"` to go without"
            }
        }
    }
}

/// The first version of Landlock that keeps files whole: before it, any file of the user could be cut to nothing.
pub(crate) const WHOLE_FILES: u8 = 3;
/// The first that keeps signals within the tree.
pub(crate) const SCOPES: u8 = 6;

/// The newest version of Landlock that is used, whatever the system has.
#[cfg(target_os = "linux")]
static NEWEST_LANDLOCK: AtomicU8 = AtomicU8::new(ANY_LANDLOCK);
/// More than there are versions, and still a number of four bits.
#[cfg(target_os = "linux")]
pub(crate) const ANY_LANDLOCK: u8 = 15;

/// Uses Landlock as if the system had no newer version than this, to see what becomes of servers there.
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub fn pretend_landlock(version: u8) {
    NEWEST_LANDLOCK.store(version.min(ANY_LANDLOCK), Ordering::Relaxed);
}

#[cfg(target_os = "linux")]
pub(crate) fn newest_landlock() -> u8 {
    NEWEST_LANDLOCK.load(Ordering::Relaxed)
}

/// What every program needs to run at all: its libraries, and what they look at. What is not there is left out.
#[cfg(target_os = "linux")]
pub(crate) const NEEDED: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys",
    "/proc/uptime",
    "/proc/version",
    "/proc/version_signature",
    "/sys/devices/system/cpu",
    "/sys/kernel/mm/transparent_hugepage",
];

/// What every program may also write to.
#[cfg(target_os = "linux")]
pub(crate) const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

impl Files {
    /// The first path that cannot be given to a program, and why.
    pub(crate) fn unusable(&self) -> Option<(&Path, io::Error)> {
        self.each().find_map(|path| Some((path, paths::unusable(path)?)))
    }

    /// All of them, in an order that both ends of the control socket count by.
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

    /// WALL-4: what was not asked for and is not kept is a gap; what was required is missing.
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
