//! One suite for every store: each must keep all promises of the record.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bridgehead_audit::{
    AuditSink, Checkpoint, CorrelationId, Hash, INTERRUPTED, NewRow, Proof, Record, Store, Verifier,
    read_calls, read_checkpoints,
};

use parking_lot::Mutex;

use crate::removal::{HOUR, Late};
use crate::support::{block_on, call, enter_of, eventually, exit_of};
use crate::world::for_each_store;

/// The texts and heads of rows with these numbers.
fn rows(store: &dyn Store, name: &str, numbers: std::ops::RangeInclusive<i64>) -> Vec<(u64, String, Hash)> {
    let mut rows = Vec::new();
    let mut take = |row: &Record| {
        rows.push((row.seq.unwrap(), String::from_utf8(row.text.clone()).unwrap(), row.hash.unwrap()));
        Ok(())
    };
    store.read(name).unwrap().rows(numbers, &mut take).unwrap();
    rows
}

fn checkpoint(name: &str, count: u64, sealed: bool) -> Checkpoint {
    Checkpoint {
        segment: name.to_owned(),
        count,
        root: Hash::of(b"root"),
        head: Hash::of(b"head"),
        time: "2026-01-02T03:04:05.678Z".to_owned(),
        sealed,
        key: None,
        signature: None,
    }
}

/// GATE-5: a segment exists once it has its header; batches are stored whole or not at all; a reader sees the segment as it
/// was at one moment, and a later writer finds everything that was stored.
#[test]
fn a_store_keeps_what_it_is_given() {
    for_each_store(|world| {
        let (store, name) = (&*world.store, "0199d0a5-6f2b-7c3e-8d4f-0123456789ab.0001");
        let row =
            |seq| NewRow { seq, text: "{\"seq\":\"é\"}", head: Hash::of(&[u8::try_from(seq).unwrap()]) };
        let blank = store.prepare(name).unwrap();
        assert_eq!(world.names(), Vec::<String>::new(), "it has no header yet");
        let mut appender = blank.begin("{\"header\":1}", Hash::of(b"header")).unwrap();
        assert_eq!((world.names(), appender.last(), appender.count()), (vec![name.to_owned()], 0, 0));
        assert_eq!(store.read(name).unwrap().frame().unwrap().bounds, None);

        appender.append(&[row(1), row(2), row(3)]).unwrap();
        assert!(appender.append(&[row(4), row(3)]).is_err());
        assert!(appender.append(&[row(3), row(4)]).is_err());
        assert_eq!((appender.last(), appender.count(), world.stored()), (3, 3, 3), "whole or not at all");
        let before = store.read(name).unwrap();
        assert_eq!(before.frame().unwrap().bounds, Some(1..=3));
        assert_eq!(before.last_checkpoint().unwrap(), None);
        appender.append(&[]).unwrap();
        appender.append(&[row(4)]).unwrap();
        appender.state(&[checkpoint(name, 2, false), checkpoint(name, 4, false)]).unwrap();
        let mut seen = 0;
        before
            .rows(i64::MIN..=i64::MAX, &mut |_| {
                seen += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!((seen, before.frame().unwrap().checkpoints.len()), (3, 0), "one moment");
        drop((before, appender));

        let mut appender = store.reopen(name).unwrap();
        assert_eq!((appender.last(), appender.count()), (4, 4));
        appender.append(&(5..=40).map(row).collect::<Vec<_>>()).unwrap();
        appender.state(&[checkpoint(name, 40, true)]).unwrap();
        assert_eq!((appender.last(), appender.count()), (40, 40));
        appender.seal().unwrap();
        let frame = store.read(name).unwrap().frame().unwrap();
        let header = &frame.headers[0];
        assert_eq!((&header.text[..], header.hash), (&b"{\"header\":1}"[..], Some(Hash::of(b"header"))));
        let stated: Vec<_> = frame.checkpoints.iter().map(|it| (it.seq.unwrap(), it.text.clone())).collect();
        let expected = [(2, false), (4, false), (40, true)];
        let expected =
            expected.map(|(count, sealed)| (count, checkpoint(name, count, sealed).text().into_bytes()));
        assert_eq!((stated, frame.headers.len(), frame.bounds), (expected.to_vec(), 1, Some(1..=40)));
        let last = store.repair(name).unwrap().last_checkpoint().unwrap().unwrap();
        assert_eq!((last.hash, &last.text), (Some(Hash::checkpoint(&last.text)), &expected[2].1));
        let some = (17..=19).map(row).map(|row| (row.seq, row.text.to_owned(), row.head)).collect::<Vec<_>>();
        assert_eq!(rows(store, name, 17..=19), some);
        assert_eq!(rows(store, name, 40..=i64::MAX).len(), 1);
        assert!(store.bytes(name) > 40 * 32 && store.place(name).contains(name));
    });
}

/// GATE-5: a segment is discarded or removed with all that belongs to it. A removed segment cannot be read, continued or
/// removed again.
#[test]
fn a_store_forgets_whole_segments() {
    for_each_store(|world| {
        let store = &*world.store;
        let begin = |name: &str| store.prepare(name).unwrap().begin("{}", Hash::default()).unwrap();
        begin("a.0001").discard();
        let mut appender = begin("b.0001");
        appender.append(&[NewRow { seq: 1, text: "{}", head: Hash::default() }]).unwrap();
        drop((appender, begin("b.0002"), begin("bb.0001")));
        assert_eq!(world.names(), ["b.0001", "b.0002", "bb.0001"]);
        store.remove("b.0001").unwrap();
        assert_eq!(world.names(), ["b.0002", "bb.0001"]);
        assert!(
            store.read("b.0001").is_err() && store.reopen("b.0001").is_err() && store.bytes("b.0001") == 0
        );
        assert!(store.remove("b.0001").is_err());
        drop((store.prepare("b.0003").unwrap(), store.prepare("bb.0002").unwrap()));
        store.clear("b");
        assert_eq!(world.names(), ["b.0002", "bb.0001"]);
        store.remove("b.0002").unwrap();
        store.remove("bb.0001").unwrap();
        store.clear("bb");
        assert_eq!(std::fs::read_dir(world.folder.path()).unwrap().count(), 0, "nothing is left");
    });
}

/// GATE-5: calls are recorded, read during and after the run of the gateway, proved and verified; a gateway without a call
/// leaves nothing.
#[test]
fn a_record_is_written_and_verifies() {
    for_each_store(|world| {
        world.start_and_stop();
        assert_eq!(world.names(), Vec::<String>::new());
        let sink = world.open(|options| options.checkpoint_rows = 8);
        let ids: Vec<_> = (0..20).map(|number| block_on(call(&sink, number)).unwrap().to_string()).collect();
        assert_eq!(world.rows()[0].correlation_id, ids[0], "while it runs");
        assert_eq!(world.verify().1, []);
        sink.close();
        let (verified, problems) = world.verify();
        assert_eq!((verified.len(), problems), (1, vec![]));
        assert!(
            verified[0].sealed && verified[0].count == 40 && verified[0].checkpoints >= 3,
            "{verified:?}"
        );
        assert_eq!((world.stored(), world.verify_all()), (40, vec![]));
        assert!(!world.has("rows") && !world.has("lock"));
        let mut calls = Vec::new();
        read_calls(world.segments(), |call| {
            calls.push((call.first.correlation_id.clone(), call.outcome().to_owned()));
            Ok(())
        })
        .unwrap();
        assert_eq!(calls, ids.into_iter().map(|id| (id, "result".to_owned())).collect::<Vec<_>>());
        for seq in [1, 8, 40] {
            let proof = Proof::of(&world.segments()[0], seq).unwrap();
            assert_eq!(proof.check(None, Some(proof.checkpoint.root)).unwrap().seq, seq);
        }
        assert!(Proof::of(&world.segments()[0], 41).is_err());
    });
}

/// GATE-5: a full segment is sealed and another continues its chain; an exit may be in a later segment than its enter, and
/// the verifier notices a missing segment.
#[test]
fn segments_are_sealed_and_continued() {
    for_each_store(|world| {
        let sink = world.open(|options| options.segment_bytes = 4_000);
        let slow = enter_of(CorrelationId::mint(), "files__slow", "{}");
        let ticket = block_on(sink.enter(&slow)).unwrap();
        eventually("a third segment begins", || {
            block_on(call(&sink, 1)).unwrap();
            world.names().len() >= 3
        });
        sink.exit(ticket, exit_of(&slow, "{}")).unwrap();
        sink.close();
        let (verified, problems) = world.verify();
        assert_eq!(problems, []);
        assert!(verified.len() >= 3 && verified.iter().all(|segment| segment.sealed), "{verified:?}");
        assert!(world.rows().iter().any(|row| (row.enter, row.enter_segment) == (Some(1), Some(1))));
        let segments = world.segments();
        let mut verifier = Verifier::default();
        verifier.read([segments[0].clone(), segments[2].clone()]);
        let (_, problems, _) = verifier.finish();
        assert!(problems[0].what.contains("segment 1 of the instance is followed by 3"), "{problems:?}");
    });
}

/// GATE-5: the next start finishes what a killed process left in the store and in the journals of several segments. In its
/// own chain each call gets an exit, `interrupted` if none was recorded, and each segment is sealed.
#[test]
fn a_killed_process_is_finished_by_the_next_start() {
    for_each_store(|world| {
        let sink = world.open(|options| options.segment_bytes = 4_000);
        let slow = enter_of(CorrelationId::mint(), "files__slow", "{}");
        block_on(sink.enter(&slow)).unwrap();
        let mut answered = HashSet::from([slow.correlation().to_string()]);
        answered.insert(block_on(call(&sink, 1)).unwrap().to_string());
        eventually("some rows are in the store", || world.stored() >= 2);
        world.refuse(true);
        while world.names().len() < 3 {
            answered.insert(block_on(call(&sink, 1)).unwrap().to_string());
        }
        let left = world.another();
        world.copy_to(&left);
        world.refuse(false);
        let names = left.names();
        assert_eq!(left.verify().1, [], "before it is finished");
        assert!(left.stored() < left.rows().len() && left.has("lock"));

        left.start_and_stop();
        assert_eq!(left.names(), names, "no other chain grew");
        let (verified, problems) = left.verify();
        assert_eq!(problems, []);
        assert!(verified.iter().all(|segment| segment.sealed), "{verified:?}");
        assert!(!left.has("rows") && !left.has("lock"));
        let rows = left.rows();
        let entered: HashSet<String> =
            rows.iter().filter(|row| row.kind == "enter").map(|row| row.correlation_id.clone()).collect();
        assert!(entered.is_superset(&answered));
        let ended: HashSet<u64> = rows.iter().filter_map(|row| row.enter).collect();
        assert_eq!((ended.len(), rows.len()), (entered.len(), 2 * entered.len()), "each call ends once");
        let end = rows.iter().find(|row| row.enter == Some(1)).unwrap();
        assert_eq!((end.outcome.as_deref(), end.enter_segment), (Some(INTERRUPTED), Some(1)));
        left.start_and_stop();
        assert_eq!(left.rows().len(), rows.len(), "and only once");
    });
}

/// GATE-5: retention removes sealed segments that are too old, and the oldest when all take too much; each whole, with a
/// note that satisfies the verifier.
#[test]
fn what_is_no_longer_kept_goes_with_a_note() {
    for_each_store(|world| {
        let several = |late: Duration| {
            let before = world.names().len();
            let sink = world.open(|options| {
                (options.segment_bytes, options.clock) = (4_000, Arc::new(Late(late)));
            });
            eventually("a third segment begins", || {
                block_on(call(&sink, 1)).unwrap();
                world.names().len() >= before + 3
            });
            sink.close();
            world.names().split_off(before)
        };
        let (old, young) = (several(2 * HOUR), several(Duration::ZERO));
        world.open(|options| options.keep_for = Some(HOUR)).close();
        assert_eq!(world.names(), young);
        assert_eq!(world.verify_all(), []);
        let total: u64 = young.iter().map(|name| world.store.bytes(name)).sum();
        world.open(|options| options.keep_bytes = Some(total - 1)).close();
        assert_eq!(world.names(), young[1..]);
        assert_eq!(world.verify_all(), []);
        let notes = read_checkpoints(&world.checkpoint_file()).unwrap().removed;
        let notes: Vec<_> =
            notes.iter().map(|it| (it.removed.clone(), it.reason.as_deref().unwrap())).collect();
        let expected = old.into_iter().map(|name| (name, "age")).chain([(young[0].clone(), "size")]);
        assert_eq!(notes, expected.collect::<Vec<_>>());
        world.store.remove(&young[1]).unwrap();
        let problems = world.verify_all();
        assert!(problems[0].segment == young[1] && problems[0].what.contains("no note"), "{problems:?}");
    });
}

/// GATE-5: a reader sees an intact record at every moment while rows are written, brought in and sealed.
#[test]
fn a_record_is_whole_at_every_moment() {
    for_each_store(|world| {
        let sink = world.open(|options| options.segment_bytes = 2 << 20);
        let payload = format!("\"{}\"", "x".repeat(20_000));
        let looks = AtomicUsize::new(0);
        let looks_so_far = || looks.load(Ordering::Relaxed);
        let written: u64 = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut written = 0;
                while looks_so_far() < 20 || world.names().len() < 3 {
                    block_on(sink.enter(&enter_of(CorrelationId::mint(), "files__write", &payload))).unwrap();
                    written += 1;
                    // Writes no faster than the reader reads.
                    eventually("the reader has read again", || written < 15 * (looks_so_far() as u64 + 1));
                }
                written
            });
            let mut before = 0;
            while !writer.is_finished() {
                let (verified, problems) = world.verify();
                assert_eq!(problems, []);
                let now: u64 = verified.iter().map(|segment| segment.count).sum();
                assert!(now >= before, "{now} rows after {before}");
                before = now;
                looks.fetch_add(1, Ordering::Relaxed);
            }
            writer.join().unwrap()
        });
        sink.close();
        let (verified, problems) = world.verify();
        assert_eq!(problems, []);
        assert_eq!(verified.iter().map(|segment| segment.count).sum::<u64>(), 2 * written);
    });
}

/// GATE-5, GATE-6: a store that refuses rows holds up no call and loses no row: rows wait in the journal, where every reader
/// finds them. They are brought in when the store accepts them, or by the next start.
#[test]
fn a_store_that_refuses_costs_no_row() {
    for_each_store(|world| {
        world.refuse(true);
        let lags: Arc<Mutex<Vec<bool>>> = Arc::default();
        let told = Arc::clone(&lags);
        let sink = world.open(|options| {
            (options.patience, options.checkpoint_rows) = (Duration::from_millis(100), 8);
            options.on_lag = Some(Box::new(move |behind| told.lock().push(behind)));
        });
        let ids: HashSet<_> =
            (0..20).map(|number| block_on(call(&sink, number)).unwrap().to_string()).collect();
        eventually("all rows can be read", || world.rows().len() == 40);
        assert_eq!((world.stored(), world.verify().1), (0, vec![]));
        eventually("the lag is reported", || *lags.lock() == [true]);
        world.refuse(false);
        eventually("all rows are in the store", || world.stored() == 40);
        eventually("the end of the lag is reported", || *lags.lock() == [true, false]);

        world.refuse(true);
        block_on(sink.enter(&enter_of(CorrelationId::mint(), "files__slow", "{}"))).unwrap();
        sink.close();
        drop(sink);
        let (verified, problems) = world.verify();
        assert_eq!(problems, []);
        assert!(
            !verified[0].sealed && world.has("lock") && world.has("rows"),
            "the segment is left to the next start"
        );
        world.refuse(false);
        world.start_and_stop();
        let (verified, problems) = world.verify();
        assert_eq!(problems, []);
        assert!(verified[0].sealed && !world.has("lock") && !world.has("rows"), "{verified:?}");
        assert_eq!((world.stored(), verified[0].count), (42, 42));
        let entered: HashSet<_> = world.rows().into_iter().map(|row| row.correlation_id).collect();
        assert!(entered.is_superset(&ids));
    });
}

/// GATE-5: a follower of an instance gets each row once and in order, from journals, the store and later segments.
#[test]
fn a_follower_gets_each_row_once_and_in_order() {
    for_each_store(|world| {
        let sink = world.open(|options| options.segment_bytes = 4_000);
        let other = world.open(|_| {});
        block_on(call(&other, 1)).unwrap();
        let (archive, mut numbers, mut last) = (world.archive(), Vec::new(), 0);
        let follow = |after: u64, numbers: &mut Vec<u64>| {
            let take = |record: &Record| {
                let row: bridgehead_audit::Row = serde_json::from_slice(&record.text).unwrap();
                numbers.push(row.seq);
                Ok(())
            };
            archive.follow(sink.instance(), after, take).unwrap()
        };
        let mut calls = 0;
        while calls < 2_000 && world.names().len() < 5 {
            block_on(call(&sink, calls)).unwrap();
            calls += 1;
            if calls % 3 == 0 {
                last = follow(last, &mut numbers);
            }
        }
        sink.close();
        last = follow(last, &mut numbers);
        let all: Vec<u64> = (1..=2 * calls as u64).collect();
        assert_eq!((last, &numbers), (2 * calls as u64, &all));
        assert_eq!((follow(last, &mut numbers), numbers.len()), (last, all.len()), "no new row");
        let mut tail = Vec::new();
        assert_eq!(follow(7, &mut tail), last);
        assert_eq!(tail, all[7..]);
        assert_eq!(archive.follow("nobody", 3, |_| Ok(())).unwrap(), 3);
    });
}

/// GATE-5: a changed row is named, and so is an unreadable segment.
#[test]
fn damage_is_found_and_named() {
    for_each_store(|world| {
        let sink = world.open(|_| {});
        (0..5).for_each(|number| assert!(block_on(call(&sink, number)).is_ok()));
        sink.close();
        assert_eq!(world.verify().1, []);
        world.mood.changed.store(3, Ordering::Relaxed);
        let problems = world.verify().1;
        assert_eq!(problems.iter().map(|it| it.row).collect::<Vec<_>>(), [Some(3)], "{problems:?}");
        let segments = world.segments();
        world.store.remove(segments[0].name()).unwrap();
        let mut verifier = Verifier::default();
        verifier.read(segments.clone());
        let (verified, problems, _) = verifier.finish();
        assert_eq!((verified.len(), problems.len()), (0, 1));
        assert_eq!(problems[0].segment, segments[0].place());
    });
}

/// GATE-5: a record can be copied from one store to another, byte for byte.
#[test]
fn a_record_is_the_same_in_every_store() {
    for_each_store(|world| {
        let sink = world.open(|options| (options.segment_bytes, options.checkpoint_rows) = (4_000, 4));
        eventually("a second segment begins", || {
            block_on(call(&sink, 1)).unwrap();
            world.names().len() >= 2
        });
        sink.close();
        let other = world.opposite();
        world.copy_to(&other);
        assert_eq!(other.export(), world.export());
        assert_eq!(other.verify(), world.verify());
    });
}
