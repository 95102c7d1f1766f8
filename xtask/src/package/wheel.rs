//! The wheel for PyPI. It has no Python code: its scripts are the programs, which `pip` and `uv` put beside each other.
//!
//! It is laid out here and packed by the tool `wheel`, because there is nothing to compile: maturin would build the programs once
//! more, and tags a static program for one C library only.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::licences::Licences;
use super::programs::Programs;
use super::{DESCRIPTION, LICENCE, NAME, PLATFORM, Packages, README, VERSION, python_tool, write};
use crate::foreign::{command, succeed};

/// The first moment that a zip file can name, for times in the wheel.
const EPOCH: &str = "315532800";

/// The name has all tags, so one file is found by systems with either C library.
pub(super) fn file_name() -> String {
    let tags = PLATFORM.tags.map(|tag| tag.trim_start_matches("py3-none-"));
    format!("{NAME}-{VERSION}-py3-none-{}.whl", tags.join("."))
}

pub(super) fn make(
    programs: &Programs,
    licences: &Licences,
    staging: &Path,
    packages: &Packages,
) -> Result<()> {
    stage(programs, licences, staging)?;
    let folder = packages.folder.join("pypi");
    fs::create_dir_all(&folder)?;
    let mut pack = command(python_tool("wheel")?);
    pack.arg("pack").arg("--dest-dir").arg(&folder).arg(staging).env("SOURCE_DATE_EPOCH", EPOCH);
    succeed(&mut pack, "wheel pack")?;
    ensure!(packages.wheel().is_file(), "`wheel pack` wrote no {}", file_name());
    Ok(())
}

/// Lays the contents out in a folder.
pub(super) fn stage(programs: &Programs, licences: &Licences, into: &Path) -> Result<()> {
    programs.copy_into(&into.join(format!("{NAME}-{VERSION}.data/scripts")))?;
    let about = into.join(format!("{NAME}-{VERSION}.dist-info"));
    let names = licences.copy_into(&about.join("licenses"))?;
    write(&about.join("METADATA"), &metadata(&names)?)?;
    write(&about.join("WHEEL"), &tags()?)
}

fn metadata(licences: &[String]) -> Result<String> {
    let mut text = format!(
        "Metadata-Version: 2.4\nName: {NAME}\nVersion: {VERSION}\nSummary: {DESCRIPTION}\nLicense-Expression: {LICENCE}\n"
    );
    for name in licences {
        writeln!(text, "License-File: {name}")?;
    }
    write!(
        text,
        "Keywords: mcp,gateway,proxy,audit\nClassifier: Environment :: Console\n\
         Classifier: Operating System :: POSIX :: Linux\nClassifier: Programming Language :: Rust\n\
         Requires-Python: >=3.8\nDescription-Content-Type: text/markdown; charset=UTF-8\n\n{README}"
    )
    .context("a string can always be written to")?;
    Ok(text)
}

fn tags() -> Result<String> {
    let mut text = "Wheel-Version: 1.0\nGenerator: xtask package\nRoot-Is-Purelib: false\n".to_owned();
    for tag in PLATFORM.tags {
        writeln!(text, "Tag: {tag}")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-7: the wheel is for every Python 3 on Linux, with the GNU C library and with musl.
    #[test]
    fn the_wheel_has_the_tags_of_both_c_libraries() {
        let tags = tags().unwrap();
        for tag in ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"] {
            assert!(tags.contains(&format!("Tag: py3-none-{tag}\n")), "{tags}");
            assert!(file_name().contains(tag), "{}", file_name());
        }
    }

    #[test]
    fn the_metadata_names_the_licences() {
        let text = metadata(&["LICENSE-MIT".to_owned()]).unwrap();
        assert!(
            text.contains("\nLicense-Expression: Apache-2.0 OR MIT\nLicense-File: LICENSE-MIT\n"),
            "{text}"
        );
        assert!(text.ends_with(README), "{text}");
    }
}
