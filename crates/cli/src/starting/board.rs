//! Turns what is seen of servers into lines: one per server that is redrawn, or one for each thing that happens.

use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::seen::{Seen, Stage};
use crate::output::{counted, one_line};

/// How often a slow server is mentioned again.
const AGAIN: Duration = Duration::from_secs(5);
/// The longest text of a server in a line that is not cut by the terminal.
const LONGEST: usize = 400;

/// All servers whose start is watched.
#[derive(Debug, Default)]
pub(crate) struct Board {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    seen: Seen,
    /// When it was first seen.
    since: Duration,
    /// How long its start took, once it is over.
    took: Option<Duration>,
    /// When a line about it was last returned.
    told: Duration,
}

/// Something that happened to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Happening {
    /// What is seen of it now.
    pub(crate) seen: Seen,
    /// For how long it has been starting, or how long its start took.
    pub(crate) after: Duration,
    /// Whether its start was told before, and only goes on.
    pub(crate) goes_on: bool,
}

impl Board {
    /// Takes what is seen at a time, and returns what happened since the last time. Servers that are no longer seen are
    /// forgotten.
    pub(crate) fn observe(&mut self, now: Duration, all: Vec<Seen>) -> Vec<Happening> {
        let mut before = std::mem::take(&mut self.rows);
        let mut happened = Vec::new();
        for seen in all {
            let known = before.iter().position(|row| row.seen.name == seen.name).map(|at| before.remove(at));
            let is_new = known.is_none();
            let mut row =
                known.unwrap_or_else(|| Row { since: now, took: None, told: now, seen: seen.clone() });
            let changed = is_new || row.seen.stage.word() != seen.stage.word();
            if !seen.stage.is_settled() {
                row.took = None;
            } else if changed {
                row.took = Some(now.saturating_sub(row.since));
            }
            let goes_on = !changed && !seen.stage.is_settled() && now.saturating_sub(row.told) >= AGAIN;
            // Only the last line of a server that is over its start is of interest, and that is in the reason.
            row.seen = seen;
            if changed || goes_on {
                row.told = now;
                happened.push(Happening { seen: row.seen.clone(), after: row.age(now), goes_on });
            }
            self.rows.push(row);
        }
        happened
    }

    /// One line per server, none wider than `columns`, at most `rows` lines. If there is not enough room, servers that are
    /// still starting come first.
    pub(crate) fn lines(&self, now: Duration, (columns, rows): (usize, usize)) -> Vec<String> {
        let most = rows.max(1);
        let mut shown: Vec<&Row> = self.rows.iter().collect();
        let mut left_out = 0;
        if shown.len() > most {
            // Stable: otherwise in the order of the configuration.
            shown.sort_by_key(|row| row.seen.stage.is_settled());
            left_out = shown.len() - (most - 1);
            shown.truncate(most - 1);
        }
        let name = |row: &Row| one_line(&row.seen.name, LONGEST);
        let longest = shown.iter().map(|row| name(row).width()).max().unwrap_or(0).min(columns / 3);
        let line = |row: &&Row| {
            let (name, word, seconds) =
                (one_line(&name(row), longest), row.seen.stage.word(), row.age(now).as_secs());
            let line = format!("  {name:longest$}  {word:8}  {seconds:>3} s  {}", row.detail());
            // The last column stays free: some terminals break the line there.
            one_row(&line, columns.saturating_sub(1))
        };
        let mut lines: Vec<String> = shown.iter().map(line).collect();
        if left_out > 0 {
            lines.push(one_row(&format!("  and {left_out} more"), columns.saturating_sub(1)));
        }
        lines
    }
}

impl Row {
    fn age(&self, now: Duration) -> Duration {
        self.took.unwrap_or(now.saturating_sub(self.since))
    }

    fn detail(&self) -> String {
        match &self.seen.stage {
            Stage::Awaited => "the gateway has not taken it over yet".to_owned(),
            Stage::Starting => one_line(self.seen.stderr.as_deref().unwrap_or_default(), LONGEST),
            Stage::Ready { tools } => counted(*tools as u64, "tool"),
            Stage::Asleep => "starts when it is used".to_owned(),
            Stage::Failed { reason, again } => {
                format!("{}{}", if *again { "is tried again: " } else { "" }, one_line(reason, LONGEST))
            }
            Stage::Stopped => String::new(),
        }
    }
}

/// A line that takes at most this many places on the terminal; unlike a server's text, it may begin with spaces.
fn one_row(line: &str, columns: usize) -> String {
    let line = line.trim_end();
    if line.width() <= columns {
        return line.to_owned();
    }
    let mut places = 0;
    let fits = |one: &char| {
        places += one.width().unwrap_or(0);
        // One place is for the ellipsis.
        places < columns
    };
    line.chars().take_while(fits).chain(['…']).collect()
}

impl Happening {
    /// A sentence about it.
    pub(crate) fn text(&self) -> String {
        let name = one_line(&self.seen.name, LONGEST);
        let seconds = self.after.as_secs_f32();
        match &self.seen.stage {
            Stage::Starting if self.goes_on => match self.stderr() {
                Some(line) => format!("{name}: still starting after {seconds:.0} s: {line}"),
                None => format!("{name}: still starting after {seconds:.0} s"),
            },
            Stage::Awaited if self.goes_on => {
                format!("{name}: the gateway has not taken it over after {seconds:.0} s")
            }
            Stage::Awaited => format!("{name}: waiting for the gateway to take it over"),
            Stage::Starting => format!("{name}: starting"),
            Stage::Ready { tools } => {
                format!("{name}: ready after {seconds:.1} s, {}", counted(*tools as u64, "tool"))
            }
            Stage::Asleep => format!("{name}: starts when it is used"),
            Stage::Failed { reason, again } => {
                let again = if *again { " and is tried again" } else { "" };
                format!("{name}: failed after {seconds:.1} s{again}: {}", one_line(reason, LONGEST))
            }
            Stage::Stopped => format!("{name}: stopped"),
        }
    }

    /// The last line of its standard error, if it has one and it still matters.
    pub(crate) fn stderr(&self) -> Option<String> {
        let line = self.seen.stderr.as_deref().filter(|_| !self.seen.stage.is_settled())?;
        Some(one_line(line, LONGEST)).filter(|line| !line.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(name: &str, stage: Stage, stderr: Option<&str>) -> Seen {
        Seen { name: name.to_owned(), stage, stderr: stderr.map(str::to_owned) }
    }

    fn failed(reason: &str, again: bool) -> Stage {
        Stage::Failed { reason: reason.to_owned(), again }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The sentences about what happens at a time.
    fn said(board: &mut Board, now: u64, all: Vec<Seen>) -> Vec<String> {
        board.observe(seconds(now), all).iter().map(Happening::text).collect()
    }

    /// JOIN-5: a line when a server begins, one every five seconds while it is slow, and one when it is ready or has failed.
    #[test]
    fn one_line_for_each_thing_that_happens() {
        let mut board = Board::default();
        let slow = |line: Option<&str>| seen("slow", Stage::Starting, line);
        let ready = || seen("quick", Stage::Ready { tools: 1 }, Some("unimportant"));
        assert_eq!(
            said(&mut board, 0, vec![seen("quick", Stage::Starting, None), slow(None)]),
            ["quick: starting", "slow: starting"]
        );
        assert_eq!(said(&mut board, 1, vec![ready(), slow(None)]), ["quick: ready after 1.0 s, 1 tool"]);
        assert_eq!(said(&mut board, 4, vec![ready(), slow(Some("\x1b[2J fetching"))]), [""; 0]);
        assert_eq!(
            said(&mut board, 5, vec![ready(), slow(Some("\x1b[2J fetching"))]),
            ["slow: still starting after 5 s: \\u001b[2J fetching"]
        );
        assert_eq!(said(&mut board, 9, vec![ready(), slow(None)]), [""; 0]);
        assert_eq!(said(&mut board, 10, vec![ready(), slow(None)]), ["slow: still starting after 10 s"]);
        let down = |reason: &str, again| vec![ready(), seen("slow", failed(reason, again), Some("x"))];
        assert_eq!(
            said(&mut board, 12, down("it\nended", true)),
            ["slow: failed after 12.0 s and is tried again: it ended"]
        );
        assert_eq!(said(&mut board, 20, down("it ended again", true)), [""; 0]);
        assert_eq!(said(&mut board, 21, vec![]), [""; 0]);
        assert_eq!(
            said(&mut board, 22, vec![seen("new", failed("no program", false), None)]),
            ["new: failed after 0.0 s: no program"]
        );
        let mut board = Board::default();
        let awaited = || vec![seen("a", Stage::Awaited, None)];
        assert_eq!(said(&mut board, 0, awaited()), ["a: waiting for the gateway to take it over"]);
        assert_eq!(said(&mut board, 5, awaited()), ["a: the gateway has not taken it over after 5 s"]);
        assert_eq!(said(&mut board, 6, vec![seen("a", Stage::Asleep, None)]), ["a: starts when it is used"]);
        assert_eq!(said(&mut board, 7, vec![seen("a", Stage::Stopped, None)]), ["a: stopped"]);
    }

    /// JOIN-5: one line per server with state, seconds and its last words; none is wider than the terminal, none has a control
    /// character, and the time stops when the start is over.
    #[test]
    fn one_line_per_server() {
        let mut board = Board::default();
        let noisy = "fetching \x1b[2J\u{9b}1m a package with a long name";
        board.observe(
            seconds(0),
            vec![
                seen("slow", Stage::Starting, Some(noisy)),
                seen("b", Stage::Starting, None),
                seen("c", Stage::Awaited, None),
            ],
        );
        board.observe(
            seconds(3),
            vec![
                seen("slow", Stage::Starting, Some(noisy)),
                seen("b", Stage::Ready { tools: 2 }, Some("x")),
                seen("c", failed("no licence", true), Some("x")),
            ],
        );
        assert_eq!(
            board.lines(seconds(12), (80, 10)),
            [
                "  slow  starting   12 s  fetching \\u001b[2J\\u009b1m a package with a long name",
                "  b     ready       3 s  2 tools",
                "  c     failed      3 s  is tried again: no licence",
            ]
        );
        let narrow = board.lines(seconds(120), (30, 10));
        assert_eq!(narrow[0], "  slow  starting  120 s  fet…");
        assert!(narrow.iter().all(|line| line.width() <= 29), "{narrow:?}");
        assert_eq!(one_row("  漢字漢字", 7), "  漢字…", "a wide character takes two places");
        assert_eq!((one_row("abc ", 3), one_row("abcd", 3)), ("abc".to_owned(), "ab…".to_owned()));
        assert_eq!(
            board.lines(seconds(12), (80, 2)),
            [
                "  slow  starting   12 s  fetching \\u001b[2J\\u009b1m a package with a long name",
                "  and 2 more",
            ]
        );
        assert_eq!(board.lines(seconds(12), (10, 0)).len(), 1, "a terminal without rows");
        let mut board = Board::default();
        board.observe(
            seconds(0),
            vec![
                seen("done", Stage::Asleep, None),
                seen("over", Stage::Stopped, None),
                seen("open", Stage::Awaited, None),
            ],
        );
        assert_eq!(
            board.lines(seconds(1), (80, 3)),
            [
                "  done  asleep      0 s  starts when it is used",
                "  over  stopped     0 s",
                "  open  waiting     1 s  the gateway has not taken it over yet",
            ]
        );
        assert_eq!(
            board.lines(seconds(1), (80, 2))[0],
            "  open  waiting     1 s  the gateway has not taken it over yet"
        );
    }
}
