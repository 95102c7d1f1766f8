//! Control groups (version 2) for trees with limits, where the gateway's own group was delegated to it.
//!
//! The group that the gateway was started in becomes the [`Ground`]: its processes move into one group below it, and each
//! tree with limits gets another group beside that one. The system forces this move: it enables no controllers below a
//! group that has processes of its own. The move happens only where the ground is really ours. It must be writable, and
//! only the gateway and its descendants may be in it. Under systemd, root also needs systemd's mark that the group was
//! delegated; for other users the write permission is enough. In every other case trees get no control group.
//!
//! The shim stays outside its tree's group, so that it survives when the group is killed. A process is created inside the
//! group (`CLONE_INTO_CGROUP`): moving it later would stop all forks on the machine for a moment.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

use crate::message::Birth;
use crate::sys::{self, Alone, Fork};
use crate::ungrouped::Ungrouped;
use crate::{Breach, Limits, descent};

/// The group of the gateway, the nursery and the shims.
const HOME: &str = "bridgehead-gateway";
/// The prefix of the names of trees' groups; the shim's pid and start time follow.
const TREE: &str = "bridgehead-tree-";

/// The group that was delegated to the gateway, divided among the gateway and the trees.
pub(super) struct Ground {
    folder: PathBuf,
}

impl Ground {
    /// Finds the group of this process and makes it the ground, unless it already is. Changes nothing if the group is
    /// not ours.
    pub(super) fn prepare(gateway: u32) -> Result<Self, Ungrouped> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let own = own_folder(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))?;
        let ground = match own.parent() {
            // An earlier nursery has already divided it.
            Some(above) if own.ends_with(HOME) => {
                let ground = Self { folder: above.to_owned() };
                ground.try_out().map_err(|_| Ungrouped::Refused)?;
                ground
            }
            _ => {
                ours(&own, gateway)?;
                let ground = Self { folder: own };
                if ground.divide().and_then(|()| ground.try_out()).is_err() {
                    ground.unite();
                    return Err(Ungrouped::Refused);
                }
                ground
            }
        };
        ground.sweep();
        Ok(ground)
    }

    /// Moves all processes one group down, so that groups beside that one can have limits.
    fn divide(&self) -> io::Result<()> {
        let home = self.folder.join(HOME);
        match fs::create_dir(&home) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => move_all(&self.folder, &home)?,
        }
        fs::write(self.folder.join("cgroup.subtree_control"), "+memory +pids")
    }

    /// Undoes [`divide`](Self::divide) as far as possible.
    fn unite(&self) {
        let _ = fs::write(self.folder.join("cgroup.subtree_control"), "-memory -pids");
        let home = self.folder.join(HOME);
        let _ = move_all(&home, &self.folder);
        let _ = fs::remove_dir(&home);
    }

    /// Checks that groups work: starts a process in a group with limits, which exits at once.
    fn try_out(&self) -> io::Result<()> {
        let limits = Limits { memory: Some(64 << 20), processes: Some(8), ..Limits::default() };
        let group = Group::make(self, &limits)?;
        match group.fork(&Alone::check()?)? {
            Fork::Child => std::process::exit(0),
            Fork::Parent { child } => {
                let child = i32::try_from(child).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
                match rustix::process::waitpid(Some(child), WaitOptions::empty())? {
                    Some((_, status)) if status.exit_status() == Some(0) => Ok(()),
                    _ => Err(Errno::CHILD.into()),
                }
            }
        }
    }

    /// Kills the processes in groups whose shim is gone, and removes the groups.
    pub(super) fn sweep(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_str().and_then(keeper_of).is_some_and(|shim| !shim.is_there()) {
                kill(&entry.path());
                // Fails while a process in it is still dying; the next sweep tries again.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// The shim that a group is named after.
fn keeper_of(name: &str) -> Option<Birth> {
    let (pid, born) = name.strip_prefix(TREE)?.split_once('-')?;
    Some(Birth { pid: pid.parse().ok()?, born: born.parse().ok()? })
}

/// The folder of a process's group, from the contents of its `mountinfo` and `cgroup` files.
fn own_folder(mounts: &str, groups: &str) -> Result<PathBuf, Ungrouped> {
    // Fields of a mount: number, parent, device, root within the file system, mount point, options, … - type, …
    let mount = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ').skip(3);
        (kind.split(' ').next() == Some("cgroup2")).then_some((fields.next()?, fields.next()?))
    });
    let (shown, place) = mount.ok_or(Ungrouped::NoMount)?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::")).ok_or(Ungrouped::NoMount)?;
    let below = Path::new(own).strip_prefix(shown).map_err(|_| Ungrouped::OutOfSight)?;
    if below.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(Ungrouped::OutOfSight);
    }
    Ok(Path::new(place).join(below))
}

/// Checks whether a group may be divided, without changing anything.
fn ours(folder: &Path, gateway: u32) -> Result<(), Ungrouped> {
    let controllers =
        fs::read_to_string(folder.join("cgroup.controllers")).map_err(|_| Ungrouped::OutOfSight)?;
    if !["memory", "pids"].iter().all(|wanted| controllers.split_ascii_whitespace().any(|has| has == *wanted))
    {
        return Err(Ungrouped::NoControllers);
    }
    // Only the root group has no type.
    if !folder.join("cgroup.type").exists() {
        return Err(Ungrouped::Machine);
    }
    let can_write = |path: PathBuf| rustix::fs::access(path, Access::WRITE_OK).is_ok();
    let files = ["", "cgroup.procs", "cgroup.subtree_control"];
    if !files.into_iter().all(|name| can_write(folder.join(name))) {
        return Err(Ungrouped::NotDelegated);
    }
    // Root may write anywhere, but must leave alone what belongs to systemd.
    let systemd = rustix::process::geteuid().is_root() && Path::new("/run/systemd/system").exists();
    if systemd && !delegated(folder) {
        return Err(Ungrouped::NotDelegated);
    }
    let mut family: Vec<u32> = descent::below(gateway).into_iter().map(|member| member.pid).collect();
    family.push(gateway);
    match members(folder).iter().all(|pid| family.contains(pid)) {
        true => Ok(()),
        false => Err(Ungrouped::NotAlone),
    }
}

/// Whether systemd has marked a group as delegated.
fn delegated(folder: &Path) -> bool {
    ["trusted.delegate", "user.delegate"].into_iter().any(|name| {
        let mut value = [0; 8];
        matches!(rustix::fs::getxattr(folder, name, &mut value), Ok(1) if value[0] == b'1')
    })
}

/// The processes in a group. A process that this one cannot see (another pid namespace) is listed as 0.
fn members(folder: &Path) -> Vec<u32> {
    let list = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    list.lines().filter_map(|pid| pid.parse().ok()).collect()
}

/// Moves all processes of a group to another, including those that are started meanwhile.
fn move_all(from: &Path, to: &Path) -> io::Result<()> {
    let door = to.join("cgroup.procs");
    for _ in 0..100 {
        let members = members(from);
        if members.is_empty() {
            return Ok(());
        }
        for pid in members {
            match fs::write(&door, pid.to_string()) {
                Err(error) if error.raw_os_error() != Some(Errno::SRCH.raw_os_error()) => return Err(error),
                _ => {}
            }
        }
    }
    Err(Errno::BUSY.into())
}

/// Kills all processes in a group, atomically where the system can.
fn kill(folder: &Path) {
    if fs::write(folder.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for pid in members(folder) {
        // A listed pid may have been reused. If it is still listed after the handle is open, the handle is right.
        let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
        if let Ok(handle) = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())
            && members(folder).contains(&pid)
        {
            let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

/// The group of one tree. Dropping it removes the group, once its last process is gone.
pub(super) struct Group {
    folder: PathBuf,
    /// The open folder, which a fork into the group needs.
    door: File,
    /// Reading it tells whether processes were refused; polling it tells when that changes.
    refusals: File,
    memory: Option<u64>,
}

impl Group {
    /// Makes the group for the tree that this process keeps.
    pub(super) fn make(ground: &Ground, limits: &Limits) -> io::Result<Self> {
        let me = std::process::id();
        let folder = ground.folder.join(format!("{TREE}{me}-{}", descent::born(me).unwrap_or_default()));
        fs::create_dir(&folder)?;
        Self::open(folder.clone(), limits).inspect_err(|_| {
            let _ = fs::remove_dir(&folder);
        })
    }

    fn open(folder: PathBuf, limits: &Limits) -> io::Result<Self> {
        let set = |name: &str, value: &str| fs::write(folder.join(name), value);
        if let Some(bytes) = limits.memory {
            set("memory.max", &bytes.to_string())?;
            set("memory.oom.group", "1")?;
            match set("memory.swap.max", "0") {
                // The system does not account for swap.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                settled => settled?,
            }
        }
        if let Some(threads) = limits.threads() {
            set("pids.max", &threads.to_string())?;
        }
        let (door, refusals) = (File::open(&folder)?, File::open(folder.join("pids.events"))?);
        Ok(Self { folder, door, refusals, memory: limits.memory })
    }

    /// Forks this process; the child starts inside the group.
    pub(super) fn fork(&self, alone: &Alone) -> io::Result<Fork> {
        sys::fork_into(alone, self.door.as_fd())
    }

    /// Polls as `POLLPRI` when processes were refused; see [`refused`](Self::refused).
    pub(super) fn refusals(&self) -> BorrowedFd<'_> {
        self.refusals.as_fd()
    }

    /// Whether the system refused the tree more processes. Kernels before 6.11 also count refusals by a group further up.
    pub(super) fn refused(&mut self) -> Option<Breach> {
        let mut text = String::new();
        self.refusals.rewind().and_then(|()| self.refusals.read_to_string(&mut text)).ok()?;
        let count = self.number("pids.current").unwrap_or_default();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        (value(&text, "max")? > 0).then_some(Breach::Processes { count })
    }

    /// Whether the tree was killed because it ran out of memory.
    pub(super) fn starved(&self) -> Option<Breach> {
        let bytes = self.memory?;
        (self.killed_for_memory() > 0).then_some(Breach::Memory { bytes })
    }

    /// How many processes were killed because the tree ran out of memory.
    pub(super) fn killed_for_memory(&self) -> u32 {
        let events = fs::read_to_string(self.folder.join("memory.events")).unwrap_or_default();
        value(&events, "oom_kill").and_then(|count| u32::try_from(count).ok()).unwrap_or_default()
    }

    /// How many threads there are in the tree.
    pub(super) fn threads(&self) -> Option<u64> {
        self.number("pids.current")
    }

    /// Kills the whole tree, and returns its pids.
    pub(super) fn kill(&self) -> Vec<u32> {
        let members = members(&self.folder);
        kill(&self.folder);
        members
    }

    fn number(&self, name: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails if a process in it does not die; a nursery tries again.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The number that follows a name, in a file with one name and number per line.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 24 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/memory rw,nosuid shared:11 - cgroup cgroup rw,memory
";

    #[track_caller]
    fn check(mounts: &str, groups: &str, expected: Result<&str, Ungrouped>) {
        assert_eq!(own_folder(mounts, groups), expected.map(PathBuf::from));
    }

    #[test]
    fn the_own_group_is_found_wherever_it_is_mounted() {
        let unified = "29 23 0:25 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let part = "29 23 0:25 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        check(unified, "0::/system.slice/a.service\n", Ok("/sys/fs/cgroup/system.slice/a.service"));
        check(unified, "0::/\n", Ok("/sys/fs/cgroup"));
        check(HYBRID, "4:memory:/m\n0::/u\n", Ok("/sys/fs/cgroup/unified/u"));
        check(part, "0::/docker/abc/inner\n", Ok("/sys/fs/cgroup/inner"));
        check(part, "0::/docker/other\n", Err(Ungrouped::OutOfSight));
        check(unified, "0::/../other\n", Err(Ungrouped::OutOfSight));
        check(unified, "4:memory:/m\n", Err(Ungrouped::NoMount));
        check("", "0::/\n", Err(Ungrouped::NoMount));
    }

    #[test]
    fn a_group_says_whose_it_is() {
        assert_eq!(keeper_of("bridgehead-tree-12-345"), Some(Birth { pid: 12, born: 345 }));
        assert_eq!(keeper_of("bridgehead-gateway"), None);
        assert_eq!(keeper_of("bridgehead-tree-x-1"), None);
    }

    #[test]
    fn events_are_read_by_name() {
        let events = "low 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 1\n";
        assert_eq!(
            (value(events, "oom_kill"), value(events, "oom"), value(events, "none")),
            (Some(1), Some(2), None)
        );
    }

    /// A plain folder with the files that a group has.
    fn pretended(ground: &Path, name: &str) -> PathBuf {
        let folder = ground.join(name);
        fs::create_dir(&folder).unwrap();
        for (file, text) in [
            ("cgroup.procs", "4194304\n"),
            ("pids.events", "max 0\n"),
            ("pids.current", "7\n"),
            ("memory.events", "oom 0\noom_kill 0\n"),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        folder
    }

    #[test]
    fn a_group_gets_its_limits_and_tells_what_became_of_them() {
        let place = tempfile::tempdir().unwrap();
        let folder = pretended(place.path(), "group");
        let has = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        let limits = Limits { memory: Some(96 << 20), processes: Some(20), ..Limits::default() };
        let mut group = Group::open(folder.clone(), &limits).unwrap();
        assert_eq!(has("memory.max"), (96 << 20).to_string());
        assert_eq!((has("memory.oom.group"), has("memory.swap.max")), ("1".to_owned(), "0".to_owned()));
        assert_eq!(has("pids.max"), "1280", "threads are not processes");
        assert_eq!((group.refused(), group.starved(), group.threads()), (None, None, Some(7)));
        fs::write(folder.join("pids.events"), "max 3\n").unwrap();
        fs::write(folder.join("memory.events"), "oom 1\noom_kill 5\n").unwrap();
        assert_eq!(group.refused(), Some(Breach::Processes { count: 7 }));
        assert_eq!(group.starved(), Some(Breach::Memory { bytes: 96 << 20 }));
        assert_eq!(group.killed_for_memory(), 5);
        assert_eq!(group.kill(), [4_194_304]);
        assert_eq!(has("cgroup.kill"), "1");
        drop(group);
        let exact = Limits { hard_processes: true, ..limits };
        let _group = Group::open(folder.clone(), &exact).unwrap();
        assert_eq!(has("pids.max"), "20");
    }

    #[test]
    fn groups_of_keepers_that_live_are_not_swept() {
        let place = tempfile::tempdir().unwrap();
        let me = std::process::id();
        let mine = format!("{TREE}{me}-{}", descent::born(me).unwrap());
        let old = format!("{TREE}{me}-0");
        let folders = [HOME, mine.as_str(), old.as_str()].map(|name| pretended(place.path(), name));
        Ground { folder: place.path().to_owned() }.sweep();
        assert_eq!(folders.map(|folder| folder.join("cgroup.kill").exists()), [false, false, true]);
    }

    #[test]
    fn all_are_moved_or_it_fails() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (pretended(place.path(), "from"), pretended(place.path(), "to"));
        // In a plain folder, writing a pid elsewhere does not remove it here.
        assert!(move_all(&from, &to).is_err());
        assert_eq!(members(&to), [4_194_304]);
        fs::write(from.join("cgroup.procs"), "").unwrap();
        assert!(move_all(&from, &to).is_ok());
        assert!(Ground { folder: from }.divide().is_ok());
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(place.path().join(name), text).unwrap();
        let me = std::process::id();
        let found = || ours(place.path(), me);
        assert_eq!(found(), Err(Ungrouped::OutOfSight));
        put("cgroup.controllers", "cpu memory io\n");
        assert_eq!(found(), Err(Ungrouped::NoControllers));
        put("cgroup.controllers", "cpu memory pids\n");
        assert_eq!(found(), Err(Ungrouped::Machine));
        put("cgroup.type", "domain\n");
        assert_eq!(found(), Err(Ungrouped::NotDelegated));
        put("cgroup.subtree_control", "");
        put("cgroup.procs", &format!("{me}\n1\n"));
        if Path::new("/run/systemd/system").exists() && rustix::process::geteuid().is_root() {
            assert_eq!(found(), Err(Ungrouped::NotDelegated));
            return;
        }
        assert_eq!(found(), Err(Ungrouped::NotAlone));
        put("cgroup.procs", &format!("{me}\n"));
        assert_eq!(found(), Ok(()));
        let names: Vec<_> = fs::read_dir(place.path()).unwrap().collect();
        assert_eq!(names.len(), 4, "nothing was created");
    }
}
