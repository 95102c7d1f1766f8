//! A proof that a row is in the record: the row, the path up to a root, and the checkpoint that states the root. A reader
//! who holds the checkpoint, or trusts the key that signed it, needs nothing else.

use serde::{Deserialize, Serialize};

use crate::archive::{StoredSegment, read_segment};
use crate::merkle::{path, root_from};
use crate::records::{ReadError, RecordKind, number_of};
use crate::{Checkpoint, Hash, PublicKey, Row};

/// Proves that one row is under the root of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// The version of this format.
    pub format: u32,
    /// The row's text, byte for byte.
    pub row: String,
    /// Its index in the segment, from 0.
    pub index: u64,
    /// The siblings on the way up, the nearest first.
    pub path: Vec<Hash>,
    /// The checkpoint that states the root.
    pub checkpoint: Checkpoint,
}

/// Why a proof cannot be made, or does not hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The segment cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no such row.
    #[error("the segment has no row {0}")]
    NoRow(u64),
    /// The row is too new.
    #[error(
        "no checkpoint covers row {row} yet; one is made within a minute of a row, and when the gateway stops"
    )]
    NotCovered {
        /// Its number.
        row: u64,
        /// The time of the first row that no checkpoint covers. The next checkpoint comes
        /// [`CHECKPOINT_AFTER`](crate::CHECKPOINT_AFTER) after it, if its gateway still runs.
        since: Option<jiff::Timestamp>,
    },
    /// The proof does not hold.
    #[error("the proof does not hold: {0}")]
    Wrong(String),
}

impl Proof {
    /// Proves row `seq` of a segment by the first checkpoint that covers it.
    ///
    /// # Errors
    /// When there is no such row or no such checkpoint.
    pub fn of(segment: impl Into<StoredSegment>, seq: u64) -> Result<Self, ProofError> {
        let mut leaves = Vec::new();
        let mut row = None;
        let mut covering: Option<Checkpoint> = None;
        // The text of the first row after the last checkpoint.
        let mut uncovered: Option<Vec<u8>> = None;
        read_segment(segment, |record| {
            match record.kind {
                RecordKind::Row => {
                    // A row in the journal has its number only in its text.
                    if record.seq.or_else(|| number_of(&record.text)) == Some(seq) {
                        row = Some((leaves.len(), String::from_utf8_lossy(&record.text).into_owned()));
                    }
                    leaves.push(Hash::leaf(&record.text));
                    uncovered.get_or_insert_with(|| record.text.clone());
                }
                RecordKind::Checkpoint => {
                    uncovered = None;
                    if covering.is_none() && row.is_some() {
                        covering = serde_json::from_slice(&record.text).ok();
                    }
                }
                RecordKind::Header => {}
            }
            Ok(())
        })?;
        let (index, row) = row.ok_or(ProofError::NoRow(seq))?;
        let not_covered = || {
            let first = uncovered.as_ref().and_then(|text| serde_json::from_slice::<Row>(text).ok());
            ProofError::NotCovered { row: seq, since: first.and_then(|row| row.time.parse().ok()) }
        };
        let checkpoint = covering.ok_or_else(not_covered)?;
        let count = usize::try_from(checkpoint.count).unwrap_or(usize::MAX).min(leaves.len());
        let path = path(&leaves[..count], index).ok_or_else(not_covered)?;
        let proof = Self { format: 1, row, index: index as u64, path, checkpoint };
        proof.check(None, None).map(|_| proof)
    }

    /// Checks the proof without any segment: the row must lead to the root of the checkpoint. Where `key` is given the
    /// checkpoint must be signed with it, and where `root` is given it must have that root.
    ///
    /// # Errors
    /// Why the proof does not hold.
    pub fn check(&self, key: Option<&PublicKey>, root: Option<Hash>) -> Result<Row, ProofError> {
        let wrong = |what: &str| ProofError::Wrong(what.to_owned());
        if self.format != 1 {
            return Err(wrong("its format is not known"));
        }
        let leaf = Hash::leaf(self.row.as_bytes());
        let reached = root_from(leaf, self.index, self.checkpoint.count, &self.path);
        if reached != Some(self.checkpoint.root) {
            return Err(wrong("the row is not under the root of the checkpoint"));
        }
        if root.is_some_and(|root| root != self.checkpoint.root) {
            return Err(wrong("the checkpoint has another root than the expected one"));
        }
        self.checkpoint
            .check_signature(key.map(std::slice::from_ref).unwrap_or_default())
            .map_err(|what| wrong(&format!("the checkpoint: {what}")))?;
        serde_json::from_str(&self.row).map_err(|_| wrong("the row cannot be read"))
    }
}
