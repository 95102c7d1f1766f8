//! Verifies that a segment is unchanged since it was written, and names the places where it is not.
//!
//! The verifier takes records one by one, segment after segment, and compares the hashes that it computes with the stored
//! ones. After a fault it continues from the stored hash, so that one changed row is one problem.
//!
//! It cannot know by itself whether the end of an unsealed segment was cut off, or whether an attacker who could write
//! everything, including the file of checkpoints, wrote another history. Checkpoints that were kept elsewhere
//! ([`Verifier::expect`]) or signed answer that. With keys, a row counts as proven only if a checkpoint with a good signature
//! covers it; the rest is counted as uncovered. A segment that nobody writes any more must have its seal.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::merkle::Frontier;
use crate::pairs::{Calls, Half};
use crate::records::{Record, RecordKind};
use crate::store::{KNOWN_FORMATS, segment_name};
use crate::{Checkpoint, Hash, Header, PublicKey, Removal};

/// How many problems of one segment are reported.
const MOST_PROBLEMS: usize = 20;

/// A segment in use has no more rows without a checkpoint, even on a machine that is far too slow.
const MOST_UNCOVERED: u64 = 64 * 1024;

/// No instance has more segments. The limit keeps a forged header from making the verifier run on.
const MOST_SEGMENTS: u32 = 100_000;

/// A difference from what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The segment; empty where there is none.
    pub segment: String,
    /// The row, if one can be named.
    pub row: Option<u64>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row {
            Some(row) => write!(formatter, "{}: row {row}: {}", self.segment, self.what),
            None => write!(formatter, "{}: {}", self.segment, self.what),
        }
    }
}

/// A segment that was read to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Its name.
    pub segment: String,
    /// How many rows it has.
    pub count: u64,
    /// The root over them.
    pub root: Hash,
    /// The head after the last.
    pub head: Hash,
    /// Whether no row may follow.
    pub sealed: bool,
    /// How many checkpoints it holds.
    pub checkpoints: u64,
    /// How many of them are signed.
    pub signed: u64,
    /// How many of the last rows no checkpoint covers; if keys were given, no checkpoint that one of them signed.
    pub uncovered: u64,
}

/// A head that was noted before: the segment must still hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The segment.
    pub segment: String,
    /// How many rows it had.
    pub count: u64,
    /// The head after the last of them.
    pub head: Hash,
    /// The root over them, if known.
    pub root: Option<Hash>,
}

impl Expected {
    /// Reads `SEGMENT:COUNT:HEAD`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let expected = Self {
            segment: parts.next()?.to_owned(),
            count: parts.next()?.parse().ok()?,
            head: Hash::parse(parts.next()?)?,
            root: None,
        };
        (parts.next().is_none() && !expected.segment.is_empty()).then_some(expected)
    }
}

impl From<&Checkpoint> for Expected {
    fn from(checkpoint: &Checkpoint) -> Self {
        Self {
            segment: checkpoint.segment.clone(),
            count: checkpoint.count,
            head: checkpoint.head,
            root: Some(checkpoint.root),
        }
    }
}

/// A record after the checks that need no other record: the costly part, which needs no order.
pub(crate) enum Seen {
    Row(SeenRow),
    /// A header or a checkpoint.
    Other(Record),
}

/// What those checks keep of a row.
pub(crate) struct SeenRow {
    /// The number in the store.
    seq: Option<u64>,
    /// The number in its text; `None` if that cannot be read.
    number: Option<u64>,
    leaf: Hash,
    /// The stored hash.
    hash: Option<Hash>,
    /// What it says about its call; `None` if that cannot be read.
    half: Option<Half>,
}

/// The number in a row's text.
fn number(text: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Numbered {
        seq: u64,
    }
    // The fast path for rows that the store wrote; other JSON may have a number too.
    let rest = text.strip_prefix(br#"{"seq":"#).unwrap_or_default();
    let digits = rest.iter().position(|byte| *byte == b',').map(|end| &rest[..end]);
    let plain = digits.filter(|digits| !digits.is_empty() && digits[0] != b'0');
    plain
        .filter(|digits| digits.iter().all(u8::is_ascii_digit) && text.ends_with(b"\"}"))
        .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
        .or_else(|| serde_json::from_slice::<Numbered>(text).ok().map(|row| row.seq))
}

impl Seen {
    pub(crate) fn of(record: &Record) -> Self {
        if record.kind != RecordKind::Row {
            return Self::Other(record.clone());
        }
        Self::Row(SeenRow {
            seq: record.seq,
            number: number(&record.text),
            leaf: Hash::leaf(&record.text),
            hash: record.hash,
            half: Half::read(&record.text),
        })
    }
}

/// Checks records as they come.
#[derive(Default)]
pub struct Verifier {
    keys: Vec<PublicKey>,
    expected: HashMap<String, Vec<Expected>>,
    now: Option<Current>,
    /// The state of each instance after its last segment.
    instances: HashMap<String, Left>,
    /// The notes about removed segments, by segment name.
    removed: HashMap<String, Removal>,
    verified: Vec<Verified>,
    problems: Vec<Problem>,
}

/// The state of an instance after one of its segments.
struct Left {
    index: u32,
    segment: String,
    sealed: bool,
    head: Hash,
    /// The number of the next row.
    next: u64,
    calls: Option<Calls>,
}

struct Current {
    header: Option<Header>,
    /// `None` if too little is known of the rows before.
    calls: Option<Calls>,
    name: String,
    next: u64,
    head: Hash,
    tree: Frontier,
    sealed: bool,
    /// Whether nobody writes it any more.
    closed: bool,
    checkpoints: u64,
    signed: u64,
    /// How many rows the last good checkpoint covers.
    covered: u64,
    expected: Vec<Expected>,
    problems: usize,
    /// Exits that name an enter of another call.
    mispaired: usize,
}

impl Verifier {
    /// A verifier that requires every checkpoint to be signed with one of these keys, if there are any.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = PublicKey>) -> Self {
        Self { keys: keys.into_iter().collect(), ..Self::default() }
    }

    /// Takes a kept checkpoint: the segment must still hold that state. A checkpoint without the required signature proves
    /// nothing, and is a problem.
    pub fn keep(&mut self, checkpoint: &Checkpoint) {
        match checkpoint.check_signature(&self.keys) {
            Ok(()) => self.expect(checkpoint.into()),
            Err(what) => {
                let rows = counted(checkpoint.count, "row");
                self.report(&checkpoint.segment, format!("the kept checkpoint after {rows}: {what}"));
            }
        }
    }

    /// Requires a segment to still hold an earlier state.
    pub fn expect(&mut self, expected: Expected) {
        self.expected.entry(expected.segment.clone()).or_default().push(expected);
    }

    /// Takes a note that a segment was removed; call this before any records. A note without the required signature explains
    /// nothing.
    pub fn explain(&mut self, removal: Removal) {
        match removal.check_signature(&self.keys) {
            Ok(()) => drop(self.removed.insert(removal.removed.clone(), removal)),
            Err(what) => self.report(&removal.removed, format!("the note that it was removed: {what}")),
        }
    }

    /// Adds a problem that was found outside of the records.
    pub fn report(&mut self, segment: &str, what: impl Into<String>) {
        self.problems.push(Problem { segment: segment.to_owned(), row: None, what: what.into() });
    }

    /// Checks one record.
    pub fn take(&mut self, record: &Record) {
        self.judge(&Seen::of(record));
    }

    /// Notes that nobody writes the current segment any more.
    pub(crate) fn closed(&mut self) {
        if let Some(now) = &mut self.now {
            now.closed = true;
        }
    }

    /// Judges the next record.
    pub(crate) fn judge(&mut self, seen: &Seen) {
        match seen {
            Seen::Other(record) if record.kind == RecordKind::Header => {
                self.end();
                self.header(record);
            }
            _ if self.now.is_none() => {
                self.report("", "the header of the segment is missing");
                self.now = Some(Current::new(String::new(), None, Hash::default(), Vec::new()));
                self.judge(seen);
            }
            Seen::Row(row) => self.row(row),
            Seen::Other(record) => self.checkpoint(record),
        }
    }

    /// The result after the last record: the segments, the problems, and the expectations of segments that are missing.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Verified>, Vec<Problem>, Vec<Expected>) {
        self.end();
        (self.verified, self.problems, self.expected.into_values().flatten().collect())
    }

    /// The result for a whole folder. It must have every segment that a kept checkpoint names or that a later segment of its
    /// instance implies. The only excuse is a removal note that fits what is known of the segment.
    #[must_use]
    pub fn finish_folder(mut self) -> (Vec<Verified>, Vec<Problem>) {
        self.end();
        let mut first: BTreeMap<&str, u32> = BTreeMap::new();
        for (instance, index) in self.verified.iter().filter_map(|it| it.segment.rsplit_once('.')) {
            let Ok(index) = index.parse() else { continue };
            let known = first.entry(instance).or_insert(index);
            *known = index.min(*known);
        }
        let before = first.into_iter().flat_map(|(instance, index)| {
            (1..index.min(MOST_SEGMENTS)).map(move |index| (segment_name(instance, index), Vec::new()))
        });
        let mut missing: BTreeMap<String, Vec<Expected>> = before.collect();
        missing.extend(std::mem::take(&mut self.expected));
        for (segment, expected) in missing {
            let what = match self.removed.get(&segment) {
                None => "the whole segment is missing, and there is no note that retention removed it",
                Some(note) if !expected.iter().all(|it| fits(note, it)) => {
                    "the whole segment is missing, and the note of its removal does not fit its checkpoints"
                }
                Some(_) => continue,
            };
            self.report(&segment, what);
        }
        (self.verified, self.problems)
    }

    fn problem(&mut self, row: Option<u64>, what: impl Into<String>) {
        let Some(now) = &mut self.now else { return };
        now.problems += 1;
        if now.problems <= MOST_PROBLEMS {
            self.problems.push(Problem { segment: now.name.clone(), row, what: what.into() });
        }
    }

    fn header(&mut self, record: &Record) {
        let head = Hash::header(&record.text);
        let header: Option<Header> = serde_json::from_slice(&record.text).ok();
        let name = header.as_ref().map(|header| header.segment.clone()).unwrap_or_default();
        let mut expected = self.expected.remove(&name).unwrap_or_default();
        expected.sort_by_key(|it| std::cmp::Reverse(it.count));
        self.now = Some(Current::new(name, header.clone(), record.hash.unwrap_or(head), expected));
        if record.hash != Some(head) {
            self.problem(None, "the header was changed");
        }
        let Some(header) = header else {
            return self.problem(None, "the header cannot be read");
        };
        if !KNOWN_FORMATS.contains(&header.format) {
            self.problem(
                None,
                format!("the row format is {}, which this program does not know", header.format),
            );
        }
        match self.instances.remove(&header.instance) {
            Some(Left { index, segment, sealed, head, next, calls }) => {
                if !sealed && !self.keys.is_empty() {
                    let what = format!(
                        "no key signed its end, although {} follows it; while its gateway writes, verify again",
                        header.segment
                    );
                    self.report(&segment, what);
                }
                let gone = |index| self.removed.contains_key(&segment_name(&header.instance, index));
                if header.index > index + 1 && (index + 1..header.index).all(gone) {
                    if let Some(now) = &mut self.now {
                        now.calls = Some(Calls::from(header.first));
                    }
                } else if header.index != index + 1 {
                    let what = format!("segment {} of the instance is followed by {}", index, header.index);
                    self.problem(None, what);
                } else if header.previous != Some(head) || header.first != next {
                    self.problem(None, "it does not continue the segment before it");
                } else if let Some(now) = &mut self.now {
                    now.calls = calls;
                }
            }
            // Retention may have removed the older ones; its notes are compared elsewhere.
            None => {
                if let Some(now) = &mut self.now {
                    now.calls = Some(Calls::from(header.first));
                }
                if (header.index == 1) != (header.previous.is_none() && header.first == 1) {
                    self.problem(None, "the header contradicts itself");
                }
            }
        }
    }

    fn row(&mut self, row: &SeenRow) {
        let Some(now) = &mut self.now else { return };
        let expected = now.next;
        let head = Hash::link(&now.head, &row.leaf);
        let sealed = now.sealed;
        now.tree.push(row.leaf);
        now.head = row.hash.unwrap_or(head);
        let seq = row.seq.or(row.number).unwrap_or(expected);
        now.next = seq.saturating_add(1);
        let what = match row.number {
            _ if seq.checked_sub(expected) == Some(1) => Some((expected, "it is missing".to_owned())),
            _ if seq > expected => Some((expected, format!("it and those up to {} are missing", seq - 1))),
            _ if seq < expected => Some((seq, format!("it is in the place of row {expected}"))),
            Some(number) if number != seq => {
                Some((seq, format!("its text says that it is row {number}: it was moved or changed")))
            }
            _ if row.hash != Some(head) => {
                Some((seq, "it was changed, or does not follow from the row before it".to_owned()))
            }
            None => Some((seq, "it cannot be read".to_owned())),
            _ if sealed => Some((seq, "it was added after the segment was sealed".to_owned())),
            _ => None,
        };
        match what {
            Some((row, what)) => self.problem(Some(row), what),
            None => self.pair(seq, row),
        }
        self.compare_expected(false);
    }

    /// Compares an exit with the enter that it names. Skipped after other problems, because the enter may be the row that is
    /// missing.
    fn pair(&mut self, seq: u64, row: &SeenRow) {
        let Some(Current { header: Some(header), calls: Some(calls), problems: 0, .. }) = &mut self.now
        else {
            return;
        };
        let judged =
            row.half.as_ref().map_or(Ok(()), |half| calls.take(header.format, header.index, seq, half));
        if let Err(what) = judged {
            self.mispaired(seq, what);
        }
    }

    /// Counts separately: the chain is intact, and the following rows can be judged.
    fn mispaired(&mut self, seq: u64, what: String) {
        let Some(now) = &mut self.now else { return };
        now.mispaired += 1;
        if now.mispaired <= MOST_PROBLEMS {
            self.problems.push(Problem { segment: now.name.clone(), row: Some(seq), what });
        }
    }

    fn checkpoint(&mut self, record: &Record) {
        let Some(now) = &mut self.now else { return };
        now.checkpoints += 1;
        let (count, root, head, sound) = (now.tree.count(), now.tree.root(), now.head, now.problems == 0);
        let name = now.name.clone();
        let Ok(checkpoint) = serde_json::from_slice::<Checkpoint>(&record.text) else {
            return self
                .problem(None, format!("the checkpoint after {} cannot be read", counted(count, "row")));
        };
        let signed = checkpoint.signature.is_some();
        let what = if record.hash != Some(Hash::checkpoint(&record.text)) {
            Some("was changed".to_owned())
        } else if checkpoint.segment != name {
            Some("belongs to another segment".to_owned())
        } else if checkpoint.count > count {
            Some(format!("covers more rows than the {count} that are there: the end was cut off"))
        } else if checkpoint.count < count || record.seq.is_some_and(|seq| seq != checkpoint.count) {
            Some("is in another place than it states".to_owned())
        } else if sound && (checkpoint.root, checkpoint.head) != (root, head) {
            Some("does not fit the rows: they were rewritten".to_owned())
        } else {
            checkpoint.check_signature(&self.keys).err()
        };
        if let Some(now) = &mut self.now {
            now.sealed |= checkpoint.sealed;
            now.signed += u64::from(signed);
            if what.is_none() {
                now.covered = checkpoint.count;
            }
        }
        if let Some(what) = what {
            self.problem(None, format!("the checkpoint after {} {what}", counted(checkpoint.count, "row")));
        }
    }

    /// Compares the expectations for this count; at the end, also those for more rows.
    fn compare_expected(&mut self, ended: bool) {
        loop {
            let Some(now) = &mut self.now else { return };
            let count = now.tree.count();
            // The smallest count is last.
            let Some(expected) = now.expected.pop_if(|it| ended || it.count <= count) else { return };
            let fits = expected.head == now.head && expected.root.is_none_or(|root| root == now.tree.root());
            let sound = now.problems == 0;
            if expected.count > count {
                let what = format!(
                    "it had {} when its head was {}, and has {count}: the end was cut off",
                    counted(expected.count, "row"),
                    expected.head
                );
                self.problem(Some(count + 1), what);
            } else if expected.count == count && sound && !fits {
                let what = format!(
                    "after {} its head was {}: they were rewritten",
                    counted(count, "row"),
                    expected.head
                );
                self.problem(None, what);
            }
        }
    }

    fn end(&mut self) {
        self.compare_expected(true);
        let lacks_seal = |now: &Current| now.closed && !now.sealed && now.tree.count() > 0;
        if self.now.as_ref().is_some_and(lacks_seal) {
            self.problem(None, "it is closed, because it has no journal, but its seal is missing");
        }
        let uncovered = |now: &Current| now.tree.count().saturating_sub(now.covered);
        if let Some(rows) = self.now.as_ref().map(uncovered).filter(|rows| *rows > MOST_UNCOVERED)
            && !self.keys.is_empty()
        {
            let rows = counted(rows, "row");
            self.problem(
                None,
                format!("no key signed its last {rows}; a gateway never leaves as many without a checkpoint"),
            );
        }
        let Some(now) = self.now.take() else { return };
        let uncovered = uncovered(&now);
        let untold = [now.problems, now.mispaired].map(|count| count.saturating_sub(MOST_PROBLEMS));
        let untold: usize = untold.iter().sum();
        if untold > 0 {
            let what = format!("and {}", counted(untold as u64, "more problem"));
            self.problems.push(Problem { segment: now.name.clone(), row: None, what });
        }
        if let Some(header) = &now.header {
            let calls = now.calls.filter(|_| now.problems == 0);
            let (segment, sealed) = (now.name.clone(), now.sealed || now.closed);
            let left = Left { index: header.index, segment, sealed, head: now.head, next: now.next, calls };
            self.instances.insert(header.instance.clone(), left);
        }
        self.verified.push(Verified {
            segment: now.name,
            count: now.tree.count(),
            root: now.tree.root(),
            head: now.head,
            sealed: now.sealed,
            checkpoints: now.checkpoints,
            signed: now.signed,
            uncovered,
        });
    }
}

/// "1 row", "2 rows".
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Whether the note of a removed segment agrees with a checkpoint of it. Older notes have nothing to compare.
fn fits(note: &Removal, kept: &Expected) -> bool {
    note.count
        .zip(note.head)
        .is_none_or(|(count, head)| kept.count < count || (kept.count == count && kept.head == head))
}

impl Current {
    fn new(name: String, header: Option<Header>, head: Hash, expected: Vec<Expected>) -> Self {
        Self {
            name,
            next: header.as_ref().map_or(1, |header| header.first),
            header,
            calls: None,
            head,
            tree: Frontier::default(),
            sealed: false,
            closed: false,
            checkpoints: 0,
            signed: 0,
            covered: 0,
            expected,
            problems: 0,
            mispaired: 0,
        }
    }
}

#[cfg(test)]
mod tests;
