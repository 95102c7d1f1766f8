//! Chooses between the two ways to keep a program's processes together: a shim, or a process group.

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

/// Where the shim is that keeps a program's tree; see [`shim`](crate::shim).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shim {
    /// The running program itself, which must call [`main_if_asked`](crate::shim::main_if_asked) first.
    ThisExecutable,
    /// This program.
    Program(PathBuf),
    /// No shim: programs run as process groups.
    Off,
}

/// Which of a program's descendants end with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containment {
    /// All of them, even if the gateway is killed.
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

/// Sets the shim that starts programs from now on. Until this is called, it is the program `bridgehead-shim`
/// beside the running one; else the running one itself, if it has called
/// [`main_if_asked`](crate::shim::main_if_asked); else none. This has no effect on systems other than Linux, which
/// have no subreaper.
pub fn use_shim(shim: Shim) {
    *CHOSEN.write().unwrap_or_else(PoisonError::into_inner) = Some(shim);
}

/// Opens the executable that is running, even if the file was replaced or deleted meanwhile.
#[cfg(target_os = "linux")]
const THIS_EXECUTABLE: &str = "/proc/self/exe";

/// Whether the running program can act as the shim.
#[cfg(target_os = "linux")]
static ABLE: AtomicBool = AtomicBool::new(false);

/// Records that the running program can act as the shim.
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

/// The shim beside the running program. For a test it is this crate's shim, in the folder above Cargo's folder of tests.
/// The path is remembered: if the file disappears later, a start fails instead of falling back to a process group.
/// A program whose own file is gone was probably updated, and the shim there too, so such a program rather uses itself.
#[cfg(target_os = "linux")]
fn beside() -> Option<PathBuf> {
    static FOUND: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(found.clone());
    }
    let current = std::env::current_exe().ok()?;
    if ABLE.load(Ordering::Relaxed) && !current.exists() {
        return None;
    }
    let folder = current.parent()?;
    let found = if folder.ends_with("deps") || folder.ends_with("examples") {
        folder.with_file_name("process-shim")
    } else {
        folder.join("bridgehead-shim")
    };
    let found = Some(found).filter(|path| path.is_file())?;
    Some(FOUND.get_or_init(|| found).clone())
}

/// Why there is no shim, and the cure.
const NO_SHIM: &str = if cfg!(target_os = "linux") {
    "this program has none: call `bridgehead::main_if_asked()` first in its `main`, or install `bridgehead-shim` beside it"
} else {
    "it exists for Linux only"
};

/// Keeps the nursery running, so that the first start does not wait for it and later starts reuse it. Empty where there
/// is no shim.
#[derive(Debug)]
pub struct Prepared {
    #[cfg(target_os = "linux")]
    _nursery: Option<std::sync::Arc<crate::nursery::Nursery>>,
}

/// Starts the nursery ahead of the first program; see [`shim`](crate::shim). If that fails, the first start reports it.
///
/// Must be called within a tokio runtime that has its I/O driver enabled.
#[must_use]
pub fn prepare() -> Prepared {
    Prepared {
        #[cfg(target_os = "linux")]
        _nursery: chosen().and_then(|shim| crate::nursery::Nursery::of(&shim).ok()),
    }
}

/// A running program, kept by a shim or as a process group.
#[derive(Debug)]
pub(crate) enum Keeper {
    #[cfg(target_os = "linux")]
    Tree(Tree),
    Group(Group),
}

/// Calls the same method on either variant.
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
    /// Starts a program and blocks this thread until it runs.
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
            let reason = format!("the shim enforces them, and {NO_SHIM}");
            return Err(SpawnError::Limits { program: spec.program.clone(), reason });
        }
        if spec.confinement.as_ref().is_some_and(|confinement| !confinement.degrade || confinement.signals) {
            return Err(SpawnError::Confinement {
                program: spec.program.clone(),
                feature: "the shim, which confines programs on Linux",
                reason: NO_SHIM.to_owned(),
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
            // The nursery may have been killed; the second attempt starts a new one.
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

    /// Waits until the program has ended and the processes that it left behind are killed. May be dropped and called
    /// again.
    pub(crate) async fn gone(&mut self) -> Exit {
        either!(self, kept => kept.gone().await)
    }

    /// Resolves when whatever keeps the program's processes together has ended without ending them; they are killed then.
    /// May be dropped and called again.
    pub(crate) async fn abandoned(&mut self) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Tree(tree) => tree.abandoned().await,
            // Nothing keeps a group but its own leader.
            Self::Group(_) => std::future::pending().await,
        }
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
