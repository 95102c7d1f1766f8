//! Tables that fit the terminal.
//!
//! A program that reads a pipe gets each row whole on one line. On a terminal, the widest columns become narrower until the
//! table fits, and their cells wrap at words; a cell of more than [`TALLEST`] lines ends with an ellipsis. Widths count what a
//! terminal shows: a wide character takes two places, a combining one none.

use std::io::{self, IsTerminal};

use bridgehead_wire::visible_line;
use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What is between two columns.
const BETWEEN: usize = 2;
/// No column becomes narrower than this, unless the table does not fit otherwise.
const NARROWEST: usize = 8;
/// How many lines a cell may take.
const TALLEST: usize = 3;

/// How wide stdout is; `None` if it is no terminal, or one that does not say.
pub(crate) fn stdout_width() -> Option<usize> {
    width_of(&io::stdout())
}

/// How wide stderr is; `None` if it is no terminal, or one that does not say.
pub(crate) fn stderr_width() -> Option<usize> {
    width_of(&io::stderr())
}

fn width_of(stream: &(impl IsTerminal + rustix::fd::AsFd)) -> Option<usize> {
    let told = || tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col));
    stream.is_terminal().then(|| columns(std::env::var("COLUMNS").ok().as_deref(), told)).flatten()
}

/// The width that somebody set, or else what the terminal says. Nothing and zero say nothing.
fn columns(set: Option<&str>, told: impl Fn() -> Option<usize>) -> Option<usize> {
    let set = set.and_then(|set| set.trim().parse().ok()).filter(|set| *set > 0);
    set.or_else(|| told().filter(|told| *told > 0))
}

/// The rows as text, at most `width` wide if possible; each cell is on one line if there is no `width`.
pub(crate) fn text(rows: &[Vec<String>], width: Option<usize>) -> String {
    let visible = |row: &Vec<String>| row.iter().map(|cell| visible_line(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(visible).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let natural = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..columns).map(natural).collect();
    if let Some(width) = width {
        narrow(&mut widths, width);
    }
    let mut out = String::new();
    for row in &rows {
        let cells: Vec<Vec<String>> =
            row.iter().zip(&widths).map(|(cell, width)| wrapped(cell, *width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
        for number in 0..height {
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(&widths) {
                let part = cell.get(number).map(String::as_str).unwrap_or_default();
                line.push_str(part);
                line.extend(std::iter::repeat_n(' ', width.saturating_sub(part.width()) + BETWEEN));
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
    out
}

/// Makes the widest columns narrower until all fit into `width`. The first one holds names that people type: it stays whole
/// where it leaves enough room for the others.
fn narrow(widths: &mut [usize], width: usize) {
    let room = width.saturating_sub(BETWEEN * widths.len().saturating_sub(1));
    if widths.iter().sum::<usize>() <= room {
        return;
    }
    let narrowest = NARROWEST.min(room / widths.len()).max(1);
    match widths {
        [first, rest @ ..] if !rest.is_empty() => {
            let least: usize = rest.iter().map(|natural| (*natural).min(narrowest)).sum();
            *first = (*first).min((room / 2).min(room.saturating_sub(least)).max(narrowest));
            let room = room.saturating_sub(*first);
            cut_widest(rest, room, narrowest);
        }
        all => cut_widest(all, room, narrowest),
    }
}

fn cut_widest(widths: &mut [usize], room: usize, narrowest: usize) {
    let taken = |cap: usize| widths.iter().map(|natural| (*natural).min(cap)).sum::<usize>();
    let widest = widths.iter().copied().max().unwrap_or(0);
    if taken(widest) <= room {
        return;
    }
    let cap = (narrowest..widest).rev().find(|cap| taken(*cap) <= room).unwrap_or(narrowest);
    let mut left = room.saturating_sub(taken(cap));
    for width in widths.iter_mut().rev().filter(|width| **width > cap) {
        // What the division leaves over goes to the last of the columns that were cut: it holds the long texts.
        let more = left.min(*width - cap);
        left -= more;
        *width = cap + more;
    }
}

/// A cell in lines of at most `width`. Further lines begin below the first letter of the cell.
fn wrapped(cell: &str, width: usize) -> Vec<String> {
    if cell.width() <= width {
        return vec![cell.to_owned()];
    }
    let indent: String = cell.chars().take_while(|one| *one == ' ').collect();
    let mut lines = vec![indent.clone()];
    let mut is_fresh = true;
    for word in cell.split_whitespace() {
        let used = lines.last().map_or(0, |line| line.width());
        if !is_fresh && used + 1 + word.width() <= width {
            push(&mut lines, " ");
        } else if !is_fresh {
            lines.push(indent.clone());
        }
        for one in word.chars() {
            if lines.last().map_or(0, |line| line.width()) + one.width().unwrap_or(0) > width {
                lines.push(indent.clone());
            }
            push(&mut lines, one.encode_utf8(&mut [0; 4]));
        }
        is_fresh = false;
    }
    if lines.len() > TALLEST {
        lines.truncate(TALLEST);
        if let Some(last) = lines.last_mut() {
            *last = cut(last, width.saturating_sub(1)) + "…";
        }
    }
    lines
}

fn push(lines: &mut [String], text: &str) {
    if let Some(line) = lines.last_mut() {
        line.push_str(text);
    }
}

/// The beginning of a text, at most `width` wide.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let mut used = 0;
    text.chars()
        .take_while(|one| {
            used += one.width().unwrap_or(0);
            used <= width
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect()
    }

    /// JOIN-8: in a pipe every row is whole and on one line.
    #[test]
    fn tables_line_up() {
        let table = |all: &[&[&str]]| text(&rows(all), None);
        assert_eq!(table(&[&["a", "bb", "c"], &["aaa", "b", ""]]), "a    bb  c\naaa  b\n");
        assert_eq!(table(&[]), "");
        let long = "word ".repeat(100);
        assert_eq!(table(&[&["a", long.trim_end()]]), format!("a  {}\n", long.trim_end()));
    }

    /// WIRE-3: a cell cannot draw on the terminal or begin a line of its own.
    #[test]
    fn a_cell_cannot_draw() {
        assert_eq!(text(&rows(&[&["a\nb\x1b", "x"], &["", "x"]]), None), "a\\nb\\u001b  x\n            x\n");
    }

    /// JOIN-8: on a terminal the widest column wraps at words, the others stay whole, and no line is longer than the terminal.
    #[test]
    fn tables_fit() {
        #[track_caller]
        fn check(all: &[&[&str]], width: usize, expected: &str) {
            assert_eq!(text(&rows(all), Some(width)), expected);
        }
        check(&[&["name", "some words here"]], 21, "name  some words here\n");
        check(&[&["name", "some words here"]], 20, "name  some words\n      here\n");
        check(&[&["name", "some words here", "x"]], 20, "name  some words   x\n      here\n");
        // A long word is broken, and a text that takes too many lines is cut.
        check(&[&["abcdefghijkl"]], 9, "abcdefghi\njkl\n");
        check(&[&["a b c d e f g h i j k l m n o p q r s t"]], 8, "a b c d\ne f g h\ni j k l…\n");
        // An indented cell stays indented.
        check(&[&["  one two three"]], 10, "  one two\n  three\n");
        // Wide characters take two places; combining ones none.
        check(&[&["日本", "x"], &["e\u{301}", "y"]], 80, "日本  x\ne\u{301}     y\n");
        check(&[&["日本語日本語"]], 9, "日本語日\n本語\n");
        // Where columns of the usual width do not fit, all become narrower.
        check(&[&["abcdef", "ghijkl"]], 8, "abc  ghi\ndef  jkl\n");
        // Narrower than every column can be: it does not fit, but nothing breaks.
        check(&[&["abc", "def"]], 1, "a  d\nb  e\nc  f\n");
    }

    /// JOIN-8: room that is left goes to the last of the columns that became narrower.
    #[test]
    fn room_is_shared() {
        #[track_caller]
        fn check(natural: &[usize], width: usize, expected: &[usize]) {
            let mut widths = natural.to_vec();
            narrow(&mut widths, width);
            assert_eq!(widths, expected);
        }
        check(&[30, 100], 80, &[30, 48]);
        check(&[100, 100], 81, &[39, 40]);
        check(&[4, 9, 9], 80, &[4, 9, 9]);
        check(&[4, 100, 4, 12], 41, &[4, 15, 4, 12]);
        check(&[100, 10, 100], 30, &[10, 8, 8]);
        check(&[100, 10, 100, 10, 10, 10, 10, 10], 60, &[11, 5, 5, 5, 5, 5, 5, 5]);
        check(&[100, 10, 30], 80, &[38, 10, 28]);
        // A name stays whole if the others can be cut instead.
        check(&[21, 30, 30], 60, &[21, 17, 18]);
        check(&[21, 5, 5, 30], 50, &[21, 5, 5, 13]);
        check(&[], 10, &[]);
    }

    /// JOIN-8: `COLUMNS` is stronger than what the terminal says; a value that is no number counts as unset.
    #[test]
    fn where_the_width_comes_from() {
        for (set, told, expected) in [
            (None, Some(80), Some(80)),
            (Some("60"), Some(80), Some(60)),
            (Some("wide"), Some(80), Some(80)),
            (Some("0"), Some(0), None),
            (None, None, None),
        ] {
            assert_eq!(columns(set, || told), expected, "{set:?} {told:?}");
        }
    }

    #[test]
    fn texts_are_cut_by_width() {
        for (width, expected) in [(0, ""), (1, ""), (2, "日"), (3, "日a"), (9, "日ab")] {
            assert_eq!(cut("日ab", width), expected);
        }
    }
}
