//! Whether the service is installed, and where clients reach it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::files::{Kept, UnitFile};
use super::systemctl::Systemctl;
use super::unit::{LISTEN, SERVICE, SOCKET};
use super::{failed, folder, url};
use crate::exit::Exit;
use crate::output;
use crate::world::World;

/// Show whether the service is installed, enabled and active, and where
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 installed and listening, 1 installed but not listening (or nobody can tell), 3 not installed.

Examples:
  bridgehead service status
  bridgehead service status --json"
)]
pub(super) struct Status {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// A service that is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Installed {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// The files of its units.
    pub(crate) files: Vec<PathBuf>,
    /// Those that were edited since they were written.
    pub(crate) changed: Vec<PathBuf>,
}

impl Installed {
    /// The URL of the gateway.
    pub(crate) fn url(&self) -> String {
        url(self.listen)
    }
}

/// The service of this user, if `service install` has installed one. Asks only the file system.
pub(crate) fn installed(world: &World) -> Option<Installed> {
    find(&folder(world).ok()?).ok().flatten()
}

fn find(folder: &Path) -> Result<Option<Installed>, String> {
    let socket = UnitFile::new(folder, SOCKET);
    let Some(text) = socket.text()? else { return Ok(None) };
    let (mut files, mut changed) = (Vec::new(), Vec::new());
    for file in [UnitFile::new(folder, SERVICE), socket] {
        match file.kept()? {
            Kept::Absent | Kept::Foreign => return Ok(None),
            Kept::Ours => {}
            Kept::Changed => changed.push(file.path().to_owned()),
        }
        files.push(file.path().to_owned());
    }
    let listen = text.lines().find_map(|line| line.strip_prefix(LISTEN)?.trim().parse().ok());
    Ok(listen.map(|listen| Installed { listen, files, changed }))
}

impl Status {
    pub(super) fn run(&self, folder: &Path, world: &World) -> Exit {
        let found = match find(folder) {
            Ok(found) => found,
            Err(reason) => return failed(&reason),
        };
        let Some(found) = found else {
            return match self.json {
                true => output::json_data(&json!({"installed": false}), Exit::Unreachable),
                false => {
                    output::data("installed: no; `bridgehead service install` installs it", Exit::Unreachable)
                }
            };
        };
        let systemctl = Systemctl::new(world);
        let states = systemctl.works().then(|| systemctl.states()).flatten();
        let exit = match &states {
            Some(states) if states.socket == "active" => Exit::Success,
            _ => Exit::Failure,
        };
        let word = |state: Option<&String>| match state.map(String::as_str) {
            None => "unknown, `systemctl --user` does not work here".to_owned(),
            Some("") => "unknown".to_owned(),
            Some(state) => output::one_line(state, 100),
        };
        if self.json {
            let told = json!({
                "installed": true,
                "url": found.url(),
                "listen": found.listen,
                "files": found.files,
                "changed": found.changed,
                "enabled": states.as_ref().map(|states| states.enabled == "enabled"),
                "socket": states.as_ref().map(|states| &states.socket),
                "service": states.as_ref().map(|states| &states.service),
            });
            return output::json_data(&told, exit);
        }
        let files: Vec<String> = found.files.iter().map(|file| file.display().to_string()).collect();
        let mut text = format!(
            "installed: {}\naddress: {}\nenabled: {}\nsocket: {}\ngateway: {}\n",
            files.join(", "),
            found.url(),
            word(states.as_ref().map(|states| &states.enabled)),
            word(states.as_ref().map(|states| &states.socket)),
            word(states.as_ref().map(|states| &states.service)),
        );
        for file in &found.changed {
            text.push_str(&format!("edited since it was written: {}\n", file.display()));
        }
        output::data(&text, exit)
    }
}
