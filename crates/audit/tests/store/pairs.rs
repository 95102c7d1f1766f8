//! The store pairs exits with enters, and the verifiers find a wrong pair.

use std::fs;
use std::path::Path;

use bridgehead_audit::{AuditSink, CorrelationId, INTERRUPTED, read_calls, segments};

use crate::support::{block_on, call, enter_of, exit_of, open, python_verifies, rows, verify};

/// WIRE-2: calls that share a correlation id, which a client may choose, keep their own exits, also interrupted ones.
#[test]
fn calls_with_one_id_keep_their_own_ends() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path());
    let id = CorrelationId::mint();
    let [first, second, third] = ["a", "b", "c"].map(|tool| enter_of(id, tool, "{}"));
    let tickets = [&first, &second, &third].map(|enter| block_on(sink.enter(enter)).unwrap());
    sink.exit(tickets[1], exit_of(&second, r#"{"of":"b"}"#)).unwrap();
    sink.exit(tickets[0], exit_of(&first, r#"{"of":"a"}"#)).unwrap();
    // A second exit with the same ticket is recorded, but as the end of no call.
    sink.exit(tickets[0], exit_of(&first, r#"{"of":"nothing"}"#)).unwrap();
    sink.close();
    let files = segments(folder.path());
    let mut ends = Vec::new();
    read_calls(&files, |call| {
        let exit = call.exit().unwrap();
        assert_eq!(call.first.tool, exit.tool);
        let end = exit.payload.clone().or(exit.outcome.clone()).unwrap();
        ends.push((call.enter().map(|enter| enter.tool.clone()), end));
        Ok(())
    })
    .unwrap();
    let expected =
        [(Some("b"), r#"{"of":"b"}"#), (Some("a"), r#"{"of":"a"}"#), (None, r#"{"of":"nothing"}"#)];
    let expected = expected.into_iter().chain([(Some("c"), INTERRUPTED)]);
    assert_eq!(
        ends,
        expected.map(|(tool, end)| (tool.map(str::to_owned), end.to_owned())).collect::<Vec<_>>()
    );
    assert_eq!(verify(&files).1, []);
    assert!(python_verifies(&[files[0].to_str().unwrap()]));
}

/// WIRE-2: a record with swapped exits has a valid chain, and both verifiers find the swap: by the tool if the ids are the
/// same, by the id if the tools are.
#[test]
fn swapped_ends_are_found() {
    for (ids, tools, what) in [
        ([CorrelationId::mint(); 2], ["a", "b"], "another tool"),
        ([CorrelationId::mint(), CorrelationId::mint()], ["a", "a"], "another correlation id"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let sink = open(folder.path());
        block_on(call(&sink, 1)).unwrap();
        let enters = [enter_of(ids[0], tools[0], "{}"), enter_of(ids[1], tools[1], "{}")];
        let tickets = enters.each_ref().map(|enter| block_on(sink.enter(enter)).unwrap());
        sink.exit(tickets[1], exit_of(&enters[0], "{}")).unwrap();
        sink.exit(tickets[0], exit_of(&enters[1], "{}")).unwrap();
        sink.close();
        let files = segments(folder.path());
        let (verified, problems) = verify(&files);
        assert!(verified[0].sealed);
        assert_eq!(problems.iter().map(|it| it.row).collect::<Vec<_>>(), [Some(5), Some(6)], "{problems:?}");
        assert!(problems.iter().all(|it| it.what.contains(what)), "{problems:?}");
        assert!(!python_verifies(&[files[0].to_str().unwrap()]));
    }
}

/// WIRE-2: both verifiers read a record of format 1, in which an exit has only the number of its enter, and find faults in
/// it.
#[test]
fn format_1_is_still_read() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/format1.jsonl");
    let text = fs::read_to_string(&kept).unwrap();
    let (verified, problems) = verify(std::slice::from_ref(&kept));
    assert_eq!(problems, []);
    assert!(verified.len() == 2 && verified.iter().all(|it| it.sealed));
    assert!(text.contains(r#""format":1,"#) && !text.contains("enterSegment"));
    assert!(python_verifies(&[kept.to_str().unwrap()]));
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.jsonl");
    fs::write(&other, text.replacen(r#""format":1,"#, r#""format":3,"#, 1)).unwrap();
    assert!(verify(std::slice::from_ref(&other)).1.iter().any(|it| it.what.contains("format is 3")));
    assert!(!python_verifies(&[other.to_str().unwrap()]));
}

/// WIRE-2: an exit names the segment of its enter, also the one that the next start writes for it.
#[test]
fn an_exit_names_the_segment_of_its_enter() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path());
    block_on(sink.enter(&enter_of(CorrelationId::mint(), "a", "{}"))).unwrap();
    let left = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder.path()).unwrap().flatten() {
        fs::copy(entry.path(), left.path().join(entry.file_name())).unwrap();
    }
    open(left.path()).close();
    sink.close();
    for folder in [folder.path(), left.path()] {
        let rows = rows(&segments(folder)[0]);
        let last = rows.last().unwrap();
        assert_eq!((last.enter, last.enter_segment, rows.len()), (Some(1), Some(1), 2));
    }
}
