//! Connects one client: decides what its file needs, and lets the client's own command or an edit of the text do it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::diff::diff;
use super::entry::{self, is_ours};
use super::file::{self, Change, FileError};
use super::launch::Launch;
use super::moved;
use super::outcome::{Outcome, State};
use super::own_command;
use super::place::{self, Target, surroundings};
use super::record::{Before, How, Record, Records};
use super::served::Served;
use crate::clients::edit::{self, Added, Format, Place, Shape};
use crate::clients::{By, Client, Form, Http, Scope};
use crate::replace;
use crate::trust::digest;
use crate::world::World;

/// What to do for a client.
#[derive(Clone, Copy)]
pub(crate) struct Job<'j> {
    pub(crate) world: &'j World,
    pub(crate) records: &'j Records,
    pub(crate) scope: Scope,
    /// The name of the entry.
    pub(crate) name: &'j str,
    /// What the entry says, if the client can do that; else the second.
    pub(crate) wanted: &'j Launch,
    pub(crate) otherwise: &'j Launch,
    /// Whether the gateway is installed as a service, which keeps it running.
    pub(crate) is_service: bool,
    /// The configuration that the entry names.
    pub(crate) config: Option<&'j Path>,
    /// The servers of the gateway, if they are known.
    pub(crate) served: Option<&'j Served<'j>>,
    /// Whether those of the client that the gateway has too are turned off.
    pub(crate) move_servers: bool,
    /// Only show the entry.
    pub(crate) print: bool,
    /// Only show what would change.
    pub(crate) dry_run: bool,
    /// Never run the client's own command.
    pub(crate) edits_only: bool,
}

/// What an edit of the file comes to.
enum Step {
    /// The entry is new.
    Added(Added),
    /// It was ours and said something else. These keys of the user could not stay.
    Updated(Vec<&'static str>),
}

impl Step {
    /// What the user should know about it.
    fn warning(&self, client: &Client) -> Option<String> {
        match self {
            Self::Updated(refused) if !refused.is_empty() => Some(format!(
                "`{}` cannot stand beside the rest of the entry, or {} refuses its file; so it is taken out",
                refused.join("`, `"),
                client.title
            )),
            _ => None,
        }
    }
}

impl Job<'_> {
    /// Connects a client.
    pub(crate) fn connect(&self, client: &'static Client) -> Outcome {
        let mut outcome = Outcome::new(client, self.name);
        let launch = if entry::can(client, self.wanted) { self.wanted } else { self.otherwise };
        if launch != self.wanted {
            let why = match client.connect.http {
                Http::No => "knows no HTTP",
                _ => "cannot be given a key for HTTP",
            };
            outcome.warnings.push(format!("{} {why}, so it starts the program", client.title));
        }
        if client.connect.by == By::Never {
            return outcome.failed("this product has ended; `bridgehead import` still reads its servers");
        }
        let Some(target) = place::target(client, self.scope, surroundings(self.world)) else {
            return outcome.failed(place::missing(self.scope));
        };
        outcome.file = Some(target.file.clone());
        for managed in place::managed(client, surroundings(self.world)) {
            let why = "was put there by an administrator and wins over your own file";
            outcome.warnings.push(format!("`{}` {why}", managed.display()));
        }
        let format =
            entry::format(Form::of(&target.file)).filter(|_| client.connect.by != By::Snippet && !self.print);
        let Some(format) = format else {
            outcome.state = State::Printed;
            outcome.text = Some(entry::snippet(client, self.name, launch));
            outcome.next = self.next_steps(client, launch, None);
            return outcome;
        };
        if self.config.is_some_and(|config| same_file(config, &target.file)) {
            return outcome.failed(format!(
                "`{}` is the configuration of the gateway itself, which would start itself; move its servers with \
                 `bridgehead import` first",
                target.file.display()
            ));
        }
        match self.write(client, &target, format, launch, &mut outcome) {
            Ok(state) => outcome.state = state,
            Err(error) => return outcome.failed(error.to_string()),
        }
        if let Err(error) = self.turn_off(client, &target, format, &mut outcome) {
            outcome.warnings.push(format!("its servers stay on: {error}"));
        }
        if outcome.state != State::Planned {
            outcome.undo = Some(self.undo(client));
        }
        if matches!(outcome.state, State::Connected | State::Updated) {
            let next = self.next_steps(client, launch, outcome.how);
            outcome.next.splice(0..0, next);
        }
        outcome
    }

    fn write(
        &self,
        client: &'static Client,
        target: &Target,
        format: Format,
        launch: &Launch,
        outcome: &mut Outcome,
    ) -> Result<State, FileError> {
        let record = self.records.find(client.id, &target.file, self.name);
        let recorded = record.is_some();
        let edit = |text: Option<&str>| self.edit(client, target, format, launch, recorded, text);
        let before = file::read(&target.file)?;
        let Some((after, step)) = edit(before.as_deref())? else { return Ok(State::Unchanged) };
        if self.dry_run {
            outcome.warnings.extend(step.warning(client));
            outcome.text = Some(diff(before.as_deref().unwrap_or_default(), &after));
            return Ok(State::Planned);
        }
        // The client's own command adds entries; it knows nothing of one that is there.
        if let Step::Added(_) = step
            && let Some(done) = self.by_command(client, target, format, launch, outcome)
        {
            self.remember(&done.with_moved(record), outcome);
            return Ok(State::Connected);
        }
        // The file from before the first connection is kept already.
        let kept = record.as_ref().is_some_and(|record| record.is_intact(before.as_deref()));
        let Some(change) = file::change(&target.file, !kept, edit)? else { return Ok(State::Unchanged) };
        outcome.how = Some(How::Edit);
        outcome.warnings.extend(change.told.warning(client));
        let state = match change.told {
            Step::Added(_) => State::Connected,
            Step::Updated(_) => State::Updated,
        };
        let record = self.record_of(client, target, change, record);
        outcome.backup = record.backup().map(Path::to_owned);
        self.remember(&record, outcome);
        Ok(state)
    }

    /// Turns off the servers that the gateway has too, or says that they run twice.
    fn turn_off(
        &self,
        client: &'static Client,
        target: &Target,
        format: Format,
        outcome: &mut Outcome,
    ) -> Result<(), FileError> {
        let Some(served) = self.served else { return Ok(()) };
        let broken = |error| FileError::Broken { file: target.file.clone(), error };
        let path_in = |text: &str| place::path(format, text, target.keys).map_err(broken);
        let before = file::read(&target.file)?.unwrap_or_default();
        let path = path_in(&before)?;
        let mut names = served.names(client, target, (format, path), &before).map_err(broken)?;
        names.retain(|name| name != self.name);
        if names.is_empty() {
            return Ok(());
        }
        let listed = format!("`{}`", names.join("`, `"));
        let (is, them) = if names.len() == 1 { ("is", "it") } else { ("are", "them") };
        if !self.move_servers {
            outcome.next.push(format!(
                "{listed} would run twice, here and at the gateway: add --move, which turns {them} off here until `{}`",
                self.undo(client)
            ));
            return Ok(());
        }
        let switch = moved::switch(client);
        let title = client.title;
        if self.dry_run {
            outcome.next.push(match switch {
                Some(_) => format!("{listed} would be turned off, because the gateway has {them}"),
                None => format!(
                    "{listed} would be taken out, because the gateway has {them}; `disconnect` puts {them} back"
                ),
            });
            return Ok(());
        }
        let taken = match switch {
            Some(_) => Vec::new(),
            None => moved::taken(format, &before, path, &names).map_err(broken)?,
        };
        // First of all, so that nothing is taken out that nobody remembers.
        let mut record = self.records.find(client.id, &target.file, self.name).unwrap_or_else(|| Record {
            client: client.id.to_owned(),
            file: target.file.clone(),
            name: self.name.to_owned(),
            how: How::Edit,
            time: now(),
            after: String::new(),
            before: Before::Unknown,
            added: None,
            moved: Vec::new(),
            taken: Vec::new(),
        });
        if switch.is_some() {
            record.moved.extend(names.iter().cloned());
        }
        record.taken.retain(|known| !taken.iter().any(|new| new.name() == known.name()));
        record.taken.extend(taken.iter().cloned());
        self.records.keep(&record).map_err(|error| {
            FileError::Refused(format!("nothing would remember that {listed} {is} off here: {error}"))
        })?;
        let edit = |text: Option<&str>| {
            let text = text.unwrap_or_default();
            let path = path_in(text)?;
            let after = match switch {
                Some(switch) => moved::switched(format, text, path, &names, switch, true),
                None => moved::without(format, text, path, &taken),
            }
            .map_err(broken)?;
            Ok((after != text).then_some((after, ())))
        };
        let Some(change) = file::change(&target.file, record.backup().is_none(), edit)? else {
            return Ok(());
        };
        outcome.next.push(match switch {
            Some(_) => format!("{listed} {is} turned off in the file, because the gateway has {them}"),
            None => format!(
                "{listed} {is} out of the file, because the gateway has {them} and {title} cannot turn a server off there; \
                 `{}` puts {them} back",
                self.undo(client)
            ),
        });
        outcome.moved = names;
        if change.before.is_some_and(|before| digest(before.as_bytes()) == record.after) {
            record.after = digest(change.after.as_bytes());
            self.remember(&record, outcome);
        }
        Ok(())
    }

    /// The new text of the file; `None` if it needs none.
    fn edit(
        &self,
        client: &Client,
        target: &Target,
        format: Format,
        launch: &Launch,
        recorded: bool,
        text: Option<&str>,
    ) -> Result<Option<(String, Step)>, FileError> {
        let text = text.unwrap_or_default();
        let broken = |error| FileError::Broken { file: target.file.clone(), error };
        let path = place::path(format, text, target.keys).map_err(broken)?;
        let place = Place { path, name: self.name };
        let shape = entry::entry(client, launch);
        let Some(there) = edit::find(format, text, place).map_err(broken)? else {
            let (after, added) = edit::insert(format, text, place, &shape).map_err(broken)?;
            return Ok(Some((after, Step::Added(added))));
        };
        let url = match launch {
            Launch::Http { url, .. } => Some(url.as_str()),
            Launch::Stdio { .. } => None,
        };
        if !recorded && !is_ours(&there, url) {
            return Err(FileError::Refused(format!(
                "`{}` has an entry `{}` that starts something else; use another name with `--name`",
                target.file.display(),
                self.name
            )));
        }
        let (after, refused) = update(client, format, text, place, &there, &shape).map_err(broken)?;
        Ok((after != text).then_some((after, Step::Updated(refused))))
    }

    /// Lets the client's own command add the entry. `None` if it has none, or it did not work.
    fn by_command(
        &self,
        client: &'static Client,
        target: &Target,
        format: Format,
        launch: &Launch,
        outcome: &mut Outcome,
    ) -> Option<Record> {
        let args = own_command::adding(client, self.scope, self.name, launch)?;
        let program = own_command::program(client, &self.world.variables).filter(|_| !self.edits_only)?;
        let mut fall_back = |why: String| {
            outcome.warnings.push(format!("`{program}` did not add the entry, so the file is edited: {why}"));
        };
        let before = match file::read(&target.file) {
            Ok(before) => before,
            Err(error) => {
                fall_back(error.to_string());
                return None;
            }
        };
        let kept = match &before {
            Some(text) => match replace::keep(&target.file, text.as_bytes()) {
                Ok(backup) => Before::Kept { backup, sha256: digest(text.as_bytes()) },
                Err(error) => {
                    fall_back(format!("`{}` cannot be backed up: {error}", target.file.display()));
                    return None;
                }
            },
            None => Before::Nothing,
        };
        let ran = own_command::run(&program, args, &self.world.variables, self.world.folder());
        let after = file::read(&target.file).ok().flatten();
        let is_there = after.as_deref().is_some_and(|text| {
            let path = place::path(format, text, target.keys).unwrap_or_default();
            edit::find(format, text, Place { path, name: self.name }).is_ok_and(|entry| entry.is_some())
        });
        match (ran, after) {
            (Ok(()), Some(text)) if is_there => {
                outcome.how = Some(How::Command);
                let record = Record {
                    client: client.id.to_owned(),
                    file: target.file.clone(),
                    name: self.name.to_owned(),
                    how: How::Command,
                    time: now(),
                    after: digest(text.as_bytes()),
                    before: kept,
                    added: None,
                    moved: Vec::new(),
                    taken: Vec::new(),
                };
                outcome.backup = record.backup().map(Path::to_owned);
                Some(record)
            }
            (ran, _) => {
                fall_back(ran.err().unwrap_or_else(|| "its entry is not in the file".to_owned()));
                // The edit makes its own.
                if let Before::Kept { backup, .. } = kept {
                    drop(fs::remove_file(backup));
                }
                None
            }
        }
    }

    fn record_of(
        &self,
        client: &'static Client,
        target: &Target,
        change: Change<Step>,
        old: Option<Record>,
    ) -> Record {
        let after = digest(change.after.as_bytes());
        // What was there before us, and who made the file, is known from the first connection.
        if let Some(record) = old.as_ref().filter(|record| record.is_intact(change.before.as_deref())) {
            return Record { time: now(), after, ..record.clone() };
        }
        let (before, added) = match (change.told, change.backup, change.before) {
            (Step::Added(added), _, None) => (Before::Nothing, Some(added)),
            (Step::Added(added), Some(backup), Some(text)) => {
                (Before::Kept { backup, sha256: digest(text.as_bytes()) }, Some(added))
            }
            (Step::Added(added), None, Some(_)) => (Before::Unknown, Some(added)),
            (Step::Updated(_), ..) => (Before::Unknown, old.as_ref().and_then(|record| record.added.clone())),
        };
        let record = Record {
            client: client.id.to_owned(),
            file: target.file.clone(),
            name: self.name.to_owned(),
            how: How::Edit,
            time: now(),
            after,
            before,
            added,
            moved: Vec::new(),
            taken: Vec::new(),
        };
        record.with_moved(old)
    }

    fn remember(&self, record: &Record, outcome: &mut Outcome) {
        if let Err(error) = self.records.keep(record) {
            let what = "the connection cannot be remembered, so `disconnect` will only take the entry out of the text";
            outcome.warnings.push(format!("{what}: {error}"));
        }
    }

    fn undo(&self, client: &Client) -> String {
        let project = if self.scope == Scope::Project { " --project" } else { "" };
        let name = match self.name {
            super::NAME => String::new(),
            other => format!(" --name {other}"),
        };
        format!("bridgehead disconnect {}{project}{name}", client.id)
    }

    fn next_steps(&self, client: &Client, launch: &Launch, how: Option<How>) -> Vec<String> {
        let title = client.title;
        let mut next = Vec::new();
        if let Launch::Http { token, .. } = launch {
            if !self.is_service {
                let how = "`bridgehead serve`, or `bridgehead service install`";
                next.push(format!("keep the gateway running: {how}"));
            }
            if let Some(token) = token {
                next.push(format!(
                    "set {token} where {title} starts, to a key (`bridgehead key new NAME`) or the gateway's token"
                ));
            }
        }
        let rewrites = own_command::removing(client, Scope::User, self.name).is_some();
        if client.connect.restart {
            next.push(format!(
                "restart {title}; while it runs, it may write its file again without the entry"
            ));
        } else if how == Some(How::Edit) && rewrites {
            next.push(format!(
                "if {title} is running, restart it; it may write its file again without the entry"
            ));
        }
        // These two ask about a project's files only.
        let silent = self.scope == Scope::User && ["claude-code", "copilot"].contains(&client.id);
        next.extend(client.connect.trust.filter(|_| !silent).map(str::to_owned));
        next
    }
}

/// Makes an entry say what it should, and leaves the members that connecting does not decide. Returns those that could not stay.
fn update(
    client: &Client,
    format: Format,
    text: &str,
    place: Place<'_>,
    there: &Value,
    shape: &Shape,
) -> Result<(String, Vec<&'static str>), edit::EditError> {
    let Shape::Table(members) = shape else { return Ok((text.to_owned(), Vec::new())) };
    let path: Vec<&str> = place.path.iter().copied().chain([place.name]).collect();
    let mut text = text.to_owned();
    let refused = entry::refused_keys(client, members);
    let refused: Vec<&str> = refused.iter().copied().filter(|key| there.get(key).is_some()).collect();
    for key in entry::own_keys(client).into_iter().chain(refused.iter().copied()) {
        if there.get(key).is_some() && !members.iter().any(|(name, _)| name == key) {
            text = edit::remove(format, &text, Place { path: &path, name: key }, None)?;
        }
    }
    for (name, value) in members {
        let place = Place { path: &path, name };
        text = match there.get(name) {
            Some(old) if *old == value.tree() => text,
            Some(_) => edit::replace(format, &text, place, value)?,
            None => edit::insert(format, &text, place, value)?.0,
        };
    }
    Ok((text, refused))
}

pub(crate) fn now() -> String {
    format!("{:.0}", jiff::Timestamp::now())
}

fn same_file(one: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| -> Option<PathBuf> { path.canonicalize().ok() };
    canonical(one).is_some() && canonical(one) == canonical(other)
}
