//! Disconnects one client: gives its file back as it was, or takes just our entry away.

use std::fs;
use std::path::{Path, PathBuf};

use super::entry::{self, is_ours};
use super::file::{self, FileError};
use super::moved;
use super::outcome::{Outcome, State};
use super::own_command;
use super::place::{self, Target, surroundings};
use super::record::{Before, How, Record, Records};
use crate::clients::edit::{self, Format, Place};
use crate::clients::{By, Client, Scope};
use crate::replace;
use crate::world::World;

/// What to take back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Undo<'u> {
    pub(crate) world: &'u World,
    pub(crate) records: &'u Records,
    pub(crate) scope: Scope,
    pub(crate) name: &'u str,
    /// The address of the gateway, by which an entry for HTTP is recognised.
    pub(crate) url: Option<&'u str>,
    pub(crate) dry_run: bool,
    pub(crate) edits_only: bool,
}

/// The clients that are connected, and their files.
pub(crate) fn connected(world: &World) -> Vec<(&'static str, PathBuf)> {
    let all = Records::of(&world.variables).all();
    all.into_iter().filter_map(|record| Some((Client::named(&record.client)?.title, record.file))).collect()
}

/// Takes back everything that `connect` has done. Returns what could not be taken back.
pub(crate) fn undo_all(world: &World) -> Vec<String> {
    let records = Records::of(&world.variables);
    let undo = Undo {
        world,
        records: &records,
        scope: Scope::User,
        name: super::NAME,
        url: None,
        dry_run: false,
        edits_only: false,
    };
    undo.all()
        .into_iter()
        .filter(|outcome| outcome.state == State::Failed)
        .map(|outcome| outcome.words())
        .collect()
}

impl Undo<'_> {
    /// Takes back every connection that was remembered, the newest first: what was there before it has the older ones.
    pub(crate) fn all(&self) -> Vec<Outcome> {
        let newest_first = self.records.all().into_iter().rev();
        newest_first
            .filter_map(|record| Some(self.disconnect_recorded(Client::named(&record.client)?, &record)))
            .collect()
    }

    /// Disconnects a client.
    pub(crate) fn disconnect(&self, client: &'static Client) -> Outcome {
        // A recorded file counts even if the client would write to another one today.
        let recorded = self.records.all().into_iter().find(|record| {
            record.client == client.id
                && record.name == self.name
                && candidates(client, self.scope, self.world).any(|file| file == record.file)
        });
        self.take_back(client, recorded.as_ref())
    }

    /// Takes back a connection that was remembered, wherever its file is.
    pub(crate) fn disconnect_recorded(&self, client: &'static Client, record: &Record) -> Outcome {
        let is_users = candidates(client, Scope::User, self.world).any(|file| file == record.file);
        let scope = if is_users { Scope::User } else { Scope::Project };
        // In another folder, the client's own command would look at another project.
        let edits_only = self.edits_only || !is_users;
        Undo { scope, edits_only, name: &record.name, ..*self }.take_back(client, Some(record))
    }

    fn take_back(&self, client: &'static Client, recorded: Option<&Record>) -> Outcome {
        let mut outcome = Outcome::new(client, self.name);
        let Some(target) = place::target(client, self.scope, surroundings(self.world)) else {
            return outcome.failed(place::missing(self.scope));
        };
        let Some(format) = entry::format(client.form) else {
            return outcome.failed("Bridgehead does not change its file; take the entry out by hand");
        };
        let file = recorded.map_or(target.file, |record| record.file.clone());
        let target = Target { file, keys: target.keys };
        outcome.file = Some(target.file.clone());
        match self.undo(client, &target, format, recorded, &mut outcome) {
            Ok(state) => outcome.state = state,
            Err(error) => return outcome.failed(error.to_string()),
        }
        if self.dry_run {
            return outcome;
        }
        if let Err(error) = self.records.forget(client.id, &target.file, self.name) {
            outcome.warnings.push(format!("the record of the connection cannot be removed: {error}"));
        }
        if client.connect.by == By::Snippet && outcome.state == State::NotConnected {
            return outcome.failed("Bridgehead did not write its file; take the entry out by hand");
        }
        if client.connect.restart && outcome.state != State::NotConnected {
            outcome.next.push(format!("restart {}", client.title));
        }
        outcome
    }

    fn undo(
        &self,
        client: &'static Client,
        target: &Target,
        format: Format,
        record: Option<&Record>,
        outcome: &mut Outcome,
    ) -> Result<State, FileError> {
        if file::read(&target.file)?.is_none() {
            return Ok(State::NotConnected);
        }
        let lock = file::lock(&target.file)?;
        let now = file::read(&target.file)?.unwrap_or_default();
        if let Some(state) = self.restore(target, &now, record, outcome)? {
            return Ok(state);
        }
        // The change below has a lock of its own.
        drop(lock);
        let edit = |text: Option<&str>| self.edit(client, target, format, record, text);
        let Some((after, ())) = edit(Some(&now))? else { return Ok(State::NotConnected) };
        if self.dry_run {
            outcome.text = Some(super::diff::diff(&now, &after));
            return Ok(State::Planned);
        }
        // The command would leave off what was turned off.
        let moved = record.is_some_and(Record::has_moved);
        if !moved && self.by_command(client, target, format, outcome) {
            outcome.how = Some(How::Command);
            return Ok(State::Removed);
        }
        let change = file::change(&target.file, true, edit)?;
        outcome.how = Some(How::Edit);
        outcome.backup = change.and_then(|change| change.backup);
        Ok(State::Removed)
    }

    /// Gives the file back as it was, if nobody has changed it since.
    fn restore(
        &self,
        target: &Target,
        now: &str,
        record: Option<&Record>,
        outcome: &mut Outcome,
    ) -> Result<Option<State>, FileError> {
        let Some((record, original)) =
            record.and_then(|record| Some((record, record.original(now.as_bytes())?)))
        else {
            return Ok(None);
        };
        match original {
            // The client made it and keeps other things there.
            None if record.how == How::Command => return Ok(None),
            None if self.dry_run => {
                outcome.text = Some(super::diff::diff(now, ""));
                return Ok(Some(State::Planned));
            }
            None => {
                // A link to it was there before.
                let removed = replace::target(&target.file).and_then(fs::remove_file);
                removed.map_err(|error| {
                    FileError::Refused(format!("`{}` cannot be removed: {error}", target.file.display()))
                })?;
            }
            Some(before) if self.dry_run => {
                outcome.text = Some(super::diff::diff(now, &String::from_utf8_lossy(&before)));
                return Ok(Some(State::Planned));
            }
            Some(before) => {
                file::put(&target.file, Some(now.as_bytes()), &before, false)?;
                // It has the same content as the file now.
                if let Before::Kept { backup, .. } = &record.before {
                    drop(fs::remove_file(backup));
                }
            }
        }
        Ok(Some(State::Restored))
    }

    /// The text without our entry; `None` if it has none.
    fn edit(
        &self,
        client: &Client,
        target: &Target,
        format: Format,
        record: Option<&Record>,
        text: Option<&str>,
    ) -> Result<Option<(String, ())>, FileError> {
        let text = text.unwrap_or_default();
        let broken = |error| FileError::Broken { file: target.file.clone(), error };
        let path = place::path(format, text, target.keys).map_err(broken)?;
        let place = Place { path, name: self.name };
        let there = edit::find(format, text, place).map_err(broken)?;
        if let (None, Some(there)) = (record, &there)
            && !is_ours(there, self.url)
        {
            return Err(FileError::Refused(format!(
                "the entry `{}` in `{}` starts something else, so it stays",
                self.name,
                target.file.display()
            )));
        }
        // Somebody may have taken our entry out already; what was turned off for it comes back all the same.
        let mut after = text.to_owned();
        if let Some(record) = record {
            after = moved::with(format, &after, path, &record.taken).map_err(broken)?;
            if let Some(switch) = moved::switch(client) {
                after =
                    moved::switched(format, &after, path, &record.moved, switch, false).map_err(broken)?;
            }
        }
        if there.is_some() {
            let added = record.and_then(|record| record.added.as_ref());
            after = edit::remove(format, &after, place, added).map_err(broken)?;
        }
        Ok((after != text).then_some((after, ())))
    }

    /// Lets the client's own command take the entry away; says whether it did.
    fn by_command(
        &self,
        client: &'static Client,
        target: &Target,
        format: Format,
        outcome: &mut Outcome,
    ) -> bool {
        let (Some(args), Some(program), false) = (
            own_command::removing(client, self.scope, self.name),
            own_command::program(client, &self.world.variables),
            self.edits_only,
        ) else {
            return false;
        };
        let ran = own_command::run(&program, args, &self.world.variables, self.world.folder());
        let why = match ran {
            Err(error) => error,
            Ok(()) if is_gone(&target.file, format, target.keys, self.name) => return true,
            Ok(()) => "its entry is still in the file".to_owned(),
        };
        outcome.warnings.push(format!("`{program}` did not remove the entry, so the file is edited: {why}"));
        false
    }
}

/// The files where a client may keep servers.
fn candidates(client: &Client, scope: Scope, world: &World) -> impl Iterator<Item = PathBuf> {
    let all = match scope {
        Scope::User => client.user_files(surroundings(world)),
        Scope::Project => client.project_files(surroundings(world)),
    };
    all.into_iter().map(|candidate| candidate.path)
}

fn is_gone(file: &Path, format: Format, keys: crate::clients::Keys, name: &str) -> bool {
    let Ok(Some(text)) = file::read(file) else { return true };
    let path = place::path(format, &text, keys).unwrap_or_default();
    edit::find(format, &text, Place { path, name }).is_ok_and(|entry| entry.is_none())
}
