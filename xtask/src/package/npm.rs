//! The npm packages. Users name the first, which has only a launcher. The second contains the programs for one platform; npm
//! installs it where its `os` and `cpu` fit.
//!
//! The second has a name in a scope, so that nobody else can take the name of a platform to come. The launcher starts the program,
//! because an installation script, which could put the program in the launcher's place, is often switched off.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::licences::Licences;
use super::programs::Programs;
use super::{DESCRIPTION, LICENCE, NAME, PLATFORM, Packages, README, VERSION, write};
use crate::foreign::{command, succeed};
use crate::steps;

const LAUNCHER: &str = include_str!("launcher.js");

pub(super) fn make(
    root: &Path,
    programs: &Programs,
    licences: &Licences,
    staging: &Path,
    packages: &Packages,
) -> Result<()> {
    let staged = stage(programs, licences, repository(root)?.as_deref(), staging)?;
    let folder = packages.folder.join("npm");
    std::fs::create_dir_all(&folder)?;
    for package in staged {
        let mut npm = command("npm");
        npm.args(["pack", "--silent", "--ignore-scripts", "--pack-destination"]).arg(&folder);
        succeed(npm.current_dir(&package), "npm pack")?;
    }
    Ok(())
}

/// Lays both packages out in folders: the one that users name, and that of the platform.
pub(super) fn stage(
    programs: &Programs,
    licences: &Licences,
    repository: Option<&str>,
    into: &Path,
) -> Result<[PathBuf; 2]> {
    let main = into.join("main");
    write(&main.join("package.json"), &format!("{:#}\n", main_manifest(repository)))?;
    write(&main.join("bin/bridgehead.js"), LAUNCHER)?;
    write(&main.join("README.md"), README)?;
    licences.copy_own_into(&main)?;

    let platform = into.join("platform");
    write(&platform.join("package.json"), &format!("{:#}\n", platform_manifest(repository)))?;
    let about = format!("# {}\n\nThe programs of the package `{NAME}` for one platform.\n", platform_name());
    write(&platform.join("README.md"), &about)?;
    programs.copy_into(&platform.join("bin"))?;
    licences.copy_into(&platform)?;
    Ok([main, platform])
}

fn platform_name() -> String {
    let (system, architecture) = PLATFORM.node;
    format!("@{NAME}/{system}-{architecture}")
}

fn main_manifest(repository: Option<&str>) -> Value {
    manifest(
        repository,
        json!({
            "name": NAME,
            "description": DESCRIPTION,
            "keywords": ["mcp", "model-context-protocol", "gateway", "proxy", "audit"],
            "bin": {NAME: "bin/bridgehead.js"},
            "files": ["bin", "LICENSE-*"],
            "engines": {"node": ">=18"},
            "optionalDependencies": {platform_name(): VERSION},
        }),
    )
}

fn platform_manifest(repository: Option<&str>) -> Value {
    let (system, architecture) = PLATFORM.node;
    manifest(
        repository,
        json!({
            "name": platform_name(),
            "description": format!("The programs of the package {NAME} for {}", PLATFORM.name),
            "files": ["bin", "LICENSE*"],
            "os": [system],
            "cpu": [architecture],
            // Yarn can keep packages packed; a program must be a file.
            "preferUnplugged": true,
        }),
    )
}

/// What both have.
fn manifest(repository: Option<&str>, mut manifest: Value) -> Value {
    manifest["version"] = VERSION.into();
    manifest["license"] = LICENCE.into();
    // A name in a scope is private unless this says otherwise.
    manifest["publishConfig"] = json!({"access": "public"});
    if let Some(repository) = repository {
        manifest["repository"] = json!({"type": "git", "url": repository});
    }
    manifest
}

/// The repository that the program's package names. npm publishes with provenance only where it is the one that builds.
fn repository(root: &Path) -> Result<Option<String>> {
    let metadata = steps::cargo_output(root, &["metadata", "--no-deps", "--format-version", "1"], &[])?;
    let metadata: Value = serde_json::from_slice(&metadata).context("cargo metadata is not JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let program = packages.iter().find(|package| package["name"] == "bridgehead-cli");
    Ok(program.and_then(|program| program["repository"].as_str()).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-7: the package that users name asks for the platform's package of exactly its version, and npm installs that only
    /// where it runs.
    #[test]
    fn the_manifests_belong_together() {
        let (main, platform) =
            (main_manifest(None), platform_manifest(Some("git+https://example.com/b.git")));
        assert_eq!(main["name"], "bridgehead");
        assert_eq!(main["bin"]["bridgehead"], "bin/bridgehead.js");
        assert_eq!(main["optionalDependencies"], json!({"@bridgehead/linux-x64": VERSION}));
        assert_eq!(main["repository"], Value::Null);
        assert_eq!(platform["name"], "@bridgehead/linux-x64");
        assert_eq!((&platform["os"], &platform["cpu"]), (&json!(["linux"]), &json!(["x64"])));
        assert_eq!(platform["repository"]["url"], "git+https://example.com/b.git");
        for manifest in [main, platform] {
            assert_eq!(manifest["version"], VERSION);
            assert_eq!(manifest["license"], "Apache-2.0 OR MIT");
            assert_eq!(manifest["publishConfig"]["access"], "public");
            assert_eq!(manifest["scripts"], Value::Null, "installation scripts are often switched off");
        }
    }
}
