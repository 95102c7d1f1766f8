//! Every change is found, by our verifier and by the one in Python.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bridgehead_audit::{Expected, RecordKind, Verifier, read_segment, segments, write_line};
use rusqlite::Connection;

use crate::support::{block_on, call, eventually, open, python_verifies, records, rows, verify, written};

fn copy(from: &Path, folder: &Path) -> PathBuf {
    let to = folder.join("copy.sqlite");
    fs::copy(from, &to).unwrap();
    to
}

fn export(from: &Path, to: &Path) {
    let mut out = Vec::new();
    records(from).iter().for_each(|record| write_line(record, &mut out).unwrap());
    fs::write(to, out).unwrap();
}

/// AUD-3: an untouched record passes both verifiers, as a segment and as an export.
#[test]
fn an_untouched_record_verifies() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), 21, |_| {});
    let exported = folder.path().join("export.jsonl");
    export(&file, &exported);
    for path in [&file, &exported] {
        let (verified, problems) = verify(std::slice::from_ref(path));
        assert_eq!(problems, []);
        assert_eq!((verified[0].count, verified[0].sealed), (42, true));
        assert!(python_verifies(&[path.to_str().unwrap()]));
    }
    assert_eq!(records(&file).len(), records(&exported).len());
}

/// AUD-3: a segment that is read in several parts at once is judged as one, and so is the file after it.
#[test]
fn a_long_record_is_judged_in_its_order() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 9_000, |options| options.checkpoint_rows = 1_000);
    written(folder.path(), 3, |_| {});
    let files = segments(folder.path());
    let (verified, problems) = verify(&files);
    assert_eq!(problems, []);
    assert_eq!(verified.iter().map(|it| it.count).collect::<Vec<_>>(), [18_000, 6]);
    let change = "UPDATE rows SET body = replace(body, 'ada', 'eve') WHERE seq IN (9001, 17001)";
    Connection::open(&files[0]).unwrap().execute_batch(change).unwrap();
    let (_, problems) = verify(&files);
    assert_eq!(problems.iter().map(|it| it.row).collect::<Vec<_>>(), [Some(9_001), Some(17_001)]);
}

/// AUD-3: changed, removed, added and reordered rows are found and named.
#[test]
fn changes_are_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), 10, |_| {});
    #[track_caller]
    fn check(file: &Path, folder: &Path, change: &str, row: Option<u64>, what: &str) {
        let copy = copy(file, folder);
        Connection::open(&copy).unwrap().execute_batch(change).unwrap();
        let (_, problems) = verify(std::slice::from_ref(&copy));
        assert!(
            problems.iter().any(|it| it.row == row && it.what.contains(what)),
            "{change}: {row:?} {what} is not in {problems:?}"
        );
        assert!(!python_verifies(&[copy.to_str().unwrap()]), "{change}");
    }
    let check = |change: &str, row, what: &str| check(&file, folder.path(), change, row, what);
    check("UPDATE rows SET body = replace(body, 'ada', 'eve') WHERE seq = 7", Some(7), "it was changed");
    check("UPDATE rows SET head = zeroblob(32) WHERE seq = 7", Some(7), "it was changed");
    check("UPDATE rows SET head = x'00' WHERE seq = 7", Some(7), "it was changed");
    check("DELETE FROM rows WHERE seq = 7", Some(7), "it is missing");
    check("DELETE FROM rows WHERE seq BETWEEN 7 AND 9", Some(7), "up to 9 are missing");
    check(
        "UPDATE rows SET seq = 100 WHERE seq = 7; UPDATE rows SET seq = 7 WHERE seq = 8;
         UPDATE rows SET seq = 8 WHERE seq = 100",
        Some(7),
        "its text says that it is row 8",
    );
    check("DELETE FROM rows WHERE seq = 20", None, "the end was cut off");
    check(
        "INSERT INTO rows SELECT 21, replace(body, '\"seq\":20', '\"seq\":21'), head FROM rows WHERE seq = 20",
        Some(21),
        "it was changed",
    );
    check("UPDATE checkpoints SET body = replace(body, 'Z\"', 'Y\"') WHERE rowid = 1", None, "was changed");
    check("UPDATE checkpoints SET count = count + 1 WHERE rowid = 1", None, "in another place");
    check("UPDATE segment SET body = replace(body, 'format', 'Format')", None, "the header was changed");
    check("UPDATE segment SET head = zeroblob(32)", None, "the header was changed");
    check("DELETE FROM segment", None, "the header of the segment is missing");
}

/// The bits to flip: the lowest one, the case of a letter, and one that breaks UTF-8.
const MASKS: [u8; 3] = [0x01, 0x20, 0x80];

/// The columns that hold bytes, each with the key of its table.
const COLUMNS: [(&str, &str, &str); 6] = [
    ("rows", "seq", "body"),
    ("rows", "seq", "head"),
    ("checkpoints", "rowid", "body"),
    ("checkpoints", "rowid", "digest"),
    ("segment", "id", "body"),
    ("segment", "id", "head"),
];

/// The columns that hold numbers.
const NUMBERS: [(&str, &str); 2] = [("rows", "seq"), ("checkpoints", "count")];

/// AUD-3: both verifiers find a change of any byte in any stored column.
#[test]
fn every_byte_of_every_column_counts() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), 2, |_| {});
    let copy = copy(&file, folder.path());
    let connection = Connection::open(&copy).unwrap();
    connection.execute_batch("PRAGMA synchronous = OFF").unwrap();
    let mut stored = 0;
    for table in ["rows", "checkpoints", "segment"] {
        let mut columns =
            connection.prepare(&format!("SELECT name FROM pragma_table_info('{table}')")).unwrap();
        let columns: Vec<String> =
            columns.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        stored += columns.len();
    }
    // The remaining column is the id of the header, which can only be 1.
    assert_eq!(stored, COLUMNS.len() + NUMBERS.len() + 1, "a column is not checked");
    assert!(connection.execute_batch("UPDATE segment SET id = 2").is_err());
    let mut changes = 0;
    for (table, key, column) in COLUMNS {
        let mut statement =
            connection.prepare(&format!("SELECT {key}, CAST({column} AS BLOB) FROM {table}")).unwrap();
        let cells: Vec<(i64, Vec<u8>)> = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        let cast = if column == "body" { "CAST(?1 AS TEXT)" } else { "?1" };
        let write = format!("UPDATE {table} SET {column} = {cast} WHERE {key} = ?2");
        for (id, cell) in cells {
            for at in 0..cell.len() {
                let mut changed = cell.clone();
                changed[at] ^= MASKS[at % MASKS.len()];
                connection.execute(&write, rusqlite::params![changed, id]).unwrap();
                let (_, problems) = verify(std::slice::from_ref(&copy));
                assert!(!problems.is_empty(), "{table}.{column} of {id}, byte {at}");
                changes += 1;
            }
            connection.execute(&write, rusqlite::params![cell, id]).unwrap();
        }
    }
    for (table, column) in NUMBERS {
        let mut statement = connection.prepare(&format!("SELECT {column} FROM {table}")).unwrap();
        let numbers: Vec<i64> =
            statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let write = format!("UPDATE {table} SET {column} = ?1 WHERE {column} = ?2");
        for number in numbers {
            for byte in 0..8 {
                let changed = number ^ (0x40 << (8 * byte));
                connection.execute(&write, [changed, number]).unwrap();
                assert!(!verify(std::slice::from_ref(&copy)).1.is_empty(), "{table}.{column} {number}");
                connection.execute(&write, [number, changed]).unwrap();
            }
        }
    }
    assert_eq!(verify(std::slice::from_ref(&copy)).1, []);
    assert!(changes > 1_500);
    drop(connection);
    python_finds_every_byte(&copy, None, changes);
}

/// Changes each byte of some lines once, and checks that the verifier of `file` finds it.
#[track_caller]
fn every_changed_byte_is_found(lines: &Path, file: &Path) {
    let text = fs::read(lines).unwrap();
    for at in 0..text.len() {
        let mut changed = text.clone();
        changed[at] ^= MASKS[at % MASKS.len()];
        fs::write(lines, &changed).unwrap();
        assert!(!verify(&[file.to_owned()]).1.is_empty(), "byte {at}");
    }
    fs::write(lines, &text).unwrap();
}

/// AUD-3: both verifiers find a change of any byte in an export.
#[test]
fn every_byte_of_an_export_counts() {
    let folder = tempfile::tempdir().unwrap();
    let exported = folder.path().join("export.jsonl");
    export(&written(folder.path(), 2, |_| {}), &exported);
    let text = fs::read(&exported).unwrap();
    every_changed_byte_is_found(&exported, &exported);
    python_finds_every_byte(&exported, None, text.len());
    fs::write(&exported, &text[..text.len() - 1]).unwrap();
    assert!(!verify(std::slice::from_ref(&exported)).1.is_empty());
    assert!(!python_verifies(&[exported.to_str().unwrap()]));
}

/// AUD-3: both verifiers find a change of any byte in rows that are only in the journal, but accept an incomplete
/// last line of a killed process.
#[test]
fn every_byte_of_a_journal_counts() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path());
    let file = segments(folder.path()).pop().unwrap();
    let other = Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    block_on(async {
        call(&sink, 1).await.unwrap();
        call(&sink, 2).await.unwrap();
    });
    let journal = file.with_extension("rows");
    eventually("all rows are written", || rows(&file).len() == 4);
    let text = fs::read(&journal).unwrap();
    every_changed_byte_is_found(&journal, &file);
    python_finds_every_byte(&file, Some(&journal), text.len());

    let last = text[..text.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for end in last..text.len() {
        fs::write(&journal, &text[..end]).unwrap();
        assert_eq!((rows(&file).len(), verify(std::slice::from_ref(&file)).1), (3, vec![]), "byte {end}");
    }
    assert!(python_verifies(&[file.to_str().unwrap()]));
    fs::write(&journal, &text).unwrap();
    drop(other);
    sink.close();
    assert_eq!(verify(&[file]).1, []);
}

/// Makes the same changes again, in one process of the Python verifier, and prints how many it found.
const EVERY_BYTE: &str = r#"
import importlib.util, sqlite3, sys
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("checker", sys.argv[1])
checker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checker)
path, masks, made = sys.argv[2], (0x01, 0x20, 0x80), 0
lines = sys.argv[3] if len(sys.argv) > 3 else path

def content():
    found = []
    try: checker.verify(path, [], lambda *what: found.append(what))
    except Exception as error: found.append(error)
    return not found

def changed(cell, at, mask):
    return cell[:at] + bytes([cell[at] ^ mask]) + cell[at + 1:]

assert content(), "untouched"
if not lines.endswith(".sqlite"):
    text = open(lines, "rb").read()
    for at in range(len(text)):
        with open(lines, "wb") as file: file.write(changed(text, at, masks[at % 3]))
        assert not content(), f"byte {at}"
        made += 1
    with open(lines, "wb") as file: file.write(text)
else:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")
    for table, key, column in (("rows", "seq", "body"), ("rows", "seq", "head"), ("checkpoints", "rowid", "body"),
                               ("checkpoints", "rowid", "digest"), ("segment", "id", "body"), ("segment", "id", "head")):
        cast = "CAST(? AS TEXT)" if column == "body" else "?"
        write = f"UPDATE {table} SET {column} = {cast} WHERE {key} = ?"
        for row, cell in database.execute(f"SELECT {key}, CAST({column} AS BLOB) FROM {table}").fetchall():
            for at in range(len(cell)):
                database.execute(write, (changed(cell, at, masks[at % 3]), row))
                assert not content(), f"{table}.{column} of {row}, byte {at}"
                made += 1
            database.execute(write, (cell, row))
    for table, column in (("rows", "seq"), ("checkpoints", "count")):
        write = f"UPDATE {table} SET {column} = ? WHERE {column} = ?"
        for number, in database.execute(f"SELECT {column} FROM {table}").fetchall():
            for byte in range(8):
                other = int.from_bytes((number ^ (0x40 << 8 * byte)).to_bytes(8, "little"), "little", signed=True)
                database.execute(write, (other, number))
                assert not content(), f"{table}.{column} {number}"
                database.execute(write, (number, other))
assert content(), "untouched again"
print(made)
"#;

#[track_caller]
fn python_finds_every_byte(path: &Path, lines: Option<&Path>, expected: usize) {
    let checker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/verify_audit.py");
    let output =
        Command::new("python3").args(["-c", EVERY_BYTE]).arg(checker).arg(path).args(lines).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected.to_string());
}

/// AUD-3: a kept head, and only that, reveals a cut tail or a rewritten history when all checkpoints in the file
/// agree with it.
#[test]
fn a_kept_head_finds_a_cut_tail() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), 10, |_| {});
    let (verified, _) = verify(std::slice::from_ref(&file));
    let kept = format!("{}:{}:{}", verified[0].segment, verified[0].count, verified[0].head);
    let copy = copy(&file, folder.path());
    let connection = Connection::open(&copy).unwrap();
    connection
        .execute_batch("DELETE FROM rows WHERE seq > 16; DELETE FROM checkpoints WHERE count > 16")
        .unwrap();
    let path = copy.to_str().unwrap();
    let without_seal = &verify(std::slice::from_ref(&copy)).1;
    assert!(without_seal.len() == 1 && without_seal[0].what.contains("seal is missing"), "{without_seal:?}");
    assert!(!python_verifies(&[path]));
    fs::write(copy.with_extension("rows"), "").unwrap();
    assert_eq!(
        verify(std::slice::from_ref(&copy)).1,
        [],
        "of a segment in use, this cannot be seen without a head"
    );
    assert!(python_verifies(&[path]));
    assert!(!python_verifies(&[path, "--head", &kept]));
    assert!(python_verifies(&[file.to_str().unwrap(), "--head", &kept]));

    let with_head = |path: &Path, expected: Expected| {
        let mut verifier = Verifier::default();
        verifier.expect(expected);
        read_segment(path, |record| {
            verifier.take(record);
            Ok(())
        })
        .unwrap();
        verifier.finish()
    };
    assert_eq!(with_head(&file, Expected::parse(&kept).unwrap()).1, []);
    let (_, problems, _) = with_head(&copy, Expected::parse(&kept).unwrap());
    assert!(problems[0].row == Some(17) && problems[0].what.contains("cut off"), "{problems:?}");
    let other = Expected { head: verified[0].root, ..Expected::parse(&kept).unwrap() };
    assert!(with_head(&file, other).1[0].what.contains("rewritten"));
    let absent = Expected { segment: "another".to_owned(), ..Expected::parse(&kept).unwrap() };
    assert_eq!(with_head(&file, absent.clone()).2, [absent]);
    for wrong in ["", "a:b:c", "a:1", ":1:00", &format!("{kept}:x")] {
        assert_eq!(Expected::parse(wrong), None, "{wrong}");
    }
    assert_eq!(records(&file)[0].kind, RecordKind::Header);
}
