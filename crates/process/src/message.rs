//! The messages between the gateway and a shim on the control socket.
//!
//! For each shim the gateway sends the nursery one byte, which says whether the tree wants a control group, and the
//! shim's end of a control socket. The nursery sends nothing back. On the control socket the gateway sends one [`Order`]
//! with the three descriptors of the program, and later perhaps a grace period: four bytes, in milliseconds. The end of
//! the stream means "kill everything now", whatever caused it. The shim sends [`Report`]s of a fixed size. Both ends
//! normally come from one build. If a program was replaced on disk while the gateway runs, or only one was installed, the
//! shim refuses the order and reports its own release.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::confinement::{Feature, newest_landlock};
use crate::ungrouped::Ungrouped;
use crate::{Breach, Confinement, Effective, Files, Limits, Spec, descent};

/// The first argument that makes a program the nursery.
pub(crate) const ASKED: &str = "keep-process-trees";
/// The release of this program, as `major << 20 | minor << 10 | patch`.
pub(crate) const RELEASE: i32 = release(env!("CARGO_PKG_VERSION"));
/// The version of this protocol; every change of it increments the version.
const PROTOCOL: u32 = 7;
/// Starts every order: gateway and shim must be of one release and speak one version of the protocol.
const VERSION: u32 = (PROTOCOL << 28) ^ RELEASE.cast_unsigned();
/// The size of an order's head, which comes before its strings: version, length of the strings, number of arguments,
/// number of variables, whether there is a working directory; then the limits, where zero means none: memory in
/// kilobytes, processes, open files, file size in kilobytes, CPU time in seconds; then the flags of the confinement and
/// of hard limits, and the numbers of paths to read and to write.
pub(crate) const ORDER_HEAD: usize = 52;
/// The longest order; the system allows a program less than this.
const LONGEST_ORDER: usize = 64 << 20;
/// Bytes of a report.
pub(crate) const REPORT: usize = 21;

/// A release such as `1.2.3` as a number. What follows the numbers (`-beta`) is ignored.
const fn release(text: &str) -> i32 {
    let bytes = text.as_bytes();
    let (mut number, mut part, mut index) = (0, 0, 0);
    while index < bytes.len() && matches!(bytes[index], b'0'..=b'9' | b'.') {
        if bytes[index] == b'.' {
            number = (number + part) << 10;
            part = 0;
        } else {
            part = part * 10 + (bytes[index] - b'0') as i32;
        }
        index += 1;
    }
    number + part
}

/// Why a shim does not take orders, from the release that it reports.
pub(crate) fn not_taken(reported: i32) -> String {
    let numbers = |release: i32| format!("{}.{}.{}", release >> 20, (release >> 10) & 1023, release & 1023);
    match reported {
        RELEASE => "it cannot read what this program sends".to_owned(),
        other => {
            format!("it is version {}, and this program is version {}", numbers(other), numbers(RELEASE))
        }
    }
}

/// What to start.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) limits: Limits,
    pub(crate) confinement: Option<Confinement>,
    /// The newest version of Landlock to use.
    pub(crate) landlock: u8,
}

/// The decoded head of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderHead {
    /// Bytes that follow.
    pub(crate) length: usize,
    args: usize,
    env: usize,
    cwd: bool,
    limits: Limits,
    flags: u32,
    read: usize,
    write: usize,
}

// The flags of an order.
const CONFINED: u32 = 1;
const NETWORK: u32 = 2;
const DEGRADE: u32 = 4;
const FILES: u32 = 8;
const HARD_MEMORY: u32 = 16;
const HARD_PROCESSES: u32 = 32;
const SIGNALS: u32 = 64;
/// The position of the four bits that hold the newest Landlock version to use.
const LANDLOCK: u32 = 8;

/// Encodes the order to start `program` as `spec` says. `None` if a string contains a zero byte, which cannot be passed
/// to a program.
pub(crate) fn order(spec: &Spec, program: &Path) -> Option<Vec<u8>> {
    let mut strings = Vec::new();
    let mut put = |string: &OsStr| {
        strings.extend_from_slice(string.as_bytes());
        strings.push(0);
        (!string.as_bytes().contains(&0)).then_some(())
    };
    put(program.as_os_str())?;
    for argument in &spec.args {
        put(argument.as_ref())?;
    }
    for (name, value) in &spec.env {
        put(name.as_ref())?;
        put(value.as_ref())?;
    }
    if let Some(cwd) = &spec.cwd {
        put(cwd.as_os_str())?;
    }
    let confinement = spec.confinement.as_ref();
    let files = confinement.and_then(|confinement| confinement.files.as_ref());
    for path in files.into_iter().flat_map(Files::each) {
        put(path.as_os_str())?;
    }
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let hard = flag(spec.limits.hard_memory, HARD_MEMORY) | flag(spec.limits.hard_processes, HARD_PROCESSES);
    let walls = confinement.map_or(0, |Confinement { files, network, signals, degrade }| {
        CONFINED
            | u32::from(newest_landlock()) << LANDLOCK
            | flag(*signals, SIGNALS)
            | flag(*network, NETWORK)
            | flag(*degrade, DEGRADE)
            | flag(files.is_some(), FILES)
    });
    let number = |count: usize| u32::try_from(count).ok().map(u32::to_le_bytes);
    let head = [
        VERSION.to_le_bytes(),
        number(strings.len())?,
        number(spec.args.len())?,
        number(spec.env.len())?,
        u32::from(spec.cwd.is_some()).to_le_bytes(),
        kilobytes(spec.limits.memory).to_le_bytes(),
        spec.limits.processes.unwrap_or(0).to_le_bytes(),
        spec.limits.open_files.unwrap_or(0).to_le_bytes(),
        kilobytes(spec.limits.file_size).to_le_bytes(),
        spec.limits.cpu_seconds.unwrap_or(0).to_le_bytes(),
        (hard | walls).to_le_bytes(),
        number(files.map_or(0, |files| files.read.len()))?,
        number(files.map_or(0, |files| files.write.len()))?,
    ];
    Some([head.as_flattened(), &strings].concat())
}

/// Converts to kilobytes, at least one, because zero means no limit. Larger values are capped at 4 TB, which is no limit
/// in practice.
fn kilobytes(bytes: Option<u64>) -> u32 {
    bytes.map_or(0, |bytes| u32::try_from(bytes >> 10).unwrap_or(u32::MAX).max(1))
}

impl OrderHead {
    /// `None` if the sender uses another version, or the order is too long.
    pub(crate) fn decode(head: &[u8; ORDER_HEAD]) -> Option<Self> {
        let number = |index: usize| {
            let (numbers, _) = head.as_chunks::<4>();
            numbers.get(index).map(|&bytes| u32::from_le_bytes(bytes) as usize)
        };
        let bytes = |kilobytes: usize| Some((kilobytes as u64) << 10).filter(|&bytes| bytes > 0);
        let count = |count: usize| u32::try_from(count).ok().filter(|&count| count > 0);
        let flags = u32::try_from(number(10)?).ok()?;
        let limits = Limits {
            memory: bytes(number(5)?),
            hard_memory: flags & HARD_MEMORY != 0,
            processes: count(number(6)?),
            hard_processes: flags & HARD_PROCESSES != 0,
            open_files: count(number(7)?),
            file_size: bytes(number(8)?),
            cpu_seconds: count(number(9)?),
            log: None,
        };
        let decoded = Self {
            length: number(1)?,
            args: number(2)?,
            env: number(3)?,
            cwd: number(4)? == 1,
            limits,
            flags,
            read: number(11)?,
            write: number(12)?,
        };
        (number(0)? == VERSION as usize && decoded.length <= LONGEST_ORDER).then_some(decoded)
    }

    /// Builds the order from this head and its strings.
    pub(crate) fn order(self, strings: &[u8]) -> Option<Order> {
        let mut strings = strings.split(|&byte| byte == 0).map(|string| OsString::from_vec(string.to_vec()));
        let program = strings.next()?.into();
        let mut args = Vec::new();
        for _ in 0..self.args {
            args.push(strings.next()?);
        }
        let mut env = Vec::new();
        for _ in 0..self.env {
            env.push((strings.next()?, strings.next()?));
        }
        let cwd = if self.cwd { Some(strings.next()?.into()) } else { None };
        let mut paths = |count: usize| -> Option<Vec<PathBuf>> {
            (0..count).map(|_| strings.next().map(PathBuf::from)).collect()
        };
        let files = Files { read: paths(self.read)?, write: paths(self.write)? };
        let has = |flag: u32| self.flags & flag != 0;
        let confinement = has(CONFINED).then(|| Confinement {
            files: has(FILES).then_some(files),
            network: has(NETWORK),
            signals: has(SIGNALS),
            degrade: has(DEGRADE),
        });
        let landlock = u8::try_from(self.flags >> LANDLOCK & 15).unwrap_or_default();
        Some(Order { landlock, program, args, env, cwd, limits: self.limits, confinement })
    }
}

/// The step at which a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The order was not understood.
    Order,
    /// The shim could not set itself up to keep a tree.
    Keeping,
    /// The limits could not be set.
    Limits,
    /// The limits must be enforced by a control group, and no group is available.
    Ungrouped(Ungrouped),
    /// The program could not be confined, because the system lacks this feature.
    Confinement(Feature),
    /// A path in its `files` cannot be used: its index in the order of [`Files::each`].
    Path(u32),
    /// The system refused to start the program.
    Program,
}

/// Identifies a process by its pid and the low 32 bits of its start time, which tell it from a later process with the
/// same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth {
    pub(crate) pid: u32,
    pub(crate) born: u32,
}

impl Birth {
    /// Whether the process exists, at least as a zombie.
    pub(crate) fn is_there(self) -> bool {
        descent::born(self.pid) == Some(self.born)
    }
}

/// What a shim reports about its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The program runs below this shim, and its limits are enforced as `effective` says.
    Started { program: Birth, shim: Birth, effective: Effective },
    /// Nothing runs, and the shim ends.
    Failed { stage: Stage, errno: i32 },
    /// The tree exceeds a limit and is killed, or it has died of it.
    Breached(Breach),
    /// The program has ended; this is its wait status.
    Exited { status: i32 },
    /// The tree is gone, except for `left` processes that could not be killed. The shim ends.
    Gone { killed: u32, left: u32 },
}

impl Report {
    pub(crate) fn encode(self) -> [u8; REPORT] {
        let (tag, words) = match self {
            Self::Started { program, shim, effective } => {
                (b'S', [program.pid, program.born, shim.pid, shim.born, effective.encode()])
            }
            Self::Failed { stage, errno } => {
                let errno = if let Stage::Ungrouped(reason) = stage { reason.encode() } else { errno };
                let which = if let Stage::Path(which) = stage { which } else { 0 };
                let stage: u32 = match stage {
                    Stage::Order => 0,
                    Stage::Keeping => 1,
                    Stage::Program => 2,
                    Stage::Limits => 3,
                    Stage::Confinement(Feature::Landlock) => 4,
                    Stage::Confinement(Feature::Seccomp) => 5,
                    Stage::Confinement(Feature::Capabilities) => 6,
                    Stage::Ungrouped(_) => 7,
                    Stage::Path(_) => 8,
                    Stage::Confinement(Feature::Scopes) => 9,
                };
                (b'F', [stage, errno.cast_unsigned(), which, 0, 0])
            }
            Self::Breached(Breach::Memory { bytes }) => (b'M', [kilobytes(Some(bytes)), 0, 0, 0, 0]),
            Self::Breached(Breach::Processes { count }) => (b'P', [count, 0, 0, 0, 0]),
            Self::Exited { status } => (b'E', [status.cast_unsigned(), 0, 0, 0, 0]),
            Self::Gone { killed, left } => (b'G', [killed, left, 0, 0, 0]),
        };
        let mut bytes = [tag; REPORT];
        bytes[1..].copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
        bytes
    }

    pub(crate) fn decode(bytes: [u8; REPORT]) -> Option<Self> {
        let (words, _) = bytes[1..].as_chunks::<4>();
        let [first, second, third, fourth, fifth] = words.first_chunk::<5>()?.map(u32::from_le_bytes);
        Some(match bytes[0] {
            b'S' => Self::Started {
                program: Birth { pid: first, born: second },
                shim: Birth { pid: third, born: fourth },
                effective: Effective::decode(fifth)?,
            },
            b'F' => {
                let stage = match first {
                    0 => Stage::Order,
                    1 => Stage::Keeping,
                    2 => Stage::Program,
                    3 => Stage::Limits,
                    4 => Stage::Confinement(Feature::Landlock),
                    5 => Stage::Confinement(Feature::Seccomp),
                    6 => Stage::Confinement(Feature::Capabilities),
                    7 => Stage::Ungrouped(Ungrouped::decode(second.cast_signed())?),
                    8 => Stage::Path(third),
                    9 => Stage::Confinement(Feature::Scopes),
                    _ => return None,
                };
                Self::Failed { stage, errno: second.cast_signed() }
            }
            b'M' => Self::Breached(Breach::Memory { bytes: u64::from(first) << 10 }),
            b'P' => Self::Breached(Breach::Processes { count: first }),
            b'E' => Self::Exited { status: first.cast_signed() },
            b'G' => Self::Gone { killed: first, left: second },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn spec() -> Spec {
        Spec {
            program: "tool".to_owned(),
            args: vec!["one".to_owned(), String::new(), "ü".to_owned()],
            env: BTreeMap::from([("NAME".to_owned(), "a=b".to_owned()), ("EMPTY".to_owned(), String::new())]),
            cwd: Some("/tmp".into()),
            limits: Limits {
                memory: Some(256 << 20),
                hard_memory: true,
                processes: Some(64),
                ..Limits::default()
            },
            confinement: None,
        }
    }

    fn decode(bytes: &[u8]) -> Option<Order> {
        let (head, strings) = bytes.split_first_chunk()?;
        let head = OrderHead::decode(head)?;
        assert_eq!(head.length, strings.len());
        head.order(strings)
    }

    #[test]
    fn an_order_survives_the_way() {
        let mut spec = spec();
        for cwd in [Some("/tmp".into()), None] {
            spec.cwd = cwd;
            let order = decode(&order(&spec, Path::new("/bin/tool")).unwrap()).unwrap();
            assert_eq!(order.program, Path::new("/bin/tool"));
            assert_eq!(order.args, ["one", "", "ü"]);
            let env: Vec<_> = spec.env.iter().map(|(name, value)| (name.into(), value.into())).collect();
            assert_eq!(order.env, env);
            assert_eq!(order.cwd, spec.cwd);
            assert_eq!(order.limits, spec.limits);
            assert_eq!(order.confinement, None);
        }
        for files in [None, Some(Files { read: vec!["/a".into(), "/b".into()], write: vec!["/c d".into()] })]
        {
            for (network, degrade) in [(false, true), (true, false)] {
                spec.confinement =
                    Some(Confinement { files: files.clone(), network, signals: !degrade, degrade });
                let order = decode(&order(&spec, Path::new("/bin/tool")).unwrap()).unwrap();
                assert_eq!(order.landlock, crate::confinement::ANY_LANDLOCK);
                assert_eq!(order.confinement, spec.confinement);
            }
        }
    }

    #[test]
    fn an_order_that_nobody_could_obey_is_refused() {
        let mut zero = spec();
        zero.args.push("a\0b".to_owned());
        assert_eq!(order(&zero, Path::new("/bin/tool")), None);

        let good = order(&spec(), Path::new("/bin/tool")).unwrap();
        let changed = |index: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[index] = byte;
            decode(&bytes).is_none()
        };
        assert!(changed(0, 200), "another version");
        assert!(changed(7, 200), "too long");
        assert!(changed(9, 200), "more arguments than there are strings");
    }

    /// WORD-4: an order names the release and the protocol of its sender, and the error about a shim of another release
    /// names both releases.
    #[test]
    fn releases_are_told_apart() {
        assert_eq!(release("1.2.3"), (1 << 20) + (2 << 10) + 3);
        assert_eq!(release("0.10.0-beta.1"), 10 << 10);
        assert_ne!(release("0.1.0"), release("0.1.1"));
        let order = order(&spec(), Path::new("/bin/tool")).unwrap();
        assert_eq!(order[..4], ((7 << 28) ^ RELEASE.cast_unsigned()).to_le_bytes());
        let ours = env!("CARGO_PKG_VERSION");
        assert_eq!(
            not_taken(release("9.8.7")),
            format!("it is version 9.8.7, and this program is version {ours}")
        );
        assert_eq!(not_taken(RELEASE), "it cannot read what this program sends");
    }

    #[test]
    fn reports_survive_the_way() {
        for report in [
            Report::Started {
                program: Birth { pid: 4_000_000, born: 77 },
                shim: Birth { pid: 3_000_000, born: 76 },
                effective: Effective { memory: Some(crate::Enforced::Sampled), ..Effective::default() },
            },
            Report::Failed { stage: Stage::Limits, errno: 1 },
            Report::Failed {
                stage: Stage::Ungrouped(Ungrouped::NotAlone),
                errno: Ungrouped::NotAlone.encode(),
            },
            Report::Failed { stage: Stage::Confinement(Feature::Landlock), errno: 95 },
            Report::Failed { stage: Stage::Confinement(Feature::Seccomp), errno: 38 },
            Report::Failed { stage: Stage::Confinement(Feature::Capabilities), errno: 1 },
            Report::Failed { stage: Stage::Path(3), errno: 40 },
            Report::Failed { stage: Stage::Confinement(Feature::Scopes), errno: 95 },
            Report::Breached(Breach::Memory { bytes: 5 << 30 }),
            Report::Breached(Breach::Processes { count: 65 }),
            Report::Failed { stage: Stage::Order, errno: 0 },
            Report::Failed { stage: Stage::Keeping, errno: 1 },
            Report::Failed { stage: Stage::Program, errno: 2 },
            Report::Exited { status: -1 },
            Report::Gone { killed: 7, left: u32::MAX },
        ] {
            assert_eq!(Report::decode(report.encode()), Some(report));
        }
        assert_eq!(Report::decode(*b"X00000000000000000000"), None);
        assert_eq!(Report::decode(*b"F99999999999999999999"), None);
    }
}
