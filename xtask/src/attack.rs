//! `cargo xtask attack`: runs the attacks of the folder `attacks` against the program, each as an outsider.
//!
//! An attack is a Python file that starts a gateway of its own. It ends with 0 if the gateway held, with 77 if this machine
//! cannot show it, and with anything else if the attack worked. Everything they do is on loopback and bounded.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::built::Built;
use crate::{shown, steps};

/// What an attack ends with if the machine lacks what it needs.
const NOT_SHOWN: i32 = 77;

/// An attack that takes so many seconds hangs.
const PATIENCE: &str = "180";

/// What `timeout` ends with then.
const TIMED_OUT: i32 = 124;

/// Runs the attacks whose name contains the text after `--only`, or all; with `--long`, those that take a minute too.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    let (only, long) = match options {
        [] => ("", false),
        ["--long"] => ("", true),
        ["--only", text] => (*text, true),
        other => bail!("unknown options `{}`; there are `--only TEXT` and `--long`", other.join(" ")),
    };
    let built = Built::to_check(root)?;
    let program = built.program("bridgehead")?;
    let mut worked = Vec::new();
    let mut held = 0;
    let attacks = attacks(&root.join("attacks"))?;
    for attack in attacks.iter().filter(|attack| name(attack).contains(only)) {
        let started = Instant::now();
        let outcome = outcome(root, attack, (program, long))?;
        let seconds = started.elapsed().as_secs_f32();
        println!("   {}: {outcome:?}, {seconds:.1} s", name(attack));
        match outcome {
            Outcome::Held => held += 1,
            Outcome::NotShown => {}
            Outcome::Worked | Outcome::Hung => worked.push(name(attack)),
        }
    }
    if !worked.is_empty() {
        bail!("these attacks worked: {}", worked.join(", "));
    }
    if held == 0 {
        bail!("no attack was run; is there one whose name contains `{only}`?");
    }
    println!("   the gateway held against {held} attacks");
    Ok(())
}

/// How an attack ended.
#[derive(Debug)]
enum Outcome {
    Held,
    NotShown,
    Worked,
    Hung,
}

fn outcome(root: &Path, attack: &Path, (program, long): (&Path, bool)) -> Result<Outcome> {
    let mut bounded = steps::program_at(root, "timeout");
    bounded.args([PATIENCE, "python3", "-B"]).arg(attack).env("BRIDGEHEAD_PROGRAM", program);
    if long {
        bounded.env("ATTACK_LONG", "1");
    }
    let status =
        shown::status(&mut bounded).context("`timeout` or python3 is missing; the attacks need both")?;
    Ok(match status.code() {
        Some(0) => Outcome::Held,
        Some(NOT_SHOWN) => Outcome::NotShown,
        Some(TIMED_OUT) => Outcome::Hung,
        _ => Outcome::Worked,
    })
}

/// The files of the attacks, by name.
fn attacks(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = files.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "py") && name(file) != "lib");
    files.sort();
    Ok(files)
}

fn name(file: &Path) -> &str {
    file.file_stem().and_then(|name| name.to_str()).unwrap_or_default()
}
