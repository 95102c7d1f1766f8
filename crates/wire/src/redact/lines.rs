//! Secrets in text that arrives line by line, such as a server's standard error: a private key spans lines, and no line of its body
//! has a shape of its own.
//!
//! Lines may be missing: a flood of lines is thinned out, and the end of a text may begin in the middle of a key. So a line that
//! can be one of a key is hidden also where no key began.

use std::borrow::Cow;

use super::{MARK, Redactor};

/// The most lines that a key hides. A longer block is none, or a server hides its own log.
const LONGEST_KEY: u32 = 512;
/// A shorter line of Base64 is shown: it may be a word.
const SHORTEST_BODY: usize = 40;

/// Hides secrets in one stream of lines.
#[derive(Debug, Clone, Default)]
pub struct LineRedactor {
    redactor: Redactor,
    /// How many lines of a key may still follow.
    inside: u32,
}

impl LineRedactor {
    /// The next line without its secrets.
    pub fn line<'a>(&mut self, line: &'a str) -> Cow<'a, str> {
        let after = match end_of_key(line) {
            // What precedes the end of a key is its body.
            Some(end) if begin_of_key(line).is_none_or(|begin| begin > end) => {
                self.inside = 0;
                let shown = self.redactor.text(&line[end..]);
                let body = if line[..end].trim().is_empty() { "" } else { MARK };
                return Cow::Owned(format!("{body}{}", self.opened(&line[end..], shown)));
            }
            _ => line,
        };
        if self.inside > 0 {
            self.inside -= 1;
            return Cow::Borrowed(if line.trim().is_empty() { "" } else { MARK });
        }
        if is_body(after) {
            return Cow::Borrowed(MARK);
        }
        let shown = self.redactor.text(after);
        self.opened(after, shown)
    }

    /// Notes that a key begins on a line and does not end there.
    fn opened<'a>(&mut self, line: &str, shown: Cow<'a, str>) -> Cow<'a, str> {
        let last = line.rfind(BEGIN).filter(|at| begin_of_key(&line[*at..]).is_some());
        if last.is_some_and(|at| !line[at..].contains(END)) {
            self.inside = LONGEST_KEY;
        }
        shown
    }
}

impl Redactor {
    /// Text whose beginning may be missing, such as the end of a log, without its secrets.
    #[must_use]
    pub fn end_of_text(&self, text: &str) -> String {
        let whole = match end_of_key(text) {
            Some(end) if begin_of_key(text).is_none_or(|begin| begin > end) => {
                format!("{MARK}{}", &text[end..])
            }
            _ => text.to_owned(),
        };
        let mut lines = LineRedactor { redactor: self.clone(), inside: 0 };
        let shown: Vec<_> = whole.lines().map(|line| lines.line(line).into_owned()).collect();
        shown.join("\n")
    }
}

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";

/// Where the first private key begins.
fn begin_of_key(text: &str) -> Option<usize> {
    text.find(BEGIN).filter(|at| is_key(&text[at + BEGIN.len()..]))
}

/// Where the first private key ends: at its last line.
fn end_of_key(text: &str) -> Option<usize> {
    text.find(END).filter(|at| is_key(&text[at + END.len()..]))
}

/// Whether a label is that of a private key.
fn is_key(label: &str) -> bool {
    let label = label.split('-').next().unwrap_or_default();
    label.len() < 64 && (label.ends_with("PRIVATE KEY") || label.ends_with("KEY BLOCK"))
}

/// Whether a line can be one of a key: long, nothing but Base64, and with letters of both cases and digits.
fn is_body(line: &str) -> bool {
    let line = line.trim().as_bytes();
    let has = |kind: fn(&u8) -> bool| line.iter().any(kind);
    line.len() >= SHORTEST_BODY
        && line[0] != b'/'
        && line.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(byte))
        && has(u8::is_ascii_uppercase)
        && has(u8::is_ascii_lowercase)
        && has(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj";

    #[track_caller]
    fn check(lines: &[&str], expected: &[&str]) {
        let mut redactor = LineRedactor::default();
        let shown: Vec<String> = lines.iter().map(|line| redactor.line(line).into_owned()).collect();
        assert_eq!(shown, expected);
    }

    /// AUD-4: no line of a private key is shown, whatever stands before and after it, and lines after it are.
    #[test]
    fn a_key_over_several_lines() {
        let (begin, end) = ("-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----");
        check(
            &["key:", begin, "Proc-Type: 4,ENCRYPTED", "", BODY, "c2hvcnQ=", end, "ready, password=x"],
            &["key:", begin, MARK, "", MARK, MARK, end, "ready, password=[redacted]"],
        );
        check(
            &["  | -----BEGIN PRIVATE KEY-----", "  | c2hvcnQ=", "  | -----END PRIVATE KEY----- done"],
            &["  | -----BEGIN PRIVATE KEY-----", MARK, "[redacted]-----END PRIVATE KEY----- done"],
        );
        // One line, two keys, and one that begins behind the end of another.
        check(
            &["-----BEGIN PRIVATE KEY-----MII-----END PRIVATE KEY-----", "x"],
            &["-----BEGIN PRIVATE KEY-----[redacted]-----END PRIVATE KEY-----", "x"],
        );
        check(
            &[
                "-----BEGIN PRIVATE KEY-----",
                "a",
                "-----END PRIVATE KEY----------BEGIN PRIVATE KEY-----",
                "b",
            ],
            &[
                "-----BEGIN PRIVATE KEY-----",
                MARK,
                "-----END PRIVATE KEY----------BEGIN PRIVATE KEY-----",
                MARK,
            ],
        );
        check(
            &["-----BEGIN CERTIFICATE-----", "abc", "-----END CERTIFICATE-----"],
            &["-----BEGIN CERTIFICATE-----", "abc", "-----END CERTIFICATE-----"],
        );
    }

    /// AUD-4: a key whose beginning is missing is hidden too, and a block that never ends hides a bounded number of lines.
    #[test]
    fn a_key_without_an_end_or_a_beginning() {
        check(&[BODY, "plain"], &[MARK, "plain"]);
        let mut redactor = LineRedactor::default();
        redactor.line("-----BEGIN PRIVATE KEY-----");
        let hidden = (0..10_000).take_while(|_| redactor.line("a b") == MARK).count();
        assert_eq!(hidden, LONGEST_KEY as usize);
        let redactor = Redactor::default();
        assert_eq!(
            redactor.end_of_text("c2hvcnQ=\n-----END PRIVATE KEY-----\nit ended\ntoken=x"),
            "[redacted]-----END PRIVATE KEY-----\nit ended\ntoken=[redacted]"
        );
        assert_eq!(
            redactor.end_of_text(&format!("{BODY}\n{BODY}\nit ended")),
            "[redacted]\n[redacted]\nit ended"
        );
        assert_eq!(redactor.end_of_text("it ended\nsoon"), "it ended\nsoon");
    }

    /// AUD-4: lines that are no key are left alone.
    #[test]
    fn other_lines() {
        for line in [
            "/home/ada/Projects/Bridge1/crates/wire/src/redact/lines",
            "d41d8cd98f00b204e9800998ecf8427e0123456789abcdef0123456789abcdef",
            "listening on http://127.0.0.1:8080/mcp",
            "",
        ] {
            check(&[line], &[line]);
        }
    }
}
