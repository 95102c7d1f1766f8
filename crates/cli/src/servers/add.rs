//! `bridgehead add`: writes a server into `bridgehead.toml`, and says whether it starts.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::grammar::{Transport, Words, header, variable};
use super::takeover::{Change, Watch};
use super::{Edited, checked_name, note_folder, stop};
use crate::exit::Exit;
use crate::output;
use crate::run::Run;
use crate::servers_file::{EntryLaunch, Put, Saved, edit};
use crate::world::World;

/// Add a server to your bridgehead.toml, and start it
#[derive(Debug, Args)]
#[command(
    after_help = "Values that look like secrets go to a file beside the configuration that only you can read. A running gateway takes the
server over at once; without one, it is started once to see whether it works. If it does not start, it stays in the file.
Exit codes: 0 added and ready, 1 added but not ready, 2 the command line is wrong, 78 the file is wrong.

Examples:
  bridgehead add files -- npx -y @modelcontextprotocol/server-filesystem ~/notes
  bridgehead add github --env GITHUB_TOKEN=ghp_… -- npx -y @modelcontextprotocol/server-github
  bridgehead add --transport http tracker https://tracker.example.com/mcp --header \"Authorization: Bearer …\"
  bridgehead add --prefix git -- uvx mcp-server-git
  bridgehead add --scope project db -- ./tools/db-server --read-only"
)]
pub(crate) struct Add {
    /// Name of the server: letters, digits, `_`, `.` and `-`
    #[arg(value_parser = checked_name)]
    name: String,
    /// The address of a remote server, or the command of a program
    #[arg(value_name = "URL|COMMAND")]
    words: Vec<String>,
    /// The command and its arguments, which may begin with `-`
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// How it is reached: stdio, http, sse or ws [default: by what is given]
    #[arg(long, short, visible_alias = "type", value_enum, value_name = "KIND", hide_possible_values = true)]
    transport: Option<Transport>,
    /// The address of a remote server
    #[arg(long)]
    url: Option<String>,
    /// A variable of the program, as NAME=VALUE; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// A header of the remote server, as "NAME: VALUE"; may be repeated
    #[arg(long = "header", short = 'H', value_name = "HEADER", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The folder in which the program runs [default: the current folder, if an argument names a file there]
    #[arg(long, value_name = "FOLDER")]
    cwd: Option<PathBuf>,
    /// Whether the names of its tools carry its name, as in `files__read` [default: once there are several servers]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    prefix: Option<bool>,
    /// Write it turned off
    #[arg(long)]
    disabled: bool,
    #[command(flatten)]
    edited: Edited,
    #[command(flatten)]
    watch: Watch,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Run for Add {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        let words = Words {
            name: &self.name,
            transport: self.transport,
            url: self.url.as_deref(),
            words: self.words.iter().chain(&self.command).map(String::as_str).collect(),
            env: self.env.clone(),
            headers: self.headers.clone(),
            cwd: self.cwd.as_deref(),
        };
        let scope = match self.edited.config {
            Some(_) => super::Scope::User,
            None => self.edited.scope,
        };
        let (mut entry, warnings) = match words.entry(scope, world) {
            Ok(read) => read,
            Err(message) => {
                return output::failed(&message, Exit::Usage, self.json);
            }
        };
        entry.disabled = self.disabled.then(String::new);
        entry.prefix = self.prefix;
        for warning in &warnings {
            output::talk(&format!("warning: {warning}"));
        }
        if let EntryLaunch::Program { cwd: Some(folder), .. } = &entry.launch
            && self.cwd.is_none()
        {
            output::talk(&format!(
                "note: an argument names a file of this folder, so the program runs in `{folder}`; --cwd names another folder"
            ));
        }
        let file = match self.edited.file(world) {
            Ok(file) => file,
            Err(error) => return error.tell(self.json),
        };
        let name = self.name.as_str();
        let change = Change::begin(&file, &self.edited, world);
        let edited = edit(&file, world, |servers| {
            if servers.contains(name) {
                let place = servers.path().display();
                let cure = format!("choose another name, or remove it first with `bridgehead remove {name}`");
                return stop(format!("there is a server `{name}` in `{place}` already; {cure}"), Exit::Usage);
            }
            let put = servers.put(name, &entry)?;
            Ok((put, servers.secrets_path().to_owned()))
        });
        let ((put, secrets), saved) = match edited {
            Ok(done) => done,
            Err(error) => return error.tell(self.json),
        };
        tell_secrets(&put, &saved, &secrets);
        note_folder(&file, world);
        let mut done = json!({
            "added": name,
            "secrets": {
                "file": (!put.placed.is_empty()).then_some(&secrets),
                "variables": put.placed.iter().map(|placed| &placed.variable).collect::<Vec<_>>(),
            },
        });
        merge(&mut done, saved.consequences.json());
        let text = format!("added {name} to {}", file.display());
        match self.disabled {
            true => change.without_start((&text, &done), &self.watch, self.json),
            false => change.with_start(name, (&text, &done), &self.watch, self.json),
        }
    }
}

/// Adds the members of one object to another.
fn merge(all: &mut Value, more: Value) {
    if let (Value::Object(all), Value::Object(more)) = (all, more) {
        all.extend(more);
    }
}

/// Says where secrets went, and which stay in the configuration.
fn tell_secrets(put: &Put, saved: &Saved, secrets: &Path) {
    if !put.placed.is_empty() {
        let keys: Vec<String> = put.placed.iter().map(|placed| format!("`{}`", placed.key)).collect();
        output::talk(&format!(
            "note: {} looks like a secret and went to `{}`, which only you can read; keep it out of version control",
            keys.join(", "),
            secrets.display()
        ));
    }
    if !put.exposed.is_empty() {
        let private = if saved.narrowed { "; the file can now be read by you only" } else { "" };
        output::talk(&format!(
            "warning: {} looks like a secret and stays in the configuration{private}",
            put.exposed.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "),
        ));
        if put.exposed.iter().any(|key| key == "args") {
            output::talk(
                "warning: every user of this machine can see the arguments of a program; pass a secret with --env",
            );
        }
    }
    if let Some(reason) = &saved.not_trusted {
        output::talk(&format!("warning: the agreement to the file cannot be kept: {reason}"));
    }
}
