//! The filter of system calls. Calls that reach into other processes or the kernel, or that bypass the other
//! restrictions, fail with EPERM. docs/isolation.md has the list.

use std::collections::BTreeMap;

use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

use crate::confinement::Confinement;

/// Calls that no confined program needs. A file in memory (`memfd_create`) is memory that only a control group would
/// count. System V objects and message queues persist until a process removes them.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
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
    OPEN_TREE_ATTR,
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
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

// Calls that `libc` does not know on every processor; their numbers are the same on every processor.
const FCHMODAT2: libc::c_long = 452;
const SETXATTRAT: libc::c_long = 463;
const REMOVEXATTRAT: libc::c_long = 466;
const OPEN_TREE_ATTR: libc::c_long = 467;
const FILE_SETATTR: libc::c_long = 469;

/// Calls that change the metadata of a file. No version of Landlock restricts them, so they are refused where no file may
/// be written at all.
const OF_METADATA: &[libc::c_long] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SETXATTRAT,
    REMOVEXATTRAT,
    FILE_SETATTR,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

/// `ioctl` requests that change metadata: `FS_IOC_SETFLAGS`, its older size, and `FS_IOC_FSSETXATTR`.
const METADATA_CONTROLS: [u64; 3] = [0x4008_6602, 0x4004_6602, 0x401c_5820];

/// Calls whose first argument is a process, and that a process may use only on itself. The filter cannot know its pid,
/// because every process started later inherits the filter. Therefore only zero, which means the caller, is allowed.
const OF_A_PROCESS: &[libc::c_long] = &[
    libc::SYS_prlimit64,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];

/// Calls whose first argument says what kind of id the second one is. These are the values that mean a process
/// (`PRIO_PROCESS`, `IOPRIO_WHO_PROCESS`).
const OF_A_KIND: [(libc::c_long, u64); 2] = [(libc::SYS_setpriority, 0), (libc::SYS_ioprio_set, 1)];

/// The flags of `clone` that make namespaces. The flag for time namespaces is missing: in `clone` its bit belongs to the
/// number of the exit signal.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// The option of `prctl` that lets processes choose which others share a core with them (`PR_SCHED_CORE`).
const SHARE_CORE: u64 = 62;

/// Builds the filter of system calls. `None` on an architecture that it does not support.
pub(super) fn filter(asked: &Confinement) -> Option<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into().ok()?;
    let unwritten = asked.files.as_ref().is_some_and(|files| files.write.is_empty());
    let metadata = if unwritten { OF_METADATA } else { &[] };
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().chain(metadata).map(|&call| (call, Vec::new())).collect();
    if unwritten {
        let each = METADATA_CONTROLS.map(|control| rule(&[(1, SeccompCmpOp::Eq, control)]));
        refused.insert(libc::SYS_ioctl, each.into_iter().collect::<Option<_>>()?);
    }
    for &call in OF_A_PROCESS {
        refused.insert(call, vec![rule(&[(0, SeccompCmpOp::Ne, 0)])?]);
    }
    for (call, process) in OF_A_KIND {
        let other = [rule(&[(0, SeccompCmpOp::Ne, process)])?, rule(&[(1, SeccompCmpOp::Ne, 0)])?];
        refused.insert(call, other.into());
    }
    let namespaces = NAMESPACES.map(|flag| {
        let flag = u64::from(flag.cast_unsigned());
        rule(&[(0, SeccompCmpOp::MaskedEq(flag), flag)])
    });
    refused.insert(libc::SYS_clone, namespaces.into_iter().collect::<Option<_>>()?);
    refused.insert(libc::SYS_prctl, vec![rule(&[(0, SeccompCmpOp::Eq, SHARE_CORE)])?]);
    let sockets = if asked.network {
        // Only network families: a socket in the file system would lead to any program that listens there.
        let families = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
        let other = families.map(|family| (0, SeccompCmpOp::Ne, u64::from(family.cast_unsigned())));
        vec![rule(&other)?]
    } else {
        Vec::new()
    };
    refused.insert(libc::SYS_socket, sockets);
    refused.insert(libc::SYS_socketpair, unconnected_pairs()?);
    let action = SeccompAction::Errno(errno(Errno::PERM));
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, action, arch).ok()?;
    let program: BpfProgram = filter.try_into().ok()?;
    Some(after_the_numbers(program))
}

/// The pairs of sockets that are refused: all but connected ones of Unix. Either end of a pair of datagrams can send to any
/// socket with a name, and so reach a program outside and exchange descriptors with it. A stream or a sequence of packets
/// (1 and 5) stays connected to its other end for ever. The kernel turns raw pairs into datagrams.
fn unconnected_pairs() -> Option<Vec<SeccompRule>> {
    let unix = u64::from(libc::AF_UNIX.cast_unsigned());
    // The type is the lowest four bits: those of 1 and 5 are 0?01.
    let kind = |bit: u64, value: u64| rule(&[(1, SeccompCmpOp::MaskedEq(bit), value)]);
    [rule(&[(0, SeccompCmpOp::Ne, unix)]), kind(1, 0), kind(2, 2), kind(8, 8)].into_iter().collect()
}

/// A rule that matches if all conditions hold. A condition is the index of an argument, a comparison and a value. It
/// compares the lower 32 bits, which is what the system reads of these arguments.
fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> Option<SeccompRule> {
    let condition = |(place, comparison, value): &(u8, SeccompCmpOp, u64)| {
        SeccompCondition::new(*place, SeccompCmpArgLen::Dword, comparison.clone(), *value).ok()
    };
    SeccompRule::new(conditions.iter().map(condition).collect::<Option<_>>()?).ok()
}

fn errno(errno: Errno) -> u32 {
    errno.raw_os_error().cast_unsigned()
}

/// On some processors (x86_64) every system call has a second number, from here on.
const SECOND_NUMBERS: u32 = 0x4000_0000;

/// Puts two checks before the program. The second numbers are refused, because the program does not know them. `clone3`
/// fails with ENOSYS, because its arguments are in memory that a filter cannot read; callers then fall back to `clone`.
fn after_the_numbers(program: BpfProgram) -> BpfProgram {
    let number = u32::try_from(libc::SYS_clone3).unwrap_or_default();
    let plain = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // Continues with the next instruction if the condition holds, else skips it.
    let jump = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 1, k };
    let refusal = |with: Errno| plain(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno(with));
    let mut whole = vec![
        // The number of the call is the first word.
        plain(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        jump(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, SECOND_NUMBERS),
        refusal(Errno::PERM),
        jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number),
        refusal(Errno::NOSYS),
    ];
    whole.extend(program);
    whole
}
