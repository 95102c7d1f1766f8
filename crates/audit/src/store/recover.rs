//! What a process left behind when it was killed: calls that entered and never left.
//!
//! An instance that lives holds a lock on a file of its name, and one that ends in order removes the file. A
//! file that can be locked belongs to one that was killed: its open calls get an exit with the outcome
//! `interrupted`, in its own chain, and its last segment is sealed.

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::OptionalExtension;
use tracing::{info, warn};

use super::segment::{EXTENSION, OpenCalls, Segment, connect};
use super::{LOCK, StoreError, StoreOptions, keeper};
use crate::row::{ENTER, Row};
use crate::{Checkpoint, CorrelationId};

/// Finishes what every dead instance in the folder left.
pub(super) fn all(options: &StoreOptions, own: &str, publish: impl Fn(&Checkpoint)) {
    for (instance, file) in dead(&options.folder, own) {
        match finish(options, &instance) {
            Ok(None) => {}
            Ok(Some((interrupted, checkpoint))) => {
                info!(instance, interrupted, "the audit record of a process that was killed is finished");
                publish(&checkpoint);
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
            let file = File::open(&path).ok()?;
            (instance != own && file.try_lock().is_ok()).then_some((instance, (path, file)))
        })
        .collect()
}

fn finish(options: &StoreOptions, instance: &str) -> Result<Option<(usize, Checkpoint)>, StoreError> {
    let mut files = segment_files(&options.folder);
    files.retain(|path| name(path).is_some_and(|name| name.starts_with(&format!("{instance}."))));
    let Some(last) = files.last() else { return Ok(None) };
    if is_sealed(last)? {
        return Ok(None);
    }
    let mut open = Vec::new();
    for file in &files {
        collect_open(file, &mut open)?;
    }
    let mut segment = Segment::resume(last)?;
    if segment.count() == 0 && open.is_empty() && segment.header().index == 1 {
        segment.discard();
        return Ok(None);
    }
    let now = options.clock.wall();
    let mut calls = OpenCalls::default();
    for (id, seq, _) in &open {
        calls.open(*id, *seq);
    }
    let texts: Vec<String> = open.into_iter().map(|(_, _, text)| text).collect();
    let mut ends = keeper::ends(&texts, now);
    segment.append(&mut ends, &mut calls).map_err(|error| StoreError::database(last, &error))?;
    Ok(Some((ends.len(), segment.seal(now, options.signer.as_ref())?)))
}

/// Adds the enters of a segment that have no exit, and takes those out that it has the exit of.
fn collect_open(file: &Path, open: &mut Vec<(CorrelationId, u64, String)>) -> Result<(), StoreError> {
    let broken = |error: rusqlite::Error| StoreError::database(file, &error);
    let connection = connect(file, true)?;
    let mut statement = connection.prepare("SELECT body FROM rows ORDER BY seq").map_err(broken)?;
    let mut rows = statement.query([]).map_err(broken)?;
    while let Some(row) = rows.next().map_err(broken)? {
        let text: String = row.get(0).map_err(broken)?;
        // A row that was tampered with is the verifier's to report.
        let Ok(row) = serde_json::from_str::<Row>(&text) else { continue };
        match (row.kind == ENTER, row.enter, CorrelationId::parse(&row.correlation_id)) {
            (true, _, Some(id)) => open.push((id, row.seq, text)),
            // Calls end soon after they began: the search from behind is short.
            (false, Some(enter), _) => {
                if let Some(at) = open.iter().rposition(|(_, seq, _)| *seq == enter) {
                    open.remove(at);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether no row may follow.
pub(crate) fn is_sealed(file: &Path) -> Result<bool, StoreError> {
    let connection = connect(file, false)?;
    let last: Option<String> = connection
        .query_row("SELECT body FROM checkpoints ORDER BY rowid DESC LIMIT 1", [], |row| row.get(0))
        .optional()
        .map_err(|error| StoreError::database(file, &error))?;
    Ok(last.and_then(|text| serde_json::from_str::<Checkpoint>(&text).ok()).is_some_and(|last| last.sealed))
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

pub(super) fn name(path: &Path) -> Option<&str> {
    path.file_stem()?.to_str()
}
