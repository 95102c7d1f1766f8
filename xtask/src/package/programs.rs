//! The static build that all packages carry.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{NAME, PLATFORM, VERSION, copy};
use crate::built::Built;
use crate::foreign::{command, succeed};
use crate::{dist, steps};

/// The helper that the gateway starts servers with.
pub(super) const SHIM: &str = "bridgehead-shim";

/// The two programs.
pub(super) struct Programs {
    pub(super) gateway: PathBuf,
    pub(super) shim: PathBuf,
}

impl Programs {
    /// Copies both into one folder.
    pub(super) fn copy_into(&self, folder: &Path) -> Result<()> {
        copy(&self.gateway, folder)?;
        copy(&self.shim, folder)
    }

    /// Takes what cargo built, if it is linked statically and has the version of the packages.
    fn of(built: &Built) -> Result<Self> {
        let programs =
            Self { gateway: built.program(NAME)?.to_owned(), shim: built.program(SHIM)?.to_owned() };
        for program in [&programs.gateway, &programs.shim] {
            let linked = command("ldd").arg(program).output().context("ldd could not be started")?;
            let linked = String::from_utf8_lossy(&[linked.stdout, linked.stderr].concat()).into_owned();
            ensure!(is_static(&linked), "{} is not linked statically: {linked}", program.display());
        }
        let version = steps::output(Path::new("."), &programs.gateway, &["--version"])?;
        let version = String::from_utf8_lossy(&version).trim().to_owned();
        ensure!(version == format!("{NAME} {VERSION}"), "the build says `{version}`, not {VERSION}");
        Ok(programs)
    }
}

/// What `ldd` says about a program that needs no library: the first of a position-independent one, the second of another.
fn is_static(linked: &str) -> bool {
    ["statically linked", "not a dynamic executable"].iter().any(|words| linked.contains(words))
}

/// Variables that make C code for the platform.
const C_COMPILER: (&str, &str) = ("CC_x86_64_unknown_linux_musl", "musl-gcc");

/// As shipped: the profile `dist`, arranged by a profile of its own run.
pub(super) fn shipped(root: &Path) -> Result<Programs> {
    prepare(root)?;
    Programs::of(&dist::build_for(root, PLATFORM.target, &c_compiler())?)
}

/// Built as for tests, without optimisation, to check the packages. Flags instead of a profile, because build scripts and
/// procedural macros are then those of the tests.
pub(super) fn quick(root: &Path) -> Result<Programs> {
    prepare(root)?;
    let bins = ["build", "--bins", "--package=bridgehead-cli", "--target", PLATFORM.target];
    let flags = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUSTFLAGS";
    let flags = (flags, OsStr::new("-Cdebuginfo=0 -Cstrip=symbols"));
    Programs::of(&Built::by(root, &bins, &[&c_compiler()[..], &[flags]].concat())?)
}

fn c_compiler() -> [(&'static str, &'static OsStr); 1] {
    let (variable, compiler) = C_COMPILER;
    [(variable, OsStr::new(compiler))]
}

/// Installs the target and its C compiler, if they are missing.
fn prepare(root: &Path) -> Result<()> {
    let host = steps::host(root)?;
    if !host.starts_with("x86_64-unknown-linux") {
        bail!("packages are made on Linux on x86_64 only, because they are run here; this is {host}");
    }
    add_target(root, PLATFORM.target)?;
    let (_, compiler) = C_COMPILER;
    if succeed(command(compiler).arg("--version"), compiler).is_err() {
        eprintln!("installing musl-tools");
        steps::install_from_debian(root, "musl-tools")
            .context("musl-gcc is missing; install it, on Debian with the package musl-tools")?;
    }
    Ok(())
}

/// Installs a target of the compiler, if it is missing.
pub(crate) fn add_target(root: &Path, target: &str) -> Result<()> {
    let libraries = steps::output(root, "rustc", &["--print", "target-libdir", "--target", target])?;
    let libraries = String::from_utf8(libraries).context("the path of the toolchain is not text")?;
    if Path::new(libraries.trim()).is_dir() {
        return Ok(());
    }
    eprintln!("installing the target {target}");
    steps::output(root, "rustup", &["target", "add", target])
        .map(drop)
        .with_context(|| format!("the compiler has no target {target}; `rustup target add {target}` adds it"))
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Two scripts in place of the programs: the gateway prints its arguments.
    pub(in crate::package) fn stand_ins(folder: &Path) -> Programs {
        let make = |name: &str, script: &str| {
            let path = folder.join(name);
            std::fs::write(&path, script).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        Programs { gateway: make(NAME, "#!/bin/sh\necho \"$@\"\n"), shim: make(SHIM, "#!/bin/sh\n") }
    }

    #[test]
    fn a_program_that_needs_a_library_is_noticed() {
        assert!(is_static("\tstatically linked\n"));
        assert!(is_static("\tnot a dynamic executable\n"));
        assert!(!is_static("\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/libc.so.6\n"));
    }
}
