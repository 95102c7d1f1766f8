//! Hides what looks like a secret in text that leaves the gateway: log lines, error messages, audit.
//!
//! The built-in list knows names (`password`, `apiKey`, `Set-Cookie`) and shapes (`ghp_…`, a JWT, a PEM
//! private key, the userinfo of a URL). It is no guarantee: a secret with an innocent name and no known
//! shape passes, and so does the part of an unquoted value after its first blank. When in doubt it hides
//! too much. [`Rules`] add the operator's own patterns and the paths of single tools.
//!
//! What must stay true: text without a secret comes back borrowed and unchanged, redacting twice is
//! redacting once, JSON stays JSON with every other byte as it came, and the time is linear in the input.
//!
//! The text is scanned by hand instead of with regular expressions: whether a name is secret depends on its words
//! (`authToken`, but not `progressToken` or `token_count`) and where a value ends depends on how it is
//! quoted, both of which would be code beside the pattern anyway. Only the operator's patterns are regular
//! expressions.

mod lines;
mod name;
mod rules;
mod scan;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::Raw;

pub use lines::LineRedactor;
pub use rules::{RuleError, Rules};

/// Whether the value called `name` is a secret, by the built-in list of names.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    name::is_secret(name.as_bytes())
}

/// The text that replaces a secret.
const MARK: &str = "[redacted]";
const QUOTED_MARK: &[u8] = b"\"[redacted]\"";

/// The operator's rules for the whole process.
static EVERYWHERE: OnceLock<Arc<Rules>> = OnceLock::new();

/// Hides secrets. The default one uses the built-in list and, if the process has them, the operator's rules.
/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Redactor {
    rules: Option<Arc<Rules>>,
}

impl Default for Redactor {
    fn default() -> Self {
        Self { rules: EVERYWHERE.get().cloned() }
    }
}

impl Redactor {
    /// A redactor that applies the operator's rules in addition to the built-in list.
    #[must_use]
    pub fn with(rules: Rules) -> Self {
        Self { rules: (!rules.is_empty()).then(|| Arc::new(rules)) }
    }

    /// Makes every later [`Redactor::default`] of this process use these rules. Secrets can leave a process in
    /// many places, and a forgotten one would leak them, so the rules are global and can be set only once.
    /// Returns whether they hold now; an empty set changes nothing.
    pub fn hide_everywhere(rules: &Arc<Rules>) -> bool {
        rules.is_empty() || EVERYWHERE.get_or_init(|| Arc::clone(rules)) == rules
    }

    /// Free text, such as a line of a server's standard error, without its secrets.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text = scan::text(text);
        match &self.rules {
            Some(rules) => rules.text(text),
            None => text,
        }
    }

    /// A JSON value without its secrets: a member with a secret name loses its value, whatever its type,
    /// and every other string goes through [`Redactor::text`].
    #[must_use]
    pub fn raw(&self, raw: &Raw) -> Raw {
        Raw::trusted(self.strings(raw.bytes()).map_or_else(|| raw.bytes().clone(), Bytes::from))
    }

    /// The same for the arguments or the result of a tool; the paths configured for the tool are hidden too.
    /// Text that is not JSON comes back as some text without the secrets that were found.
    #[must_use]
    pub fn json<'a>(&self, tool: &str, json: &'a [u8]) -> Cow<'a, [u8]> {
        let json = self.paths(tool, json);
        match self.strings(&json) {
            Some(hidden) => Cow::Owned(hidden),
            None => json,
        }
    }

    /// Hides only the values at the paths configured for a tool, in its arguments or its result.
    #[must_use]
    pub fn paths<'a>(&self, tool: &str, json: &'a [u8]) -> Cow<'a, [u8]> {
        let hidden = self.rules.as_ref().and_then(|rules| rules.hide_paths(tool, json));
        hidden.map_or(Cow::Borrowed(json), Cow::Owned)
    }

    /// `None` if there is nothing to hide.
    fn strings(&self, json: &[u8]) -> Option<Vec<u8>> {
        // UTF-8 is checked once for all strings. If not all of it is valid, each string is checked by itself.
        let whole = std::str::from_utf8(json).ok();
        let mut edit = Edit::of(json);
        let mut at = 0;
        while let Some(quote) = find(&json[at..], |byte| byte == b'"', |rest| memchr::memchr(b'"', rest)) {
            let start = at + quote;
            self.numbers(at, start, &mut edit);
            let (end, text) = string_at(json, whole, start);
            at = end;
            // A lone surrogate is JSON but not text. It cannot be judged, so it is hidden.
            match text.as_deref().map(|text| self.text(text)) {
                None => edit.replace(start, end, QUOTED_MARK),
                Some(Cow::Owned(text)) => edit.replace(start, end, Raw::string(&text).bytes()),
                Some(Cow::Borrowed(_)) => {}
            }
            let colon = skip_blank(json, end);
            if json.get(colon) == Some(&b':') && text.is_none_or(|name| name::is_secret(name.as_bytes())) {
                let value = skip_blank(json, colon + 1);
                at = value_end(json, value);
                edit.replace(value, at, QUOTED_MARK);
            }
        }
        self.numbers(at, json.len(), &mut edit);
        edit.finish()
    }

    /// Numbers are searched for the operator's patterns only: the built-in shapes are all text.
    fn numbers(&self, from: usize, to: usize, edit: &mut Edit<'_>) {
        let Some(rules) = self.rules.as_ref().filter(|rules| rules.has_patterns()) else { return };
        let mut at = from;
        while let Some(found) =
            edit.json[at..to].iter().position(|byte| byte.is_ascii_digit() || *byte == b'-')
        {
            let start = at + found;
            let number = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
            let end = start + edit.json[start..to].iter().take_while(number).count();
            if std::str::from_utf8(&edit.json[start..end]).is_ok_and(|text| rules.matches(text)) {
                edit.replace(start, end, QUOTED_MARK);
            }
            at = end;
        }
    }
}

/// A text with some of its parts replaced, from front to back.
struct Edit<'a> {
    json: &'a [u8],
    out: Vec<u8>,
    copied: usize,
}

impl<'a> Edit<'a> {
    fn of(json: &'a [u8]) -> Self {
        Self { json, out: Vec::new(), copied: 0 }
    }

    fn replace(&mut self, from: usize, to: usize, with: &[u8]) {
        if self.json[from..to] != *with {
            self.out.extend_from_slice(&self.json[self.copied..from]);
            self.out.extend_from_slice(with);
            self.copied = to;
        }
    }

    /// The new text, if anything changed.
    fn finish(mut self) -> Option<Vec<u8>> {
        if self.copied == 0 {
            return None;
        }
        self.out.extend_from_slice(&self.json[self.copied..]);
        Some(self.out)
    }
}

/// The position after the string that opens at `start`, and its decoded text. `whole` is all of `json`, if that is known
/// to be UTF-8.
fn string_at<'a>(json: &'a [u8], whole: Option<&'a str>, start: usize) -> (usize, Option<Cow<'a, str>>) {
    let (end, escaped) = string_end(json, start);
    let inner = start + 1..end - 1;
    let text = match whole {
        _ if escaped => serde_json::from_slice(&json[start..end]).ok().map(Cow::Owned),
        Some(whole) => whole.get(inner).map(Cow::Borrowed),
        None => json.get(inner).and_then(|inner| str::from_utf8(inner).ok()).map(Cow::Borrowed),
    };
    (end, text)
}

/// The position after the string that opens at `start`, and whether it has escapes.
fn string_end(json: &[u8], start: usize) -> (usize, bool) {
    let mut at = start + 1;
    let mut escaped = false;
    let ends = |byte: u8| byte == b'"' || byte == b'\\';
    while let Some(found) =
        json.get(at..).and_then(|rest| find(rest, ends, |rest| memchr::memchr2(b'"', b'\\', rest)))
    {
        at += found;
        if json[at] == b'"' {
            return (at + 1, escaped);
        }
        escaped = true;
        at += 2;
    }
    (json.len(), escaped)
}

/// The position of the first `wanted` byte. It is usually within 32 bytes; `far` is worth its setup only beyond them.
fn find(rest: &[u8], wanted: impl Fn(u8) -> bool, far: impl FnOnce(&[u8]) -> Option<usize>) -> Option<usize> {
    let (near, beyond) = rest.split_at(rest.len().min(32));
    let found = near.iter().position(|byte| wanted(*byte));
    found.or_else(|| Some(near.len() + far(beyond)?))
}

/// The position after the value that begins at `start`. In text that is not JSON, which free text may
/// quote, it is somewhere after `start` and not past the end.
fn value_end(json: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at = string_end(json, at).0,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            _ if depth > 0 => at += 1,
            _ => {
                let scalar = |byte: &&u8| !matches!(byte, b',' | b'}' | b']') && !byte.is_ascii_whitespace();
                return at + json[at..].iter().take_while(scalar).count();
            }
        }
        if depth == 0 {
            return at;
        }
    }
    json.len()
}

fn skip_blank(text: &[u8], at: usize) -> usize {
    at + text.get(at..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, expected: &str) {
        let once = Redactor::default().raw(&Raw::parse(json.to_owned()).unwrap());
        assert_eq!(once.as_str(), expected);
        assert!(Raw::parse(expected.to_owned()).is_ok());
        assert_eq!(Redactor::default().raw(&once), once);
    }

    /// AUD-4: a member with a secret name loses its value, whatever its type.
    #[test]
    fn values_under_secret_names_go() {
        check(r#"{ "password" : "x", "n":1.50 }"#, r#"{ "password" : "[redacted]", "n":1.50 }"#);
        check(
            r#"{"apiKey":17,"token":null,"secret":{"a":["]"],"b":"}"},"c":[ ]}"#,
            r#"{"apiKey":"[redacted]","token":"[redacted]","secret":"[redacted]","c":[ ]}"#,
        );
        check(r#"[{"a":{"client-secret":true}}]"#, r#"[{"a":{"client-secret":"[redacted]"}}]"#);
        check(r#"{"pass\u0077ord":"x"}"#, r#"{"pass\u0077ord":"[redacted]"}"#);
    }

    /// AUD-4: strings are searched in their decoded form, not as they are escaped.
    #[test]
    fn secrets_inside_strings_go() {
        check(
            r#"{"text":"line\nAuthorization: Bearer abc\nnext"}"#,
            r#"{"text":"line\nAuthorization: [redacted]\nnext"}"#,
        );
        check(r#"["\u0070assword=hunter2 tail"]"#, r#"["password=[redacted] tail"]"#);
        check(r#"["{\"token\":\"a\\\"b\"}"]"#, r#"["{\"token\":\"[redacted]\"}"]"#);
        check(r#"{"\ud800":1,"a":"\udfff"}"#, r#"{"[redacted]":"[redacted]","a":"[redacted]"}"#);
    }

    #[test]
    fn everything_else_keeps_its_bytes() {
        for json in [
            "1.0e0",
            "\"plain\"",
            r#"{ "progressToken":7, "max_tokens" : 5,"a":"\u0041\/" ,"key":"v"}"#,
            r#"{"token":"[redacted]"}"#,
        ] {
            check(json, json);
        }
    }
}
