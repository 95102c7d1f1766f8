//! Failures of disks, locks, clocks and sizes.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_audit::{AuditSink, Clock, CorrelationId, StoreError, StoreOptions, StoreSink, segments};
use rusqlite::Connection;

use crate::support::{block_on, call, enter_of, eventually, exit_of, open, rows, verify, written};

/// A folder that cannot be used gives an error that names it and the cure.
#[test]
fn a_folder_that_cannot_be_used_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = StoreSink::open(StoreOptions::new(file.join("audit"))).unwrap_err();
    assert!(matches!(&error, StoreError::Folder { .. }));
    assert!(error.to_string().contains("audit.folder"), "{error}");
}

/// A read-only folder gives an error that names it and the cure, also for the superuser.
#[test]
fn a_read_only_folder_is_told() {
    let error = StoreSink::open(StoreOptions::new("/proc")).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("/proc") && said.contains("audit.folder"), "{said}");
}

const DISK: &str = "BRIDGEHEAD_AUDIT_TEST_DISK";

/// The child of the test below: fills the disk of its folder with rows, makes room, and continues.
#[test]
fn child_that_fills_its_disk() {
    let Ok(folder) = std::env::var(DISK) else { return };
    let folder = Path::new(&folder);
    let ballast = folder.join("ballast");
    fs::write(&ballast, vec![0; 256 << 10]).unwrap();
    let sink = StoreSink::open(StoreOptions::new(folder.join("audit"))).unwrap();
    let record = |number| block_on(call(&sink, number));
    let mut answered: Vec<CorrelationId> = Vec::new();
    let refused = loop {
        match record(answered.len()) {
            Ok(id) => answered.push(id),
            Err(error) => break error.to_string(),
        }
        assert!(answered.len() < 1_000_000, "the disk never filled up");
    };
    assert!(refused.contains("the disk is full"), "{refused}");
    assert!(record(0).is_err(), "it stays full");
    fs::remove_file(&ballast).unwrap();
    eventually("calls are recorded again", || record(answered.len()).is_ok());
    sink.close();
    let file = segments(&folder.join("audit")).pop().unwrap();
    assert_eq!(verify(std::slice::from_ref(&file)).1, []);
    let rows = rows(&file);
    let entered: HashSet<&str> =
        rows.iter().filter(|row| row.kind == "enter").map(|row| row.correlation_id.as_str()).collect();
    assert!(answered.iter().all(|id| entered.contains(id.to_string().as_str())), "a confirmed row is lost");
    let exits = rows.iter().filter(|row| row.enter.is_some()).count();
    assert_eq!(exits, entered.len(), "each call has its exit");
    println!("refused after {} calls", answered.len());
}

/// AUD-2, PIPE-4: a really full disk. Calls are refused, no acknowledged row is lost, and with room again recording
/// continues. The disk is a small one in its own mount namespace. Where that is not allowed,
/// `a_full_disk_refuses_and_loses_nothing` covers this with a simulated limit.
#[test]
fn a_full_disk_is_survived() {
    let folder = tempfile::tempdir().unwrap();
    let mount = r#"mount -t tmpfs -o size=1m none "$1" || exit 77; exec "$0" --exact bad::child_that_fills_its_disk --nocapture"#;
    let ran = Command::new("unshare")
        .args(["-Urm", "sh", "-c", mount])
        .arg(std::env::current_exe().unwrap())
        .arg(folder.path())
        .env(DISK, folder.path())
        .output();
    let Ok(ran) = ran else { return };
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    let allowed = ran.status.code() != Some(77) && !said.contains("unshare failed");
    assert!(!allowed || (ran.status.success() && said.contains("refused after")), "{said}");
}

/// A truncated or overwritten segment is reported, and does not prevent the next start from recording.
#[test]
fn a_broken_segment_is_told_and_does_not_stop_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), 50, |_| {});
    let whole = fs::read(&file).unwrap();
    let mut overwritten = whole.clone();
    overwritten[5_000..9_000].fill(0xff);
    for broken in
        [&whole[..whole.len() / 2], &whole[..0], b"not a database at all, but long enough", &overwritten]
    {
        fs::write(&file, broken).unwrap();
        let (_, problems) = verify(std::slice::from_ref(&file));
        assert!(!problems.is_empty());
        // As if its process had been killed.
        fs::write(file.with_extension("").with_extension("lock"), "").unwrap();
        let next = written(folder.path(), 1, |_| {});
        assert_ne!(next, file);
        assert_eq!(rows(&next).len(), 2);
        fs::remove_file(next).unwrap();
    }
}

/// A file of a newer program is left alone.
#[test]
fn a_newer_schema_is_not_guessed_at() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), 1, |_| {});
    Connection::open(&file)
        .unwrap()
        .execute_batch("PRAGMA user_version = 9; DELETE FROM checkpoints")
        .unwrap();
    let lock = file.with_extension("").with_extension("lock");
    fs::write(&lock, "").unwrap();
    written(folder.path(), 1, |_| {});
    assert!(lock.exists(), "the segment is left for a program that knows its schema");
}

struct Jumping(std::sync::atomic::AtomicI64);

impl Clock for Jumping {
    fn wall(&self) -> jiff::Timestamp {
        let back = self.0.fetch_sub(1_000, std::sync::atomic::Ordering::Relaxed);
        jiff::Timestamp::from_second(back).unwrap()
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

/// A wall clock that runs backwards changes neither the order nor the chain.
#[test]
fn a_clock_that_jumps_back_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(Jumping(std::sync::atomic::AtomicI64::new(1_700_000_000)));
    let file = written(folder.path(), 10, |options| {
        options.clock = clock;
        options.keep_for = Some(Duration::from_secs(1));
    });
    assert_eq!(rows(&file).iter().map(|row| row.seq).collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
    assert_eq!(verify(&[file]).1, []);
}

/// AUD-2: payloads of 16 MB are recorded by size and digest, in order, and hold up no call.
#[test]
fn large_payloads_leave_size_and_digest() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path());
    let large = format!("\"{}\"", "x".repeat(16 << 20));
    let enter = enter_of(CorrelationId::mint(), "files__write", &large);
    block_on(async {
        let ticket = sink.enter(&enter).await.unwrap();
        sink.exit(ticket, exit_of(&enter, &large)).unwrap();
        // A call that is cancelled while its row is prepared: it never gets its ticket.
        let gone = enter_of(CorrelationId::mint(), "files__write", &large);
        let mut entering = sink.enter(&gone);
        let polled = entering.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        assert!(polled.is_pending());
    });
    sink.close();
    let rows = rows(&segments(folder.path())[0]);
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.payload.as_ref().is_none_or(|text| text.len() < 10)));
    assert_eq!(rows[0].bytes, Some(large.len() as u64));
    assert_eq!(rows[0].digest, rows[1].digest);
    assert_eq!(rows.iter().filter_map(|row| row.enter).collect::<Vec<_>>(), [1, 3]);
}

/// Only the owner can read the record.
#[test]
fn files_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("new/audit");
    let file = written(&audit, 1, |_| {});
    for path in [&audit, &file, &audit.join("checkpoints.jsonl")] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o077, 0, "{}", path.display());
    }
}
