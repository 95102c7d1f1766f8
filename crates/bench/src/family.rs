//! Reads from `/proc` which processes descend from which, which have a mark, and what a process holds.
//!
//! A process is identified by its id and its start time, so that a later process with the same id is not mistaken for it.

use std::collections::BTreeSet;
use std::fs;

/// A process, as it was when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its id.
    pub pid: u32,
    /// Its parent's id.
    pub parent: u32,
    /// The letter of its state; `Z` is a zombie.
    pub state: char,
    /// When it was started, in ticks since boot.
    pub born: u64,
}

impl Seen {
    /// Reads one process; `None` if no process has this id.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name in brackets may contain any character.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        Some(Self {
            pid,
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            born: fields.nth(17)?.parse().ok()?,
        })
    }

    /// Whether it still runs and is not a zombie.
    pub fn runs(&self) -> bool {
        Self::of(self.pid).is_some_and(|now| now.born == self.born && now.state != 'Z')
    }

    /// Its command line, for messages.
    pub fn command(&self) -> String {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words = String::from_utf8_lossy(&line).replace('\0', " ");
        format!("{} ({}) {}", self.pid, self.state, words.trim_end())
    }

    fn carries(&self, variable: &str) -> bool {
        fs::read(format!("/proc/{}/environ", self.pid))
            .is_ok_and(|text| text.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes()))
    }
}

/// Every process of the machine.
pub fn everybody() -> Vec<Seen> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Seen::of(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Every descendant of `root`, without `root` itself.
pub fn below(root: u32) -> Vec<Seen> {
    let all = everybody();
    let mut family = BTreeSet::from([root]);
    loop {
        let known = family.len();
        family.extend(
            all.iter().filter(|seen| family.contains(&seen.parent)).map(|seen| seen.pid).collect::<Vec<_>>(),
        );
        if family.len() == known {
            break;
        }
    }
    all.into_iter().filter(|seen| family.contains(&seen.parent)).collect()
}

/// The processes whose environment contains `NAME=value`. It is inherited, so this also finds processes without a parent.
pub fn marked(variable: &str) -> Vec<Seen> {
    everybody().into_iter().filter(|seen| seen.carries(variable)).collect()
}

/// How many descriptors a process has open.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// How many threads a process has.
pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// A value of a process's status file in kilobytes, such as `VmRSS` or `RssAnon`.
pub fn memory_kb(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_below_its_parent_and_holds_something() {
        let me = Seen::of(std::process::id()).unwrap();
        assert!(me.runs());
        assert!(below(me.parent).iter().any(|seen| seen.pid == me.pid));
        assert!(descriptors(me.pid) > 2);
        assert!(threads(me.pid) > 0);
        assert!(memory_kb(me.pid, "VmRSS").unwrap() > 0);
        assert_eq!(memory_kb(me.pid, "VmNone"), None);
        assert!(!Seen { born: me.born + 1, ..me }.runs());
    }

    #[test]
    fn a_mark_is_found_in_the_environment() {
        let path = std::env::var("PATH").unwrap();
        assert!(marked(&format!("PATH={path}")).iter().any(|seen| seen.pid == std::process::id()));
        assert_eq!(marked("NO_SUCH_VARIABLE=at all"), Vec::<Seen>::new());
    }
}
