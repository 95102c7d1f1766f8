//! The verbs that write a user's own servers: `add`, `remove`, `enable`, `disable` and `init`.
//!
//! They edit one `bridgehead.toml` through [`crate::servers_file`], and never the file of an MCP client. A running gateway that serves
//! the file takes each change over by itself ([`takeover`]).

mod add;
mod grammar;
mod init;
mod remove;
pub(crate) mod takeover;
mod turn;

use std::path::{Path, PathBuf};

use bridgehead::config::{ServerName, user_file};
use clap::{Args, ValueEnum};

pub(crate) use self::add::Add;
pub(crate) use self::init::Init;
pub(crate) use self::remove::Remove;
pub(crate) use self::turn::{Disable, Enable};
use super::exit::Exit;
use super::meant::meant;
use super::output;
use super::servers_file::{ServersFile, ServersFileError};
use super::world::World;

/// Which file is edited.
#[derive(Debug, Args)]
struct Edited {
    /// The file to edit: yours (`user`), or bridgehead.toml in the current folder (`project`)
    #[arg(
        long,
        short,
        value_enum,
        value_name = "SCOPE",
        default_value = "user",
        hide_possible_values = true
    )]
    scope: Scope,
    /// The bridgehead.toml to edit, instead of --scope
    #[arg(long, value_name = "FILE", conflicts_with = "scope")]
    config: Option<PathBuf>,
}

/// Whose servers they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scope {
    User,
    Project,
}

impl Edited {
    /// The file, as an absolute path. It need not exist.
    fn file(&self, world: &World) -> Result<PathBuf, ServersFileError> {
        let named = self.config.as_ref().or(match self.scope {
            Scope::User => world.environment.config.as_ref(),
            Scope::Project => None,
        });
        let own = || match self.scope {
            Scope::User => user_file(&world.environment),
            Scope::Project => Some(PathBuf::from("bridgehead.toml")),
        };
        match named.cloned().or_else(own) {
            Some(file) => Ok(world.folder().join(file)),
            None => {
                let message = "there is no configuration folder, because neither XDG_CONFIG_HOME nor HOME is set; name a file \
                               with --config";
                stop(message.to_owned(), Exit::Configuration)
            }
        }
    }
}

/// Stops an edit with a message.
fn stop<T>(message: String, exit: Exit) -> Result<T, ServersFileError> {
    Err(ServersFileError::Stopped { message, exit })
}

/// Checks that a server exists in the file.
fn expect(file: &ServersFile, name: &str, world: &World) -> Result<(), ServersFileError> {
    if file.contains(name) {
        return Ok(());
    }
    let names = file.names();
    let place = file.path().display();
    let cure = match elsewhere(file.path(), name, world) {
        Some(option) => format!("it is in another file, which {option} names"),
        None => meant(
            name,
            names.iter().map(String::as_str),
            &match names.is_empty() {
                true => "it has no servers".to_owned(),
                false => format!("its servers are `{}`", names.join("`, `")),
            },
        ),
    };
    stop(format!("there is no server `{name}` in `{place}`; {cure}"), Exit::Usage)
}

/// The option that names the other usual file, if this server is there.
fn elsewhere(file: &Path, name: &str, world: &World) -> Option<&'static str> {
    let project = Some(world.folder().join("bridgehead.toml"));
    let others = [(user_file(&world.environment), "--scope user"), (project, "--scope project")];
    let has = |other: &PathBuf| ServersFile::read(other, world).is_ok_and(|other| other.contains(name));
    let mut others = others.into_iter().filter_map(|(other, option)| Some((other?, option)));
    others.find(|(other, _)| other != file && has(other)).map(|(_, option)| option)
}

/// Checks the name of a server, and suggests one that can be used.
fn checked_name(text: &str) -> Result<String, String> {
    match text.parse::<ServerName>() {
        Ok(name) => Ok(name.to_string()),
        Err(_) => {
            let near = ServerName::adapt(text.trim());
            Err(format!("a name has 1 to 64 letters, digits, `_`, `.` and `-`; did you mean `{near}`?"))
        }
    }
}

/// Says that the current folder has a configuration of its own, which is used there instead of this file.
fn note_folder(file: &Path, world: &World) {
    let other = world.folder().join("bridgehead.toml");
    if user_file(&world.environment).as_deref() == Some(file) && other != file && other.is_file() {
        output::talk(
            "note: in this folder, bridgehead uses ./bridgehead.toml if you agreed to it; edit that with --scope project",
        );
    }
}
