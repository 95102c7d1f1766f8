//! Checks by other people's tools: spelling (typos), licences and duplicates (cargo-deny), unused dependencies (cargo-shear), the
//! workflow of a hosted CI (check-jsonschema, zizmor).
//!
//! Each tool is installed if it is missing. Their settings are in `typos.toml`, `deny.toml` and `Cargo.toml`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::foreign::succeed;
use crate::{shown, steps};

/// Comes as a program from Python's index, which is much faster than building it.
const TYPOS: &str = "typos==1.51.1";

/// They know the schema of a workflow, and what is unsafe in one.
const WORKFLOW_TOOLS: [&str; 2] = ["check-jsonschema==0.39.0", "zizmor==1.32.0"];
const WORKFLOW: &str = ".github/workflows/release.yml";

/// Verbs of cargo, and the packages that have them. Later versions of cargo-shear need a newer compiler than we do.
const SHEAR: (&str, &str) = ("shear", "cargo-shear@1.12.0");
const DENY: (&str, &str) = ("deny", "cargo-deny@0.20.2");
const HACK: (&str, &str) = ("hack", "cargo-hack@0.6.46");

/// Installs every tool that is missing.
pub(crate) fn install(root: &Path) -> Result<()> {
    for tool in [SHEAR, DENY, HACK] {
        install_tool(root, tool)?;
    }
    install_typos(root).map(drop)
}

/// Installs a verb of cargo, if it is missing.
fn install_tool(root: &Path, (verb, package): (&str, &str)) -> Result<()> {
    if steps::succeeds(root, &[verb, "--version"]) {
        return Ok(());
    }
    eprintln!("installing {package}");
    steps::cargo(root, &["install", package, "--locked"], &[])
}

/// Installs the tool that builds with each feature, if it is missing.
pub(crate) fn install_hack(root: &Path) -> Result<()> {
    install_tool(root, HACK)
}

/// Fails on a word that is spelled wrongly. Deliberate slips are in `typos.toml`.
pub(crate) fn spelling(root: &Path) -> Result<()> {
    let typos = install_typos(root)?;
    let status = shown::status(steps::program_at(root, typos).arg("--format=brief"))
        .context("typos could not be started")?;
    if !status.success() {
        bail!("typos found words; correct them, or list a deliberate one in typos.toml");
    }
    Ok(())
}

/// Fails on a dependency that no code uses, on a licence that `deny.toml` does not allow, and on a crate in two versions that it
/// does not list.
pub(crate) fn dependencies(root: &Path) -> Result<()> {
    steps::cargo(root, &["shear"], &[])?;
    steps::cargo(
        root,
        &[
            "deny",
            "--offline",
            "--log-level=error",
            "check",
            "--hide-inclusion-graph",
            "bans",
            "licenses",
            "sources",
        ],
        &[],
    )
}

/// Fails if the workflow of a release is malformed or unsafe.
pub(crate) fn workflow(root: &Path) -> Result<()> {
    let tools = steps::install_from_pypi(root, &WORKFLOW_TOOLS)?;
    let run = |tool: &str, arguments: &[&str]| {
        succeed(steps::program_at(root, tools.join(tool)).args(arguments).arg(WORKFLOW), tool)
    };
    run("check-jsonschema", &["--builtin-schema", "vendor.github-workflows"])?;
    run("zizmor", &["--offline", "--no-progress", "--quiet"])
}

/// Where typos is, after installing it into an environment of its own in the target folder if it is missing.
fn install_typos(root: &Path) -> Result<PathBuf> {
    let folder = steps::target_folder()?.join("typos");
    let program = folder.join("bin").join("typos");
    if !program.exists() {
        eprintln!("installing typos");
        steps::output(root, "python3", &["-m".as_ref(), "venv".as_ref(), folder.as_os_str()])
            .context("typos needs python3 with venv")?;
        steps::output(root, folder.join("bin").join("pip"), &["install", "--quiet", TYPOS])?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A workspace of one package in the root and others in folders, judged by the rules of this repository.
    struct Sample(tempfile::TempDir);

    impl Sample {
        fn new() -> Self {
            let sample = Self(tempfile::tempdir().unwrap());
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
            fs::copy(root.join("deny.toml"), sample.0.path().join("deny.toml")).unwrap();
            sample
        }

        /// Adds a package that depends on others, each with its folder, and uses those that its code names.
        fn package(&self, folder: &str, about: [&str; 3], others: &[(&str, &str)], code: &str) -> &Self {
            let folder = self.0.path().join(folder);
            let [name, version, licence] = about;
            let mut manifest = format!(
                "[package]\nname = \"{name}\"\nversion = \"{version}\"\nlicense = \"{licence}\"\nedition = \"2024\"\n\
                 publish = false\n[dependencies]\n"
            );
            for (name, path) in others {
                manifest.push_str(&format!("{name} = {{ path = \"{path}\" }}\n"));
            }
            fs::create_dir_all(folder.join("src")).unwrap();
            fs::write(folder.join("src/lib.rs"), code).unwrap();
            fs::write(folder.join("Cargo.toml"), manifest).unwrap();
            self
        }

        /// Checks the dependencies; `refused` is the tool that finds something.
        #[track_caller]
        fn check(&self, refused: Option<&str>) {
            steps::cargo(self.0.path(), &["generate-lockfile", "--offline"], &[]).unwrap();
            let outcome = dependencies(self.0.path()).map_err(|error| error.to_string());
            let expected = match (&outcome, refused) {
                (Ok(()), None) => true,
                (Err(error), Some(tool)) => error.starts_with(tool),
                _ => false,
            };
            assert!(expected, "{outcome:?}; `cargo xtask check` installs the tools");
        }
    }

    /// WORD-3: dependencies that are used, in one version and under an allowed licence pass. A dependency that no code uses
    /// is refused, and so are a crate in two versions and a licence that is not allowed.
    #[test]
    fn unused_duplicate_and_wrongly_licensed_dependencies_are_refused() {
        const ROOT: [&str; 3] = ["program", "1.0.0", "MIT"];
        const A: [&str; 3] = ["a", "1.0.0", "MIT"];
        const USES_A: &str = "pub use a as _;";
        Sample::new().package("", ROOT, &[("a", "a")], USES_A).package("a", A, &[], "").check(None);
        Sample::new()
            .package("", ROOT, &[("a", "a")], "")
            .package("a", A, &[], "")
            .check(Some("cargo shear"));
        Sample::new()
            .package("", ROOT, &[("a", "a")], USES_A)
            .package("a", ["a", "1.0.0", "GPL-3.0"], &[], "")
            .check(Some("cargo deny"));
        Sample::new()
            .package("", ROOT, &[("a", "a"), ("b", "b")], "pub use {a as _, b as _};")
            .package("a", A, &[], "")
            .package("b", ["b", "1.0.0", "MIT"], &[("a", "../newer")], USES_A)
            .package("newer", ["a", "2.0.0", "MIT"], &[], "")
            .check(Some("cargo deny"));
    }
}
