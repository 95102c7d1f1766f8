//! What happened to a call, told in two immutable events, and the store that keeps them.
//!
//! [`Enter`] says who is about to call what and with which arguments, [`Exit`] how it ended and how long it
//! took; what ties them is the [`Ticket`] that the sink gave for the enter. An [`AuditSink`] keeps them: [`SqliteSink`] in files whose rows
//! form a hash chain under Merkle checkpoints. When a call enters and exits is the business of the chain in
//! the gateway; this crate knows no transport, no runtime and no tool.
//!
//! What must stay true: an event cannot be changed once it is built, durations come from the monotonic clock
//! and never from the difference of two wall times, [`NoopSink`] costs a call no allocation, and what the
//! store wrote can be checked without it (`docs/audit.md`).

mod ahead;
mod calls;
mod checkpoint;
mod clock;
mod event;
mod hash;
mod merkle;
mod pairs;
mod proof;
mod records;
mod row;
mod sink;
mod store;
mod verify;

pub use bridgehead_wire::Era;
pub use calls::{RecordedCall, read_calls};
pub use checkpoint::{Checkpoint, KeyError, PublicKey, Removal, Signer};
pub use clock::{Clock, Moment, SystemClock};
pub use event::{About, Call, CorrelationId, Enter, Exit, Outcome, Ticket};
pub use hash::Hash;
pub use proof::{Proof, ProofError};
pub use records::{
    CheckpointFile, ReadError, Record, RecordKind, read_checkpoints, read_export, read_segment, segments,
    write_line,
};
pub use row::{INTERRUPTED, Payloads, Row};
pub use sink::{AuditError, AuditSink, EnterFuture, NoopSink};
pub use store::{
    CHECKPOINT_AFTER, CHECKPOINT_FILE, Header, OnCheckpoint, OnFailure, SqliteSink, StoreError, StoreOptions,
};
pub use verify::{Expected, Problem, Verified, Verifier};
