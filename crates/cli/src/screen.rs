//! The last lines of a terminal, which are redrawn in place while something is watched.
//!
//! Everything that the program writes to stderr passes here. Lines that are printed while live lines stand appear above them:
//! the live lines are cleared, the text is printed, and the live lines are drawn again, in one write. So no log line tears them.
//!
//! What must stay true: between two writes the cursor is at the beginning of the line below the live lines, is visible, and
//! nothing about the terminal is changed. A program that ends at any time therefore leaves a usable terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::tcgetwinsize;

use super::table;

/// The size of a terminal that does not tell its own.
const USUAL: (usize, usize) = (80, 24);
/// Lines are cut off at the edge, not continued on the next line, until [`WRAP`].
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// The live lines, as they stand on the terminal.
static LIVE: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn live() -> MutexGuard<'static, Vec<String>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes whole lines to stderr, above the live lines. A failure is ignored, because there is nowhere to report it.
pub(crate) fn print(text: &str) {
    let live = live();
    let _ = match live.is_empty() {
        true => io::stderr().lock().write_all(text.as_bytes()),
        false => io::stderr().lock().write_all(redrawn(&live, text, &live).as_bytes()),
    };
}

/// Replaces the live lines. None of them may contain control characters.
pub(crate) fn draw(lines: Vec<String>) {
    let mut live = live();
    if *live != lines {
        let _ = io::stderr().lock().write_all(redrawn(&live, "", &lines).as_bytes());
        *live = lines;
    }
}

/// Ends the live lines; they stay as ordinary text, or are removed.
pub(crate) fn end(keep: bool) {
    if !keep {
        draw(Vec::new());
    }
    live().clear();
}

/// Clears `old`, prints `text` and draws `new`.
fn redrawn(old: &[String], text: &str, new: &[String]) -> String {
    let mut out = String::from("\r");
    if !old.is_empty() {
        out.push_str(&format!("\x1b[{}A", old.len()));
    }
    out.push_str("\x1b[J");
    out.push_str(text);
    if !new.is_empty() {
        out.push_str(NO_WRAP);
        for line in new {
            out.push_str(line);
            out.push('\n');
        }
        out.push_str(WRAP);
    }
    out
}

/// Whether lines on stderr can be redrawn: it is a terminal that knows the codes for it.
pub(crate) fn is_live() -> bool {
    let knows = std::env::var_os("TERM").is_some_and(|name| !name.is_empty() && name != "dumb");
    io::stderr().is_terminal() && knows
}

/// The columns and rows of the terminal on stderr.
pub(crate) fn size() -> (usize, usize) {
    let rows = tcgetwinsize(io::stderr()).ok().map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0);
    (table::stderr_width().unwrap_or(USUAL.0), rows.unwrap_or(USUAL.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-5: printed text appears above the live lines, and the cursor ends below them.
    #[test]
    fn lines_are_replaced_in_one_write() {
        let lines = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(redrawn(&[], "", &lines(&["a", "b"])), "\r\x1b[J\x1b[?7la\nb\n\x1b[?7h");
        assert_eq!(
            redrawn(&lines(&["a", "b"]), "log\n", &lines(&["c"])),
            "\r\x1b[2A\x1b[Jlog\n\x1b[?7lc\n\x1b[?7h"
        );
        assert_eq!(redrawn(&lines(&["a"]), "", &[]), "\r\x1b[1A\x1b[J");
    }
}
