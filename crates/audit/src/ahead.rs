//! Verifies files on all processors: each is read and hashed by a thread of its own, and judged in its turn.
//!
//! What a thread has read ahead waits in a bounded queue that holds about a segment. The judging, which needs the
//! order, is the cheap part.

use std::collections::VecDeque;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::available_parallelism;

use crate::records::{ReadError, read_export, read_segment};
use crate::verify::{Seen, Verifier};

/// How many records travel at once.
const BATCH: usize = 512;
/// How many batches wait for their turn.
const WAITING: usize = 256;

/// What a thread hands over.
type Found = Result<Vec<Seen>, ReadError>;

impl Verifier {
    /// Checks segments (`*.sqlite`) and exports (`*.jsonl`), in this order. A file that cannot be read is a
    /// problem like any other.
    pub fn read(&mut self, files: &[PathBuf]) {
        let threads = available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| {
            let mut left = files.iter();
            let mut reading: VecDeque<(&PathBuf, Receiver<Found>)> = VecDeque::new();
            loop {
                while reading.len() < threads
                    && let Some(file) = left.next()
                {
                    let (found, judged) = sync_channel(WAITING);
                    scope.spawn(move || read(file, &found));
                    reading.push_back((file, judged));
                }
                let Some((file, found)) = reading.pop_front() else { return };
                for batch in found {
                    match batch {
                        Ok(batch) => batch.iter().for_each(|seen| self.judge(seen)),
                        Err(error) => self.report(&file.display().to_string(), error.to_string()),
                    }
                }
            }
        });
    }
}

fn read(file: &Path, found: &SyncSender<Found>) {
    let mut batch = Vec::with_capacity(BATCH);
    let take = |record: &_| {
        batch.push(Seen::of(record));
        if batch.len() == BATCH {
            // Whoever judges takes everything, so this cannot fail.
            let _ = found.send(Ok(std::mem::replace(&mut batch, Vec::with_capacity(BATCH))));
        }
        Ok(())
    };
    let exported = file.extension().is_some_and(|ending| ending == "jsonl");
    let read = if exported { read_export(file, take) } else { read_segment(file, take) };
    let _ = found.send(Ok(batch));
    if let Err(error) = read {
        let _ = found.send(Err(error));
    }
}
