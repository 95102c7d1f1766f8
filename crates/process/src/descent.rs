//! Reads from `/proc` which processes descend from which, and how much memory they use.
//!
//! The results are stale as soon as they are read: processes start, end and change their parent meanwhile, and the
//! system may reuse a pid. Before acting on a pid, a caller must check again ([`parent`], [`born`]) or know that the
//! pid cannot have been freed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::ops::ControlFlow;

/// A process and the parent it was found under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descendant {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
}

/// How many processes a search visits at most. A tree that grows while it is searched would else be searched for ever.
const MOST: usize = 1 << 16;

/// Every descendant of `root`, parents before their children, without `root` itself.
pub(crate) fn below(root: u32) -> Vec<Descendant> {
    up_to(root, MOST)
}

/// Like [`below`], but not more than `most`, in a time that does not depend on how fast the tree grows.
pub(crate) fn up_to(root: u32, most: usize) -> Vec<Descendant> {
    let mut found = Vec::new();
    visit(root, &BTreeSet::new(), |descendant| {
        found.push(descendant);
        if found.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    found
}

/// Visits every descendant of `root`, before its children are looked for, until `see` breaks. Leaves out the processes in
/// `except` and their descendants.
pub(crate) fn visit(root: u32, except: &BTreeSet<u32>, mut see: impl FnMut(Descendant) -> ControlFlow<()>) {
    // Some kernels are built without the lists of children; then the parent of every process is read.
    let by_parent = if fs::exists(format!("/proc/{root}/task/{root}/children")).unwrap_or(false) {
        None
    } else {
        Some(everybody())
    };
    // Pids that are reused while we read could form a cycle.
    let mut seen = BTreeSet::from([root]);
    let mut open = VecDeque::from([root]);
    while let Some(parent) = open.pop_front() {
        let children = match &by_parent {
            None => children(parent),
            Some(by_parent) => by_parent.get(&parent).cloned().unwrap_or_default(),
        };
        for pid in children {
            if !except.contains(&pid) && seen.insert(pid) {
                if seen.len() > MOST || see(Descendant { pid, parent }).is_break() {
                    return;
                }
                open.push_back(pid);
            }
        }
    }
}

/// The current parent of a process.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    field(pid, 1)
}

/// When a process was started, in ticks since boot, truncated to 32 bits. Together with the pid it identifies a
/// process well enough.
pub(crate) fn born(pid: u32) -> Option<u32> {
    field(pid, 19).map(|ticks: u64| ticks as u32)
}

/// The resident memory of a process.
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// The resident memory of a process that is not backed by a file. Shared memory is counted in full for each process.
/// Everybody may read this of every process.
pub(crate) fn own_bytes(pid: u32) -> Option<u64> {
    kilobytes_of(pid, "status", &["RssAnon:", "RssShmem:"])
}

/// Like [`own_bytes`], but shared memory is divided among the processes that share it. Slower to read, and hidden for a
/// process that is closed to its own user (`PR_SET_DUMPABLE`, or a program that cannot be read).
pub(crate) fn fair_bytes(pid: u32) -> Option<u64> {
    kilobytes_of(pid, "smaps_rollup", &["Pss_Anon:", "Pss_Shmem:"])
}

/// The sum of these lines of a file of a process. If its first thread has ended, that one has no memory any more, and another
/// thread tells.
fn kilobytes_of(pid: u32, file: &str, names: &[&str]) -> Option<u64> {
    lines_in_kilobytes(format!("/proc/{pid}/{file}"), names).or_else(|| {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        threads.flatten().find_map(|thread| lines_in_kilobytes(thread.path().join(file), names))
    })
}

/// The sum of the lines that start with these names.
fn lines_in_kilobytes(path: impl AsRef<std::path::Path>, names: &[&str]) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let kilobytes = text.lines().filter_map(|line| {
        let rest = names.iter().find_map(|name| line.strip_prefix(name))?;
        rest.split_ascii_whitespace().next()?.parse::<u64>().ok()
    });
    kilobytes.reduce(|sum, more| sum + more).map(|kilobytes| kilobytes << 10)
}

/// A field of `stat`, counted from the state letter. The process name before it may contain any byte, also `)`.
fn field<T: std::str::FromStr>(pid: u32, index: usize) -> Option<T> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(index)?.parse().ok()
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// All processes of the system, by parent.
fn everybody() -> BTreeMap<u32, Vec<u32>> {
    let mut by_parent: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(parent) = parent(pid) {
            by_parent.entry(parent).or_default().push(pid);
        }
    }
    by_parent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_find_children_agree() {
        let me = std::process::id();
        let mother = parent(me).unwrap();
        assert!(children(mother).contains(&me));
        assert!(everybody()[&mother].contains(&me));
        assert!(below(mother).contains(&Descendant { pid: me, parent: mother }));
    }

    #[test]
    fn a_process_has_a_birth_and_a_size() {
        let me = std::process::id();
        assert!(born(me).unwrap() >= born(1).unwrap());
        assert!(resident_bytes(me).unwrap() > 100_000);
        assert_eq!((born(u32::MAX), resident_bytes(u32::MAX)), (None, None));
        let (own, fair) = (own_bytes(me).unwrap(), fair_bytes(me).unwrap());
        assert!(own > 50_000 && fair > 50_000, "{own} {fair}");
        assert_eq!((own_bytes(u32::MAX), fair_bytes(u32::MAX)), (None, None));
    }
}
