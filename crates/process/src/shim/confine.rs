//! Confines the process that is about to become the server, and everything that it will start.
//!
//! The shim opens the paths and prepares the rules. The new process then applies them to itself, in an order in which no
//! step blocks a later one: capabilities, then Landlock, then the filter of system calls.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};
use seccompiler::BpfProgram;

use super::filter::filter;
use crate::confinement::{Confined, Confinement, Feature, Files};
use crate::message::Stage;
use crate::paths::open_without_links;

/// The first version of Landlock that restricts truncation. Before it, a program could truncate any file of the user.
const WHOLE_FILES: u8 = 3;
/// The first version that can keep signals within the tree.
const SCOPES: u8 = 6;

/// The paths that every program needs: its libraries and what they read. Paths that do not exist are skipped.
const NEEDED: &[&str] = &[
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

/// The devices that every program may read and write.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// How many links a path may have before it is treated as a loop; the system has the same limit.
const MOST_LINKS: usize = 40;

/// Everything that is prepared before the process to confine exists.
pub(super) struct Walls {
    rules: Option<RulesetCreated>,
    filter: Option<BpfProgram>,
    asked: Confinement,
    /// The newest version of Landlock that is used.
    newest: u8,
}

/// A feature that the system lacks, and its error.
pub(super) type Gap = (Feature, Errno);

/// Why the confinement could not be prepared.
pub(super) enum Refusal {
    /// The system lacks a feature, and `degrade` is not set.
    Gap(Gap),
    /// The path with this index in the order of [`Files::each`] cannot be used. `degrade` does not cover this.
    Path(u32, Errno),
}

impl Refusal {
    /// Where the start failed, and why.
    pub(super) fn failure(self) -> (Stage, io::Error) {
        match self {
            Self::Gap((feature, errno)) => (Stage::Confinement(feature), errno.into()),
            Self::Path(which, errno) => (Stage::Path(which), errno.into()),
        }
    }
}

impl Walls {
    /// Prepares the walls around `program`, with a Landlock version of at most `newest`. If `degrade` is set, features that
    /// the system lacks are left out and reported.
    pub(super) fn prepare(asked: Confinement, program: &Path, newest: u8) -> Result<Self, Refusal> {
        let lacks = |feature: Feature, errno: Errno| match asked.degrade {
            true => Ok(()),
            false => Err(Refusal::Gap((feature, errno))),
        };
        let given = match &asked.files {
            Some(files) => open_all(files, program, ABI::from(i32::from(newest)))?,
            None => Vec::new(),
        };
        let rules = match rules(&asked, given, ABI::from(i32::from(newest))) {
            Ok(rules) => rules,
            Err(error) => {
                lacks(Feature::Landlock, error)?;
                None
            }
        };
        let filter = filter(&asked);
        if filter.is_none() {
            lacks(Feature::Seccomp, Errno::NOSYS)?;
        }
        Ok(Self { rules, filter, asked, newest })
    }

    /// Confines this process.
    pub(super) fn close(self) -> Result<Confined, Gap> {
        let Self { rules, filter, asked, newest } = self;
        let lacks =
            |feature: Feature, errno: Errno| if asked.degrade { Ok(()) } else { Err((feature, errno)) };
        let mut confined = Confined::default();
        match drop_capabilities() {
            Ok(()) => confined.privileges = true,
            Err(errno) => lacks(Feature::Capabilities, errno)?,
        }
        if let Some(rules) = rules {
            let status = rules.restrict_self().map_err(|_| (Feature::Landlock, Errno::PERM));
            match status {
                Ok(status) => {
                    if let LandlockStatus::Available { effective_abi, .. } = status.landlock {
                        confined.landlock = (effective_abi as u8).min(newest);
                    }
                    let enforced = status.ruleset != RulesetStatus::NotEnforced;
                    confined.files = enforced && asked.files.is_some() && confined.landlock >= WHOLE_FILES;
                    confined.signals = enforced && confined.landlock >= SCOPES;
                }
                Err((feature, errno)) => lacks(feature, errno)?,
            }
        }
        if asked.files.is_some() && !confined.files {
            lacks(Feature::Landlock, Errno::OPNOTSUPP)?;
        }
        if asked.signals && !confined.signals {
            return Err((Feature::Scopes, Errno::OPNOTSUPP));
        }
        if let Some(filter) = filter {
            match seccompiler::apply_filter(&filter) {
                Ok(()) => (confined.calls, confined.network) = (true, !asked.network),
                Err(error) => lacks(Feature::Seccomp, errno_of(&error))?,
            }
        }
        Ok(confined)
    }
}

fn errno_of(error: &seccompiler::Error) -> Errno {
    match error {
        seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => {
            Errno::from_io_error(error).unwrap_or(Errno::INVAL)
        }
        _ => Errno::INVAL,
    }
}

/// An open path that a program may use, and what it may do there.
type Given = (OwnedFd, BitFlags<AccessFs>);

/// Opens all paths that a program may use. The configured paths are opened without following links, because the program
/// itself may have put one there. The paths that every program needs belong to the system, so links in them are followed.
fn open_all(files: &Files, program: &Path, newest: ABI) -> Result<Vec<Given>, Refusal> {
    let following = |path: &Path| open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let reading = AccessFs::from_read(newest);
    let device = (AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate) & AccessFs::from_all(newest);
    let needed = NEEDED.iter().map(|path| (Path::new(path), reading));
    let devices = DEVICES.iter().map(|path| (Path::new(path), device));
    // If the program can change where its own path leads, it gets no extra right to read that path.
    let itself = (!leads_through(program, &files.write)).then_some((program, reading));
    let mut given: Vec<Given> = needed
        .chain(devices)
        .chain(itself)
        .filter_map(|(path, access)| Some((following(path).ok()?, access)))
        .collect();
    for (which, path) in files.each().enumerate() {
        let access = if which < files.read.len() { reading } else { AccessFs::from_all(newest) };
        let refused = |errno| Refusal::Path(u32::try_from(which).unwrap_or(u32::MAX), errno);
        given.push((open_without_links(path).map_err(refused)?, access));
    }
    Ok(given)
}

/// The Landlock rules: files, TCP ports, and signals and abstract sockets of other processes. `None` if this version can
/// restrict none of them.
fn rules(asked: &Confinement, given: Vec<Given>, newest: ABI) -> Result<Option<RulesetCreated>, Errno> {
    let refused = |_: landlock::RulesetError| Errno::OPNOTSUPP;
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let (files, ports, scopes) =
        (AccessFs::from_all(newest), AccessNet::from_all(newest), Scope::from_all(newest));
    let keeps_files = asked.files.is_some() && !files.is_empty();
    let keeps_ports = !asked.network && !ports.is_empty();
    if keeps_files {
        ruleset = ruleset.handle_access(files).map_err(refused)?;
    }
    if keeps_ports {
        ruleset = ruleset.handle_access(ports).map_err(refused)?;
    }
    if !scopes.is_empty() {
        ruleset = ruleset.scope(scopes).map_err(refused)?;
    } else if !keeps_files && !keeps_ports {
        return Ok(None);
    }
    let mut rules = ruleset.create().map_err(refused)?;
    for (opened, access) in given {
        let folder = FileType::from_raw_mode(fstat(&opened)?.st_mode) == FileType::Directory;
        let access = if folder { access } else { access & AccessFs::from_file(newest) };
        rules = rules.add_rule(PathBeneath::new(opened, access)).map_err(refused)?;
    }
    Ok(Some(rules))
}

/// Drops all capabilities, so that root has no more rights than another user. Users other than root have none, and cannot
/// gain any by executing a program.
fn drop_capabilities() -> Result<(), Errno> {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    let has = rustix::thread::capabilities(None)?;
    if rustix::process::geteuid().is_root() {
        for number in 0..64 {
            let capability = CapabilitySet::from_bits_retain(1 << number);
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                Ok(()) => {}
                // There is no capability with this number or a higher one.
                Err(Errno::INVAL) => break,
                Err(error) => return Err(error),
            }
        }
        // At the next `exec`, root would regain what is left in the bounding set. That is nothing; this is a second lock.
        let locked = CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
        rustix::thread::set_capabilities_secure_bits(locked)?;
    }
    if has.permitted.is_empty() && has.inheritable.is_empty() {
        return Ok(());
    }
    let _ = rustix::thread::clear_ambient_capability_set();
    rustix::thread::set_capabilities(None, none)
}

/// Encodes a gap, for the new process to report it to the shim before it exits.
pub(super) fn encode(gap: Gap) -> [u8; 5] {
    let (feature, errno) = gap;
    let [a, b, c, d] = errno.raw_os_error().to_le_bytes();
    [feature as u8, a, b, c, d]
}

pub(super) fn decode(bytes: [u8; 5]) -> Option<(Feature, io::Error)> {
    let [feature, errno @ ..] = bytes;
    let known = [Feature::Landlock, Feature::Scopes, Feature::Seccomp, Feature::Capabilities];
    let feature = known.into_iter().find(|known| *known as u8 == feature)?;
    Some((feature, io::Error::from_raw_os_error(i32::from_le_bytes(errno))))
}

/// Whether the lookup of `path` passes through one of `folders`. A program that can write to such a folder decides where
/// `path` leads.
fn leads_through(path: &Path, folders: &[PathBuf]) -> bool {
    let inside = |place: &Path| folders.iter().any(|folder| place.starts_with(folder));
    let names = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|name| name.as_os_str().to_owned()).collect()
    };
    let (mut at, mut left, mut links) = (PathBuf::from("/"), names(path), 0);
    while let Some(name) = left.pop() {
        // The entries of a folder do not decide what its parent is.
        if name == ".." {
            at.pop();
            continue;
        }
        if inside(&at) {
            return true;
        }
        let next = at.join(&name);
        match next.read_link() {
            Ok(_) if links == MOST_LINKS => return true,
            // An absolute target begins with the root, and joining that replaces `at`.
            Ok(target) => {
                links += 1;
                left.extend(names(&target));
            }
            Err(_) => at = next,
        }
    }
    inside(&at)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_leads_through_every_folder_that_is_asked() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("real/inner")).unwrap();
        std::fs::write(root.join("real/file"), "x").unwrap();
        symlink(root.join("real"), root.join("link")).unwrap();
        let real = [root.join("real")];
        let inner = [root.join("real/inner")];
        assert!(leads_through(&root.join("real/file"), &real));
        assert!(leads_through(&root.join("link/file"), &real), "through a link into it");
        assert!(leads_through(&root.join("real"), &real));
        assert!(!leads_through(&root.join("other/file"), &real));
        // Out of the folder again, through a link inside it.
        symlink("/etc", root.join("real/inner/out")).unwrap();
        assert!(leads_through(&root.join("link/inner/out/passwd"), &inner));
        assert!(!leads_through(&root.join("real/file"), &inner));
        symlink("circle", root.join("circle")).unwrap();
        assert!(leads_through(&root.join("circle"), &inner), "a loop leads nowhere known");
    }
}
