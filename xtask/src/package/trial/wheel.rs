//! The wheel, installed by `pip` into a fresh environment and run by `uvx`.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::super::{Packages, python_tool};
use super::{Place, Start, text};
use crate::foreign::succeed;

pub(super) fn run(packages: &Packages, place: &Place) -> Result<()> {
    let wheel = packages.wheel();
    let environment = place.folder.join("environment");
    succeed(place.command("python3").args(["-m", "venv"]).arg(&environment), "python3 -m venv")?;
    let mut install = place.command(environment.join("bin/pip"));
    install.args(["install", "--no-index", "--quiet", "--disable-pip-version-check"]).arg(&wheel);
    succeed(&mut install, "pip install")?;
    ensure!(environment.join("bin/bridgehead-shim").is_file(), "pip has not installed the helper");
    let program = Start::new(place, environment.join("bin/bridgehead"), &[]);
    program.behaves().context("installed by pip")?;
    program.ends_by(&["TERM"]).context("installed by pip")?;

    let uv = python_tool("uv")?;
    let python = environment.join("bin/python");
    let run = ["tool", "run", "--offline", "--quiet", "--no-config", "--python", text(&python)?];
    let uvx = [&run[..], &["--from", text(&wheel)?, "bridgehead"]].concat();
    let uvx = Start::new(place, &uv, &uvx);
    uvx.behaves().context("started by uvx")?;
    uvx.ends_by(&["INT", "TERM"]).context("started by uvx")?;
    uvx.ends_by_the_interrupt_key(&[0]).context("started by uvx")?;

    for platform in ["x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl"] {
        fits(&mut place.command(&uv), platform, packages, place)?;
    }
    Ok(())
}

/// Installers on systems with this C library take the wheel.
fn fits(uv: &mut Command, platform: &str, packages: &Packages, place: &Place) -> Result<()> {
    let into = place.folder.join(platform);
    uv.args(["pip", "install", "--offline", "--quiet", "--no-config", "--python-platform", platform]);
    uv.args(["--python", text(&place.folder.join("environment/bin/python"))?, "--target", text(&into)?]);
    succeed(uv.arg(packages.wheel()), "uv pip install")
        .with_context(|| format!("the wheel does not fit {platform}"))
}
