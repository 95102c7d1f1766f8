//! What was spent today, shared by all gateways of one configuration on a machine.
//!
//! The record is what counts over restarts. While gateways run, they share a ledger: a file beside the record with one line
//! for each charge and refund, appended by all of them. A gateway appends its charge and then reads to its own line: the
//! order of lines decides who got the last of a budget, without a lock. Each UTC day has a file; the clock may step back
//! over midnight and finds the earlier day as it was.
//!
//! A gateway that starts while no other runs writes the ledger anew from the record. A lock, which each holds while it lives
//! and which the kernel releases when it dies, tells. If the ledger cannot be written, a gateway counts for itself, and
//! restarts still recount all.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bridgehead_audit::Hash;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use tracing::warn;

/// Seconds of a day.
pub(super) const DAY: i64 = 24 * 60 * 60;
/// How much is read at once.
const CHUNK: usize = 16 * 1024;

/// The budget of one rule for one principal.
pub(super) type BudgetKey = u128;

/// The key of a principal's part of a budget.
pub(super) fn key(budget: &str, principal: &str) -> BudgetKey {
    let digest = Hash::of(format!("{budget}\n{principal}").as_bytes()).0;
    digest.iter().take(16).fold(0, |key, byte| key << 8 | u128::from(*byte))
}

/// The UTC day of a time, as days since 1970.
pub(super) fn day_of(time: Timestamp) -> i64 {
    time.as_second().div_euclid(DAY)
}

/// A day as people write it.
pub(super) fn written(day: i64) -> String {
    let midnight = Timestamp::from_second(day.saturating_mul(DAY)).unwrap_or_default();
    midnight.to_string().chars().take(10).collect()
}

/// What was spent of which budget.
pub(super) type Spent = HashMap<BudgetKey, i64>;

/// The ledger of one gateway.
pub(super) struct Ledger {
    place: Option<Place>,
    today: Mutex<Today>,
}

/// Where ledgers are.
pub(super) struct Place {
    folder: PathBuf,
    /// The beginning of the names of all files.
    name: String,
    /// Locked as long as this gateway lives.
    _alive: File,
}

struct Today {
    day: i64,
    spent: Spent,
    /// `None` before the first use of the day, and if the file does not work.
    file: Option<File>,
    /// How much of the file has been read.
    read: u64,
    /// Tells this gateway's lines from others'.
    own: u64,
    lines: u64,
}

/// A charge that exceeds a budget: which of the charged, and what was spent of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exceeded {
    pub(super) which: usize,
    pub(super) spent: u64,
}

impl Place {
    /// Makes ready the ledger of a configuration in the folder of its record. `recount` tells what the record says of a day;
    /// it is asked if no other gateway of the configuration runs.
    pub(super) fn open(
        folder: &Path,
        configuration: &str,
        today: i64,
        recount: impl FnOnce() -> Spent,
    ) -> io::Result<Self> {
        let id: String = Hash::of(configuration.as_bytes()).to_string().chars().take(16).collect();
        let name = format!("budgets-{id}");
        let alive =
            private().read(true).write(true).create(true).open(folder.join(format!("{name}.alive")))?;
        if alive.try_lock().is_ok() {
            // Nobody has a ledger open: whoever starts now waits for this lock.
            remove_ledgers(folder, &name, |_| true);
            let mut text = String::new();
            let recounted = recount();
            recounted.iter().for_each(|(key, amount)| line(&mut text, *key, *amount, "record"));
            let mut file = open(&ledger(folder, &name, today))?;
            file.write_all(text.as_bytes())?;
            alive.unlock()?;
        }
        alive.lock_shared()?;
        Ok(Self { folder: folder.to_owned(), name, _alive: alive })
    }
}

/// The options that open a file of the record's folder: for its owner only, and never through a link.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

fn open(path: &Path) -> io::Result<File> {
    private().read(true).append(true).create(true).open(path)
}

fn ledger(folder: &Path, name: &str, day: i64) -> PathBuf {
    folder.join(format!("{name}-{}.ledger", written(day)))
}

/// Removes the ledgers of those days for which `old` says so.
fn remove_ledgers(folder: &Path, name: &str, old: impl Fn(&str) -> bool) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let day = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".ledger"));
        if day.is_some_and(&old) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Writes one line. It begins with a line feed too, so that a line that a full disk cut short spoils no other.
fn line(text: &mut String, key: BudgetKey, amount: i64, mark: &str) {
    // Writing to a string cannot fail.
    let _ = write!(text, "\n{key:032x} {amount} {mark}\n");
}

fn parse(line: &str) -> Option<(BudgetKey, i64, &str)> {
    let mut parts = line.split(' ');
    let key = parts.next().filter(|key| key.len() == 32)?;
    let (amount, mark) = (parts.next()?.parse().ok()?, parts.next()?);
    Some((BudgetKey::from_str_radix(key, 16).ok()?, amount, mark))
}

impl Ledger {
    pub(super) fn new(place: Option<Place>) -> Self {
        let own = RandomState::new().hash_one(std::process::id());
        let today = Today { day: i64::MIN, spent: Spent::new(), file: None, read: 0, own, lines: 0 };
        Self { place, today: Mutex::new(today) }
    }

    /// Takes `cost` from each of these budgets of a day, or from none.
    pub(super) fn charge(&self, day: i64, budgets: &[(BudgetKey, u64)], cost: u64) -> Result<(), Exceeded> {
        let mut today = self.today.lock();
        today.turn_to(day, self.place.as_ref());
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        if today.exceeded(budgets, cost).is_some() {
            // Others may have been given something back.
            today.catch_up("", &[]);
            today.exceeded(budgets, cost).map_or(Ok(()), Err)?;
        }
        let exceeded = today.add(budgets, cost);
        if exceeded.is_some() {
            // Another gateway was faster.
            today.add(budgets, -cost);
        }
        exceeded.map_or(Ok(()), Err)
    }

    /// Takes more for a call of a day, or gives back what it took. What is left of an earlier day concerns nobody.
    pub(super) fn correct(&self, day: i64, budgets: &[BudgetKey], amount: i64) {
        let mut today = self.today.lock();
        if today.day == day {
            let budgets: Vec<_> = budgets.iter().map(|key| (*key, u64::MAX)).collect();
            today.add(&budgets, amount);
        }
    }
}

impl Today {
    /// Opens the ledger of a day, if it is not open.
    fn turn_to(&mut self, day: i64, place: Option<&Place>) {
        if self.day == day {
            return;
        }
        (self.day, self.read, self.file) = (day, 0, None);
        self.spent.clear();
        if let Some(Place { folder, name, .. }) = place {
            // Yesterday's is kept, in case the clock steps back. Days sort as text.
            let yesterday = written(day - 1);
            remove_ledgers(folder, name, |day| day < yesterday.as_str());
            match open(&ledger(folder, name, day)) {
                Ok(file) => self.file = Some(file),
                Err(error) => self.alone(&error),
            }
        }
        self.catch_up("", &[]);
    }

    fn spent(&self, key: BudgetKey) -> u64 {
        u64::try_from(self.spent.get(&key).copied().unwrap_or_default()).unwrap_or_default()
    }

    /// The first of the budgets that `cost` more would exceed.
    fn exceeded(&self, budgets: &[(BudgetKey, u64)], cost: i64) -> Option<Exceeded> {
        let cost = u64::try_from(cost).unwrap_or_default();
        let which = budgets.iter().position(|(key, most)| self.spent(*key).saturating_add(cost) > *most)?;
        Some(Exceeded { which, spent: self.spent(budgets[which].0) })
    }

    /// Adds `amount` to what was spent of these budgets. Tells if that exceeds one of them, in the order of the ledger.
    fn add(&mut self, budgets: &[(BudgetKey, u64)], amount: i64) -> Option<Exceeded> {
        self.lines += 1;
        let (mark, mut text) = (format!("{:016x}.{:x}", self.own, self.lines), String::new());
        budgets.iter().for_each(|(key, _)| line(&mut text, *key, amount, &mark));
        let written = self.file.as_mut().map(|file| file.write_all(text.as_bytes()));
        let (found, exceeded) = match written {
            Some(Ok(())) => self.catch_up(&mark, budgets),
            Some(Err(error)) => {
                self.alone(&error);
                (false, None)
            }
            None => (false, None),
        };
        if found {
            return exceeded;
        }
        budgets.iter().for_each(|(key, _)| *self.spent.entry(*key).or_default() += amount);
        None
    }

    /// Reads what all gateways have appended. Returns whether the lines with this mark are there, and which of the budgets
    /// they exceed.
    fn catch_up(&mut self, mark: &str, budgets: &[(BudgetKey, u64)]) -> (bool, Option<Exceeded>) {
        let (mut found, mut exceeded) = (0, None);
        let mut unread = Vec::new();
        while let Some(file) = &self.file {
            let kept = unread.len();
            unread.resize(kept + CHUNK, 0);
            let read = match file.read_at(&mut unread[kept..], self.read + kept as u64) {
                Ok(read) => read,
                Err(error) => {
                    self.alone(&error);
                    break;
                }
            };
            unread.truncate(kept + read);
            let whole = memchr::memrchr(b'\n', &unread).map_or(0, |end| end + 1);
            for text in unread[..whole].split(|byte| *byte == b'\n') {
                let Some((key, amount, of)) = str::from_utf8(text).ok().and_then(parse) else { continue };
                let spent = self.spent.entry(key).or_default();
                *spent = spent.saturating_add(amount);
                if of == mark {
                    found += 1;
                    let over = |(other, most): &(BudgetKey, u64)| {
                        *other == key && i64::try_from(*most).is_ok_and(|most| *spent > most)
                    };
                    let which = budgets.iter().position(over).filter(|_| exceeded.is_none());
                    let before = u64::try_from(spent.saturating_sub(amount)).unwrap_or_default();
                    exceeded = which.map(|which| Exceeded { which, spent: before }).or(exceeded);
                }
            }
            self.read += whole as u64;
            unread.drain(..whole);
            if read == 0 {
                break;
            }
        }
        (found > 0 && found == budgets.len(), exceeded)
    }

    /// Goes on without the file.
    fn alone(&mut self, error: &io::Error) {
        warn!(%error, "budgets are not shared with other gateways: the ledger beside the record cannot be used");
        self.file = None;
    }
}
