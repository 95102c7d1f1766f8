//! The npm packages, installed from their files into a fresh project, and started by `npx`.

use anyhow::{Context, Result, ensure};

use super::super::Packages;
use super::running::{Running, send};
use super::{Place, SERVE, Start, text};
use crate::foreign::succeed;

const QUIET: [&str; 5] = ["--offline", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];

pub(super) fn run(packages: &Packages, place: &Place) -> Result<()> {
    let [main, platform] = packages.npm();
    // In folders beside each other, because Node also looks for packages in all folders above.
    let project = place.folder.join("project");
    std::fs::create_dir(&project)?;
    let mut install = place.command("npm");
    install.arg("install").args(QUIET).args([&main, &platform]).current_dir(&project);
    succeed(&mut install, "npm install")?;

    let npx = Start::new(place, "npx", &["bridgehead"]).within("project");
    npx.behaves().context("started by npx")?;
    // npx starts a shell, which may end by the same signal.
    npx.ends_by_the_interrupt_key(&[0, 130]).context("started by npx")?;
    let launcher = Start::new(place, project.join("node_modules/.bin/bridgehead"), &[]);
    launcher.ends_by(&["INT", "TERM"]).context("started by the launcher")?;
    launcher.ends_by_the_interrupt_key(&[0]).context("started by the launcher")?;
    ends_as_its_program_does(&launcher)?;

    globally(packages, place)?;
    without_the_program(packages, place)
}

/// If the program is killed, the launcher ends by the same signal.
fn ends_as_its_program_does(launcher: &Start<'_>) -> Result<()> {
    let (running, _) = Running::serve(launcher.with(&SERVE))?;
    for program in running.children()? {
        send("KILL", program)?;
    }
    running.ends_killed().context("after its program was killed")
}

/// `npm install --global` puts the packages beside each other.
fn globally(packages: &Packages, place: &Place) -> Result<()> {
    let prefix = place.folder.join("global");
    let mut install = place.command("npm");
    install.args(["install", "--global", "--prefix", text(&prefix)?]).args(QUIET).args(packages.npm());
    succeed(&mut install, "npm install --global")?;
    Start::new(place, prefix.join("bin/bridgehead"), &[]).behaves().context("installed globally")
}

/// Where npm has left the platform's package out, the launcher says so.
fn without_the_program(packages: &Packages, place: &Place) -> Result<()> {
    let prefix = place.folder.join("incomplete");
    let mut install = place.command("npm");
    install.args(["install", "--omit=optional", "--prefix", text(&prefix)?]).args(QUIET);
    let [main, _] = packages.npm();
    succeed(install.arg(main), "npm install --omit=optional")?;
    let output = place.command(prefix.join("node_modules/.bin/bridgehead")).arg("--version").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let expected =
        "error: the package @bridgehead/linux-x64, which contains the program, is not installed\nhint: ";
    ensure!(
        output.status.code() == Some(1) && said.starts_with(expected),
        "without its platform's package the launcher ended with {}:\n{said}",
        output.status
    );
    Ok(())
}
