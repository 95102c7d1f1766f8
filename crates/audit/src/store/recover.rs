//! Finishes the record of killed processes: calls that entered and never exited, and segments without a
//! seal.
//!
//! A live instance holds a lock on a file of its name, and removes the file when it stops normally. If
//! another process can lock the file, its instance was killed: its open calls get an exit with the outcome
//! `interrupted`, in its own chain, and its segments are sealed.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use super::backend::{Snapshot, Store};
use super::intake::Intake;
use super::segment::{OpenCalls, Segment, index, segments_of};
use super::{LOCK, StoreError, StoreOptions, journal, keeper, private};
use crate::records::{ReadError, Record};
use crate::row::{ENTER, Row};
use crate::{Checkpoint, Hash, Ticket};

/// Finishes what every dead instance in the folder left.
pub(super) fn all(store: &dyn Store, options: &StoreOptions, own: &str, publish: impl Fn(&Checkpoint)) {
    for (instance, file) in dead(&options.folder, own) {
        remove_new(store, &options.folder, &instance);
        match finish(store, options, &instance) {
            Ok((interrupted, seals)) => {
                if !seals.is_empty() {
                    info!(instance, interrupted, "finished the audit record of a killed process");
                }
                seals.iter().for_each(&publish);
            }
            Err(error) => {
                warn!(%error, instance, "the audit record of a killed process cannot be finished");
                continue;
            }
        }
        let _ = std::fs::remove_file(&file.0);
    }
}

/// The dead instances: those whose lock no process holds. This process holds their locks from now on.
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

/// Removes segments and journals that an instance prepared and did not begin.
pub(super) fn remove_new(store: &dyn Store, folder: &Path, instance: &str) {
    store.clear(instance);
    journal::clear(folder, instance);
}

/// Seals the unsealed segments; returns how many calls it ended and the seals.
fn finish(
    store: &dyn Store,
    options: &StoreOptions,
    instance: &str,
) -> Result<(usize, Vec<Checkpoint>), ReadError> {
    let folder = &options.folder;
    let segments: Vec<(String, Progress)> = segments_of(store, instance)?
        .into_iter()
        .map(|name| Progress::of(store, folder, &name).map(|state| (name, state)))
        .collect::<Result<_, _>>()?;
    let (mut ended, mut seals) = (0, Vec::new());
    if segments.iter().all(|(_, state)| *state == Progress::Finished) {
        return Ok((ended, seals));
    }
    let now = options.clock.wall();
    let mut open = Vec::new();
    for (at, (name, state)) in segments.iter().enumerate() {
        if *state == Progress::Finished {
            collect_open(store, name, &mut open)?;
            continue;
        }
        let mut intake = Intake::reopen(store, folder, name)?;
        while intake.take_in()? {}
        collect_open(store, name, &mut open)?;
        if *state == Progress::Sealed {
            intake.finish()?;
            continue;
        }
        let mut segment = Segment::resume(store, name, &mut intake)?;
        if at + 1 == segments.len() {
            if segment.count() == 0 && open.is_empty() && segment.header().index == 1 {
                intake.discard();
                break;
            }
            ended = end_calls(&mut segment, &open, now)
                .map_err(|error| StoreError::Folder { path: folder.clone(), error })?;
            while intake.take_in()? {}
        }
        intake.add(segment.checkpoint(true, now, options.signer.as_ref()));
        seals.append(&mut intake.state()?);
        intake.finish()?;
    }
    Ok((ended, seals))
}

/// Writes exits for the open calls; returns how many.
fn end_calls(segment: &mut Segment, open: &[(Ticket, Row)], now: jiff::Timestamp) -> io::Result<usize> {
    let mut calls = OpenCalls::default();
    open.iter().for_each(|(ticket, _)| calls.open(*ticket));
    let enters = open.iter().map(|(ticket, row)| (ticket.segment(), row));
    let mut ends = keeper::ends(enters, now);
    segment.append(&mut ends, &mut calls)?;
    Ok(ends.len())
}

/// How far the process came with a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It was being written.
    Growing,
    /// It is sealed, but its journal still exists.
    Sealed,
    /// There is nothing left to do.
    Finished,
}

impl Progress {
    fn of(store: &dyn Store, folder: &Path, name: &str) -> Result<Self, ReadError> {
        let sealed = seal(&*store.repair(name)?)?.is_some();
        Ok(match (sealed, journal::path_of(folder, name).exists()) {
            (true, true) => Self::Sealed,
            (true, false) => Self::Finished,
            (false, _) => Self::Growing,
        })
    }
}

/// Adds a segment's enters to `open`, and removes those whose exit it has.
fn collect_open(store: &dyn Store, name: &str, open: &mut Vec<(Ticket, Row)>) -> Result<(), ReadError> {
    let segment = index(name).unwrap_or_default();
    store.repair(name)?.rows(i64::MIN..=i64::MAX, &mut |record| {
        // The verifier reports rows that were tampered with.
        let Ok(row) = serde_json::from_slice::<Row>(&record.text) else { return Ok(()) };
        match (row.kind == ENTER, row.enter) {
            (true, _) => open.push((Ticket::new(segment, row.seq), row)),
            // Most calls are short: searching from the end finds them soon.
            (false, Some(enter)) => {
                if let Some(at) = open.iter().rposition(|(ticket, _)| ticket.number() == enter) {
                    open.remove(at);
                }
            }
            (false, None) => {}
        }
        Ok(())
    })
}

/// The checkpoint that seals a segment, if it is sealed and the seal was not changed.
pub(super) fn sound_seal(store: &dyn Store, name: &str) -> Option<Checkpoint> {
    let (seal, stored) = seal(&*store.read(name).ok()?).ok()??;
    let sound = stored.hash == Some(Hash::checkpoint(&stored.text));
    (sound && seal.segment == name).then_some(seal)
}

/// The checkpoint that seals a segment, if it is sealed, and its stored record.
fn seal(stored: &dyn Snapshot) -> Result<Option<(Checkpoint, Record)>, ReadError> {
    let Some(last) = stored.last_checkpoint()? else { return Ok(None) };
    let read = serde_json::from_slice::<Checkpoint>(&last.text).ok();
    Ok(read.filter(|checkpoint| checkpoint.sealed).map(|checkpoint| (checkpoint, last)))
}

/// Whether no row may follow.
#[cfg(test)]
pub(crate) fn is_sealed(store: &dyn Store, name: &str) -> bool {
    seal(&*store.read(name).unwrap()).unwrap().is_some()
}
