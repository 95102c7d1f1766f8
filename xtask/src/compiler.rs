//! This program as a compiler wrapper: cargo calls it under another name, and it calls the compiler with extra arguments.
//! As ordinary flags, the arguments would become part of every symbol's name. A profile from one build could then not be
//! used in another.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::steps;

/// What the wrapper makes the compiler do besides compiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    /// Add counters of the lines that run.
    Lines,
    /// Add counters for profile-guided optimisation, which write to the folder [`COUNTS`] beside this program.
    Count,
    /// Optimise by the file [`PROFILE`] beside this program.
    Guide,
    /// Compile a copy of the workspace without lints. The wrapper keeps its artifacts apart from those of the original.
    Copy,
}

/// The folder where programs with counters leave their counts.
pub(crate) const COUNTS: &str = "counts";
/// The file with the merged counts.
pub(crate) const PROFILE: &str = "profile";

impl Aim {
    const ALL: [Self; 4] = [Self::Lines, Self::Count, Self::Guide, Self::Copy];

    const fn name(self) -> &'static str {
        match self {
            Self::Lines => "line-counting-rustc",
            Self::Count => "counting-rustc",
            Self::Guide => "guided-rustc",
            Self::Copy => "copying-rustc",
        }
    }

    /// Copies this program into `folder` under the name for this aim, and returns its path.
    pub(crate) fn install(self, folder: &Path) -> Result<PathBuf> {
        let place = folder.join(self.name());
        fs::create_dir_all(folder)?;
        fs::copy(steps::this_program()?, &place)
            .with_context(|| format!("{} could not be written", place.display()))?;
        Ok(place)
    }

    /// The extra arguments for the compiler; `folder` is where this program is.
    fn more(self, folder: &Path, arguments: &[OsString]) -> Vec<OsString> {
        let beside = |option: &str, name: &str| {
            let mut option = OsString::from(option);
            option.push(folder.join(name));
            option
        };
        // Cargo passes `--target` for crates of the program, but not for build scripts and procedural macros.
        let of_program = arguments.iter().any(|argument| argument == "--target");
        match self {
            Self::Lines => vec!["-Cinstrument-coverage".into(), "--cfg=coverage".into()],
            Self::Count if of_program => vec![beside("-Cprofile-generate=", COUNTS)],
            Self::Guide if of_program => vec![beside("-Cprofile-use=", PROFILE)],
            Self::Count | Self::Guide => Vec::new(),
            Self::Copy => vec!["--cap-lints=allow".into()],
        }
    }
}

/// Calls the compiler, if this program was started as its wrapper.
pub(crate) fn compile() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let called = PathBuf::from(arguments.next()?);
    let aim = Aim::ALL.into_iter().find(|aim| called.file_name() == Some(OsStr::new(aim.name())))?;
    let mut compiler = steps::program_at(Path::new("."), arguments.next()?);
    let arguments: Vec<OsString> = arguments.collect();
    let more = aim.more(called.parent().unwrap_or(&called), &arguments);
    let error = compiler.args(arguments).args(more).exec();
    eprintln!("error: {compiler:?} could not be started: {error}");
    Some(ExitCode::FAILURE)
}

/// The folder of the LLVM tools that read counts. Installs them if they are missing.
pub(crate) fn tools(root: &Path) -> Result<PathBuf> {
    // They are beside the libraries of the toolchain, however it was installed.
    let libraries = steps::output(root, "rustc", &["--print", "target-libdir"])?;
    let libraries = String::from_utf8(libraries).context("the path of the toolchain is not text")?;
    let tools = Path::new(libraries.trim()).with_file_name("bin");
    if !tools.join("llvm-profdata").exists() {
        steps::output(root, "rustup", &["component", "add", "llvm-tools"])
            .context("`rustup component add llvm-tools` is needed to read the counts")?;
    }
    Ok(tools)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_becomes_the_program_is_counted_and_guided() {
        let folder = Path::new("d");
        let of_program = ["--crate-name".into(), "a".into(), "--target".into(), "t".into()];
        assert_eq!(Aim::Count.more(folder, &of_program), ["-Cprofile-generate=d/counts"]);
        assert_eq!(Aim::Guide.more(folder, &of_program), ["-Cprofile-use=d/profile"]);
        for aim in [Aim::Count, Aim::Guide] {
            assert!(aim.more(folder, &of_program[..2]).is_empty());
        }
        assert_eq!(Aim::Lines.more(folder, &[]).len(), 2);
        assert_eq!(Aim::Copy.more(folder, &[]), ["--cap-lints=allow"]);
    }
}
