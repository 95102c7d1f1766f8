//! How values of the record are printed, and what reading a missing file gives.

use bridgehead_audit::{AuditSink, CorrelationId, Hash, NoopSink, Signer, read_checkpoints};

use crate::support::enter_of;

/// AUD-3: a hash is shown as its digits, a signer by its public key and an event without its arguments.
#[test]
fn values_are_shown_without_secrets() {
    let digits = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    assert_eq!(format!("{:?}", Hash::of(b"hello")), digits);

    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "11".repeat(32)).unwrap();
    let signer = Signer::read(&key).unwrap();
    assert_eq!(format!("{signer:?}"), format!("Signer({})", signer.public()));

    let enter = enter_of(CorrelationId::mint(), "files__read", r#"{"path":"hunter2"}"#);
    let shown = format!("{enter:?}");
    assert!(shown.starts_with("Enter { call: Call { tool: \"files__read\""), "{shown}");
    assert!(shown.contains("arguments: <18 bytes>") && shown.ends_with("validated: true }"), "{shown}");
}

/// AUD-1: a sink that keeps nothing has no instance.
#[test]
fn the_noop_sink_has_no_instance() {
    assert_eq!((NoopSink.instance(), NoopSink.keeps()), (None, false));
}

/// AUD-3: a missing file of checkpoints counts as empty, and an unreadable one is an error.
#[test]
fn a_file_of_checkpoints_that_cannot_be_read_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let none = read_checkpoints(&folder.path().join("none.jsonl")).unwrap();
    assert!(none.checkpoints.is_empty() && none.removed.is_empty() && none.unknown.is_empty());
    let error = read_checkpoints(folder.path()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot read {}: ", folder.path().display())), "{error}");
}
