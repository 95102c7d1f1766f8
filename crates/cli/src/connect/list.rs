//! Which clients are on this machine, and which of them are connected.

use std::path::Path;

use serde_json::json;

use super::entry::{self, is_ours};
use super::launch::Launch;
use super::one::Job;
use super::place::{self, Target, surroundings};
use super::{can_change, file, own_command};
use crate::clients::edit::{self, Place};
use crate::clients::{By, CLIENTS, Client, Form, Scope};
use crate::exit::Exit;
use crate::output;
use crate::world::World;

/// The clients that are found on this machine: their file, their folder or their command is there.
pub(crate) fn found(world: &World) -> impl Iterator<Item = &'static Client> {
    CLIENTS.iter().filter(move |client| client.connect.by != By::Never && is_here(client, world))
}

fn is_here(client: &Client, world: &World) -> bool {
    let around = surroundings(world);
    let home = world.variables.get("HOME").map(Path::new);
    // Everybody has these folders.
    let shared = |folder: &Path| home.is_some_and(|home| folder == home || folder == home.join(".config"));
    let candidates = client.user_files(around);
    let in_own_folder = |file: &Path| file.parent().is_some_and(|folder| folder.is_dir() && !shared(folder));
    candidates.iter().any(|candidate| candidate.path.exists() || in_own_folder(&candidate.path))
        || own_command::program(client, &world.variables).is_some()
}

/// Shows the clients.
pub(crate) fn run(job: &Job<'_>, as_json: bool) -> Exit {
    let mut rows = vec![["CLIENT", "STATE", "FILE"].map(str::to_owned).to_vec()];
    let mut all = Vec::new();
    for client in found(job.world) {
        let target = place::target(client, job.scope, surroundings(job.world));
        let state = match &target {
            Some(target) => state(job, client, target),
            None => "no file for projects".to_owned(),
        };
        let path = target.map(|target| target.file.display().to_string());
        rows.push(vec![client.id.to_owned(), state.clone(), path.clone().unwrap_or_default()]);
        all.push(json!({"client": client.id, "title": client.title, "state": state, "file": path, "writes": can_change(client)}));
    }
    if as_json {
        return output::json_data(&json!({"clients": all}), Exit::Success);
    }
    if all.is_empty() {
        output::talk("no client is found here; `bridgehead connect CLIENT` creates its file");
        return Exit::Success;
    }
    let exit = output::data(&output::table(&rows), Exit::Success);
    let scope = if job.scope == Scope::Project { " --project" } else { "" };
    output::talk(&format!(
        "connect one with `bridgehead connect CLIENT{scope}`, all with `bridgehead connect --all{scope}`"
    ));
    exit
}

/// One client, in a few words.
fn state(job: &Job<'_>, client: &Client, target: &Target) -> String {
    let Some(format) = entry::format(Form::of(&target.file)) else { return "printed only".to_owned() };
    let text = match file::read(&target.file) {
        Ok(text) => text.unwrap_or_default(),
        Err(error) => return format!("unusable: {error}"),
    };
    let found = place::path(format, &text, target.keys)
        .and_then(|path| edit::find(format, &text, Place { path, name: job.name }));
    let there = match found {
        Ok(Some(there)) => there,
        Ok(None) if can_change(client) => return "not connected".to_owned(),
        Ok(None) => return "not connected, printed only".to_owned(),
        Err(error) => return format!("broken: {error}"),
    };
    let recorded = job.records.find(client.id, &target.file, job.name).is_some();
    let launch = if entry::can(client, job.wanted) { job.wanted } else { job.otherwise };
    let url = match launch {
        Launch::Http { url, .. } => Some(url.as_str()),
        Launch::Stdio { .. } => None,
    };
    if !recorded && !is_ours(&there, url) {
        return format!("another server is named `{}`", job.name);
    }
    let wanted = entry::entry(client, launch).tree();
    let same = entry::own_keys(client).into_iter().all(|key| wanted.get(key) == there.get(key));
    match same {
        true => "connected".to_owned(),
        false => "connected in another way".to_owned(),
    }
}
