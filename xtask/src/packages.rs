//! LIB-6: packs the published crates as a registry would get them, unpacks them elsewhere, and builds and runs the agent of the
//! examples on them, as a program of somebody else would.
//!
//! The agent calls three published servers, which are installed for the other checks too. Its questions get their answers on
//! its standard input. Afterwards its record must verify, and none of its processes may be left.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use crate::built::Built;
use crate::examples::{ANSWERS, place};
use crate::foreign::{MARK, command, leftovers, mark, succeed};
use crate::{api, shown, steps};

/// How many calls the agent's plan has.
const CALLS: usize = 5;

/// Packs, unpacks, builds and runs.
pub(crate) fn run(root: &Path) -> Result<()> {
    let folder = steps::target_folder()?.join("outside");
    let packages = unpacked(root, &folder)?;
    println!("unpacked {} packages in {}", packages.len(), folder.display());
    let agent = build(root, &folder, &packages)?;
    let place = place(root)?;
    let mark = mark("outside");
    let said = run_agent(&agent, &place, &mark)?;
    print!("{said}");
    ensure!(said.contains("of 3 servers"), "the agent did not reach three servers");
    ensure!(said.contains("report.txt"), "the agent wrote no report");
    let report = fs::read_to_string(place.join("agent-report/report.txt")).context("there is no report")?;
    ensure!(report.contains("Ada"), "the report does not have the answer of the terminal: {report}");
    let left = leftovers(&mark);
    ensure!(left.is_empty(), "processes of the agent are left: {}", left.join(", "));
    check_record(root, &place.join("agent-record"))
}

/// The packages, each unpacked into a folder of its own name.
fn unpacked(root: &Path, folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let names = api::published(root)?;
    let mut arguments = vec!["package", "--quiet", "--no-verify", "--allow-dirty"];
    arguments.extend(names.iter().flat_map(|name| ["--package", name.as_str()]));
    steps::cargo(root, &arguments, &[])?;
    let packed = steps::target_folder()?.join("package");
    let _ = fs::remove_dir_all(folder.join("packages"));
    fs::create_dir_all(folder.join("packages"))?;
    let version = env!("CARGO_PKG_VERSION");
    let unpack = |name: String| {
        let archive = packed.join(format!("{name}-{version}.crate"));
        let into = folder.join("packages");
        succeed(command("tar").arg("xzf").arg(&archive).arg("-C").arg(&into), "tar")
            .with_context(|| format!("{} cannot be unpacked", archive.display()))?;
        let unpacked = into.join(format!("{name}-{version}"));
        Ok((name, unpacked))
    };
    names.into_iter().map(unpack).collect()
}

/// Builds the agent's source from the package, as the only file of a program that knows the packages by version.
fn build(root: &Path, folder: &Path, packages: &[(String, PathBuf)]) -> Result<PathBuf> {
    let project = folder.join("agent");
    fs::create_dir_all(&project)?;
    fs::write(project.join("Cargo.toml"), manifest(packages)?)?;
    // The same versions of everything else, so that what is built already is used again.
    fs::copy(root.join("Cargo.lock"), project.join("Cargo.lock"))?;
    let target = steps::target_folder()?;
    let built = Built::by(&project, &["build", "--quiet"], &[("CARGO_TARGET_DIR", target.as_os_str())])?;
    Ok(built.program("agent")?.to_owned())
}

/// The manifest of a program that knows the packages by version, and where they are.
fn manifest(packages: &[(String, PathBuf)]) -> Result<String> {
    let facade =
        packages.iter().find(|(name, _)| name == "bridgehead").context("`bridgehead` is not published")?;
    let mut manifest = format!(
        "[package]\nname = \"agent\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [[bin]]\nname = \"agent\"\npath = {:?}\n\n\
         [dependencies]\nbridgehead = {{ version = \"{}\", features = [\"tools\", \"audit-sqlite\"] }}\n\
         serde_json = \"1\"\ntokio = {{ version = \"1\", features = [\"rt-multi-thread\", \"macros\"] }}\n\n\
         [workspace]\n\n[patch.crates-io]\n",
        facade.1.join("examples/agent.rs"),
        env!("CARGO_PKG_VERSION"),
    );
    for (name, unpacked) in packages {
        writeln!(manifest, "{name} = {{ path = {unpacked:?} }}")?;
    }
    Ok(manifest)
}

fn run_agent(agent: &Path, place: &Path, mark: &str) -> Result<String> {
    let mut running = command(agent)
        .args(["--calls", "8"])
        .current_dir(place)
        .env(MARK, mark)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("the agent could not be started")?;
    shown::errors(&mut running);
    let mut terminal = running.stdin.take().context("the agent has no input")?;
    terminal.write_all(ANSWERS.as_bytes())?;
    drop(terminal);
    let ended = running.wait_with_output()?;
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    if !ended.status.success() {
        bail!("the agent ended with {}:\n{said}", ended.status);
    }
    Ok(said)
}

/// Every call of the agent is in its record, and the record is whole.
fn check_record(root: &Path, record: &Path) -> Result<()> {
    let built = Built::to_check(root)?;
    let bridgehead = built.program("bridgehead")?;
    succeed(
        command(bridgehead).args(["audit", "verify", "--folder"]).arg(record),
        "bridgehead audit verify",
    )?;
    let listed = steps::output(
        root,
        bridgehead,
        &["audit".as_ref(), "list".as_ref(), "--json".as_ref(), "--folder".as_ref(), record.as_os_str()],
    )?;
    let calls = String::from_utf8_lossy(&listed).lines().filter(|line| line.contains("\"tool\"")).count();
    ensure!(calls == CALLS, "the record has {calls} calls instead of {CALLS}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LIB-6: a program outside the workspace names the library by version, with the features that the agent needs, and finds
    /// every package where it was unpacked.
    #[test]
    fn a_program_outside_knows_the_packages_by_version() {
        let at = |name: &str| (name.to_owned(), PathBuf::from("/unpacked").join(name));
        let manifest = manifest(&[at("bridgehead"), at("bridgehead-wire")]).unwrap();
        let library = format!("bridgehead = {{ version = \"{}\"", env!("CARGO_PKG_VERSION"));
        for part in [
            library.as_str(),
            "features = [\"tools\", \"audit-sqlite\"]",
            "path = \"/unpacked/bridgehead/examples/agent.rs\"",
            "bridgehead-wire = { path = \"/unpacked/bridgehead-wire\" }",
        ] {
            assert!(manifest.contains(part), "{part}: {manifest}");
        }
        assert!(super::manifest(&[at("bridgehead-wire")]).is_err(), "without the facade there is no agent");
    }

    /// LIB-6: what is published is the library and its parts, and nothing that only tests use.
    #[test]
    fn what_is_published() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let published = api::published(root).unwrap();
        for name in ["bridgehead", "bridgehead-gateway", "bridgehead-upstream", "bridgehead-wire"] {
            assert!(published.iter().any(|other| other == name), "{name}: {published:?}");
        }
        for name in ["bridgehead-testkit", "bridgehead-bench", "xtask"] {
            assert!(published.iter().all(|other| other != name), "{name}: {published:?}");
        }
    }
}
