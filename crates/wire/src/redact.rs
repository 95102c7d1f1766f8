//! Hides what looks like a secret in text that leaves the gateway: log lines, error messages, audit.
//!
//! The built-in list knows names (`password`, `apiKey`, `Set-Cookie`) and shapes (`ghp_…`, a JWT, a PEM
//! private key, the userinfo of a URL). It is a net, not a proof: a secret under an innocent name and
//! without a shape passes, and so does the part of an unquoted value after its first blank. Where it has
//! to choose it hides too much. Patterns of the operator's own are not here yet.
//!
//! What must stay true: text without a secret comes back borrowed and unchanged, redacting twice is
//! redacting once, JSON stays JSON with every other byte as it came, and the time is linear in the input.
//!
//! Scanned by hand instead of with regular expressions: whether a name is secret depends on its words
//! (`authToken`, but not `progressToken` or `token_count`) and where a value ends depends on how it is
//! quoted, both of which would be code beside the pattern anyway; and this crate stays without a
//! regex engine.

mod name;
mod scan;

use std::borrow::Cow;

use bytes::Bytes;

use crate::Raw;

/// What stands where a secret stood.
const MARK: &str = "[redacted]";
const QUOTED_MARK: &[u8] = b"\"[redacted]\"";

/// Hides secrets; the default one goes by the built-in list.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Redactor {}

impl Redactor {
    /// Free text, such as a line of a server's standard error, without its secrets.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        scan::text(text)
    }

    /// A JSON value without its secrets: a member with a secret name loses its value, whatever its type,
    /// and every other string goes through [`Redactor::text`].
    #[must_use]
    pub fn raw(&self, raw: &Raw) -> Raw {
        let json = raw.bytes();
        let mut out = Vec::new();
        let mut copied = 0;
        let mut replace = |from: usize, to: usize, with: &[u8]| {
            if json[from..to] != *with {
                out.extend_from_slice(&json[copied..from]);
                out.extend_from_slice(with);
                copied = to;
            }
        };
        let mut at = 0;
        while let Some(quote) = memchr::memchr(b'"', &json[at..]) {
            let start = at + quote;
            let end = string_end(json, start);
            at = end;
            // A lone surrogate is JSON but not text. It cannot be judged, so it goes.
            let text = string_text(&json[start..end]);
            match text.as_deref().map(|text| self.text(text)) {
                None => replace(start, end, QUOTED_MARK),
                Some(Cow::Owned(text)) => replace(start, end, Raw::string(&text).bytes()),
                Some(Cow::Borrowed(_)) => {}
            }
            let colon = skip_blank(json, end);
            if json.get(colon) == Some(&b':') && text.is_none_or(|name| name::is_secret(name.as_bytes())) {
                let value = skip_blank(json, colon + 1);
                at = value_end(json, value);
                replace(value, at, QUOTED_MARK);
            }
        }
        if copied == 0 {
            return raw.clone();
        }
        out.extend_from_slice(&json[copied..]);
        Raw::trusted(Bytes::from(out))
    }
}

/// The text of a JSON string, quotes included in `string`.
fn string_text(string: &[u8]) -> Option<Cow<'_, str>> {
    let inner = string.get(1..string.len().saturating_sub(1))?;
    if memchr::memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice::<String>(string).ok().map(Cow::Owned)
}

/// Behind the string that opens at `start`.
fn string_end(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(found) = json.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if json[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    json.len()
}

/// Behind the value that begins at `start`. On text that is not JSON, which free text may quote, it is
/// somewhere behind `start` and not past the end.
fn value_end(json: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at = string_end(json, at),
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

    /// AUD-4: strings are searched as what they mean, not as how they are escaped.
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
