//! The tarball, unpacked and run where it is.

use anyhow::{Result, ensure};

use super::super::{Packages, tarball};
use super::{Place, Start};
use crate::foreign::succeed;

pub(super) fn run(packages: &Packages, place: &Place) -> Result<()> {
    succeed(place.command("tar").arg("-xzf").arg(packages.tarball()), "tar")?;
    let unpacked = place.folder.join(tarball::folder_name());
    let mut check = place.command("sha256sum");
    check.args(["--check", "--quiet", "--strict", "SHA256SUMS"]);
    succeed(check.current_dir(&unpacked), "sha256sum --check")?;

    let program = Start::new(place, unpacked.join("bin/bridgehead"), &[]);
    program.behaves()?;
    program.ends_by(&["INT", "TERM"])?;
    program.ends_by_the_interrupt_key(&[0])?;

    let mut manual = place.command("man");
    manual.args(["--local-file", "--pager=cat"]).arg(unpacked.join("share/man/man1/bridgehead.1"));
    match manual.output() {
        Ok(page) => {
            let page = String::from_utf8_lossy(&page.stdout);
            ensure!(page.contains("bridgehead") && page.contains("OPTIONS"), "the manual shows:\n{page}");
        }
        Err(error) => println!("the manual pages were not shown, because man could not be started: {error}"),
    }
    for (shell, file) in tarball::COMPLETIONS {
        let script = unpacked.join(file);
        let asked = match shell {
            "bash" => "source \"$0\" && complete -p bridgehead",
            "zsh" => "autoload -U compinit && compinit -D && source \"$0\" && whence -w _bridgehead",
            _ => "source $argv[1]; complete --do-complete 'bridgehead '",
        };
        match place.command(shell).args(["-c", asked]).arg(&script).output() {
            Ok(output) => ensure!(
                output.status.success() && !output.stdout.is_empty(),
                "{shell} does not load its completions: {}",
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => {
                println!("the completions for {shell} were not loaded: it could not be started: {error}");
            }
        }
    }
    Ok(())
}
