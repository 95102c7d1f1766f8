//! Text of others as it may be shown: in a log line or on a terminal.
//!
//! Servers, tools, schemas and clients choose names, descriptions and messages. A line feed in one of them begins a log
//! line that nobody wrote, an escape sequence redraws the terminal or sets its title, and a change of direction makes a
//! text read otherwise than it is. All of these are written out here, in the form that JSON has for them, so that JSON
//! stays the same JSON.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with its lines and tabs, and with all else written out that does more than stand there.
pub fn visible_text(text: &str) -> Cow<'_, str> {
    written_out(text, true)
}

/// The text on one line: line feeds are written out too.
pub fn visible_line(text: &str) -> Cow<'_, str> {
    written_out(text, false)
}

fn written_out(text: &str, lines: bool) -> Cow<'_, str> {
    let acts = |(at, character): (usize, char)| match character {
        '\t' => false,
        '\n' => !lines,
        // The end of a line in the manner of others.
        '\r' => !lines || !text[at + 1..].starts_with('\n'),
        ' '..='~' => false,
        other => acts(other),
    };
    let Some((first, _)) = text.char_indices().find(|&found| acts(found)) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for (at, character) in text[first..].char_indices() {
        match character {
            _ if !acts((first + at, character)) => out.push(character),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    // Writing to a string does not fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    Cow::Owned(out)
}

/// Control characters of both sets, changes of direction, other ends of lines, and letters that cannot be seen.
const fn acts(character: char) -> bool {
    matches!(
        character,
        '\0'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WIRE-3: nothing of a text acts when it is shown, and nothing of it is lost.
    #[test]
    fn texts_only_stand_there() {
        #[track_caller]
        fn check(text: &str, shown: &str, line: &str) {
            assert_eq!((&*visible_text(text), &*visible_line(text)), (shown, line));
        }
        check("", "", "");
        check(
            "plain, \u{e4}\u{4e16} \u{1f469}\u{200d}\u{1f52c}",
            "plain, \u{e4}\u{4e16} \u{1f469}\u{200d}\u{1f52c}",
            "plain, \u{e4}\u{4e16} \u{1f469}\u{200d}\u{1f52c}",
        );
        check("a\n\tb", "a\n\tb", "a\\n\tb");
        check("a\r\nb\rc\r", "a\r\nb\\rc\\r", "a\\r\\nb\\rc\\r");
        check("\x1b[2J\x07\x7f", "\\u001b[2J\\u0007\\u007f", "\\u001b[2J\\u0007\\u007f");
        check(
            "\u{9b}1m\u{202e}x\u{2066}\u{2028}",
            "\\u009b1m\\u202ex\\u2066\\u2028",
            "\\u009b1m\\u202ex\\u2066\\u2028",
        );
        check("\u{e0041}", "\\udb40\\udc41", "\\udb40\\udc41");
    }

    /// WIRE-3: JSON means the same as before.
    #[test]
    fn json_stays_the_same_json() {
        let value = serde_json::json!({"a\u{202e}": "\u{9b}2J\x1b\n\u{e0041}\u{7f}"});
        let shown = visible_text(&value.to_string()).into_owned();
        assert!(!shown.chars().any(acts), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
