//! The tarball: the programs, their manual pages and completions, laid out like `/usr/local`.
//!
//! The same files always give the same tarball: names are sorted, and times and owners are fixed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::licences::Licences;
use super::programs::Programs;
use super::{NAME, PLATFORM, Packages, README, VERSION, copy, write, write_sums};
use crate::foreign::{command, succeed};
use crate::steps;

/// Shells, and where each looks for completions below a prefix such as `/usr/local`.
pub(super) const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/bridgehead"),
    ("zsh", "share/zsh/site-functions/_bridgehead"),
    ("fish", "share/fish/vendor_completions.d/bridgehead.fish"),
];

/// The only folder in the tarball.
pub(super) fn folder_name() -> String {
    format!("{NAME}-{VERSION}-{}", PLATFORM.name)
}

pub(super) fn make(
    root: &Path,
    programs: &Programs,
    licences: &Licences,
    staging: &Path,
    packages: &Packages,
) -> Result<()> {
    stage(root, programs, licences, &staging.join(folder_name()))?;
    let tarball = packages.tarball();
    let fixed = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--format=ustar"];
    let mut tar = command("tar");
    // Without `-n`, gzip would store the time.
    tar.args(fixed).arg("--use-compress-program=gzip -n").arg("-cf").arg(&tarball);
    succeed(tar.arg("-C").arg(staging).arg(folder_name()), "tar")
}

/// Lays the contents out in a folder.
pub(super) fn stage(root: &Path, programs: &Programs, licences: &Licences, into: &Path) -> Result<()> {
    programs.copy_into(&into.join("bin"))?;
    let pages = root.join("docs/man");
    for page in fs::read_dir(&pages).with_context(|| format!("{} could not be read", pages.display()))? {
        copy(&page?.path(), &into.join("share/man/man1"))?;
    }
    for (shell, file) in COMPLETIONS {
        let script = steps::output(root, &programs.gateway, &["completions", shell])?;
        write(&into.join(file), &String::from_utf8(script).context("a completion script is not text")?)?;
    }
    licences.copy_into(into)?;
    write(&into.join("README.md"), README)?;
    let mut files = Vec::new();
    collect(into, into, &mut files)?;
    files.sort();
    write_sums(into, &files.iter().map(PathBuf::as_path).collect::<Vec<_>>())
}

/// All files below a folder, by their paths from `top`.
fn collect(top: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => collect(top, &path, files)?,
            false => files.push(path.strip_prefix(top)?.to_owned()),
        }
    }
    Ok(())
}
