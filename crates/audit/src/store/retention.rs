//! What is no longer kept: sealed segments that are too old, and the oldest ones when all take too much.
//!
//! Segments go as a whole, so what stays can be verified; that one goes is written where the checkpoints are, before it
//! goes, because a file that is simply missing is a theft. How old one is says its seal: the times of a file are anybody's
//! to set.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use super::files::beside;
use super::recover::{segment_files, sound_seal};
use super::segment::EXTENSION;
use super::{StoreOptions, keeper};
use crate::row::time_text;
use crate::{Checkpoint, Removal, read_checkpoints};

pub(super) fn run(options: &StoreOptions, own: &str) {
    if options.keep_for.is_none() && options.keep_bytes.is_none() {
        return;
    }
    sweep(options);
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |data| data.len());
    let files = segment_files(&options.folder);
    let mut total: u64 = files.iter().map(size).sum();
    for file in files {
        let too_much = options.keep_bytes.is_some_and(|most| total > most);
        if !too_much && options.keep_for.is_none() {
            continue;
        }
        // One that cannot be read, or whose seal was changed, is not ours to judge.
        let Some(seal) = sound_seal(&file) else { continue };
        let reason = match (is_old(options, &seal), too_much) {
            (true, _) => "age",
            (false, true) => "size",
            (false, false) => continue,
        };
        let bytes = size(&file);
        if let Err(error) = note(options, own, &seal, reason) {
            warn!(%error, segment = seal.segment, "an audit segment is kept: its removal cannot be noted");
            continue;
        }
        match remove(&file) {
            Ok(()) => {
                total = total.saturating_sub(bytes);
                info!(segment = seal.segment, bytes, reason, "an audit segment is no longer kept");
            }
            Err(error) => {
                warn!(%error, segment = seal.segment, "an audit segment that is no longer kept cannot be removed");
            }
        }
    }
}

/// By the wall clock: a segment from the future, after the clock was set back, is not old.
fn is_old(options: &StoreOptions, seal: &Checkpoint) -> bool {
    let Some(limit) = options.keep_for else { return false };
    let Ok(sealed) = seal.time.parse::<jiff::Timestamp>() else { return false };
    let age = options.clock.wall().duration_since(sealed);
    std::time::Duration::try_from(age).is_ok_and(|age| age > limit)
}

/// Before it is done: a note without a removal harms nobody.
fn note(options: &StoreOptions, own: &str, seal: &Checkpoint, reason: &str) -> std::io::Result<()> {
    let time = time_text(options.clock.wall());
    let mut removal = Removal::of(seal, own, reason, time);
    if let Some(signer) = &options.signer {
        signer.sign_removal(&mut removal);
    }
    keeper::append_line(options, &removal.text())
}

/// The segment, and what may be left beside it.
fn remove(segment: &Path) -> std::io::Result<()> {
    std::fs::remove_file(segment)?;
    for file in beside(segment) {
        // As a rule there is none.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Removes what a kill between two steps left beside a segment that is gone, as a note says. Without a note it may be all
/// that is left of one that was stolen.
fn sweep(options: &StoreOptions) {
    let entries = std::fs::read_dir(&options.folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let left: BTreeSet<String> = names.filter_map(|name| segment_beside(&name).map(str::to_owned)).collect();
    let file = |segment: &str| options.folder.join(format!("{segment}.{EXTENSION}"));
    let left: Vec<String> = left.into_iter().filter(|segment| !file(segment).exists()).collect();
    if left.is_empty() {
        // As a rule. The notes may be long.
        return;
    }
    let Ok(notes) = read_checkpoints(&options.checkpoint_path()) else { return };
    for segment in left.iter().filter(|it| notes.removed.iter().any(|note| note.removed == **it)) {
        beside(&file(segment)).iter().for_each(|file| drop(std::fs::remove_file(file)));
    }
}

/// The segment that a file of this name stands beside.
fn segment_beside(name: &str) -> Option<&str> {
    ["-wal", "-shm", "-journal"]
        .iter()
        .find_map(|ending| name.strip_suffix(ending)?.strip_suffix(EXTENSION)?.strip_suffix('.'))
        .or_else(|| name.strip_suffix(".rows"))
}
