//! `cargo xtask package`: packs one static build as a tarball, as npm packages and as a wheel for PyPI, then installs and
//! runs each of them as a user would.
//!
//! All packages carry the same two programs, `bridgehead` and its helper `bridgehead-shim`, in one folder: the gateway looks
//! for the helper beside itself. The programs are linked statically, so one build runs on every Linux of its architecture.
//! Nothing is published here; docs/releasing.md says how that is done.

mod licences;
mod npm;
mod programs;
mod tarball;
mod trial;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::steps;
use programs::Programs;

pub(crate) use programs::add_target;

const USAGE: &str = "usage: cargo xtask package [--quick] [--version VERSION] [--out FOLDER]";
/// The name in both registries.
const NAME: &str = "bridgehead";
const DESCRIPTION: &str =
    "An MCP gateway: any number of MCP servers behind one endpoint, locked, validated, audited and traced";
const LICENCE: &str = "Apache-2.0 OR MIT";
/// What the pages of the registries show, and the first file to read in the tarball.
const README: &str = include_str!("package/README.md");

/// A kind of machine that packages are made for.
struct Platform {
    /// The compiler's name for it.
    target: &'static str,
    /// In the name of the tarball.
    name: &'static str,
    /// Node's names for its system and its architecture.
    node: (&'static str, &'static str),
    /// The wheel's tags. A static program needs no C library, so it has the tags of both.
    tags: [&'static str; 3],
}

/// The only one so far.
const PLATFORM: Platform = Platform {
    target: "x86_64-unknown-linux-musl",
    name: "x86_64-linux",
    node: ("linux", "x64"),
    tags: [
        "py3-none-manylinux2014_x86_64",
        "py3-none-manylinux_2_17_x86_64",
        "py3-none-musllinux_1_1_x86_64",
    ],
};

/// The options of the chore.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    quick: bool,
    out: Option<PathBuf>,
}

impl Options {
    /// `--version` does not set the version, because the programs print the one of the workspace: it must be that one. A
    /// release names its tag here.
    fn parse(arguments: &[&str]) -> Result<Self> {
        let mut options = Self { quick: false, out: None };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--quick" => options.quick = true,
                "--version" => {
                    let wanted =
                        arguments.next().with_context(|| format!("--version needs a version; {USAGE}"))?;
                    let wanted = wanted.strip_prefix('v').unwrap_or(wanted);
                    ensure!(
                        wanted == VERSION,
                        "the workspace has version {VERSION}, not {wanted}; change `version` in Cargo.toml"
                    );
                }
                "--out" => {
                    let folder =
                        arguments.next().with_context(|| format!("--out needs a folder; {USAGE}"))?;
                    options.out = Some(PathBuf::from(folder));
                }
                unknown => bail!("`{unknown}` is not an option; {USAGE}"),
            }
        }
        Ok(options)
    }
}

/// The version of everything in the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The packages, at paths that do not change between builds of one version.
pub(crate) struct Packages {
    folder: PathBuf,
}

impl Packages {
    /// The packages in the target folder, whether they are made already or not.
    pub(crate) fn in_target() -> Result<Self> {
        Ok(Self { folder: steps::target_folder()?.join("packages") })
    }

    fn tarball(&self) -> PathBuf {
        self.folder.join(format!("{NAME}-{VERSION}-{}.tar.gz", PLATFORM.name))
    }

    /// The npm packages: the one that users name, and the one that contains the programs.
    pub(crate) fn npm(&self) -> [PathBuf; 2] {
        let (system, architecture) = PLATFORM.node;
        let at = |name: &str| self.folder.join("npm").join(format!("{name}-{VERSION}.tgz"));
        [at(NAME), at(&format!("{NAME}-{system}-{architecture}"))]
    }

    fn wheel(&self) -> PathBuf {
        self.folder.join("pypi").join(wheel::file_name())
    }

    fn all(&self) -> Vec<PathBuf> {
        [vec![self.tarball()], self.npm().to_vec(), vec![self.wheel()]].concat()
    }
}

/// Makes, installs and runs the packages.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    let options = Options::parse(arguments)?;
    let packages = match options.out {
        Some(folder) => Packages { folder: std::path::absolute(folder)? },
        None => Packages::in_target()?,
    };
    let programs = match options.quick {
        true => programs::quick(root)?,
        false => programs::shipped(root)?,
    };
    make(root, &programs, &packages)?;
    trial::run(&packages)?;
    for package in packages.all() {
        println!("{}, {:.1} MB", package.display(), fs::metadata(&package)?.len() as f64 / 1e6);
    }
    Ok(())
}

/// The same with the quick build, for CI.
pub(crate) fn ci(root: &Path) -> Result<()> {
    run(root, &["--quick"])
}

/// Makes every package, and one file with the sums of all.
fn make(root: &Path, programs: &Programs, packages: &Packages) -> Result<()> {
    renew(&packages.folder)?;
    let staging = packages.folder.join("staging");
    let licences = licences::collect(root, &staging)?;
    tarball::make(root, programs, &licences, &staging.join("tarball"), packages)?;
    npm::make(root, programs, &licences, &staging.join("npm"), packages)?;
    wheel::make(programs, &licences, &staging.join("wheel"), packages)?;
    fs::remove_dir_all(&staging)?;
    let all = packages.all();
    let names: Vec<&Path> = all.iter().filter_map(|path| path.strip_prefix(&packages.folder).ok()).collect();
    write_sums(&packages.folder, &names)
}

/// Writes `SHA256SUMS`, which `sha256sum --check` reads.
fn write_sums(folder: &Path, names: &[&Path]) -> Result<()> {
    let sums = steps::output(folder, "sha256sum", names)?;
    Ok(fs::write(folder.join("SHA256SUMS"), sums)?)
}

/// Copies files of the repository or of a build; the folder is created.
fn copy(from: &Path, into: &Path) -> Result<()> {
    fs::create_dir_all(into)?;
    let name = from.file_name().with_context(|| format!("{} has no name", from.display()))?;
    fs::copy(from, into.join(name)).with_context(|| format!("{} could not be copied", from.display()))?;
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    let folder = file.parent().with_context(|| format!("{} has no folder", file.display()))?;
    fs::create_dir_all(folder)?;
    fs::write(file, text).with_context(|| format!("{} could not be written", file.display()))
}

/// An empty folder.
fn renew(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("{} could not be removed", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("{} could not be created", folder.display()))
}

/// A tool from PyPI that makes or tries the wheel.
fn python_tool(name: &str) -> Result<PathBuf> {
    Ok(steps::install_from_pypi(Path::new("."), &["wheel==0.48.0", "uv==0.13.8"])?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_others_refused() {
        let options = Options::parse(&["--quick", "--out", "there", "--version", VERSION]).unwrap();
        assert_eq!(options, Options { quick: true, out: Some("there".into()) });
        assert_eq!(Options::parse(&["--version", &format!("v{VERSION}")]).unwrap().out, None);
        let wrong = Options::parse(&["--version", "9.9.9"]).unwrap_err().to_string();
        assert_eq!(
            wrong,
            format!("the workspace has version {VERSION}, not 9.9.9; change `version` in Cargo.toml")
        );
        for bad in [&["--fast"][..], &["--out"], &["--version"]] {
            assert!(Options::parse(bad).is_err(), "{bad:?}");
        }
    }

    /// JOIN-7: from one build come a tarball, two npm packages and a wheel. Each has both programs, executable and in one folder,
    /// and the licences, and its sum is in the list.
    #[test]
    fn every_package_carries_both_programs_and_the_licences() {
        let folder = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let programs = programs::tests::stand_ins(folder.path());
        let licences = licences::Licences::of(root, "the licences of others", folder.path()).unwrap();

        let into = folder.path().join("tarball");
        tarball::stage(root, &programs, &licences, &into).unwrap();
        check_contents(&into, "bin", &["LICENSE-MIT", "LICENSE-APACHE", "LICENSES-OF-DEPENDENCIES.txt"]);
        check_contents(&into, "bin", &["README.md", "SHA256SUMS", "share/man/man1/bridgehead-serve.1"]);
        check_contents(&into, "bin", &["share/bash-completion/completions/bridgehead"]);
        check_contents(&into, "bin", &["share/zsh/site-functions/_bridgehead"]);
        check_contents(&into, "bin", &["share/fish/vendor_completions.d/bridgehead.fish"]);

        let into = folder.path().join("npm");
        let [main, platform] = npm::stage(&programs, &licences, None, &into).unwrap();
        assert!(main.join("bin/bridgehead.js").is_file());
        check_contents(&platform, "bin", &["LICENSE-MIT", "LICENSES-OF-DEPENDENCIES.txt", "package.json"]);

        let into = folder.path().join("wheel");
        wheel::stage(&programs, &licences, &into).unwrap();
        let scripts = format!("bridgehead-{VERSION}.data/scripts");
        let about = |name: &str| format!("bridgehead-{VERSION}.dist-info/{name}");
        check_contents(
            &into,
            &scripts,
            &[&about("METADATA"), &about("WHEEL"), &about("licenses/LICENSE-MIT")],
        );
    }

    #[track_caller]
    fn check_contents(folder: &Path, programs: &str, files: &[&str]) {
        use std::os::unix::fs::PermissionsExt;
        for name in ["bridgehead", "bridgehead-shim"] {
            let mode = fs::metadata(folder.join(programs).join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755, "{name}");
        }
        for file in files {
            assert!(folder.join(file).is_file(), "{file} is missing in {}", folder.display());
        }
    }

    /// JOIN-7: other chores and the pages name the packages by paths that only the version changes.
    #[test]
    fn packages_have_stable_names() {
        let packages = Packages { folder: "there".into() };
        let names: Vec<_> = packages.all().iter().map(|path| path.display().to_string()).collect();
        assert_eq!(
            names,
            [
                format!("there/bridgehead-{VERSION}-x86_64-linux.tar.gz"),
                format!("there/npm/bridgehead-{VERSION}.tgz"),
                format!("there/npm/bridgehead-linux-x64-{VERSION}.tgz"),
                format!(
                    "there/pypi/bridgehead-{VERSION}-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.musllinux_1_1_x86_64.whl"
                ),
            ]
        );
    }

    /// JOIN-7: the workflow of a release makes the packages with this chore, for the version of the tag, and publishes the files that
    /// it makes, the programs before the package that asks for them.
    #[test]
    fn the_release_publishes_what_is_made() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let workflow = fs::read_to_string(root.join(".github/workflows/release.yml")).unwrap();
        let at =
            |words: &str| workflow.find(words).unwrap_or_else(|| panic!("{words} is not in the workflow"));
        at("cargo xtask package --version \"$GITHUB_REF_NAME\" --out packages");
        for package in (Packages { folder: "packages".into() }).all() {
            let ending = package.extension().unwrap().to_str().unwrap();
            let ending = if ending == "gz" { "tar.gz" } else { ending };
            at(&format!("{}/*.{ending}", package.parent().unwrap().display()));
        }
        let published = (Packages { folder: "./packages".into() })
            .npm()
            .map(|package| at(&package.display().to_string().replace(VERSION, "${GITHUB_REF_NAME#v}")));
        let [main, platform] = published;
        assert!(platform < main);
    }
}
