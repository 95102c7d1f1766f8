//! What is no longer kept: sealed segments that are too old, and the oldest ones when all take too much.
//!
//! Segments go as a whole, so what stays can be verified; that one went is written where the checkpoints are,
//! because a file that is simply missing looks like a theft.

use std::path::PathBuf;

use serde_json::json;
use tracing::{info, warn};

use super::recover::{is_sealed, name, segment_files};
use super::{StoreOptions, keeper};
use crate::row::time_text;

pub(super) fn run(options: &StoreOptions, own: &str) {
    if options.keep_for.is_none() && options.keep_bytes.is_none() {
        return;
    }
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |data| data.len());
    let files = segment_files(&options.folder);
    let mut total: u64 = files.iter().map(size).sum();
    for file in files {
        let Some(segment) = name(&file).map(str::to_owned) else { continue };
        let too_much = options.keep_bytes.is_some_and(|most| total > most);
        // One that cannot be read is not ours to judge.
        if !(too_much || is_old(options, &file)) || !is_sealed(&file).unwrap_or(false) {
            continue;
        }
        let bytes = size(&file);
        match std::fs::remove_file(&file) {
            Ok(()) => {
                total = total.saturating_sub(bytes);
                info!(segment, bytes, instance = own, "an audit segment is no longer kept");
                let line = json!({"removed": segment, "time": time_text(options.clock.wall())});
                if let Err(error) = keeper::append_line(&options.checkpoint_path(), &line.to_string()) {
                    warn!(%error, "the removal of an audit segment could not be noted");
                }
            }
            Err(error) => warn!(%error, segment, "an audit segment that is no longer kept cannot be removed"),
        }
    }
}

/// By the wall clock: a file from the future, after the clock was set back, is not old.
fn is_old(options: &StoreOptions, file: &PathBuf) -> bool {
    let Some(limit) = options.keep_for else { return false };
    let Ok(changed) = std::fs::metadata(file).and_then(|data| data.modified()) else { return false };
    let now = std::time::SystemTime::from(options.clock.wall());
    now.duration_since(changed).is_ok_and(|age| age > limit)
}
