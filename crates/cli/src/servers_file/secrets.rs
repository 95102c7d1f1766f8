//! Which values of a server look like secrets.
//!
//! It is better to move too much than too little: a value that is no secret works as well from a private file.

use std::borrow::Cow;
use std::path::Path;

use bridgehead_wire::{Redactor, is_secret_name};

/// Whether the value of a variable or a header should stay out of files that others can read.
pub(crate) fn looks_secret(name: &str, value: &str) -> bool {
    let own = without_references(value);
    let mut words = own.split_whitespace();
    // `Bearer ${TOKEN}` holds no secret, and `Bearer abc` does.
    let is_scheme = |word: &str| ["bearer", "basic", "token"].contains(&word.to_ascii_lowercase().as_str());
    let refers = own.len() < value.len();
    let nothing = match (words.next(), words.next()) {
        (None, _) => true,
        (Some(word), None) => refers && is_scheme(word),
        _ => false,
    };
    if nothing || Path::new(value).is_absolute() && Path::new(value).exists() {
        return false;
    }
    is_secret_name(name) || has_secret(&own)
}

/// Whether a text, such as an address, holds something that looks like a secret.
pub(crate) fn has_secret(text: &str) -> bool {
    let own = without_references(text);
    is_redacted(&own) || has_random(&own)
}

fn is_redacted(text: &str) -> bool {
    matches!(Redactor::default().text(text), Cow::Owned(_))
}

fn has_random(text: &str) -> bool {
    text.split(|next: char| !(next.is_ascii_alphanumeric() || "+=_-".contains(next))).any(is_random)
}

/// Whether arguments hold something that looks like a secret: everybody on the machine can read them while a program runs.
pub(crate) fn has_secret_argument(args: &[String]) -> bool {
    let flag = |word: &str| is_secret_name(word.trim_start_matches('-'));
    let pairs = args.windows(2).any(|pair| {
        pair[0].starts_with('-')
            && flag(&pair[0])
            && !pair[1].starts_with('-')
            && looks_secret("token", &pair[1])
    });
    let single = |word: &String| match word.split_once('=') {
        Some((name, value)) if flag(name) => looks_secret("token", value),
        _ => {
            let own = without_references(word);
            let value = value_of(&own);
            is_redacted(&own) || !is_place(value) && has_random(value)
        }
    };
    pairs || args.iter().any(single)
}

/// What follows the `=` of an option or a variable, or else the whole word. The end of a Base64 text is no value.
fn value_of(word: &str) -> &str {
    match word.split_once('=') {
        Some((_, value)) if !value.trim_matches('=').is_empty() => value,
        _ => word,
    }
}

/// Whether a value names a path, a package or an image. Their names may look random.
fn is_place(value: &str) -> bool {
    value.starts_with(['/', '.', '~', '@'])
        || value.starts_with("git+")
        || value.contains("@sha256:")
        || Path::new(value).exists()
}

/// The text without its `${…}`.
fn without_references(text: &str) -> String {
    let mut own = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        // A `$` before it makes it a text, which is no secret either: programs replace such texts themselves.
        own.push_str(before.strip_suffix('$').unwrap_or(before));
        rest = match after.split_once('}') {
            Some((_, after)) => after,
            None => "",
        };
    }
    own + rest
}

/// Whether the text is long and has digits and letters in both cases, like a key and unlike a name, or only hexadecimal digits.
fn is_random(text: &str) -> bool {
    let has = |kind: fn(&u8) -> bool| text.bytes().any(|byte| kind(&byte));
    let mixed = has(u8::is_ascii_digit) && has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit()) && has(u8::is_ascii_digit);
    text.len() >= 20 && mixed || text.len() >= 32 && digits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-3: secrets are known by their names and by their shapes; references are none.
    #[test]
    fn values_that_look_like_secrets() {
        for (name, value) in [
            ("API_KEY", "abc"),
            ("Authorization", "Bearer abc"),
            ("authorization", "Basic dXNlcjpwYXNz"),
            ("X-Custom", "ghp_0123456789abcdefghijABCDEFGHIJ012345"),
            ("GITHUB_PAT", "0123456789abcdef0123456789abcdef"),
            ("ACME", "Zm9vYmFyMTIzNDU2Nzg5MA"),
            ("DATABASE_URL", "postgres://me:hunter2@host/db"),
            ("PASSWORD", "${USER}-hunter2"),
        ] {
            assert!(looks_secret(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("API_KEY", "${API_KEY}"),
            ("API_KEY", ""),
            ("Authorization", "Bearer ${TOKEN}"),
            ("Authorization", "${SCHEME} ${TOKEN}"),
            ("LOG_LEVEL", "debug"),
            ("NODE_ENV", "production"),
            ("URL", "https://example.com/a/long-path-of-words/and-more-of-them"),
            ("GOOGLE_APPLICATION_CREDENTIALS", "/"),
        ] {
            assert!(!looks_secret(name, value), "{name}={value}");
        }
    }

    #[test]
    fn arguments_and_addresses() {
        let args = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        for words in [
            &["--api-key", "abc"][..],
            &["--token=abc"],
            &["-y", "x", "ghp_0123456789abcdefghijABCDEFGHIJ012345"],
            &["postgres://me:hunter2@host/db"],
            &["run", "me@example.com", "a8f5f167f44f4964e6c998dee827110c"],
            &["--profile=Zm9vYmFyMTIzNDU2Nzg5MA"],
            &["Zm9vYmFyMTIzNDU2Nzg5MA=="],
            &["https://h.example.com/s/Zm9vYmFyMTIzNDU2Nzg5MA/mcp"],
            &["/x?api_key=abc"],
        ] {
            assert!(has_secret_argument(&args(words)), "{words:?}");
        }
        for words in [
            &["-y", "@modelcontextprotocol/server-filesystem", "/"][..],
            &["--api-key", "${API_KEY}"],
            &["--header", "Authorization:$${AUTH_HEADER}"],
            &["--token=${T}", "--token"],
            &["--token", "--verbose"],
            &["550e8400-e29b-41d4-a716-446655440000", "--id=550E8400-E29B-41D4-A716-446655440000"],
            &["@TestOrganization/McpServer2-WithALongName@1.2.3", "some-server-with-a-long-name@2025.10.31"],
            &["/Users/Ada/MyNotes2024AndEverythingElse", "~/MyNotes2024AndEverythingElse"],
            &["../MyNotes2024AndEverythingElse", "--root=/Users/Ada/MyNotes2024AndEverythingElse"],
            &["-e", "NODE_OPTIONS=--max-old-space-size=4096"],
            &["git+https://example.com/a/b@a8f5f167f44f4964e6c998dee827110ca8f5f167"],
            &["ghcr.io/a/b@sha256:a8f5f167f44f4964e6c998dee827110ca8f5f167f44f4964e6c998dee827110c"],
            &["https://mcp.example.com/v1/a-long-path-of-words?level=2", "claude-3-5-sonnet-20241022"],
        ] {
            assert!(!has_secret_argument(&args(words)), "{words:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let (there, gone) =
            (folder.path().join("a8f5f167f44f4964e6c998dee827110c"), "a8f5f167f44f4964e6c998dee827110c");
        std::fs::write(&there, "").unwrap();
        assert!(is_place(there.to_str().unwrap()) && !is_place(gone), "only what exists is a path");
        assert!(is_place("Cargo.toml") && !is_place("no.such.file"));
        assert!(
            has_secret("https://h/mcp?api_key=abc") && has_secret("https://h/s/Zm9vYmFyMTIzNDU2Nzg5MA/mcp")
        );
        assert!(!has_secret("https://h/mcp?api_key=${KEY}") && !has_secret("https://mcp.example.com/v1/mcp"));
    }
}
