//! Which way of keeping a program's tree together is used, and the choice between them.

use std::fmt;
use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use tokio::time::timeout;

use crate::child::Pipes;
use crate::group::Group;
#[cfg(target_os = "linux")]
use crate::tree::{NotStarted, Starting, Tree};
use crate::view::ProcessView;
use crate::{Breach, Effective, Exit, SpawnError, Spec};

/// Where the shim is, which keeps the tree of a program; see [`shim`](crate::shim).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shim {
    /// The running program itself, which calls [`main_if_asked`](crate::shim::main_if_asked) first.
    ThisExecutable,
    /// This program.
    Program(PathBuf),
    /// There is none; programs are kept as process groups.
    Off,
}

/// What of a program's descendants ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containment {
    /// All of them, also when the gateway is killed.
    Tree,
    /// Those that stay in its process group, unless the gateway is killed.
    Group,
}

impl fmt::Display for Containment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tree => "tree",
            Self::Group => "group",
        })
    }
}

static CHOSEN: RwLock<Option<Shim>> = RwLock::new(None);

/// Says which shim programs are started through from now on. Until this is called, it is the program
/// `bridgehead-shim` beside the running one; else the running one itself, if it has called
/// [`main_if_asked`](crate::shim::main_if_asked); else none. Other systems than Linux know no subreaper, and
/// there this has no effect.
pub fn use_shim(shim: Shim) {
    *CHOSEN.write().unwrap_or_else(PoisonError::into_inner) = Some(shim);
}

/// Leads to the file that runs, even if another has taken its place or nothing is there any more.
#[cfg(target_os = "linux")]
const THIS_EXECUTABLE: &str = "/proc/self/exe";

/// Whether the running program can be the shim.
#[cfg(target_os = "linux")]
static ABLE: AtomicBool = AtomicBool::new(false);

/// Remembers that the running program can be the shim.
#[cfg(target_os = "linux")]
pub(crate) fn this_executable_can() {
    ABLE.store(true, Ordering::Relaxed);
}

#[cfg(target_os = "linux")]
pub(crate) fn chosen() -> Option<PathBuf> {
    let chosen = CHOSEN.read().unwrap_or_else(PoisonError::into_inner).clone();
    match chosen {
        Some(Shim::ThisExecutable) => Some(PathBuf::from(THIS_EXECUTABLE)),
        Some(Shim::Program(path)) => Some(path),
        Some(Shim::Off) => None,
        None => {
            let able = ABLE.load(Ordering::Relaxed).then(|| PathBuf::from(THIS_EXECUTABLE));
            beside().or(able)
        }
    }
}

/// The shim beside the running program; for a test, that of this crate, above the folder that Cargo puts tests into.
/// A path that was found is kept: if the file disappears, a start fails rather than being kept worse than the one before.
#[cfg(target_os = "linux")]
fn beside() -> Option<PathBuf> {
    static FOUND: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(found.clone());
    }
    let current = std::env::current_exe().ok()?;
    let folder = current.parent()?;
    let found = if folder.ends_with("deps") || folder.ends_with("examples") {
        folder.with_file_name("process-shim")
    } else {
        folder.join("bridgehead-shim")
    };
    let found = Some(found).filter(|path| path.is_file())?;
    Some(FOUND.get_or_init(|| found).clone())
}

/// Holds ready what keepers of programs come from, so that the first start does not wait for it and later ones find
/// it. Nothing is held where there is none.
#[derive(Debug)]
pub struct Prepared {
    #[cfg(target_os = "linux")]
    _nursery: Option<std::sync::Arc<crate::nursery::Nursery>>,
}

/// Prepares for programs to be started; see [`shim`](crate::shim). A failure is told by the start that meets it.
///
/// Must be called within a tokio runtime that has its I/O driver enabled.
#[must_use]
pub fn prepare() -> Prepared {
    Prepared {
        #[cfg(target_os = "linux")]
        _nursery: chosen().and_then(|shim| crate::nursery::Nursery::of(&shim).ok()),
    }
}

/// A running program, kept one way or the other.
#[derive(Debug)]
pub(crate) enum Keeper {
    #[cfg(target_os = "linux")]
    Tree(Tree),
    Group(Group),
}

/// Calls the same method of whichever it is.
macro_rules! either {
    ($keeper:expr, $kept:ident => $call:expr) => {
        match $keeper {
            #[cfg(target_os = "linux")]
            Keeper::Tree($kept) => $call,
            Keeper::Group($kept) => $call,
        }
    };
}

impl Keeper {
    /// Starts a program, with this thread blocked until it runs.
    pub(crate) fn start_blocking(spec: &Spec) -> Result<(Self, Pipes), SpawnError> {
        let program = spec.resolve()?;
        #[cfg(target_os = "linux")]
        if let Some(shim) = chosen() {
            let attempt = || Starting::begin(spec, program.clone(), shim.clone())?.finish_blocking();
            let (tree, pipes) = match attempt() {
                Err(NotStarted::NoShim(_)) => attempt(),
                settled => settled,
            }?;
            return Ok((Self::Tree(tree), pipes));
        }
        if spec.limits.is_bounding() {
            let reason =
                "they are kept by the shim, which is not installed or does not exist for this system";
            return Err(SpawnError::Limits { program: spec.program.clone(), reason: reason.to_owned() });
        }
        if spec.confinement.as_ref().is_some_and(|confinement| !confinement.degrade || confinement.signals) {
            return Err(SpawnError::Confinement {
                program: spec.program.clone(),
                feature: "the shim, which confines programs on Linux",
                reason: "it is not installed or does not exist for this system".to_owned(),
                way_out: "write `on_missing = \"degrade\"` to go without",
            });
        }
        let (group, pipes) = Group::start(spec, program)?;
        Ok((Self::Group(group), pipes))
    }

    pub(crate) async fn start(spec: &Spec) -> Result<(Self, Pipes), SpawnError> {
        #[cfg(target_os = "linux")]
        if let Some(shim) = chosen() {
            let program = spec.resolve()?;
            let attempt = async || Starting::begin(spec, program.clone(), shim.clone())?.finish().await;
            // A nursery may have been killed; the next is a new one.
            let (tree, pipes) = match attempt().await {
                Err(NotStarted::NoShim(_)) => attempt().await,
                settled => settled,
            }?;
            return Ok((Self::Tree(tree), pipes));
        }
        Self::start_blocking(spec)
    }

    pub(crate) fn containment(&self) -> Containment {
        match self {
            #[cfg(target_os = "linux")]
            Self::Tree(_) => Containment::Tree,
            Self::Group(_) => Containment::Group,
        }
    }

    pub(crate) fn effective(&self) -> Effective {
        match self {
            #[cfg(target_os = "linux")]
            Self::Tree(tree) => tree.effective(),
            Self::Group(_) => Effective::default(),
        }
    }

    pub(crate) fn end(&self) -> (Option<Breach>, u32) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Tree(tree) => tree.end(),
            Self::Group(_) => (None, 0),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        either!(self, kept => kept.pid())
    }

    pub(crate) fn members(&self) -> Vec<u32> {
        if either!(self, kept => kept.exit()).is_some() {
            return Vec::new();
        }
        match self {
            #[cfg(target_os = "linux")]
            Self::Tree(tree) => tree.members(),
            #[cfg(target_os = "linux")]
            Self::Group(group) => {
                let below = crate::descent::below(group.pid());
                std::iter::once(group.pid()).chain(below.into_iter().map(|member| member.pid)).collect()
            }
            #[cfg(not(target_os = "linux"))]
            Self::Group(group) => vec![group.pid()],
        }
    }

    pub(crate) fn view(&self) -> ProcessView {
        match self {
            #[cfg(target_os = "linux")]
            Self::Tree(tree) => tree.view(),
            Self::Group(group) => ProcessView::of_group(group.pid()),
        }
    }

    /// Waits until the program has ended and what it left behind is killed. May be dropped and called again.
    pub(crate) async fn gone(&mut self) -> Exit {
        either!(self, kept => kept.gone().await)
    }

    /// Waits `grace` for the program to end by itself, then ends it.
    pub(crate) async fn stop(&mut self, grace: Duration) -> Exit {
        match timeout(grace, self.gone()).await {
            Ok(exit) => exit,
            Err(_) => either!(self, kept => kept.terminate().await),
        }
    }

    pub(crate) async fn kill(&mut self) -> Exit {
        either!(self, kept => kept.kill().await)
    }
}
