//! Keeps the audit record of calls, and verifies it.
//!
//! [`StoreSink`] keeps the two events of a call (`bridgehead-call`) in a [`Store`], as rows that form a hash chain under
//! Merkle checkpoints; an [`Archive`] reads them. The gate in the gateway decides when a call enters and exits; this crate
//! knows no transport, no runtime and no tool.
//!
//! What must stay true: rows that the store wrote can be verified without it (`docs/audit.md`).

mod ahead;
mod archive;
mod calls;
mod checkpoint;
mod hash;
mod merkle;
mod pairs;
mod proof;
mod records;
mod row;
mod store;
mod verify;

pub use ahead::RecordSource;
pub use archive::{Archive, StoredSegment, read_segment};
pub use bridgehead_call::{
    About, AuditError, AuditSink, Call, Clock, CorrelationId, Enter, EnterFuture, Era, Exit, Moment,
    NoopSink, Outcome, SystemClock, Ticket,
};
pub use bridgehead_wire::{Redactor, RuleError, Rules};
pub use calls::{RecordedCall, read_calls};
pub use checkpoint::{Checkpoint, KeyError, PublicKey, Removal, Signer};
pub use hash::Hash;
pub use proof::{Proof, ProofError};
pub use records::{CheckpointFile, ReadError, Record, RecordKind, read_checkpoints, read_export, write_line};
pub use row::{INTERRUPTED, Payloads, Row};
pub use store::{
    Appender, Blank, CHECKPOINT_AFTER, CHECKPOINT_FILE, Frame, Header, MemoryStore, NewRow, OnCheckpoint,
    OnFailure, OnLag, Snapshot, SqliteFiles, Store, StoreError, StoreOptions, StoreSink, TakeRecord,
    segments,
};
pub use verify::{Expected, Problem, Verified, Verifier};
