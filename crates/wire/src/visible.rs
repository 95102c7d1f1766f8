//! Makes text from others safe to show, in a log line or on a terminal.
//!
//! Servers, tools, schemas and clients choose names, descriptions and messages. A line feed in one of them forges a log
//! line, an escape sequence redraws the terminal or sets its title, and a change of writing direction makes a text read
//! differently than it is. All of these are escaped here, in the notation of JSON, so that JSON keeps its meaning.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with its line breaks and tabs; every other character that does more than show itself is escaped.
pub fn visible_text(text: &str) -> Cow<'_, str> {
    written_out(text, true)
}

/// The text on one line: line breaks are escaped too.
pub fn visible_line(text: &str) -> Cow<'_, str> {
    written_out(text, false)
}

fn written_out(text: &str, lines: bool) -> Cow<'_, str> {
    let acts = |(at, character): (usize, char)| match character {
        '\t' => false,
        '\n' => !lines,
        // `\r\n` is a line break too.
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

/// Control characters of both sets (C0 and C1), changes of direction, other line separators, and invisible characters.
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

    /// WIRE-3: no character of a text has an effect when it is shown, and none is lost.
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
