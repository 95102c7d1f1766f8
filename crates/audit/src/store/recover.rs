//! What a process left behind when it was killed: calls that entered and never left.
//!
//! An instance that lives holds a lock on a file of its name, and one that ends in order removes the file. A
//! file that can be locked belongs to one that was killed: its open calls get an exit with the outcome
//! `interrupted`, in its own chain, and its segments are sealed.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension};
use tracing::{info, warn};

use super::database::{Access, Database, connect};
use super::segment::{EXTENSION, OpenCalls, Segment};
use super::{LOCK, StoreError, StoreOptions, journal_of, keeper, private};
use crate::row::{ENTER, Row};
use crate::{Checkpoint, Hash, Ticket};

/// Finishes what every dead instance in the folder left.
pub(super) fn all(options: &StoreOptions, own: &str, publish: impl Fn(&Checkpoint)) {
    for (instance, file) in dead(&options.folder, own) {
        remove_new(&options.folder, &instance);
        match finish(options, &instance) {
            Ok((interrupted, seals)) => {
                if !seals.is_empty() {
                    info!(instance, interrupted, "the audit record of a process that was killed is finished");
                }
                seals.iter().for_each(&publish);
            }
            Err(error) => {
                warn!(%error, instance, "the audit record of a process that was killed cannot be finished");
                continue;
            }
        }
        let _ = std::fs::remove_file(&file.0);
    }
}

/// The instances whose lock nobody holds; ours from now on.
fn dead(folder: &Path, own: &str) -> Vec<(String, (PathBuf, File))> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let locks =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|it| it == LOCK));
    locks
        .filter_map(|path| {
            let instance = path.file_stem()?.to_str()?.to_owned();
            let file = private().read(true).open(&path).ok()?;
            (instance != own && file.try_lock().is_ok()).then_some((instance, (path, file)))
        })
        .collect()
}

/// Seals what was not, and says how many calls it ended and with which checkpoints.
fn finish(options: &StoreOptions, instance: &str) -> Result<(usize, Vec<Checkpoint>), StoreError> {
    let files = segments_of(&options.folder, instance).into_iter();
    let files: Vec<(PathBuf, Progress)> =
        files.map(|file| Progress::of(&file).map(|state| (file, state))).collect::<Result<_, _>>()?;
    let (mut ended, mut seals) = (0, Vec::new());
    if files.iter().all(|(_, state)| *state == Progress::Finished) {
        return Ok((ended, seals));
    }
    let now = options.clock.wall();
    let mut open = Vec::new();
    for (at, (file, state)) in files.iter().enumerate() {
        if *state == Progress::Finished {
            collect_open(file, &mut open)?;
            continue;
        }
        let mut database = Database::reopen(file)?;
        while database.take_in()? {}
        collect_open(file, &mut open)?;
        if *state == Progress::Sealed {
            database.finish()?;
            continue;
        }
        let mut segment = Segment::resume(&mut database)?;
        if at + 1 == files.len() {
            if segment.count() == 0 && open.is_empty() && segment.header().index == 1 {
                database.discard();
                break;
            }
            ended = end_calls(&mut segment, &open, now)
                .map_err(|error| StoreError::Folder { path: options.folder.clone(), error })?;
            while database.take_in()? {}
        }
        database.add(segment.checkpoint(true, now, options.signer.as_ref()));
        seals.append(&mut database.state()?);
        database.finish()?;
    }
    Ok((ended, seals))
}

/// Gives the calls that are open their exits; says how many.
fn end_calls(segment: &mut Segment, open: &[(Ticket, String)], now: jiff::Timestamp) -> io::Result<usize> {
    let mut calls = OpenCalls::default();
    open.iter().for_each(|(ticket, _)| calls.open(*ticket));
    let enters: Vec<_> = open.iter().map(|(ticket, text)| (ticket.segment(), text.clone())).collect();
    let mut ends = keeper::ends(&enters, now);
    segment.append(&mut ends, &mut calls)?;
    Ok(ends.len())
}

/// How far the process came with a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It was being written.
    Growing,
    /// It is sealed, but still has its journal.
    Sealed,
    /// There is nothing left to do.
    Finished,
}

impl Progress {
    fn of(file: &Path) -> Result<Self, StoreError> {
        let sealed = seal(&connect(file, Access::Repair)?, file)?.is_some();
        Ok(match (sealed, journal_of(file).exists()) {
            (true, true) => Self::Sealed,
            (true, false) => Self::Finished,
            (false, _) => Self::Growing,
        })
    }
}

/// Removes the files of an instance that never got their place.
pub(super) fn remove_new(folder: &Path, instance: &str) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // A database may have left more than itself: `.new-wal`, `.new-shm`.
        if name.strip_prefix(instance).is_some_and(|rest| rest.starts_with('.') && rest.contains(".new")) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Adds the enters of a segment that have no exit, and takes those out that it has the exit of.
fn collect_open(file: &Path, open: &mut Vec<(Ticket, String)>) -> Result<(), StoreError> {
    let broken = |error: rusqlite::Error| StoreError::database(file, &error);
    let segment = index(file).unwrap_or_default();
    let connection = connect(file, Access::Repair)?;
    let mut statement = connection.prepare("SELECT body FROM rows ORDER BY seq").map_err(broken)?;
    let mut rows = statement.query([]).map_err(broken)?;
    while let Some(row) = rows.next().map_err(broken)? {
        let text: String = row.get(0).map_err(broken)?;
        // A row that was tampered with is the verifier's to report.
        let Ok(row) = serde_json::from_str::<Row>(&text) else { continue };
        match (row.kind == ENTER, row.enter) {
            (true, _) => open.push((Ticket::new(segment, row.seq), text)),
            // Calls end soon after they began: the search from behind is short.
            (false, Some(enter)) => {
                if let Some(at) = open.iter().rposition(|(ticket, _)| ticket.number() == enter) {
                    open.remove(at);
                }
            }
            (false, None) => {}
        }
    }
    Ok(())
}

/// The checkpoint that seals a segment, if it is sealed and nobody changed it.
pub(super) fn sound_seal(file: &Path) -> Option<Checkpoint> {
    let connection = connect(file, Access::Read).ok()?;
    let seal = seal(&connection, file).ok()??;
    let last = "SELECT body, digest FROM checkpoints ORDER BY rowid DESC LIMIT 1";
    let stored = connection.query_row(last, [], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)));
    let sound = stored.is_ok_and(|(text, digest)| Hash(digest) == Hash::checkpoint(text.as_bytes()));
    (sound && name(file) == Some(&seal.segment)).then_some(seal)
}

/// Whether no row may follow.
#[cfg(test)]
pub(crate) fn is_sealed(file: &Path) -> Result<bool, StoreError> {
    Ok(seal(&connect(file, Access::Read)?, file)?.is_some())
}

/// The checkpoint that seals a segment, if it is sealed.
fn seal(connection: &Connection, file: &Path) -> Result<Option<Checkpoint>, StoreError> {
    let last: Option<String> = connection
        .query_row("SELECT body FROM checkpoints ORDER BY rowid DESC LIMIT 1", [], |row| row.get(0))
        .optional()
        .map_err(|error| StoreError::database(file, &error))?;
    Ok(last.and_then(|text| serde_json::from_str::<Checkpoint>(&text).ok()).filter(|last| last.sealed))
}

/// All segments in the folder, the oldest first: instance ids sort by age.
pub(crate) fn segment_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == EXTENSION))
        .collect();
    files.sort();
    files
}

/// Those of one instance.
pub(super) fn segments_of(folder: &Path, instance: &str) -> Vec<PathBuf> {
    let mut files = segment_files(folder);
    files.retain(|path| name(path).is_some_and(|name| name.starts_with(&format!("{instance}."))));
    files
}

/// Which segment of its instance it is, by its name.
pub(super) fn index(path: &Path) -> Option<u32> {
    name(path)?.rsplit_once('.')?.1.parse().ok()
}

pub(super) fn name(path: &Path) -> Option<&str> {
    path.file_stem()?.to_str()
}
