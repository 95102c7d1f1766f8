//! Somebody who can write every file of the record writes another history. Both checkers must agree on what they find, with the
//! public key and without it.

use std::fs;
use std::path::{Path, PathBuf};

use bridgehead_audit::{
    CHECKPOINT_FILE, Hash, PublicKey, Signer, StoreOptions, StoreSink, Verified, Verifier, read_checkpoints,
    segments,
};
use rusqlite::Connection;

use crate::support::{block_on, call, eventually, python_verifies};

/// A record of one instance with four segments, signed, and what a forger does to it.
struct Forgery {
    folder: PathBuf,
    /// The segments, in order.
    files: Vec<PathBuf>,
}

/// What a checker finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finds {
    Nothing,
    Something,
}
use Finds::{Nothing, Something};

impl Forgery {
    fn sql(&self, segment: usize, change: &str) {
        Connection::open(&self.files[segment]).unwrap().execute_batch(change).unwrap();
    }

    fn every(&self, change: &str) {
        (0..self.files.len()).for_each(|segment| self.sql(segment, change));
    }

    fn beside(&self) -> PathBuf {
        self.folder.join(CHECKPOINT_FILE)
    }

    /// Keeps the lines of the checkpoint file that fit.
    fn lines(&self, keep: impl Fn(&str) -> bool) {
        let text = fs::read_to_string(self.beside()).unwrap();
        let kept: String = text.split_inclusive('\n').filter(|line| keep(line)).collect();
        fs::write(self.beside(), kept).unwrap();
    }

    /// Changes every row, and computes all heads anew, as whoever knows the form can. Checkpoints are left alone.
    fn rewrite(&self, from: &str, to: &str) {
        let mut previous: Option<Hash> = None;
        for file in &self.files {
            let connection = Connection::open(file).unwrap();
            let header: Vec<u8> =
                connection.query_row("SELECT CAST(body AS BLOB) FROM segment", [], |row| row.get(0)).unwrap();
            let mut header: serde_json::Value = serde_json::from_slice(&header).unwrap();
            if let Some(previous) = previous {
                header["previous"] = serde_json::json!(previous.to_string());
            }
            let header = header.to_string();
            let mut head = Hash::header(header.as_bytes());
            connection.execute("UPDATE segment SET body = ?1, head = ?2", (&header, head.0)).unwrap();
            let mut rows =
                connection.prepare("SELECT seq, CAST(body AS BLOB) FROM rows ORDER BY seq").unwrap();
            let rows: Vec<(i64, Vec<u8>)> = rows
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
                .unwrap()
                .map(Result::unwrap)
                .collect();
            for (seq, body) in rows {
                let body = String::from_utf8(body).unwrap().replace(from, to);
                head = Hash::link(&head, &Hash::leaf(body.as_bytes()));
                let changed = (&body, head.0, seq);
                connection.execute("UPDATE rows SET body = ?1, head = ?2 WHERE seq = ?3", changed).unwrap();
            }
            previous = Some(head);
        }
    }

    /// Changes the text of every checkpoint in the segments, and its digest with it.
    fn restate(&self, change: impl Fn(&str) -> String) {
        for file in &self.files {
            let connection = Connection::open(file).unwrap();
            let mut points = connection.prepare("SELECT rowid, CAST(body AS BLOB) FROM checkpoints").unwrap();
            let points: Vec<(i64, Vec<u8>)> = points
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
                .unwrap()
                .map(Result::unwrap)
                .collect();
            for (id, body) in points {
                let body = change(str::from_utf8(&body).unwrap());
                let changed = (&body, Hash::checkpoint(body.as_bytes()).0, id);
                connection
                    .execute("UPDATE checkpoints SET body = ?1, digest = ?2 WHERE rowid = ?3", changed)
                    .unwrap();
            }
        }
    }

    fn remove_segment(&self, segment: usize) {
        fs::remove_file(&self.files[segment]).unwrap();
    }

    /// Makes a segment look as if its process were still running, or had been killed.
    fn with_journal(&self, segment: usize) {
        fs::write(self.files[segment].with_extension("rows"), "").unwrap();
    }
}

/// The part of a checkpoint's text that signs it.
fn unsigned(text: &str) -> String {
    match text.find(",\"key\":") {
        Some(at) => format!("{}}}", &text[..at]),
        None => text.to_owned(),
    }
}

fn signed_record(folder: &Path, secret: &Path) -> Vec<PathBuf> {
    let mut options = StoreOptions::new(folder);
    (options.segment_bytes, options.checkpoint_rows) = (4_000, 4);
    options.signer = Some(Signer::read(secret).unwrap());
    let sink = StoreSink::open(options).unwrap();
    eventually("a fourth segment begins", || {
        block_on(call(&sink, 1)).unwrap();
        segments(folder).len() >= 4
    });
    block_on(call(&sink, 2)).unwrap();
    sink.close();
    segments(folder)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn ours(folder: &Path, keys: &[PathBuf]) -> (Vec<Verified>, Finds) {
    let mut verifier = Verifier::new(keys.iter().map(|key| PublicKey::read(key).unwrap()));
    let stated = read_checkpoints(&folder.join(CHECKPOINT_FILE)).unwrap();
    stated.checkpoints.iter().for_each(|checkpoint| verifier.keep(checkpoint));
    stated.removed.into_iter().for_each(|removal| verifier.explain(removal));
    verifier.read(&segments(folder));
    let (verified, problems) = verifier.finish_folder();
    (verified, if problems.is_empty() { Nothing } else { Something })
}

fn pythons(folder: &Path, keys: &[PathBuf]) -> Finds {
    let files = segments(folder);
    let mut arguments: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    arguments.extend(["--checkpoints".to_owned(), folder.join(CHECKPOINT_FILE).display().to_string()]);
    keys.iter().for_each(|key| arguments.extend(["--key".to_owned(), key.display().to_string()]));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if python_verifies(&arguments) { Nothing } else { Something }
}

type Forge = fn(&Forgery);

/// What is done, and what is found without the key and with it.
const FORGERIES: &[(&str, Forge, Finds, Finds)] = &[
    ("nothing", |_| {}, Nothing, Nothing),
    // Rows.
    (
        "a row is changed",
        |it| {
            it.sql(1, "UPDATE rows SET body = replace(body, 'kind', 'Kind') WHERE rowid = (SELECT min(seq) FROM rows)");
        },
        Something,
        Something,
    ),
    ("a row is removed", |it| it.sql(0, "DELETE FROM rows WHERE seq = 2"), Something, Something),
    (
        "a head is changed",
        |it| it.sql(0, "UPDATE rows SET head = zeroblob(32) WHERE seq = 3"),
        Something,
        Something,
    ),
    (
        "the end of a segment is cut off",
        |it| it.sql(1, "DELETE FROM rows WHERE seq = (SELECT max(seq) FROM rows)"),
        Something,
        Something,
    ),
    ("all rows of a segment are removed", |it| it.sql(2, "DELETE FROM rows"), Something, Something),
    // Headers.
    (
        "a header is changed",
        |it| it.sql(0, "UPDATE segment SET body = replace(body, 'started', 'Started')"),
        Something,
        Something,
    ),
    ("a header is removed", |it| it.sql(3, "DELETE FROM segment"), Something, Something),
    // Checkpoints.
    (
        "a checkpoint is changed",
        |it| it.sql(0, "UPDATE checkpoints SET body = replace(body, 'Z\"', 'Y\"') WHERE rowid = 1"),
        Something,
        Something,
    ),
    (
        "a checkpoint is moved",
        |it| it.sql(0, "UPDATE checkpoints SET count = count + 1 WHERE rowid = 1"),
        Something,
        Something,
    ),
    ("a checkpoint is removed", |it| it.sql(0, "DELETE FROM checkpoints WHERE rowid = 1"), Nothing, Nothing),
    (
        "the seal of the last segment is removed",
        |it| it.sql(3, "DELETE FROM checkpoints WHERE rowid = (SELECT max(rowid) FROM checkpoints)"),
        Something,
        Something,
    ),
    (
        "the seal of another segment is removed",
        |it| it.sql(1, "DELETE FROM checkpoints WHERE rowid = (SELECT max(rowid) FROM checkpoints)"),
        Something,
        Something,
    ),
    (
        "all checkpoints of a segment are removed",
        |it| it.sql(2, "DELETE FROM checkpoints"),
        Something,
        Something,
    ),
    (
        "a seal is removed, and a journal appears",
        |it| {
            it.sql(1, "DELETE FROM checkpoints");
            it.with_journal(1);
        },
        Nothing,
        Something,
    ),
    (
        "the last seal is removed, and a journal appears",
        |it| {
            it.sql(3, "DELETE FROM checkpoints");
            it.with_journal(3);
        },
        Nothing,
        Nothing,
    ),
    // Another history.
    ("all rows are rewritten", |it| it.rewrite("ada", "eve"), Something, Something),
    (
        "all rows are rewritten, without checkpoints in the segments",
        |it| {
            it.rewrite("ada", "eve");
            it.every("DELETE FROM checkpoints");
        },
        Something,
        Something,
    ),
    (
        "all rows are rewritten, without any checkpoints",
        |it| {
            it.rewrite("ada", "eve");
            it.every("DELETE FROM checkpoints");
            it.lines(|_| false);
        },
        Something,
        Something,
    ),
    (
        "all rows are rewritten, without any checkpoints, with journals",
        |it| {
            it.rewrite("ada", "eve");
            it.every("DELETE FROM checkpoints");
            it.lines(|_| false);
            (0..4).for_each(|segment| it.with_journal(segment));
        },
        Nothing,
        Something,
    ),
    // Signatures.
    ("signatures are removed from the segments", |it| it.restate(unsigned), Nothing, Something),
    (
        "signatures are removed everywhere",
        |it| {
            it.restate(unsigned);
            let text = fs::read_to_string(it.beside()).unwrap();
            let lines: Vec<String> = text.lines().map(|line| unsigned(line) + "\n").collect();
            fs::write(it.beside(), lines.concat()).unwrap();
        },
        Nothing,
        Something,
    ),
    (
        "signatures are removed from the kept lines",
        |it| {
            let text = fs::read_to_string(it.beside()).unwrap();
            let lines: Vec<String> = text.lines().map(|line| unsigned(line) + "\n").collect();
            fs::write(it.beside(), lines.concat()).unwrap();
        },
        Nothing,
        Something,
    ),
    (
        "the time of each checkpoint is changed",
        |it| it.restate(|text| text.replacen("\"time\":\"2", "\"time\":\"1", 1)),
        Something,
        Something,
    ),
    (
        "each seal says that it is none",
        |it| it.restate(|text| text.replace("\"sealed\":true", "\"sealed\":false")),
        Something,
        Something,
    ),
    (
        "a signature is of another statement",
        |it| {
            it.restate(|text| {
                let at = text.find("\"signature\":\"").unwrap() + 13;
                let flipped = if &text[at..=at] == "0" { "1" } else { "0" };
                format!("{}{flipped}{}", &text[..at], &text[at + 1..])
            });
        },
        Something,
        Something,
    ),
    (
        "the key is another one",
        |it| {
            it.restate(|text| {
                let at = text.find("\"key\":\"").unwrap() + 7;
                format!("{}{}{}", &text[..at], "0".repeat(64), &text[at + 64..])
            });
        },
        Something,
        Something,
    ),
    // Files.
    ("a segment is removed", |it| it.remove_segment(1), Something, Something),
    ("the first segment is removed", |it| it.remove_segment(0), Something, Something),
    ("the last segment is removed", |it| it.remove_segment(3), Something, Something),
    (
        "a segment is removed, and an old note explains it",
        |it| {
            it.remove_segment(0);
            let first = it.files[0].file_stem().unwrap().to_str().unwrap();
            let note = format!("{{\"removed\":\"{first}\",\"time\":\"2026-11-15T12:00:00.000000Z\"}}\n");
            let text = fs::read_to_string(it.beside()).unwrap();
            fs::write(it.beside(), text + &note).unwrap();
        },
        Nothing,
        Something,
    ),
    ("the kept lines are removed", |it| it.lines(|_| false), Nothing, Nothing),
    ("a kept line is removed", |it| it.lines(|line| !line.contains("\"count\":4,")), Nothing, Nothing),
    (
        "a kept line is of another history",
        |it| {
            let text = fs::read_to_string(it.beside()).unwrap();
            let at = text.find("\"head\":\"").unwrap() + 8;
            fs::write(it.beside(), format!("{}{}{}", &text[..at], "0".repeat(64), &text[at + 64..])).unwrap();
        },
        Something,
        Something,
    ),
];

/// AUD-3: both checkers find the same forgeries, with the key and without it.
#[test]
fn both_checkers_agree_on_every_forgery() {
    assert!(FORGERIES.len() > 30);
    let place = tempfile::tempdir().unwrap();
    let (secret, public) = (place.path().join("secret"), place.path().join("public"));
    fs::write(&secret, "11".repeat(32)).unwrap();
    fs::write(&public, Signer::read(&secret).unwrap().public().to_string()).unwrap();
    let record = place.path().join("record");
    assert_eq!(signed_record(&record, &secret).len(), 4);
    for (at, (what, forge, without, with)) in FORGERIES.iter().enumerate() {
        let folder = place.path().join(format!("forged-{at}"));
        copy(&record, &folder);
        forge(&Forgery { files: segments(&folder), folder: folder.clone() });
        let key = std::slice::from_ref(&public);
        assert_eq!((ours(&folder, &[]).1, ours(&folder, key).1), (*without, *with), "we: {what}");
        assert_eq!((pythons(&folder, &[]), pythons(&folder, key)), (*without, *with), "python: {what}");
        fs::remove_dir_all(&folder).unwrap();
    }
}

/// AUD-3: `verify` accepts the signatures of each key that it is given, such as an old one and its successor, and of no other.
/// It counts the rows that no signed checkpoint covers.
#[test]
fn keys_may_be_replaced() {
    let place = tempfile::tempdir().unwrap();
    let key = |name: &str, byte: &str| {
        let (secret, public) = (place.path().join(format!("{name}.secret")), place.path().join(name));
        fs::write(&secret, byte.repeat(32)).unwrap();
        fs::write(&public, Signer::read(&secret).unwrap().public().to_string()).unwrap();
        (secret, public)
    };
    let ((old_secret, old), (new_secret, new), (_, other)) =
        (key("old", "11"), key("new", "22"), key("other", "33"));
    let record = place.path().join("record");
    signed_record(&record, &old_secret);
    signed_record(&record, &new_secret);
    let both = [old.clone(), new.clone()];
    assert_eq!((ours(&record, &both).1, pythons(&record, &both)), (Nothing, Nothing));
    for wrong in [&[old][..], &[new], &[other]] {
        assert_eq!((ours(&record, wrong).1, pythons(&record, wrong)), (Something, Something), "{wrong:?}");
    }
    assert!(ours(&record, &both).0.iter().all(|segment| segment.uncovered == 0));
    let last = segments(&record).pop().unwrap();
    Connection::open(&last).unwrap().execute_batch("DELETE FROM checkpoints").unwrap();
    fs::write(last.with_extension("rows"), "").unwrap();
    let open = ours(&record, &both).0.pop().unwrap();
    assert_eq!((open.uncovered, open.sealed), (open.count, false), "{open:?}");
}
