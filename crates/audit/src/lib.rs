//! The store that keeps what happened to calls, and what checks it.
//!
//! [`SqliteSink`] keeps the two events of a call (`bridgehead-call`) in files whose rows form a hash chain under Merkle
//! checkpoints. When a call enters and exits is the business of the gate in the gateway; this crate knows no transport, no
//! runtime and no tool.
//!
//! What must stay true: what the store wrote can be checked without it (`docs/audit.md`).

mod ahead;
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

pub use bridgehead_call::{
    About, AuditError, AuditSink, Call, Clock, CorrelationId, Enter, EnterFuture, Era, Exit, Moment,
    NoopSink, Outcome, SystemClock, Ticket,
};
pub use calls::{RecordedCall, read_calls};
pub use checkpoint::{Checkpoint, KeyError, PublicKey, Removal, Signer};
pub use hash::Hash;
pub use proof::{Proof, ProofError};
pub use records::{
    CheckpointFile, ReadError, Record, RecordKind, read_checkpoints, read_export, read_segment, segments,
    write_line,
};
pub use row::{INTERRUPTED, Payloads, Row};
pub use store::{
    CHECKPOINT_AFTER, CHECKPOINT_FILE, Header, OnCheckpoint, OnFailure, SqliteSink, StoreError, StoreOptions,
};
pub use verify::{Expected, Problem, Verified, Verifier};
