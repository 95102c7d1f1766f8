//! Judging without files: headers that follow each other, kept heads, the number in a row's text.

use super::*;

const INSTANCE: &str = "0199d0a5-6f2b-7c3e-8d4f-0123456789ab";

fn header(index: u32, first: u64, previous: Option<Hash>) -> Record {
    let header = Header {
        format: crate::store::FORMAT,
        segment: segment_name(INSTANCE, index),
        instance: INSTANCE.to_owned(),
        index,
        first,
        previous,
        started: "2026-01-02T03:04:05.678Z".to_owned(),
        version: "1.0.0".to_owned(),
    };
    let text = serde_json::to_vec(&header).unwrap();
    Record { kind: RecordKind::Header, seq: None, hash: Some(Hash::header(&text)), text }
}

/// An enter after `head`.
fn enter(seq: u64, head: &Hash) -> Record {
    let text = format!(r#"{{"seq":{seq},"kind":"enter","time":"t","correlationId":"a","tool":"read"}}"#);
    let hash = Hash::link(head, &Hash::leaf(text.as_bytes()));
    Record { kind: RecordKind::Row, seq: Some(seq), text: text.into_bytes(), hash: Some(hash) }
}

fn removal(index: u32) -> Removal {
    let note = format!(r#"{{"removed":"{}","time":"t"}}"#, segment_name(INSTANCE, index));
    serde_json::from_str(&note).unwrap()
}

/// AUD-3, AUD-6: a segment continues the one before it; only segments with a removal note may be missing between the
/// two.
#[test]
fn a_segment_continues_the_one_before_it() {
    #[track_caller]
    fn check(removed: &[u32], index: u32, first: u64, continues: bool, wrong: Option<&str>) {
        let mut verifier = Verifier::default();
        removed.iter().for_each(|index| verifier.explain(removal(*index)));
        let begun = header(1, 1, None);
        let row = enter(1, &begun.hash.unwrap());
        let previous = if continues { row.hash } else { Some(Hash::default()) };
        for record in [&begun, &row, &header(index, first, previous)] {
            verifier.take(record);
        }
        let (verified, problems, _) = verifier.finish();
        let said: Vec<_> = problems.iter().map(|it| it.what.as_str()).collect();
        assert_eq!((verified.len(), said), (2, wrong.into_iter().collect()));
    }
    let broken = Some("it does not continue the segment before it");
    check(&[], 2, 2, true, None);
    check(&[], 2, 2, false, broken);
    check(&[], 2, 3, true, broken);
    check(&[2], 2, 2, false, broken);
    check(&[2], 3, 9, false, None);
    check(&[2, 3], 4, 9, false, None);
    check(&[], 3, 9, false, Some("segment 1 of the instance is followed by 3"));
    check(&[3], 4, 9, false, Some("segment 1 of the instance is followed by 4"));
    check(&[2], 4, 9, false, Some("segment 1 of the instance is followed by 4"));
    check(&[], 1, 2, true, Some("segment 1 of the instance is followed by 1"));
}

/// AUD-3: a row out of sequence is reported, with the row that is in its place.
#[test]
fn rows_follow_each_other() {
    #[track_caller]
    fn check(numbers: &[u64], wrong: Option<(u64, &str)>) {
        let mut verifier = Verifier::default();
        let begun = header(1, 1, None);
        verifier.take(&begun);
        let mut head = begun.hash.unwrap();
        for seq in numbers {
            let row = enter(*seq, &head);
            head = row.hash.unwrap();
            verifier.take(&row);
        }
        let (_, problems, _) = verifier.finish();
        let said: Vec<_> = problems.iter().map(|it| (it.row.unwrap(), it.what.as_str())).collect();
        assert_eq!(said, wrong.into_iter().collect::<Vec<_>>(), "{numbers:?}");
    }
    check(&[1, 2, 3], None);
    check(&[1, 3], Some((2, "it is missing")));
    check(&[1, 4], Some((2, "it and those up to 3 are missing")));
    check(&[1, 2, 2], Some((2, "it is in the place of row 3")));
}

/// AUD-3: a row after the seal of a segment is reported.
#[test]
fn a_row_behind_a_seal_is_told() {
    let begun = header(1, 1, None);
    let one = enter(1, &begun.hash.unwrap());
    let mut tree = Frontier::default();
    tree.push(Hash::leaf(&one.text));
    let seal = Checkpoint {
        segment: segment_name(INSTANCE, 1),
        count: 1,
        root: tree.root(),
        head: one.hash.unwrap(),
        time: "2026-01-02T03:04:05.678Z".to_owned(),
        sealed: true,
        key: None,
        signature: None,
    };
    let text = seal.text().into_bytes();
    let hash = Some(Hash::checkpoint(&text));
    let sealed = Record { kind: RecordKind::Checkpoint, seq: None, text, hash };
    let late = enter(2, &one.hash.unwrap());
    let mut verifier = Verifier::default();
    [&begun, &one, &sealed].into_iter().for_each(|record| verifier.take(record));
    verifier.take(&late);
    let (_, problems, _) = verifier.finish();
    let said: Vec<_> = problems.iter().map(|it| (it.row, it.what.as_str())).collect();
    assert_eq!(said, [(Some(2), "it was added after the segment was sealed")]);
}

/// AUD-3: a call may exit in the next segment, and the exit is compared with its enter there too.
#[test]
fn a_call_may_end_in_the_next_segment() {
    #[track_caller]
    fn check(id: &str, wrong: Option<&str>) {
        let begun = header(1, 1, None);
        let one = enter(1, &begun.hash.unwrap());
        let next = header(2, 2, one.hash);
        let text = format!(
            r#"{{"seq":2,"enter":1,"enterSegment":1,"kind":"exit","time":"t","correlationId":"{id}","tool":"read"}}"#
        );
        let hash = Some(Hash::link(&next.hash.unwrap(), &Hash::leaf(text.as_bytes())));
        let exit = Record { kind: RecordKind::Row, seq: Some(2), text: text.into_bytes(), hash };
        let mut verifier = Verifier::default();
        [&begun, &one, &next, &exit].into_iter().for_each(|record| verifier.take(record));
        let (_, problems, _) = verifier.finish();
        let said: Vec<_> = problems.iter().map(|it| it.what.as_str()).collect();
        assert_eq!(said, wrong.into_iter().collect::<Vec<_>>());
    }
    check("a", None);
    check("b", Some("it is the exit of row 1, which has another correlation id"));
}

/// AUD-3: a kept head is compared at its row count, and a segment with fewer rows is reported.
#[test]
fn kept_heads_are_compared_at_their_counts() {
    #[track_caller]
    fn check(kept: &[(u64, bool)], wrong: &[&str]) {
        let begun = header(1, 1, None);
        let one = enter(1, &begun.hash.unwrap());
        let two = enter(2, &one.hash.unwrap());
        let records = [begun, one, two];
        let mut verifier = Verifier::default();
        for (count, fits) in kept {
            let there = records.get(usize::try_from(*count).unwrap()).filter(|_| *fits);
            let head = there.map_or_else(Hash::default, |record| record.hash.unwrap());
            verifier.expect(Expected { segment: segment_name(INSTANCE, 1), count: *count, head, root: None });
        }
        records.iter().for_each(|record| verifier.take(record));
        let (_, problems, left) = verifier.finish();
        assert_eq!((problems.len(), left), (wrong.len(), vec![]), "{problems:?}");
        for (problem, wrong) in problems.iter().zip(wrong) {
            assert!(problem.what.contains(wrong), "{problem}");
        }
    }
    check(&[(0, true), (1, true), (2, true)], &[]);
    check(&[(2, true), (1, true), (1, true)], &[]);
    check(&[(1, false)], &["after 1 row its head was"]);
    check(&[(2, false), (1, true)], &["after 2 rows its head was"]);
    check(&[(3, false)], &["it had 3 rows when its head was"]);
    check(&[(4, false), (2, true), (3, false)], &["it had 3 rows", "it had 4 rows"]);
}

/// AUD-3: the number in a row's text is the JSON number, on the fast path too.
#[test]
fn the_number_in_a_text_is_that_of_json() {
    #[track_caller]
    fn check(text: &str, expected: Option<u64>) {
        assert_eq!(number(text.as_bytes()), expected, "{text}");
    }
    check(r#"{"seq":5,"a":"b"}"#, Some(5));
    check(r#"{"seq":1234567890,"a":"b"}"#, Some(1_234_567_890));
    check(r#"{"seq":5,"a":1}"#, Some(5));
    check(r#"{ "a": "b", "seq": 5 }"#, Some(5));
    check(r#"{"seq":0,"a":"b"}"#, Some(0));
    check(r#"{"seq":9999999999999999999,"a":"b"}"#, Some(9_999_999_999_999_999_999));
    check(r#"{"seq":18446744073709551615,"a":"b"}"#, Some(u64::MAX));
    for no_number in [
        r#"{"seq":18446744073709551616,"a":"b"}"#,
        r#"{"seq":+5,"a":"b"}"#,
        r#"{"seq":05,"a":"b"}"#,
        r#"{"seq":,"a":"b"}"#,
        r#"{"seq":5x,"a":"b"}"#,
        r#"{"seq":5,"a":"#,
        r#"{"a":"b"}"#,
        "",
    ] {
        check(no_number, None);
    }
}
