//! `bridgehead service`: the gateway as a service of the user, by systemd.
//!
//! systemd listens on the address and starts the gateway with the first client. It keeps the port while the gateway restarts.
//! The two unit files are written in the user's own folder; nothing here needs root.

mod files;
pub(crate) mod notify;
mod status;
mod systemctl;
mod unit;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bridgehead::Config;
use bridgehead::config::{Source, TokenSource};
use bridgehead_front::{ENDPOINT, check_reachable};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use self::files::{Kept, UnitFile};
use self::systemctl::Systemctl;
use self::unit::{Plan, SERVICE, SOCKET};
use super::address::listen_address;
use super::exit::Exit;
use super::world::World;
use super::{Run, output};

pub(crate) use self::status::installed;

/// Run the gateway as a service of your user, by systemd
#[derive(Debug, Args)]
#[command(
    after_help = "systemd listens on the address and starts the gateway when the first client connects.

Examples:
  bridgehead service install
  bridgehead service status
  bridgehead service uninstall"
)]
pub(crate) struct Service {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Install(Install),
    Uninstall(Uninstall),
    Status(status::Status),
}

/// Write the unit files, and enable and start the socket
#[derive(Debug, Args)]
#[command(
    after_help = "Writes bridgehead.service and bridgehead.socket into ~/.config/systemd/user. Where `systemctl --user`
does not work, it prints the commands to run instead. The service has the PATH of this command, and the variables in
~/.config/bridgehead/service.env. If XDG_CONFIG_HOME is set, it stands for ~/.config.

Examples:
  bridgehead service install
  bridgehead service install --config team.toml --listen 127.0.0.1:9000
  bridgehead service install --dry-run        show the files only"
)]
struct Install {
    /// The configuration file that the service uses
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve HTTP at this address and port, or at this port of 127.0.0.1, instead of the configured ones
    #[arg(long, visible_alias = "port", value_name = "ADDR", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Write the files, and print the commands that enable and start the service
    #[arg(long)]
    no_start: bool,
    /// Show the files and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Stop and disable the service, and remove its unit files
#[derive(Debug, Args)]
#[command(after_help = "Removes only files that `service install` wrote.

Examples:
  bridgehead service uninstall
  bridgehead service uninstall --force        also files that were edited since")]
struct Uninstall {
    /// Remove unit files that were edited since they were written
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Run for Service {
    fn json(&self) -> bool {
        match &self.verb {
            Verb::Install(install) => install.json,
            Verb::Uninstall(uninstall) => uninstall.json,
            Verb::Status(status) => status.json,
        }
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

fn run(service: &Service, world: &World) -> Exit {
    let folder = match folder(world) {
        Ok(folder) => folder,
        Err(reason) => return failed(&reason),
    };
    match &service.verb {
        Verb::Install(install) => install.run(&folder, world),
        Verb::Uninstall(uninstall) => uninstall.run(&folder, world),
        Verb::Status(status) => status.run(&folder, world),
    }
}

fn failed(reason: &str) -> Exit {
    output::talk(&format!("error: {reason}"));
    Exit::Failure
}

/// The unit files that this program wrote.
pub(crate) fn units(world: &World) -> Vec<PathBuf> {
    let Ok(folder) = folder(world) else { return Vec::new() };
    let files = [SERVICE, SOCKET].map(|name| UnitFile::new(&folder, name));
    let is_ours = |file: &UnitFile| file.kept().is_ok_and(|kept| matches!(kept, Kept::Ours | Kept::Changed));
    files.iter().filter(|file| is_ours(file)).map(|file| file.path().to_owned()).collect()
}

/// Stops and removes the service, if there is one. A unit that was edited since is an error.
pub(crate) fn remove(world: &World) -> Result<(), String> {
    let Ok(folder) = folder(world) else { return Ok(()) };
    Uninstall { force: false, json: false }.remove(&folder, world).map(drop)
}

/// The user's folder for configurations.
fn configurations(world: &World) -> Option<PathBuf> {
    let folder = |name: &str| world.variables.get(name).map(Path::new).filter(|path| path.is_absolute());
    folder("XDG_CONFIG_HOME").map(Path::to_owned).or_else(|| Some(folder("HOME")?.join(".config")))
}

/// The user's folder for units.
fn folder(world: &World) -> Result<PathBuf, String> {
    if !cfg!(target_os = "linux") {
        return Err(
            "a service needs systemd, which only Linux has; run `bridgehead serve` by other means".to_owned()
        );
    }
    match configurations(world) {
        Some(folder) => Ok(folder.join("systemd/user")),
        None => {
            Err("neither XDG_CONFIG_HOME nor HOME is set, so there is no folder for unit files".to_owned())
        }
    }
}

/// Whether npx or uvx has put a program where they remove it again.
fn is_in_cache(program: &Path) -> bool {
    let parts: Vec<_> = program.components().map(|part| part.as_os_str()).collect();
    parts.iter().any(|part| *part == "_npx")
        || parts.windows(2).any(|pair| pair[0] == "uv" && pair[1] != "tools")
}

/// The URL at an address.
fn url(listen: SocketAddr) -> String {
    format!("http://{listen}{ENDPOINT}")
}

/// The commands that enable and start what was installed.
const ENABLE: [&[&str]; 2] = [&["daemon-reload"], &["enable", "--now", SOCKET]];

/// Commands as a user types them.
fn typed(commands: &[&[&str]]) -> Vec<String> {
    commands.iter().map(|words| format!("systemctl --user {}", words.join(" "))).collect()
}

impl Install {
    fn run(&self, folder: &Path, world: &World) -> Exit {
        let config = match world.without_secrets(self.config.as_deref()) {
            Ok(config) => config,
            Err(error) => return output::configuration_error(&error, self.json),
        };
        output::show(&config.warnings);
        let plan = match self.plan(&config, world) {
            Ok(plan) => plan,
            Err(reason) => {
                output::talk(&format!("error: {reason}"));
                return Exit::Configuration;
            }
        };
        if let Source::Toml(path) | Source::ClientJson(path) = &config.source
            && world.needs_agreement(self.config.as_deref(), path).unwrap_or(true)
        {
            output::talk(&format!(
                "note: the unit names `{}`, which the service will use whatever it says then",
                world.folder().join(path).display()
            ));
        }
        let units = [(SERVICE, plan.service()), (SOCKET, plan.socket())];
        if self.dry_run {
            return self.show(folder, &units);
        }
        match self.write(folder, &units, &plan, world) {
            Ok(told) => self.tell(&plan, &config, &told),
            Err(reason) => failed(&reason),
        }
    }

    fn plan(&self, config: &Config, world: &World) -> Result<Plan, String> {
        let Some(file) = world.file(config) else {
            return Err("there is no configuration to serve; name one with --config FILE".to_owned());
        };
        let listen = self.listen.unwrap_or(config.http.listen);
        if listen.port() == 0 {
            return Err(format!(
                "{listen} has no port; choose one with --listen, so that clients can be told"
            ));
        }
        let asks = config.http.token != TokenSource::None || config.auth.refuses_strangers();
        check_reachable(listen, asks).map_err(|error| error.to_string())?;
        let program =
            std::env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
        if is_in_cache(&program) {
            output::talk(&format!(
                "warning: {} lies in a cache of npx or uvx, which is cleared at times; install Bridgehead and run this again",
                program.display()
            ));
        }
        let variables = configurations(world).map(|folder| folder.join("bridgehead/service.env"));
        let path = world.variables.get("PATH").cloned();
        Plan::new(&program, &file, listen, path.as_deref(), variables.as_deref())
    }

    fn show(&self, folder: &Path, units: &[(&str, String)]) -> Exit {
        if self.json {
            let files: Vec<Value> =
                units.iter().map(|(name, text)| json!({"path": folder.join(name), "text": text})).collect();
            return output::json_data(&json!({"dryRun": true, "files": files}), Exit::Success);
        }
        let shown: Vec<String> =
            units.iter().map(|(name, text)| format!("# {}\n{text}", folder.join(name).display())).collect();
        output::data(&shown.join("\n"), Exit::Success)
    }

    /// Writes the files and starts the socket, if that can be done. Returns what is left to do.
    fn write(
        &self,
        folder: &Path,
        units: &[(&str, String)],
        plan: &Plan,
        world: &World,
    ) -> Result<Done, String> {
        let files: Vec<UnitFile> = units.iter().map(|(name, _)| UnitFile::new(folder, name)).collect();
        for file in &files {
            match file.kept()? {
                Kept::Absent | Kept::Ours => {}
                Kept::Changed => {
                    return Err(format!(
                        "{} was edited since it was written; keep your changes in a drop-in (`systemctl --user edit {SERVICE}`), \
                         then run `bridgehead service uninstall --force` and this again",
                        file.path().display()
                    ));
                }
                Kept::Foreign => {
                    return Err(format!(
                        "{} was not written by this command; move it away first",
                        file.path().display()
                    ));
                }
            }
        }
        let systemctl = Systemctl::new(world);
        let works = systemctl.works();
        let before = works.then(|| systemctl.states()).flatten();
        for (file, (_, text)) in files.iter().zip(units) {
            file.write(text)?;
        }
        let mut done =
            Done { paths: files.iter().map(|file| file.path().to_owned()).collect(), open: Vec::new() };
        if self.no_start || !works {
            done.open = typed(&ENABLE);
            if !self.no_start {
                output::talk("note: `systemctl --user` does not work here, so nothing was started; run:");
            }
            return Ok(done);
        }
        // A socket whose address has changed cannot be opened beside the old one.
        if before.is_some_and(|states| states.is_active()) {
            systemctl.run(&["stop", SERVICE, SOCKET])?;
        }
        for words in ENABLE {
            systemctl.run(words).map_err(|error| match words[0] {
                "enable" => format!(
                    "{error}; is {} in use? `systemctl --user status {SOCKET}` says more, and \
                     `bridgehead service uninstall` undoes this",
                    plan.listen
                ),
                _ => error,
            })?;
        }
        Ok(done)
    }

    fn tell(&self, plan: &Plan, config: &Config, done: &Done) -> Exit {
        if !config.interpolated.is_empty() {
            let names: Vec<&str> = config.interpolated.iter().map(String::as_str).collect();
            let place =
                plan.variables.as_ref().map_or("the unit".to_owned(), |file| file.display().to_string());
            output::talk(&format!(
                "note: the configuration uses variables of your shell, which a service does not have: {}; put them into \
                 {place} (NAME=value, mode 0600)",
                names.join(", ")
            ));
        }
        let (url, started) = (url(plan.listen), done.open.is_empty());
        if self.json {
            let told = json!({
                "installed": true, "started": started, "files": done.paths, "url": url, "config": plan.config,
                "commands": done.open, "undo": "bridgehead service uninstall",
            });
            return output::json_data(&told, Exit::Success);
        }
        let mut text: String = done.paths.iter().map(|path| format!("wrote {}\n", path.display())).collect();
        match started {
            true => text.push_str(&format!("serves MCP at {url}, from the first client on\n")),
            false => done.open.iter().for_each(|command| text.push_str(&format!("run: {command}\n"))),
        }
        text.push_str(
            "while you are logged out: loginctl enable-linger\nundo: bridgehead service uninstall\n",
        );
        output::data(&text, Exit::Success)
    }
}

/// What an installation did.
struct Done {
    paths: Vec<PathBuf>,
    /// Commands that the user has to run.
    open: Vec<String>,
}

impl Uninstall {
    fn run(&self, folder: &Path, world: &World) -> Exit {
        match self.remove(folder, world) {
            Ok(removed) if self.json => {
                output::json_data(&json!({"installed": false, "removed": removed}), Exit::Success)
            }
            Ok(removed) if removed.is_empty() => {
                output::talk("note: no service is installed");
                Exit::Success
            }
            Ok(removed) => {
                let text: String =
                    removed.iter().map(|path| format!("removed {}\n", path.display())).collect();
                output::data(&text, Exit::Success)
            }
            Err(reason) => failed(&reason),
        }
    }

    fn remove(&self, folder: &Path, world: &World) -> Result<Vec<PathBuf>, String> {
        let mut ours = Vec::new();
        for name in [SERVICE, SOCKET] {
            let file = UnitFile::new(folder, name);
            let path = file.path().display().to_string();
            match file.kept()? {
                Kept::Absent => {}
                Kept::Ours => ours.push(file),
                Kept::Changed if self.force => ours.push(file),
                Kept::Changed => {
                    return Err(format!(
                        "{path} was edited since it was written; `bridgehead service uninstall --force` removes it"
                    ));
                }
                Kept::Foreign => output::talk(&format!("note: {path} is not ours and stays")),
            }
        }
        if ours.is_empty() {
            return Ok(Vec::new());
        }
        let systemctl = Systemctl::new(world);
        let works = systemctl.works();
        if works {
            // The socket first: it would start the service again.
            systemctl.run(&["disable", "--now", SOCKET])?;
            systemctl.run(&["stop", SERVICE])?;
        }
        for file in &ours {
            file.remove()?;
        }
        if works {
            systemctl.run(&["daemon-reload"])?;
        }
        Ok(ours.iter().map(|file| file.path().to_owned()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_in_caches_are_recognised() {
        for (program, expected) in [
            ("/home/me/.npm/_npx/0123/node_modules/bridgehead/bin/bridgehead", true),
            ("/home/me/.cache/uv/archive-v0/0123/bin/bridgehead", true),
            ("/home/me/.local/share/uv/tools/bridgehead/bin/bridgehead", false),
            ("/usr/lib/node_modules/bridgehead/bin/bridgehead", false),
            ("/home/me/.cargo/bin/bridgehead", false),
        ] {
            assert_eq!(is_in_cache(Path::new(program)), expected, "{program}");
        }
    }
}
