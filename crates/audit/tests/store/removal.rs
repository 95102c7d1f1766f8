//! What retention removes, and which folders the store accepts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bridgehead_audit::{
    Archive, AuditSink, CHECKPOINT_FILE, Clock, CorrelationId, Problem, PublicKey, Signer, StoreError,
    StoreOptions, StoreSink, Verifier, read_checkpoints, segments,
};
use rusqlite::Connection;

use crate::support::{open, python_verifies, verify, written};

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// A clock that is late by this much.
pub(crate) struct Late(pub(crate) Duration);

impl Clock for Late {
    fn wall(&self) -> jiff::Timestamp {
        jiff::Timestamp::now() - self.0
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

fn name(file: &Path) -> &str {
    file.file_stem().unwrap().to_str().unwrap()
}

/// What `audit verify` finds in a folder.
fn verify_folder(folder: &Path, key: Option<PublicKey>) -> Vec<Problem> {
    let mut verifier = Verifier::new(key);
    let stated = read_checkpoints(&folder.join(CHECKPOINT_FILE)).unwrap();
    assert!(stated.unknown.is_empty());
    stated.checkpoints.iter().for_each(|checkpoint| verifier.keep(checkpoint));
    stated.removed.into_iter().for_each(|removal| verifier.explain(removal));
    verifier.read(&segments(folder));
    verifier.finish_folder().1
}

fn beside(segment: &Path) -> [PathBuf; 4] {
    let ending = |ending: &str| segment.with_extension(format!("sqlite{ending}"));
    [ending("-wal"), ending("-shm"), ending("-journal"), segment.with_extension("rows")]
}

/// ACC-5: whoever wants the newest rows need not read what was sealed before; a segment that grows is read with its journal.
#[test]
fn rows_since_a_time() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 3, |options| options.clock = Arc::new(Late(2 * HOUR)));
    written(folder.path(), 2, |_| {});
    let open = open(folder.path());
    let enter = crate::support::enter_of(CorrelationId::mint(), "files__read", "{}");
    crate::support::block_on(open.enter(&enter)).unwrap();
    let count = |since: Duration| -> Vec<usize> {
        let since = jiff::Timestamp::now() - since;
        let rows = |segment: &bridgehead_audit::StoredSegment| {
            let mut rows = 0;
            let take = |_: &bridgehead_audit::Record| {
                rows += 1;
                Ok(())
            };
            segment.rows_since(since, take).unwrap();
            rows
        };
        Archive::in_folder(folder.path()).segments().unwrap().iter().map(rows).collect()
    };
    assert_eq!(count(HOUR), [0, 4, 1]);
    assert_eq!(count(3 * HOUR), [6, 4, 1]);
    assert_eq!(count(Duration::ZERO), [0, 0, 1]);
    open.close();
}

/// WALL-9, AUD-6: the seal gives a segment's age, not the times of its file, which anyone can set. A segment is removed
/// with all its files, and the note about it satisfies the verifier.
#[test]
fn a_segment_is_as_old_as_its_seal() {
    let folder = tempfile::tempdir().unwrap();
    let old = written(folder.path(), 3, |options| options.clock = Arc::new(Late(2 * HOUR)));
    let young = written(folder.path(), 3, |_| {});
    let future = written(folder.path(), 3, |options| options.clock = Arc::new(Late(Duration::ZERO)));
    for (file, time) in [(&old, SystemTime::now() + HOUR), (&young, SystemTime::now() - 2 * HOUR)] {
        fs::File::options().append(true).open(file).unwrap().set_modified(time).unwrap();
    }
    beside(&old).iter().for_each(|file| fs::write(file, "").unwrap());
    let last = written(folder.path(), 1, |options| options.keep_for = Some(HOUR));
    assert_eq!(segments(folder.path()), [young, future, last]);
    assert!(!beside(&old).iter().any(|file| file.exists()));
    assert_eq!(verify_folder(folder.path(), None), []);
    let notes = read_checkpoints(&folder.path().join(CHECKPOINT_FILE)).unwrap().removed;
    // As if a kill had interrupted the removal. Files without a segment and without a note are left alone.
    let stolen = beside(&old.with_file_name("stolen.0001.sqlite"));
    beside(&old).iter().chain(&stolen).for_each(|file| fs::write(file, "").unwrap());
    written(folder.path(), 1, |options| options.keep_for = Some(HOUR));
    assert!(!beside(&old).iter().any(|file| file.exists()) && stolen.iter().all(|file| file.exists()));
    for left in beside(&old) {
        fs::write(&left, "").unwrap();
        written(folder.path(), 1, |options| options.keep_for = Some(HOUR));
        assert!(!left.exists(), "{left:?} should have been removed");
    }
    let note = &notes[0];
    assert_eq!((notes.len(), note.removed.as_str(), note.count), (1, name(&old), Some(6)));
    assert_eq!((note.reason.as_deref(), note.sealed.is_some()), (Some("age"), true));
}

/// AUD-6: when segments take too much space the oldest is removed, and only one whose seal is intact.
#[test]
fn of_too_much_the_oldest_goes() {
    let folder = tempfile::tempdir().unwrap();
    let [changed, first, second] = [(); 3].map(|()| written(folder.path(), 100, |_| {}));
    let change = "UPDATE checkpoints SET body = replace(body, ':true', ': true')";
    Connection::open(&changed).unwrap().execute_batch(change).unwrap();
    let size = fs::metadata(&second).unwrap().len();
    let third = written(folder.path(), 100, |options| options.keep_bytes = Some(size * 7 / 2));
    assert_eq!(segments(folder.path()), [changed, second, third]);
    let notes = read_checkpoints(&folder.path().join(CHECKPOINT_FILE)).unwrap().removed;
    assert_eq!((notes[0].removed.as_str(), notes[0].reason.as_deref()), (name(&first), Some("size")));
}

/// Several segments of one instance.
fn several(folder: &Path, signer: Option<Signer>) -> Vec<PathBuf> {
    let mut options = StoreOptions::new(folder);
    (options.segment_bytes, options.signer) = (4_000, signer);
    let sink = StoreSink::open(options).unwrap();
    crate::support::eventually("a fourth segment begins", || {
        crate::support::block_on(crate::support::call(&sink, 1)).unwrap();
        segments(folder).len() >= 4
    });
    sink.close();
    segments(folder)
}

/// WALL-9: a removal without a note is found: by the checkpoints of the segment or, if those are gone too, by the segment
/// after it. A note that does not fit explains nothing.
#[test]
fn a_removal_without_a_note_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let files = several(folder.path(), None);
    let beside = folder.path().join(CHECKPOINT_FILE);
    let lines = fs::read_to_string(&beside).unwrap();
    fs::remove_file(&files[0]).unwrap();
    let first = name(&files[0]);
    let problems = verify_folder(folder.path(), None);
    assert!(problems.len() == 1 && problems[0].segment == first, "{problems:?}");
    assert!(problems[0].what.contains("there is no note"), "{problems:?}");

    let without: Vec<&str> = lines.split_inclusive('\n').filter(|line| !line.contains(first)).collect();
    fs::write(&beside, without.concat()).unwrap();
    assert_eq!(verify_folder(folder.path(), None), problems, "the segment after it shows the gap");

    let old_note = format!("{{\"removed\":\"{first}\",\"time\":\"2026-11-15T12:00:00.000000Z\"}}\n");
    fs::write(&beside, format!("{lines}{old_note}")).unwrap();
    assert_eq!(verify_folder(folder.path(), None), [], "a note of an older version");
    let other = old_note.replace("}\n", &format!(",\"count\":1,\"head\":\"{}\"}}\n", "0".repeat(64)));
    fs::write(&beside, format!("{lines}{other}")).unwrap();
    let problems = verify_folder(folder.path(), None);
    assert!(problems[0].what.contains("does not fit"), "{problems:?}");
}

/// WALL-9: where checkpoints are signed, removal notes are too, and one with a wrong signature explains nothing.
#[test]
fn a_note_is_signed_where_checkpoints_are() {
    let folder = tempfile::tempdir().unwrap();
    let (secret, public) = (folder.path().join("secret"), folder.path().join("public"));
    fs::write(&secret, "11".repeat(32)).unwrap();
    let signer = || Signer::read(&secret).unwrap();
    fs::write(&public, signer().public().to_string()).unwrap();
    let key = || Some(PublicKey::read(&public).unwrap());
    let audit = folder.path().join("audit");
    let files = several(&audit, Some(signer()));
    let total: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    written(&audit, 1, |options| {
        (options.keep_bytes, options.signer) = (Some(total / 2), Some(signer()));
    });
    assert!(!segments(&audit).contains(&files[0]));
    assert_eq!(verify_folder(&audit, key()), []);
    let beside = audit.join(CHECKPOINT_FILE);
    let lines = fs::read_to_string(&beside).unwrap();
    fs::write(&beside, lines.replace("\"reason\":\"size\"", "\"reason\":\"age\"")).unwrap();
    let problems = verify_folder(&audit, None);
    assert!(problems.iter().any(|it| it.what.contains("signature is wrong")), "{problems:?}");
    assert!(problems.iter().any(|it| it.what.contains("there is no note")), "{problems:?}");
}

/// WALL-9: a folder that others may write to, or that belongs to another user, is refused with the cure.
#[test]
fn a_folder_of_others_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for mode in [0o770, 0o707, 0o1777] {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        let error = StoreSink::open(StoreOptions::new(folder.path())).unwrap_err();
        assert!(matches!(error, StoreError::Unsafe { .. }));
        let said = error.to_string();
        assert!(said.contains("chmod go-w") && said.contains("audit.folder"), "{said}");
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    open(folder.path()).close();
    // Only the superuser can give a folder away; other users skip this.
    if std::os::unix::fs::chown(folder.path(), Some(12_345), None).is_ok() {
        let said = StoreSink::open(StoreOptions::new(folder.path())).unwrap_err().to_string();
        assert!(said.contains("belongs to user 12345"), "{said}");
        std::os::unix::fs::chown(folder.path(), Some(0), None).unwrap();
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the folder is still empty");
}

/// WALL-9: links in the folder are not followed, though the folder itself may be behind one. Only its owner can read the
/// lock.
#[test]
fn links_in_the_folder_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    let folder = outside.path().join("audit");
    let real = outside.path().join("real");
    fs::create_dir(&real).unwrap();
    symlink(&real, &folder).unwrap();
    symlink(&victim, real.join(CHECKPOINT_FILE)).unwrap();
    symlink(&victim, real.join("0199d0a5-6f2b-7c3e-8d4f-0123456789ab.lock")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let sound = written(elsewhere.path(), 1, |_| {});
    let link = real.join("0199d0a5-6f2b-7c3e-8d4f-0123456789ab.0001.sqlite");
    symlink(&sound, &link).unwrap();

    let sink = open(&folder);
    let lock = real.join(format!("{}.lock", sink.instance()));
    assert_eq!(fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
    crate::support::block_on(crate::support::call(&sink, 1)).unwrap();
    sink.close();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    let own = segments(&folder).pop().unwrap();
    assert_eq!(verify(std::slice::from_ref(&own)).1, []);
    assert!(python_verifies(&[own.to_str().unwrap()]));
    assert_eq!(verify(std::slice::from_ref(&link)).1.len(), 1, "a link is not a segment");
}
