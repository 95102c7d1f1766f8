//! Finds secrets in free text; each byte is looked at a bounded number of times.
//!
//! Every rule starts at a byte that announces it (`:` and `=` a pair, `-` a PEM block or a flag, a letter
//! a shape). After a rule has hidden something the scan resumes behind it, so hidden text is not read again.

use std::borrow::Cow;
use std::ops::Range;

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{MARK, name, skip_blank, value_end};

/// How a known kind of token begins.
struct Shape {
    prefix: &'static str,
    /// The bytes that may follow besides letters and digits.
    extra: &'static [u8],
    /// How many must follow.
    least: usize,
    /// Whether the prefix is so common inside words that it counts only at the start of one.
    starts_word: bool,
}

const fn shape(prefix: &'static str, extra: &'static [u8], least: usize, starts_word: bool) -> Shape {
    Shape { prefix, extra, least, starts_word }
}

const SHAPES: &[Shape] = &[
    shape("sk-", b"-_", 16, true),
    shape("sk_live_", b"", 10, true),
    shape("sk_test_", b"", 10, true),
    shape("rk_live_", b"", 10, true),
    shape("whsec_", b"+/", 16, true),
    shape("ghp_", b"", 16, false),
    shape("gho_", b"", 16, false),
    shape("ghu_", b"", 16, false),
    shape("ghs_", b"", 16, false),
    shape("ghr_", b"", 16, false),
    shape("github_pat_", b"_", 16, false),
    shape("glpat-", b"-_.", 16, false),
    shape("xoxa-", b"-", 10, false),
    shape("xoxb-", b"-", 10, false),
    shape("xoxp-", b"-", 10, false),
    shape("xoxr-", b"-", 10, false),
    shape("xoxs-", b"-", 10, false),
    shape("xapp-", b"-", 10, false),
    shape("AKIA", b"", 16, false),
    shape("ASIA", b"", 16, false),
    shape("AIza", b"-_", 30, false),
    shape("ya29.", b"-_", 20, true),
    shape("npm_", b"", 30, true),
    shape("hf_", b"", 30, true),
    // Our own: a key, and the endpoint's token.
    shape("bhk_", b"", 49, false),
    shape("bh_", b"-_", 43, true),
];

/// For each byte, the kinds of beginnings that it may be the first and the second byte of. Where two neighbouring bytes
/// have no kind in common, no rule begins: this check alone skips most text.
struct Glance {
    first: [u8; 256],
    second: [u8; 256],
}

/// Kinds of beginnings. One byte announces a pair or a URL; the other kinds are known by two bytes.
const ONE_BYTE: u8 = 1;
const TWO_BYTES: [(&[u8], &[u8]); 7] = [
    (b"-", b"-"),
    (b"Bb", b"EeAah"),
    (b"e", b"y"),
    (b"sr", b"k"),
    (b"wg", b"hil"),
    (b"xAy", b"oaKSI"),
    (b"nh", b"pf"),
];

static GLANCE: Glance = {
    let mut glance = Glance { first: [0; 256], second: [ONE_BYTE; 256] };
    glance.first[b':' as usize] = ONE_BYTE;
    glance.first[b'=' as usize] = ONE_BYTE;
    let mut kind = 0;
    while kind < TWO_BYTES.len() {
        let (first, second) = TWO_BYTES[kind];
        let bit = 2 << kind;
        let mut at = 0;
        while at < first.len() {
            glance.first[first[at] as usize] |= bit;
            at += 1;
        }
        at = 0;
        while at < second.len() {
            glance.second[second[at] as usize] |= bit;
            at += 1;
        }
        kind += 1;
    }
    glance
};

impl Glance {
    /// Where the next rule may begin.
    fn next(&self, bytes: &[u8], at: usize) -> Option<usize> {
        let rest = bytes.get(at..)?;
        let meets = |first: u8, second: u8| self.first[first as usize] & self.second[second as usize] != 0;
        let found = rest.windows(2).position(|pair| meets(pair[0], pair[1]));
        // The last byte has no second byte.
        let last = || rest.last().filter(|last| meets(**last, 0)).map(|_| rest.len() - 1);
        Some(at + found.or_else(last)?)
    }
}

/// Words that follow `Bearer` or a flag in prose; they are no secrets.
const PROSE: &[&str] = &[
    "and",
    "argument",
    "auth",
    "authentication",
    "authorization",
    "bearer",
    "flag",
    "for",
    "header",
    "is",
    "must",
    "not",
    "of",
    "option",
    "or",
    "required",
    "scheme",
    "to",
    "token",
    "tokens",
    "was",
];

/// Authentication schemes: the secret is the word after them.
const SCHEMES: &[&str] = &["apikey", "aws4-hmac-sha256", "basic", "bearer", "digest", "negotiate", "token"];

/// How far to look for the `@` of a URL whose password holds a slash.
const URL_LOOK: usize = 256;

/// How often a text is scanned at most.
const PASSES: usize = 4;

/// The text without its secrets.
///
/// Hiding one secret can expose another (credentials that a token was glued to), so text that changed is
/// scanned again. The limit keeps the time linear, even for hostile input.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    let mut hidden = pass(text);
    for _ in 1..PASSES {
        let Cow::Owned(before) = &hidden else { break };
        let Cow::Owned(after) = pass(before) else { break };
        hidden = Cow::Owned(after);
    }
    hidden
}

fn pass(text: &str) -> Cow<'_, str> {
    let mut scan = Scan { text, bytes: text.as_bytes(), out: String::new(), copied: 0, no_jwt_before: 0 };
    let mut at = 0;
    while let Some(found) = GLANCE.next(scan.bytes, at) {
        at = found;
        let found = match scan.bytes[at] {
            b':' | b'=' => scan.url(at).or_else(|| scan.pair(at)),
            b'-' => scan.pem(at).or_else(|| scan.flag(at)),
            b'B' | b'b' => scan.scheme(at).or_else(|| scan.shape(at)),
            b'e' => scan.jwt(at),
            b's' | b'r' | b'w' | b'g' | b'x' | b'A' | b'y' | b'n' | b'h' => scan.shape(at),
            _ => None,
        };
        at = match found {
            Some(range) => {
                scan.hide(range.clone());
                range.end.max(at + 1)
            }
            None => at + 1,
        };
    }
    scan.finish()
}

struct Scan<'a> {
    text: &'a str,
    bytes: &'a [u8],
    out: String,
    /// Everything before this position is in `out` or hidden.
    copied: usize,
    /// No JWT begins before this position.
    no_jwt_before: usize,
}

impl<'a> Scan<'a> {
    fn hide(&mut self, range: Range<usize>) {
        let hidden = &self.text[range.clone()];
        if range.is_empty() || hidden == MARK || is_placeholder(hidden, self.rest(range.end)) {
            return;
        }
        self.out.push_str(&self.text[self.copied..range.start]);
        self.out.push_str(MARK);
        self.copied = range.end;
    }

    fn finish(mut self) -> Cow<'a, str> {
        if self.copied == 0 {
            return Cow::Borrowed(self.text);
        }
        self.out.push_str(&self.text[self.copied..]);
        Cow::Owned(self.out)
    }

    fn rest(&self, at: usize) -> &'a [u8] {
        self.bytes.get(at..).unwrap_or_default()
    }

    /// The end of the run of bytes from `at` that `accept` takes.
    fn run(&self, at: usize, accept: impl Fn(u8) -> bool) -> usize {
        at + self.rest(at).iter().take_while(|byte| accept(**byte)).count()
    }

    /// Whether a word can begin at `at`. Hidden text just before it counts as a boundary, because it will
    /// be one when the result is scanned again. So does an escape such as `\n`.
    fn starts_word(&self, at: usize) -> bool {
        match self.bytes[self.copied..at] {
            [.., b'\\', b'n' | b'r' | b't'] | [] => true,
            [.., before] => !before.is_ascii_alphanumeric(),
        }
    }

    fn shape(&self, at: usize) -> Option<Range<usize>> {
        let rest = self.rest(at);
        let shape = SHAPES.iter().find(|shape| rest.starts_with(shape.prefix.as_bytes()))?;
        if shape.starts_word && !self.starts_word(at) {
            return None;
        }
        let accept = |byte: u8| byte.is_ascii_alphanumeric() || shape.extra.contains(&byte);
        let body = at + shape.prefix.len();
        let probe: &[u8] = &self.rest(body)[..self.rest(body).len().min(shape.least)];
        if probe.len() < shape.least || !probe.iter().all(|byte| accept(*byte)) {
            return None;
        }
        // Hyphenated prose (`sk-learn-…`) has no digits; a key of this length almost always has.
        let near = &self.rest(body)[..self.rest(body).len().min(64)];
        let near = &near[..near.iter().take_while(|byte| accept(**byte)).count()];
        if shape.prefix == "sk-" && near.len() < 64 && !near.iter().any(u8::is_ascii_digit) {
            return None;
        }
        Some(at..self.run(body, accept))
    }

    /// `eyJ….….…`, encrypted ones with five parts included.
    fn jwt(&mut self, at: usize) -> Option<Range<usize>> {
        let part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if at < self.no_jwt_before || !self.rest(at).starts_with(b"eyJ") {
            return None;
        }
        let header = self.run(at, part);
        self.no_jwt_before = header;
        if self.bytes.get(header) != Some(&b'.') || header - at < 10 {
            return None;
        }
        let payload = self.run(header + 1, part);
        if self.bytes.get(payload) != Some(&b'.') {
            return None;
        }
        Some(at..self.run(payload, |byte| part(byte) || byte == b'.'))
    }

    /// `Bearer …`, and `Basic …` where it decodes to a name and a password.
    fn scheme(&self, at: usize) -> Option<Range<usize>> {
        let letters = self.rest(at).get(..6)?;
        let bearer = letters.eq_ignore_ascii_case(b"bearer");
        let word = at + if bearer { 6 } else { 5 };
        if !(bearer || letters[..5].eq_ignore_ascii_case(b"basic")) || !self.starts_word(at) {
            return None;
        }
        let start = self.run(word, is_blank);
        let end = self.run(start, |byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'+' | b'/' | b'-')
        });
        if start == word || end == start {
            return None;
        }
        let padded = self.run(end, |byte| byte == b'=');
        let credentials = &self.bytes[start..padded];
        let hidden = if bearer {
            // `Bearer realm="…"` is a server's challenge, not a client's credentials.
            let parameter = padded > end && self.bytes.get(padded) == Some(&b'"');
            !parameter && !is_one_of(PROSE, credentials)
        } else {
            STANDARD.decode(credentials).is_ok_and(|decoded| decoded.contains(&b':'))
        };
        hidden.then_some(start..padded)
    }

    /// `scheme://user:password@host`.
    fn url(&self, at: usize) -> Option<Range<usize>> {
        if !self.rest(at).starts_with(b"://") {
            return None;
        }
        let start = at + 3;
        let ends_url = |byte: u8| {
            byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'`' | b'<' | b'>' | b'\\')
        };
        let end = self.run(start, |byte| !ends_url(byte) && !matches!(byte, b'/' | b'?' | b'#'));
        let authority = &self.bytes[start..end];
        let at_sign = memchr::memrchr(b'@', authority).or_else(|| {
            // No port follows the colon, so this may be a password with an unescaped slash.
            let colon = memchr::memchr(b':', authority)?;
            let port = authority[colon + 1..].iter().all(u8::is_ascii_digit);
            let near = &self.bytes[start..(end + URL_LOOK).min(self.bytes.len())];
            let near = &near[..near.iter().take_while(|byte| !ends_url(**byte)).count()];
            if port || authority.starts_with(b"[") {
                return None;
            }
            // The password may hold an `@` too. The host, up to what follows it, holds none.
            let first = memchr::memchr(b'@', near)?;
            let host = near[first..].iter().take_while(|byte| !matches!(byte, b'/' | b'?' | b'#')).count();
            memchr::memrchr(b'@', &near[..first + host])
        });
        let userinfo = start..start + at_sign.unwrap_or_default();
        // A user name alone is no secret. The empty range still says that this is a URL and not a pair.
        let secret = memchr::memchr(b':', &self.bytes[userinfo.clone()]).is_some();
        Some(if secret { userinfo } else { start..start })
    }

    /// The block between `-----BEGIN … PRIVATE KEY-----` and its end, or the end of the text.
    fn pem(&self, at: usize) -> Option<Range<usize>> {
        let label = self.rest(at).strip_prefix(b"-----BEGIN ")?;
        let length = label.iter().take(64).position(|byte| *byte == b'-')?;
        let private = label[..length].ends_with(b"PRIVATE KEY") || label[..length].ends_with(b"KEY BLOCK");
        let start = at + 11 + length + 5;
        if !private || start > self.bytes.len() || !self.text.is_char_boundary(start) {
            return None;
        }
        let end =
            memchr::memmem::find(self.rest(start), b"-----END").map_or(self.bytes.len(), |end| start + end);
        Some(start..end)
    }

    /// `--password value`, also as two items of a list.
    fn flag(&self, at: usize) -> Option<Range<usize>> {
        let before = self.bytes[self.copied..at].last();
        let begins = before.is_none_or(|byte| is_blank(*byte) || is_quote(*byte) || *byte == b'\n');
        if !begins || !self.rest(at).starts_with(b"--") {
            return None;
        }
        let end = self.run(at + 2, |byte| is_name(byte) && byte != b'.');
        // A token that ends like a secret name is left to its own rule.
        if !name::is_secret(&self.bytes[at + 2..end]) || (at + 2..end).any(|at| self.shape(at).is_some()) {
            return None;
        }
        let behind = self.run(end, |byte| is_quote(byte) || byte == b',');
        let start = self.run(behind, is_blank);
        let value = self.value(start, b"");
        // There is no value, the next flag follows, or another rule has hidden the value already.
        let nothing = start == behind
            || self.bytes.get(start) == Some(&b'-')
            || self.rest(start).starts_with(MARK.as_bytes());
        (!nothing && !is_one_of(PROSE, &self.bytes[value.clone()])).then_some(value)
    }

    /// `name=value`, `name: value`, `"name": "value"`; `at` is the separator.
    fn pair(&self, at: usize) -> Option<Range<usize>> {
        // Never looks back across another separator or hidden text, so the time stays linear.
        let before = &self.bytes[self.copied..at];
        let before = before.trim_ascii_end();
        let before = trim_end(before, |byte| byte == b']');
        let quoted = before.last().is_some_and(|byte| is_quote(*byte));
        let before =
            if quoted { trim_end(&before[..before.len() - 1], |byte| byte == b'\\') } else { before };
        let name = &before[trim_end(before, is_name).len()..];
        if !name::is_secret(name) {
            return None;
        }
        let separator = self.run(at + 1, |byte| matches!(byte, b'=' | b'>'));
        let start = if quoted { skip_blank(self.bytes, separator) } else { self.run(separator, is_blank) };
        Some(self.value(start, name))
    }

    /// The value that begins at `start`, without its quotes.
    fn value(&self, start: usize, name: &[u8]) -> Range<usize> {
        let escapes = self.run(start, |byte| byte == b'\\') - start;
        match self.bytes.get(start + escapes) {
            Some(quote) if is_quote(*quote) => {
                let inner = start + escapes + 1;
                inner..self.closing(inner, *quote, escapes)
            }
            _ if self.rest(start).starts_with(MARK.as_bytes()) => {
                let end = start + MARK.len();
                start..self.line_or_word_end(start, end, name)
            }
            Some(b'{' | b'[') if escapes == 0 => {
                // Truncated text leaves brackets open; then everything to its end is hidden.
                start..self.line_or_word_end(start, value_end(self.bytes, start), name)
            }
            _ => start..self.line_or_word_end(start, start, name),
        }
    }

    fn line_or_word_end(&self, start: usize, from: usize, name: &[u8]) -> usize {
        let end = self.word_end(from);
        let line = || self.run(end, |byte| byte != b'\n' && byte != b'\r' && !is_quote(byte));
        if name::takes_the_line(name) {
            return trim_end(&self.bytes[..line()], is_blank).len().max(end);
        }
        if !is_one_of(SCHEMES, &self.bytes[start..end]) {
            return end;
        }
        if name::takes_the_line_after_a_scheme(name) {
            return trim_end(&self.bytes[..line()], is_blank).len().max(end);
        }
        let next = self.run(end, is_blank);
        if next > end { self.word_end(next) } else { end }
    }

    /// Where an unquoted value ends.
    fn word_end(&self, start: usize) -> usize {
        if let Some(block) = self.pem(start) {
            return self.run(block.end, |byte| byte != b'\n' && !is_quote(byte));
        }
        let mut at = start;
        while let Some(byte) = self.bytes.get(at) {
            match byte {
                // `Some("…")`: the quotes belong to the value.
                quote if is_quote(*quote) && at > start && self.bytes[at - 1] == b'(' => {
                    at = self.closing(at + 1, *quote, 0);
                    at = (at + 1).min(self.bytes.len());
                }
                b'\\' if self.bytes.get(at + 1).is_some_and(|byte| is_quote(*byte)) => break,
                b',' | b';' | b'&' | b'<' | b'>' | b')' | b']' | b'}' => break,
                byte if is_quote(*byte) || byte.is_ascii_whitespace() => break,
                _ => at += 1,
            }
        }
        at
    }

    /// The end of a quoted text whose opening quote has `escapes` backslashes before it. Text quoted `n`
    /// times has 2ⁿ−1 of them, and a quote inside it has more.
    fn closing(&self, from: usize, quote: u8, escapes: usize) -> usize {
        let mut at = from;
        while let Some(found) = memchr::memchr(quote, self.rest(at)) {
            let inner = &self.bytes[from..at + found];
            let backslashes = inner.len() - trim_end(inner, |byte| byte == b'\\').len();
            if backslashes % (2 * (escapes + 1)) == escapes {
                return at + found - escapes;
            }
            at += found + 1;
        }
        self.bytes.len()
    }
}

fn trim_end(text: &[u8], unwanted: impl Fn(u8) -> bool) -> &[u8] {
    let surplus = text.iter().rev().take_while(|byte| unwanted(**byte)).count();
    &text[..text.len() - surplus]
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn is_quote(byte: u8) -> bool {
    matches!(byte, b'"' | b'\'' | b'`')
}

/// Whether a value is only a placeholder for a secret, as our own messages show one: `${NAME}`, `…`, or the banner's text
/// for a token file, each perhaps after a scheme. `behind` is the text after the value, because a value ends at a brace. A
/// variable with a default is no placeholder: the default may be the secret.
fn is_placeholder(value: &str, behind: &[u8]) -> bool {
    let value = match value.split_once(' ') {
        Some((scheme, rest)) if is_one_of(SCHEMES, scheme.as_bytes()) => rest.trim_start(),
        _ => value,
    };
    let variable = value.strip_prefix("${").map(|name| name.strip_prefix("env:").unwrap_or(name));
    let name = variable.and_then(|name| match name.strip_suffix('}') {
        None if behind.starts_with(b"}") => Some(name),
        closed => closed,
    });
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    name.is_some_and(is_name)
        || value == "…"
        || value.strip_prefix("<the token in ").is_some_and(|path| path.ends_with('>'))
}

fn is_one_of(words: &[&str], text: &[u8]) -> bool {
    words.iter().any(|word| text.eq_ignore_ascii_case(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(before: &str, after: &str) {
        let once = text(before);
        assert_eq!(once, after);
        assert_eq!(text(&once), after, "redacting twice is redacting once");
    }

    #[test]
    fn every_shape_passes_the_first_glance() {
        let others = ["://", "=", "-----BEGIN", "--x", "Bearer", "bEARER", "Basic", "bAsic", "eyJ"];
        for begins in SHAPES.iter().map(|shape| shape.prefix).chain(others) {
            let text = format!("..{begins}");
            assert_eq!(GLANCE.next(text.as_bytes(), 1), Some(2), "{begins}");
        }
        assert_eq!(GLANCE.next(b"message of a server 17", 0), None);
        assert_eq!(
            (GLANCE.next(b"a:", 0), GLANCE.next(b"ab-", 0), GLANCE.next(b"", 0)),
            (Some(1), None, None)
        );
    }

    #[track_caller]
    fn unchanged(line: &str) {
        assert!(matches!(text(line), Cow::Borrowed(same) if same == line), "{}", text(line));
    }

    /// AUD-4: pairs, in the notations servers write.
    #[test]
    fn values_under_secret_names_go() {
        check("password=hunter2 user=bob", "password=[redacted] user=bob");
        check("password = hunter2", "password = [redacted]");
        check("GET /x?api_key=abc&b=1", "GET /x?api_key=[redacted]&b=1");
        check(r#"{"token":"a\"b", "n":1}"#, r#"{"token":"[redacted]", "n":1}"#);
        check(r#"{"token": "a\\", "n":1}"#, r#"{"token": "[redacted]", "n":1}"#);
        check(r#"body "{\"secret\":\"x\\\"y\",\"n\":1}""#, r#"body "{\"secret\":\"[redacted]\",\"n\":1}""#);
        check("{'apiKey': 'abc', 'n': 1}", "{'apiKey': '[redacted]', 'n': 1}");
        check(r#"Config { token: Some("a b"), n: 1 }"#, "Config { token: [redacted]), n: 1 }");
        check(r#""credentials": {"a": ["x]"]}, "n": 1"#, r#""credentials": [redacted], "n": 1"#);
        check(r#":client_secret => "abc""#, r#":client_secret => "[redacted]""#);
        check(r#"env["API_KEY"] = "x""#, r#"env["API_KEY"] = "[redacted]""#);
        check("user[password]=x&a=b", "user[password]=[redacted]&a=b");
        check("token: Bearer abc next", "token: [redacted] next");
        check("secret=\"cut off", "secret=\"[redacted]");
        check("run --api-key abc --verbose", "run --api-key [redacted] --verbose");
        check(r#"["--token", "abc", "x"]"#, r#"["--token", "[redacted]", "x"]"#);
        check("--bearer -a: b", "--bearer [redacted]: b");
        check("--AKIApasswordpassword a", "--[redacted] a");
        check("--password=abc", "--password=[redacted]");
    }

    /// HOUR-11: our own messages about where a secret goes stay unchanged, in text and inside JSON; text that only
    /// resembles them does not.
    #[test]
    fn placeholders_are_no_secrets() {
        for line in [
            "pass a token instead, `headers = { Authorization = \"Bearer ${TOKEN}\" }`",
            r#"{"message":"`headers = { Authorization = \"Bearer ${TOKEN}\" }`"}"#,
            r#"{"message":"{\"headers\":{\"Authorization\":\"Bearer ${MY_TOKEN}\"}}"}"#,
            "send it as `Authorization: Bearer …`",
            "token = ${env:TOKEN} and --token ${TOKEN} and password=${PASSWORD}",
            "{\"Authorization\":\"Bearer <the token in /home/me/token>\"}",
        ] {
            unchanged(line);
        }
        check("token=${TOKEN:-hunter2}", "token=[redacted]}");
        check("token=a${TOKEN}", "token=[redacted]}");
        check("Authorization: Bearer ${TOKEN}x", "Authorization: [redacted]");
        check("password=\"${A} ${B}\"", "password=\"[redacted]\"");
    }

    /// AUD-4: header lines.
    #[test]
    fn credentials_in_headers_go() {
        check("Authorization: Basic eDp5 \nnext", "Authorization: [redacted] \nnext");
        check("authorization: Digest a=\"b\", c", "authorization: [redacted]\"b\", c");
        check("curl -H 'Authorization: Bearer abc' url", "curl -H 'Authorization: [redacted]' url");
        check("Set-Cookie: a=b; Path=/\nX: y", "Set-Cookie: [redacted]\nX: y");
        check("cookie=[]}; a=b", "cookie=[redacted]");
        check("sent Bearer abc123.x== to", "sent Bearer [redacted] to");
        check("Basic dXNlcjpwYXNzAKIA0123456789abcdefgh", "Basic [redacted][redacted]");
        check("sent Basic dXNlcjpwYXNz to", "sent Basic [redacted] to");
    }

    /// AUD-4: shapes, wherever they appear.
    #[test]
    fn known_shapes_go() {
        let shapes = [
            "sk-ant-api03-aaaaaaaaaaaaaaaa",
            "ghp_0123456789abcdefghijABCDEFGHIJ012345",
            "github_pat_11AAAAAAA0aaaaaaaaaaaa_bbbbbbb",
            "xoxb-1234567890-abcdef",
            "AKIAIOSFODNN7EXAMPLE",
            "AIzaSyA0123456789abcdefghijABCDEFGHIJ01",
            "glpat-abcdefghij0123456789",
            "bhk_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefg0123456",
            "bh_0123456789-ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcde",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        ];
        for secret in shapes {
            check(secret, MARK);
            check(&format!("é {secret}, x"), "é [redacted], x");
            check(&format!("\\n{secret}\"é"), "\\n[redacted]\"é");
        }
        check("postgres://bob:p%40ss@db/x", "postgres://[redacted]@db/x");
        check("redis://:p/w@db:1/x", "redis://[redacted]@db:1/x");
        check(
            "a -----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY----- b",
            "a -----BEGIN RSA PRIVATE KEY-----[redacted]-----END RSA PRIVATE KEY----- b",
        );
        check("-----BEGIN PRIVATE KEY-----\nMII", "-----BEGIN PRIVATE KEY-----[redacted]");
        check(
            "private_key: -----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nx",
            "private_key: [redacted]\nx",
        );
    }

    /// AUD-4: a password in a URL may hold what should have been encoded: `@`, also more than once, and with a slash before it. What
    /// follows the host is not the password's.
    #[test]
    fn a_password_with_an_at_sign_goes() {
        check("postgres://bob:p@ss@db/x", "postgres://[redacted]@db/x");
        check("postgres://bob:@p@s@s@db:1/x?a=b@c", "postgres://[redacted]@db:1/x?a=b@c");
        check("redis://:p/w@ss@db:1/x", "redis://[redacted]@db:1/x");
        check("redis://:p/w@db/0?mail=a@b", "redis://[redacted]@db/0?mail=a@b");
        check("see https://bob:a@b@c.example, then d@e", "see https://[redacted]@c.example, then d@e");
        check(r#"{"url":"https://u:p@q@h/x","n":"a@b"}"#, r#"{"url":"https://[redacted]@h/x","n":"a@b"}"#);
    }

    /// AUD-4: an encrypted token has five parts, of which the second may be empty, and all of them go.
    #[test]
    fn an_encrypted_token_goes_whole() {
        let header = "eyJhbGciOiJSU0EtT0FFUCIsImVuYyI6IkEyNTZHQ00ifQ";
        for parts in [
            "OKOawDo13gRp2ojaHV7LFpZcgV7T.48V1_ALb6US04U3b.5eym8TW_c8SuK0lt.XFBoMYUZodetZdvT",
            ".48V1.5eym.XFBo",
        ] {
            let token = format!("{header}.{parts}");
            check(&token, MARK);
            check(&format!("got {token}, then"), "got [redacted], then");
            check(&format!(r#"{{"id":"{token}"}}"#), r#"{"id":"[redacted]"}"#);
        }
    }

    #[test]
    fn other_text_is_left_alone() {
        for line in [
            "",
            "listening on http://127.0.0.1:8080/mcp?x=1#a:b@c",
            "cloning ssh://git@example.com/a/b and http://[::1]:80/x@y",
            "progressToken: 7, max_tokens=5, token_count=3, tokenizer: bpe",
            "WWW-Authenticate: Bearer realm=\"x\", error=\"invalid\"",
            "bearer token required; pass --token to log in",
            "password=",
            "task-0123456789abcdef0123 sk-learn-compatible-estimators eyJ.a.b ghp_short bhk_short bh_short",
            "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
            "Basic usage: a=b",
            "the secret of good tea",
            "::= =: \\ ----- é=ü",
        ] {
            unchanged(line);
        }
    }

    /// The CPU time of this thread so far, which other programs do not lengthen; on other systems than Linux, real time.
    fn spent() -> std::time::Duration {
        static BEGAN: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        match std::fs::read_to_string("/proc/thread-self/schedstat") {
            Ok(told) => {
                let nanoseconds = told.split_whitespace().next().unwrap().parse().unwrap();
                std::time::Duration::from_nanos(nanoseconds)
            }
            Err(_) => BEGAN.elapsed(),
        }
    }

    /// Repeated beginnings of every rule, of two sizes.
    #[test]
    fn the_time_is_linear() {
        for beginning in [
            "eyJ",
            "eyJa.",
            "sk-",
            "ghp_",
            "://",
            "a://x:y/",
            "-----BEGIN ",
            "bearer ",
            "token",
            "--token ",
            "a:",
            "\\",
            "\"",
            "token:\\\"",
            "]",
            "[",
            "=",
            " ",
            "Some(\"",
            "-----BEGIN PRIVATE KEY-----",
        ] {
            // The best of three runs: other load makes one of them slow, a slow rule makes all of them slow.
            let taken = |length: usize| {
                let long = beginning.repeat(length / beginning.len());
                let once = || {
                    let started = spent();
                    let _ = text(&long);
                    let _ = text(&format!("token={long}"));
                    spent().saturating_sub(started)
                };
                (0..3).map(|_| once()).min().unwrap_or_default()
            };
            // Ten times as long: linear time is ten times as much, quadratic time a hundred times.
            let (short, long) = (taken(20_000), taken(200_000));
            assert!(
                long < 50 * short + std::time::Duration::from_millis(50),
                "{beginning:?}: {short:?}, {long:?}"
            );
        }
    }
}
