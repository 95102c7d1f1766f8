//! Removes sealed segments that are too old, and the oldest ones when all take too much space.
//!
//! Segments are removed whole, so the rest can still be verified. A note among the checkpoints records each removal before
//! it happens, because a file that is simply missing counts as stolen. The seal gives a segment's age: anyone can set the
//! times of a file.

use std::collections::BTreeSet;

use tracing::{info, warn};

use super::backend::Store;
use super::recover::sound_seal;
use super::{StoreError, StoreOptions, journal, keeper};
use crate::row::time_text;
use crate::{Checkpoint, Removal, read_checkpoints};

pub(super) fn run(store: &dyn Store, options: &StoreOptions, own: &str) {
    if options.keep_for.is_none() && options.keep_bytes.is_none() {
        return;
    }
    if let Err(error) = retain(store, options, own) {
        warn!(%error, "audit retention failed: the segments cannot be listed");
    }
}

fn retain(store: &dyn Store, options: &StoreOptions, own: &str) -> Result<(), StoreError> {
    let segments = store.segments()?;
    sweep(store, options, &segments);
    let mut total: u64 = segments.iter().map(|segment| store.bytes(segment)).sum();
    for segment in segments {
        let too_much = options.keep_bytes.is_some_and(|most| total > most);
        if !too_much && options.keep_for.is_none() {
            continue;
        }
        // Leaves alone a segment that cannot be read or whose seal was changed.
        let Some(seal) = sound_seal(store, &segment) else { continue };
        let reason = match (is_old(options, &seal), too_much) {
            (true, _) => "age",
            (false, true) => "size",
            (false, false) => continue,
        };
        let bytes = store.bytes(&segment);
        if let Err(error) = note(options, own, &seal, reason) {
            warn!(%error, segment = seal.segment, "an audit segment is kept: its removal cannot be noted");
            continue;
        }
        match remove(store, options, &segment) {
            Ok(()) => {
                total = total.saturating_sub(bytes);
                info!(segment = seal.segment, bytes, reason, "removed an audit segment");
            }
            Err(error) => {
                warn!(%error, segment = seal.segment, "an audit segment cannot be removed");
            }
        }
    }
    Ok(())
}

/// Uses the wall clock: after the clock was set back, a segment from the future is not old.
fn is_old(options: &StoreOptions, seal: &Checkpoint) -> bool {
    let Some(limit) = options.keep_for else { return false };
    let Ok(sealed) = seal.time.parse::<jiff::Timestamp>() else { return false };
    let age = options.clock.wall().duration_since(sealed);
    std::time::Duration::try_from(age).is_ok_and(|age| age > limit)
}

/// Notes a removal before it happens: a note without a removal does no harm.
fn note(options: &StoreOptions, own: &str, seal: &Checkpoint, reason: &str) -> std::io::Result<()> {
    let time = time_text(options.clock.wall());
    let mut removal = Removal::of(seal, own, reason, time);
    if let Some(signer) = &options.signer {
        signer.sign_removal(&mut removal);
    }
    keeper::append_line(options, &removal.text())
}

/// Removes a segment, and its journal if there is one left.
fn remove(store: &dyn Store, options: &StoreOptions, segment: &str) -> Result<(), StoreError> {
    store.remove(segment)?;
    // Usually there is none.
    let _ = journal::remove(&journal::path_of(&options.folder, segment));
    Ok(())
}

/// Removes the remains of segments whose removal was noted but interrupted by a kill. Remains without a note stay: they may
/// be all that is left of a stolen segment.
fn sweep(store: &dyn Store, options: &StoreOptions, segments: &[String]) {
    let entries = std::fs::read_dir(&options.folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let journals = names.filter_map(|name| journal::segment_of(&name).map(str::to_owned));
    let mut left: BTreeSet<String> = journals.filter(|journal| !segments.contains(journal)).collect();
    left.extend(store.remnants());
    if left.is_empty() {
        // The usual case; reading the notes may take long.
        return;
    }
    let Ok(notes) = read_checkpoints(&options.checkpoint_path()) else { return };
    for segment in left.iter().filter(|it| notes.removed.iter().any(|note| note.removed == **it)) {
        let _ = store.remove(segment);
        let _ = journal::remove(&journal::path_of(&options.folder, segment));
    }
}
