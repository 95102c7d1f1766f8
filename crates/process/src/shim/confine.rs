//! Confines the process that is about to become the server, for itself and all that it will start.
//!
//! What takes paths is prepared in the shim; what binds is done by the new process, in an order that lets each step
//! still do what it needs: capabilities, then Landlock, then the filter of system calls.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

use crate::confinement::{Confined, Confinement, DEVICES, Feature, Files, NEEDED};
use crate::paths::{leads_through, open_without_links};

/// The newest that is known here; what the system does not have of it is left out, and told.
const NEWEST: ABI = ABI::V9;

/// All that can be done before there is a process to confine.
pub(super) struct Walls {
    rules: Option<RulesetCreated>,
    filter: Option<BpfProgram>,
    asked: Confinement,
}

/// What could not be done.
pub(super) type Gap = (Feature, Errno);

/// Why there are no walls.
pub(super) enum Refusal {
    /// The system lacks something, and it was not said that it may.
    Gap(Gap),
    /// This path, as [`Files::each`] counts them, cannot be given to the program. Nobody asked to go without that.
    Path(u32, Errno),
}

impl Walls {
    /// Prepares the walls around `program`.
    pub(super) fn prepare(asked: Confinement, program: &Path) -> Result<Self, Refusal> {
        let lacks = |feature: Feature, errno: Errno| match asked.degrade {
            true => Ok(()),
            false => Err(Refusal::Gap((feature, errno))),
        };
        let given = match &asked.files {
            Some(files) => open_all(files, program)?,
            None => Vec::new(),
        };
        let rules = match rules(&asked, given) {
            Ok(rules) => Some(rules),
            Err(error) => {
                lacks(Feature::Landlock, error)?;
                None
            }
        };
        let filter = filter(asked.network);
        if filter.is_none() {
            lacks(Feature::Seccomp, Errno::NOSYS)?;
        }
        Ok(Self { rules, filter, asked })
    }

    /// Confines this process.
    pub(super) fn close(self) -> Result<Confined, Gap> {
        let Self { rules, filter, asked } = self;
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
                        confined.landlock = effective_abi as u8;
                    }
                    let enforced = status.ruleset != RulesetStatus::NotEnforced;
                    confined.files = enforced && asked.files.is_some();
                    confined.signals = enforced && confined.landlock >= ABI::V6 as u8;
                }
                Err((feature, errno)) => lacks(feature, errno)?,
            }
        }
        if asked.files.is_some() && !confined.files {
            lacks(Feature::Landlock, Errno::OPNOTSUPP)?;
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

/// A place that a program is given, open, and what it may do there.
type Given = (OwnedFd, BitFlags<AccessFs>);

/// Opens all that a program may use. What it was given by name is opened without following a link, as it may be itself
/// who put one there; what every program needs belongs to the system.
fn open_all(files: &Files, program: &Path) -> Result<Vec<Given>, Refusal> {
    let following = |path: &Path| open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let reading = AccessFs::from_read(NEWEST);
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
    let needed = NEEDED.iter().map(|path| (Path::new(path), reading));
    let devices = DEVICES.iter().map(|path| (Path::new(path), device));
    // Where it can change what its own path leads to, it may read that as one of its files, or not at all.
    let itself = (!leads_through(program, &files.write)).then_some((program, reading));
    let mut given: Vec<Given> = needed
        .chain(devices)
        .chain(itself)
        .filter_map(|(path, access)| Some((following(path).ok()?, access)))
        .collect();
    for (which, path) in files.each().enumerate() {
        let access = if which < files.read.len() { reading } else { AccessFs::from_all(NEWEST) };
        let refused = |errno| Refusal::Path(u32::try_from(which).unwrap_or(u32::MAX), errno);
        given.push((open_without_links(path).map_err(refused)?, access));
    }
    Ok(given)
}

/// What Landlock is to keep: files, TCP ports, and signals and abstract sockets of others.
fn rules(asked: &Confinement, given: Vec<Given>) -> Result<RulesetCreated, Errno> {
    let refused = |_: landlock::RulesetError| Errno::OPNOTSUPP;
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    if asked.files.is_some() {
        ruleset = ruleset.handle_access(AccessFs::from_all(NEWEST)).map_err(refused)?;
    }
    if !asked.network {
        ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST)).map_err(refused)?;
    }
    let mut rules = ruleset.scope(Scope::from_all(NEWEST)).and_then(Ruleset::create).map_err(refused)?;
    for (opened, access) in given {
        let folder = FileType::from_raw_mode(fstat(&opened)?.st_mode) == FileType::Directory;
        let access = if folder { access } else { access & AccessFs::from_file(NEWEST) };
        rules = rules.add_rule(PathBeneath::new(opened, access)).map_err(refused)?;
    }
    Ok(rules)
}

/// Nobody who is not root has any, or gains them by what it executes; and root is no more than another user then.
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
                // There are no more.
                Err(Errno::INVAL) => break,
                Err(error) => return Err(error),
            }
        }
        // As root gets back at the next program what the set above still has; it has nothing, and this is a second lock.
        let locked = CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
        rustix::thread::set_capabilities_secure_bits(locked)?;
    }
    if has.permitted.is_empty() && has.inheritable.is_empty() {
        return Ok(());
    }
    let _ = rustix::thread::clear_ambient_capability_set();
    rustix::thread::set_capabilities(None, none)
}

/// System calls that nobody needs who is confined: they reach into other processes, into the kernel, or around what
/// else is kept. A file in memory (`memfd_create`) is memory that no limit but the system's own would count.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
];

/// The filter of system calls; nothing on a processor that it is not written for.
fn filter(network: bool) -> Option<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into().ok()?;
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|&call| (call, Vec::new())).collect();
    let sockets = if network {
        // Of addresses in the network only; a socket in the file system leads to whoever listens there.
        let other = |family: libc::c_int| {
            let family = u64::try_from(family).unwrap_or_default();
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family).ok()
        };
        let families = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
        vec![SeccompRule::new(families.into_iter().map(other).collect::<Option<_>>()?).ok()?]
    } else {
        Vec::new()
    };
    refused.insert(libc::SYS_socket, sockets);
    let errno = Errno::PERM.raw_os_error().cast_unsigned();
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, SeccompAction::Errno(errno), arch).ok()?;
    let program: BpfProgram = filter.try_into().ok()?;
    Some(refusing_other_numbers(program, errno))
}

/// On some processors every system call has a second number, from here on.
const SECOND_NUMBERS: u32 = 0x4000_0000;

/// The program, which is asked only for numbers that it knows.
fn refusing_other_numbers(program: BpfProgram, errno: u32) -> BpfProgram {
    let instruction = |code: u32, jt: u8, k: u32| sock_filter { code: code as u16, jt, jf: 1 - jt, k };
    let mut whole = vec![
        // The number of the call is the first word.
        sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: 0 },
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, SECOND_NUMBERS),
        sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ERRNO | errno,
        },
    ];
    whole.extend(program);
    whole
}

/// What a gap is told as, from a process that cannot go on to one that tells.
pub(super) fn encode(gap: Gap) -> [u8; 5] {
    let (feature, errno) = gap;
    let [a, b, c, d] = errno.raw_os_error().to_le_bytes();
    [feature as u8, a, b, c, d]
}

pub(super) fn decode(bytes: [u8; 5]) -> Option<(Feature, io::Error)> {
    let [feature, errno @ ..] = bytes;
    let known = [Feature::Landlock, Feature::Seccomp, Feature::Capabilities];
    let feature = known.into_iter().find(|known| *known as u8 == feature)?;
    Some((feature, io::Error::from_raw_os_error(i32::from_le_bytes(errno))))
}
