//! What the store keeps, across threads, kills, segments and instances.

use std::collections::HashSet;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use bridgehead_audit::{
    AuditSink, CHECKPOINT_FILE, CorrelationId, INTERRUPTED, OnFailure, Payloads, Proof, PublicKey, Signer,
    StoreOptions, StoreSink, Verifier, read_checkpoints, segments,
};
use parking_lot::Mutex;

use crate::support::{block_on, call, enter_of, eventually, exit_of, open, rows, verify, written};

/// AUD-2, AUD-3, AUD-6: the defaults of a store with nothing but a folder.
#[test]
fn a_store_has_these_defaults() {
    let usual = StoreOptions::new("/record");
    assert_eq!((usual.payloads, usual.on_failure), (Payloads::Redacted, OnFailure::Refuse));
    assert_eq!((usual.checkpoint_rows, usual.checkpoint_after), (1024, Duration::from_secs(60)));
    assert_eq!((usual.segment_bytes, usual.segment_age), (64 << 20, Duration::from_secs(24 * 60 * 60)));
    assert_eq!((usual.keep_for, usual.keep_bytes), (None, None), "no limit");
    assert!(usual.signer.is_none() && usual.checkpoint_file.is_none() && usual.on_checkpoint.is_none());
}

/// AUD-2: an enter is in the file when its wait ends, while the store still runs; exits follow by themselves.
#[test]
fn an_enter_is_committed_before_the_call_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path());
    let id = block_on(call(&sink, 1)).unwrap();
    let file = segments(folder.path()).pop().unwrap();
    assert_eq!(rows(&file)[0].correlation_id, id.to_string());
    eventually("the exit is written without another call", || rows(&file).len() == 2);
    let exit = rows(&file).pop().unwrap();
    assert_eq!((exit.kind.as_str(), exit.enter, exit.outcome.as_deref()), ("exit", Some(1), Some("result")));
    sink.close();
    assert_eq!(rows(&file).len(), 2);
    assert_eq!(verify(&[file]).1, []);
}

/// AUD-2: many calls on many threads share commits; every call has its pair, and each waited for its own row.
#[test]
fn calls_of_many_threads_are_all_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let sink = Arc::clone(&sink);
            std::thread::spawn(move || {
                block_on(async {
                    let local = tokio::task::LocalSet::new();
                    let ids = Arc::new(Mutex::new(Vec::new()));
                    for _ in 0..16 {
                        let (sink, ids) = (Arc::clone(&sink), Arc::clone(&ids));
                        local.spawn_local(async move {
                            for number in 0..25 {
                                let id = call(&sink, number).await.unwrap();
                                ids.lock().push(id.to_string());
                            }
                        });
                    }
                    local.await;
                    Arc::into_inner(ids).unwrap().into_inner()
                })
            })
        })
        .collect();
    let ids: HashSet<String> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    sink.close();
    let file = segments(folder.path()).pop().unwrap();
    let rows = rows(&file);
    let entered: HashSet<String> =
        rows.iter().filter(|row| row.kind == "enter").map(|row| row.correlation_id.clone()).collect();
    let left: HashSet<u64> = rows.iter().filter_map(|row| row.enter).collect();
    assert_eq!((ids.len(), rows.len(), left.len()), (1_600, 3_200, 1_600));
    assert_eq!(entered, ids);
    let (verified, problems) = verify(&[file]);
    assert_eq!(problems, []);
    // The number of checkpoints depends on how commits combined the rows; the last one seals.
    assert!(verified[0].sealed && verified[0].checkpoints >= 2, "{verified:?}");
}

/// AUD-2: a call that writes its own row continues at once, without another wake.
#[test]
fn a_call_that_writes_is_not_woken_for_its_own_row() {
    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path());
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let enter = enter_of(CorrelationId::mint(), "files__read", "{}");
    assert!(sink.enter(&enter).as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
}

/// AUD-2: a call that is cancelled while it waits leaves its row, and does not hold up the calls behind it.
#[test]
fn a_caller_that_goes_away_takes_nobody_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path());
    block_on(async {
        let mut context = Context::from_waker(Waker::noop());
        // With few calls under way none waits for others; the calls after these let others join.
        for _ in 0..3 {
            let early = enter_of(CorrelationId::mint(), "files__read", "{}");
            assert!(sink.enter(&early).as_mut().poll(&mut context).is_ready());
        }
        let gone = enter_of(CorrelationId::mint(), "files__read", "{}");
        let mut first = sink.enter(&gone);
        let mut second = std::pin::pin!(call(&sink, 2));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(first);
        tokio::time::timeout(Duration::from_secs(60), second).await.unwrap().unwrap();
    });
    sink.close();
    let file = segments(folder.path()).pop().unwrap();
    let pairs = rows(&file).iter().filter(|row| row.enter.is_some()).count();
    assert_eq!((rows(&file).len(), pairs), (10, 5));
}

/// The child of the test below: answers calls until it is killed.
#[test]
fn child_that_records_until_it_is_killed() {
    use std::io::Write;
    let Ok(folder) = std::env::var("BRIDGEHEAD_AUDIT_TEST_FOLDER") else { return };
    let sink = open(folder.as_ref());
    block_on(async {
        loop {
            let enter = enter_of(CorrelationId::mint(), "files__read", "{}");
            sink.enter(&enter).await.unwrap();
            let mut out = std::io::stdout().lock();
            writeln!(out, "answered {}", enter.correlation()).unwrap();
            out.flush().unwrap();
        }
    });
}

/// AUD-2: a kill -9 loses no enter row of an answered call, and the next start gives each an exit.
#[test]
fn a_killed_process_loses_no_answered_call() {
    use std::io::{BufRead, BufReader};
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "keeping::child_that_records_until_it_is_killed", "--nocapture"])
        .env("BRIDGEHEAD_AUDIT_TEST_FOLDER", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let id = |line: String| line.split_once("answered ").map(|(_, id)| id.to_owned());
    let mut answered: Vec<String> = lines.by_ref().filter_map(id).take(500).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    answered.extend(lines.filter_map(id).filter(|id| id.len() == 36));

    let sink = open(folder.path());
    let file = segments(folder.path()).remove(0);
    let locks = || {
        let names = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(".lock")).count()
    };
    eventually("the next start finishes it", || locks() == 1);
    sink.close();
    let rows = rows(&file);
    let entered: HashSet<&str> =
        rows.iter().filter(|row| row.kind == "enter").map(|row| row.correlation_id.as_str()).collect();
    assert!(answered.len() >= 500 && answered.iter().all(|id| entered.contains(id.as_str())));
    let interrupted = rows.iter().filter(|row| row.outcome.as_deref() == Some(INTERRUPTED));
    let ended: HashSet<u64> = interrupted.filter_map(|row| row.enter).collect();
    assert_eq!(ended.len(), entered.len(), "each enter has exactly one exit");
    let (verified, problems) = verify(&[file]);
    assert_eq!(problems, []);
    assert!(verified[0].sealed);
}

/// AUD-5: several instances share a folder, each with its own chain.
#[test]
fn instances_have_segments_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (open(folder.path()), open(folder.path()));
    block_on(async {
        call(&one, 1).await.unwrap();
        call(&two, 2).await.unwrap();
        call(&one, 3).await.unwrap();
    });
    let names: Vec<String> = segments(folder.path())
        .iter()
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, [format!("{}.0001", one.instance()), format!("{}.0001", two.instance())]);
    one.close();
    two.close();
    let files = segments(folder.path());
    assert_eq!(files.iter().map(|file| rows(file).len()).collect::<Vec<_>>(), [4, 2]);
    let (verified, problems) = verify(&files);
    assert_eq!((verified.len(), problems), (2, vec![]));
}

/// AUD-2: closing the store marks open calls as interrupted; a store without a call leaves no file.
#[test]
fn closing_ends_what_is_open() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).close();
    assert_eq!(segments(folder.path()).len(), 0);
    let sink = open(folder.path());
    let enter = enter_of(CorrelationId::mint(), "files__read", "{}");
    let ticket = block_on(sink.enter(&enter)).unwrap();
    sink.close();
    sink.close();
    let rows = rows(&segments(folder.path())[0]);
    assert_eq!((rows.len(), rows[1].enter, rows[1].outcome.as_deref()), (2, Some(1), Some(INTERRUPTED)));
    assert!(sink.exit(ticket, exit_of(&enter, "{}")).is_err());
    let error = block_on(sink.enter(&enter)).unwrap_err().to_string();
    assert!(error.contains("the store is closed"), "{error}");
}

/// AUD-6: a full segment is sealed and another begun; each verifies alone and both together; an exit may be in a
/// later segment than its enter.
#[test]
fn segments_are_sealed_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::new(folder.path());
    options.segment_bytes = 20_000;
    let sink = Arc::new(StoreSink::open(options).unwrap());
    let open = enter_of(CorrelationId::mint(), "files__slow", "{}");
    let ticket = block_on(sink.enter(&open)).unwrap();
    for wanted in 2..=3 {
        eventually("another segment begins", || {
            block_on(call(&sink, 1)).unwrap();
            segments(folder.path()).len() >= wanted
        });
    }
    sink.exit(ticket, exit_of(&open, "{}")).unwrap();
    sink.close();
    let files = segments(folder.path());
    assert!(files.len() >= 3);
    let last = rows(files.last().unwrap());
    assert!(
        last.iter().any(|row| (row.enter, row.enter_segment) == (Some(1), Some(1))),
        "the exit names its enter in the first segment"
    );
    for file in &files {
        let (verified, problems) = verify(std::slice::from_ref(file));
        assert_eq!(problems, []);
        assert!(verified[0].sealed);
    }
    assert_eq!(verify(&files).1, []);
    let without_the_second = [files[0].clone(), files[2].clone()];
    let (_, problems) = verify(&without_the_second);
    assert!(problems[0].what.contains("segment 1 of the instance is followed by 3"), "{problems:?}");
}

/// AUD-3: checkpoints are published, appended to their file, and signed if there is a key; proofs rest on them.
#[test]
fn checkpoints_are_published_and_signed() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "11".repeat(32)).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let file = written(folder.path(), 20, |options| {
        options.signer = Some(Signer::read(&key).unwrap());
        options.checkpoint_file = Some(folder.path().join("elsewhere.jsonl"));
        options.on_checkpoint = Some(Box::new(move |checkpoint| listener.lock().push(checkpoint.clone())));
    });
    let checkpoints = read_checkpoints(&folder.path().join("elsewhere.jsonl")).unwrap().checkpoints;
    assert_eq!(*told.lock(), checkpoints);
    assert!(checkpoints.len() >= 3, "{checkpoints:?}");
    assert!(checkpoints.iter().all(|it| it.signature.is_some() && it.check_signature(&[]).is_ok()));
    let (verified, problems) = verify(std::slice::from_ref(&file));
    assert_eq!((verified[0].signed, problems), (verified[0].checkpoints, vec![]));

    for seq in 1..=40 {
        let proof = Proof::of(&file, seq).unwrap();
        let first = checkpoints.iter().find(|it| it.count >= seq).unwrap();
        assert_eq!(&proof.checkpoint, first, "the first that covers row {seq}");
        let text = serde_json::to_string(&proof).unwrap();
        let read: Proof = serde_json::from_str(&text).unwrap();
        assert_eq!(read.check(None, Some(proof.checkpoint.root)).unwrap().seq, seq);
        let mut changed = proof.clone();
        changed.row = changed.row.replace("ada", "eve").replace("result", "cancel");
        assert!(changed.check(None, None).is_err());
        assert!(proof.check(None, Some(proof.checkpoint.head)).is_err());
    }
    assert!(Proof::of(&file, 41).unwrap_err().to_string().contains("no row 41"));
}

/// AUD-3, FAULT-1: what a killed process left is finished with the key: every checkpoint is signed, the seals too, in the record
/// and in the file beside it. So is what rests on a segment that was sealed and not yet closed.
#[test]
fn what_a_kill_left_is_sealed_with_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let (secret, public) = (folder.path().join("secret"), folder.path().join("public"));
    std::fs::write(&secret, "11".repeat(32)).unwrap();
    let signer = || Signer::read(&secret).unwrap();
    std::fs::write(&public, signer().public().to_string()).unwrap();
    let start = |folder: &std::path::Path| {
        let mut options = StoreOptions::new(folder);
        (options.signer, options.segment_bytes, options.checkpoint_rows) = (Some(signer()), 4_000, 4);
        StoreSink::open(options).unwrap()
    };
    let audit = folder.path().join("audit");
    let sink = start(&audit);
    let unfinished = enter_of(CorrelationId::mint(), "files__read", "{}");
    block_on(async {
        sink.enter(&unfinished).await.unwrap();
        let mut number = 0;
        while segments(&audit).len() < 3 {
            call(&sink, number).await.unwrap();
            number += 1;
            assert!(number < 10_000, "no other segment begins");
        }
    });
    // The files as they are now are what a kill leaves; the locks die with the process.
    let left = folder.path().join("left");
    std::fs::create_dir(&left).unwrap();
    for entry in std::fs::read_dir(&audit).unwrap().flatten() {
        // The keeper may remove a file meanwhile.
        let _ = std::fs::copy(entry.path(), left.join(entry.file_name()));
    }
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let mut options = StoreOptions::new(&left);
    options.signer = Some(signer());
    options.on_checkpoint = Some(Box::new(move |checkpoint| listener.lock().push(checkpoint.clone())));
    StoreSink::open(options).unwrap().close();

    let key = PublicKey::read(&public).unwrap();
    let mut verifier = Verifier::new(Some(PublicKey::read(&public).unwrap()));
    verifier.read(&segments(&left));
    let (verified, problems, _) = verifier.finish();
    assert_eq!(problems, []);
    assert!(verified.len() >= 3, "{verified:?}");
    for segment in &verified {
        assert!(segment.sealed && segment.signed == segment.checkpoints, "{segment:?}");
    }
    let seals: Vec<_> = told.lock().iter().filter(|told| told.sealed).cloned().collect();
    assert!(!seals.is_empty(), "recovery publishes its seals");
    let beside = read_checkpoints(&left.join(CHECKPOINT_FILE)).unwrap().checkpoints;
    for checkpoint in beside.iter().chain(&*told.lock()) {
        assert_eq!(checkpoint.check_signature(std::slice::from_ref(&key)), Ok(()), "{checkpoint:?}");
        assert!(checkpoint.signature.is_some(), "{checkpoint:?}");
    }
    let ends: Vec<_> = segments(&left).iter().flat_map(|file| rows(file)).collect();
    let ended = ends
        .iter()
        .find(|row| row.enter.is_some() && row.correlation_id == unfinished.correlation().to_string());
    assert_eq!(ended.unwrap().outcome.as_deref(), Some(INTERRUPTED));
    sink.close();
}

/// AUD-3: a row gets a checkpoint without waiting for a full batch.
#[test]
fn a_quiet_store_makes_checkpoints_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::new(folder.path());
    options.checkpoint_after = Duration::from_millis(50);
    let sink = StoreSink::open(options).unwrap();
    block_on(call(&sink, 1)).unwrap();
    let file = segments(folder.path()).pop().unwrap();
    eventually("a checkpoint is made", || {
        read_checkpoints(&folder.path().join(CHECKPOINT_FILE))
            .unwrap()
            .checkpoints
            .iter()
            .any(|it| it.count == 2)
    });
    assert_eq!(Proof::of(&file, 1).unwrap().checkpoint.segment, format!("{}.0001", sink.instance()));
}
