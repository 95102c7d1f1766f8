//! Tells what an import found and did: a table or JSON on stdout, and what the user has to know on stderr.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::plan::{Applied, Outcome, Plan, Row};
use super::sign_in::SignIn;
use super::tree::Place;
use crate::clients::Client;
use crate::exit::Exit;
use crate::output;
use crate::servers_file::Saved;
use crate::table;
use crate::world::short;

/// A terminal of this width has room for all columns.
const WIDE: usize = 90;
/// The column of the transport.
const TRANSPORT: usize = 3;

/// A client's file that cannot be read.
#[derive(Debug)]
pub(super) struct BrokenFile {
    pub(super) client: &'static Client,
    pub(super) file: PathBuf,
    pub(super) at: Option<Place>,
    pub(super) message: String,
}

/// Everything that can be told.
pub(super) struct Report<'r> {
    /// The configuration.
    pub(super) target: &'r Path,
    /// The file of variables.
    pub(super) secrets_file: PathBuf,
    pub(super) home: Option<&'r Path>,
    pub(super) plan: Plan,
    pub(super) applied: Applied,
    pub(super) broken: &'r [BrokenFile],
    /// Whether something was written.
    pub(super) changed: bool,
    pub(super) saved: Option<Saved>,
}

/// The report if no client has a server.
pub(super) fn nothing() -> Value {
    json!({
        "configuration": null, "dryRun": false, "changed": false, "servers": [], "broken": [], "secrets": null,
        "exposed": [], "variables": [], "next": null,
    })
}

impl Report<'_> {
    /// Shows what was found as a table, and the files that are broken.
    pub(super) fn show(&self) {
        if !self.plan.rows.is_empty() {
            let heading =
                ["CLIENT", "FILE", "SERVER", "TRANSPORT", "RESULT", "REMARKS"].map(str::to_owned).to_vec();
            let mut rows: Vec<Vec<String>> =
                std::iter::once(heading).chain(self.plan.rows.iter().map(|row| self.cells(row))).collect();
            if table::stdout_width().is_some_and(|width| width < WIDE) {
                // The file and the remarks need the room; `--json` has the transport.
                rows.iter_mut().for_each(|row| drop(row.remove(TRANSPORT)));
            }
            output::data(&output::table(&rows), Exit::Success);
        }
        for BrokenFile { file, at, message, .. } in self.broken {
            let place = at.map(|at| format!(":{}:{}", at.line, at.column)).unwrap_or_default();
            output::talk(&format!("error: {}{place}: {message}; the file is skipped", self.short(file)));
        }
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let renamed = row.server.as_ref().filter(|server| **server != row.name);
        let result = match (&row.outcome, renamed, &row.disabled) {
            (Outcome::Added, None, None) => "added".to_owned(),
            (Outcome::Added, None, Some(_)) => "added, disabled".to_owned(),
            (Outcome::Added, Some(name), None) => format!("added as {name}"),
            (Outcome::Added, Some(name), Some(_)) => format!("added as {name}, disabled"),
            (Outcome::Kept, None, _) => "already there".to_owned(),
            (Outcome::Kept, Some(name), _) => format!("already there as {name}"),
            (Outcome::Merged(client), _, _) => format!("the same as in {client}"),
            (Outcome::Skipped(_), _, _) => "skipped".to_owned(),
        };
        let mut remarks: Vec<String> = Vec::new();
        if let Outcome::Skipped(reason) = &row.outcome {
            remarks.push(reason.clone());
        }
        remarks.extend(row.disabled.clone());
        remarks.extend(row.remarks.iter().cloned());
        if row.sign_in == Some(SignIn::Possible) && row.outcome == Outcome::Added {
            remarks.push("has no token, and may want one".to_owned());
        }
        if !row.needs.is_empty() && row.outcome == Outcome::Added {
            let names: Vec<&str> = row.needs.keys().map(String::as_str).collect();
            remarks.push(format!("needs {}", names.join(", ")));
        }
        vec![
            row.client.title.to_owned(),
            format!("{}:{}", self.short(&row.file), row.line),
            row.name.clone(),
            row.transport.unwrap_or("-").to_owned(),
            result,
            remarks.join("; "),
        ]
    }

    /// Says why nothing was written.
    pub(super) fn tell_undone(&self) {
        let target = self.short(self.target);
        match self.plan.with(&Outcome::Added).count() {
            0 => output::talk(&format!("nothing to add to {target}")),
            count => {
                let what = output::counted(count as u64, "server");
                output::talk(&format!("dry run: {what} would be added to {target}; nothing was written"));
                let variables: Vec<&str> = self.variables().collect();
                if !variables.is_empty() {
                    let file = self.short(&self.secrets_file);
                    output::talk(&format!("secrets would go to {file}: {}", variables.join(", ")));
                }
            }
        }
    }

    /// Says what was done, what the user has to do, and the next command.
    pub(super) fn tell_done(&self) {
        let added: Vec<&Row> = self.plan.with(&Outcome::Added).collect();
        let target = self.short(self.target);
        output::talk(&format!("added {} to {target}", output::counted(added.len() as u64, "server")));
        for row in &added {
            if let (Some(server), Some(reason)) = (&row.server, &row.disabled) {
                output::talk(&format!("`{server}` is disabled: {reason}"));
            }
        }
        let variables: Vec<&str> = self.variables().collect();
        if !variables.is_empty() {
            let file = self.short(&self.secrets_file);
            output::talk(&format!(
                "secrets are in {file}, which only you can read: {}",
                variables.join(", ")
            ));
        }
        for (server, keys) in &self.applied.exposed {
            let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
            output::talk(&format!(
                "warning: {} of `{server}` looks like a secret and stays in {target}, which only you can read now; better \
                 pass it in `env` or `headers`",
                keys.join(" and ")
            ));
        }
        if let Some(reason) = self.saved.as_ref().and_then(|saved| saved.not_trusted.as_ref()) {
            output::talk(&format!("warning: the agreement to {target} cannot be kept: {reason}"));
        }
        let needs: Vec<String> = self.plan.needs().into_iter().map(need).collect();
        if !needs.is_empty() {
            output::talk(&format!("set before you start the gateway: {}", needs.join(", ")));
        }
        let signs_in =
            added.iter().filter(|row| row.sign_in == Some(SignIn::Needed) && row.disabled.is_none());
        let signs_in: Vec<String> =
            signs_in.filter_map(|row| Some(format!("`{}`", row.server.as_ref()?))).collect();
        if !signs_in.is_empty() {
            output::talk(&format!(
                "{} will want a sign-in, which the gateway does not do yet: put a token under `headers`, such as \
                 `Authorization = \"Bearer ${{TOKEN}}\"`",
                signs_in.join(", ")
            ));
        }
        match self.next() {
            Some(trust) => output::talk(&format!("next: `{trust}` shows what it would run, and asks you")),
            None => output::talk("next: `bridgehead check` starts every server once"),
        }
    }

    /// The command that agrees to the configuration, if it is used only after that.
    fn next(&self) -> Option<String> {
        let needed = self.saved.as_ref().is_some_and(|saved| saved.needs_agreement);
        needed.then(|| format!("bridgehead trust {}", self.target.display()))
    }

    /// Prints everything for programs.
    pub(super) fn json(&self, dry_run: bool, exit: Exit) -> Exit {
        let servers: Vec<Value> = self
            .plan
            .rows
            .iter()
            .map(|row| {
                let mut remarks = row.remarks.clone();
                if let Outcome::Skipped(reason) = &row.outcome {
                    remarks.insert(0, reason.clone());
                }
                json!({
                    "client": row.client.id,
                    "file": row.file.display().to_string(),
                    "line": row.line,
                    "scope": row.scope.as_str(),
                    "name": row.name,
                    "as": row.server,
                    "transport": row.transport,
                    "action": row.outcome.as_str(),
                    "disabled": row.disabled,
                    "signIn": row.sign_in.map(SignIn::as_str),
                    "remarks": remarks,
                })
            })
            .collect();
        let broken: Vec<Value> = self
            .broken
            .iter()
            .map(|broken| {
                json!({
                    "client": broken.client.id,
                    "file": broken.file.display().to_string(),
                    "line": broken.at.map(|at| at.line),
                    "column": broken.at.map(|at| at.column),
                    "message": broken.message,
                })
            })
            .collect();
        let names: Vec<&str> = self.variables().collect();
        let secrets = (!names.is_empty())
            .then(|| json!({"file": self.secrets_file.display().to_string(), "variables": names}));
        let exposed: Vec<Value> = self
            .applied
            .exposed
            .iter()
            .map(|(server, keys)| json!({"server": server, "keys": keys}))
            .collect();
        let variables: Vec<Value> = self
            .plan
            .needs()
            .into_iter()
            .map(|(name, about)| json!({"name": name, "about": about}))
            .collect();
        let report = json!({
            "configuration": self.target.display().to_string(),
            "dryRun": dry_run,
            "changed": self.changed,
            "servers": servers,
            "broken": broken,
            "secrets": secrets,
            "exposed": exposed,
            "variables": variables,
            "next": self.next(),
        });
        output::json_data(&report, exit)
    }

    /// The variables that hold secrets.
    fn variables(&self) -> impl Iterator<Item = &str> {
        let placed = self.applied.placed.iter().flat_map(|(_, placed)| placed);
        placed.map(|placed| placed.variable.as_str())
    }

    fn short(&self, path: &Path) -> String {
        short(path, self.home)
    }
}

fn need((name, about): (&str, Option<&str>)) -> String {
    about.map_or_else(|| name.to_owned(), |about| format!("{name} ({about})"))
}
