//! Which names belong to secrets.
//!
//! A name is judged by its ending, ignoring case and separators: `X-Api-Key`, `api_key` and `apiKey` are
//! one name. Judging by the ending keeps names *about* secrets (`token_count`, `password_file`,
//! `authorization_endpoint`) apart from names *of* secrets.

use smallvec::SmallVec;

/// How the name of a secret ends.
const SECRET: [&str; 41] = [
    "accesskey",
    "accesstokens",
    "accountkey",
    "amzsignature",
    "apikey",
    "apikeys",
    "apitokens",
    "authkey",
    "authorization",
    "bearer",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "encryptionkey",
    "googsignature",
    "hmackey",
    "jwt",
    "masterkey",
    "mnemonic",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "privatekey",
    "privatekeys",
    "refreshtokens",
    "secret",
    "secretid",
    "secretkey",
    "secretkeybase",
    "secrets",
    "sessid",
    "sessionid",
    "sessionkey",
    "sharedkey",
    "signingkey",
    "sshkey",
    "subscriptionkey",
    "token",
];

static SECRET_TAILS: [[u8; 3]; SECRET.len()] = tails(&SECRET);

/// Suffixes after which the value is still the secret: `password_new`.
const TRAILERS: [&str; 17] = [
    "b64",
    "base64",
    "confirm",
    "confirmation",
    "current",
    "dev",
    "hash",
    "header",
    "new",
    "old",
    "plain",
    "prod",
    "raw",
    "string",
    "test",
    "text",
    "value",
];

static TRAILER_TAILS: [[u8; 3]; TRAILERS.len()] = tails(&TRAILERS);

/// Words before `token` that make it harmless: cursors, progress and the vocabulary of models.
const HARMLESS_TOKENS: &[&str] = &[
    "bos",
    "cancellation",
    "continuation",
    "eos",
    "mask",
    "next",
    "pad",
    "page",
    "pagination",
    "progress",
    "sep",
    "special",
    "stop",
    "sync",
    "unk",
];

/// Secret only as the whole name.
const SIGNATURE: &str = "sig";

/// Endings that are secrets only as a word of their own: `db_pass`, but not `bypass`.
const SECRET_WORDS: &[&str] = &["pass", "pwd"];

/// For each last letter, the set of letters that precede it in any word that this module knows.
static ENDINGS: [u32; 26] = {
    let mut endings = [0; 26];
    let mut at = 0;
    while at < SECRET.len() {
        note_ending(&mut endings, SECRET[at]);
        at += 1;
    }
    at = 0;
    while at < TRAILERS.len() {
        note_ending(&mut endings, TRAILERS[at]);
        at += 1;
    }
    at = 0;
    while at < SECRET_WORDS.len() {
        note_ending(&mut endings, SECRET_WORDS[at]);
        at += 1;
    }
    note_ending(&mut endings, SIGNATURE);
    endings
};

const fn note_ending(endings: &mut [u32; 26], word: &str) {
    if let [.., before @ b'a'..=b'z', last @ b'a'..=b'z'] = word.as_bytes() {
        endings[(*last - b'a') as usize] |= 1 << (*before - b'a');
    }
}

/// Whether `name` may belong to a secret, by its last two letters. A name that ends with digits passes: they are stripped
/// later.
fn at_first_glance(name: &[u8]) -> bool {
    let mut last = name.iter().rev().filter(|byte| byte.is_ascii_alphanumeric()).map(u8::to_ascii_lowercase);
    match (last.next(), last.next()) {
        (Some(last @ b'a'..=b'z'), Some(before @ b'a'..=b'z')) => {
            ENDINGS[usize::from(last - b'a')] & (1 << (before - b'a')) != 0
        }
        _ => true,
    }
}

/// Whether nearly every result has a member called `name`. Some such names end like those of secrets.
const fn is_common(name: &[u8]) -> bool {
    matches!(name, b"text" | b"content" | b"structuredContent" | b"version" | b"description" | b"annotations")
}

/// Whether the value called `name` is a secret.
pub(super) fn is_secret(name: &[u8]) -> bool {
    if is_common(name) || !at_first_glance(name) {
        return false;
    }
    let folded: SmallVec<[u8; 64]> =
        name.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(u8::to_ascii_lowercase).collect();
    let mut folded = folded.as_slice();
    loop {
        if let Some(before) = folded.strip_suffix(b"token") {
            return !HARMLESS_TOKENS.iter().any(|word| before.ends_with(word.as_bytes()));
        }
        if one_ends(&SECRET, &SECRET_TAILS, folded).is_some() || folded == SIGNATURE.as_bytes() {
            return true;
        }
        let digits = folded.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let trailer = one_ends(&TRAILERS, &TRAILER_TAILS, folded);
        match trailer.map_or(digits, |word| word.len()) {
            0 => return ends_in_secret_word(name),
            surplus => folded = &folded[..folded.len() - surplus],
        }
    }
}

/// The word that `name` ends with. The last three letters rule most names out.
fn one_ends<'w, const N: usize>(words: &[&'w str; N], tails: &[[u8; 3]; N], name: &[u8]) -> Option<&'w str> {
    if !tails.contains(name.last_chunk()?) {
        return None;
    }
    words.iter().find(|word| name.ends_with(word.as_bytes())).copied()
}

/// The last three letters of each word; none is shorter.
const fn tails<const N: usize>(words: &[&str; N]) -> [[u8; 3]; N] {
    let mut tails = [[0; 3]; N];
    let mut at = 0;
    while at < N {
        if let Some(tail) = words[at].as_bytes().last_chunk() {
            tails[at] = *tail;
        }
        at += 1;
    }
    tails
}

/// Whether an unquoted value called `name` runs to the end of its line.
pub(super) fn takes_the_line(name: &[u8]) -> bool {
    ends_with_ignoring_case(name, b"cookie")
}

/// Whether the value called `name` runs to the end of its line after an authentication scheme.
pub(super) fn takes_the_line_after_a_scheme(name: &[u8]) -> bool {
    ends_with_ignoring_case(name, b"authorization")
}

fn ends_in_secret_word(name: &[u8]) -> bool {
    SECRET_WORDS.iter().any(|word| {
        let Some(start) = name.len().checked_sub(word.len()) else { return false };
        let (before, last) = name.split_at(start);
        let separate = match before.last() {
            // The variable PWD is the working directory.
            None => last != b"PWD" && *word == "pwd",
            Some(byte) if byte.is_ascii_lowercase() => last[0].is_ascii_uppercase(),
            Some(byte) => !byte.is_ascii_alphanumeric(),
        };
        separate && last.eq_ignore_ascii_case(word.as_bytes())
    })
}

fn ends_with_ignoring_case(name: &[u8], ending: &[u8]) -> bool {
    name.len() >= ending.len() && name[name.len() - ending.len()..].eq_ignore_ascii_case(ending)
}

#[cfg(test)]
mod tests {
    use super::{SECRET, TRAILERS, is_secret};

    #[track_caller]
    fn check(secret: bool, names: &[&str]) {
        for name in names {
            assert_eq!(is_secret(name.as_bytes()), secret, "{name}");
        }
    }

    #[test]
    fn every_word_passes_the_first_glance() {
        assert!(SECRET.iter().chain(&TRAILERS).all(|word| word.len() >= 3));
        assert!(SECRET.iter().all(|word| is_secret(word.as_bytes())));
        assert!(TRAILERS.iter().all(|word| is_secret(format!("password_{word}").as_bytes())));
    }

    /// In capitals they do not count as common, and are checked like any other name.
    #[test]
    fn common_names_are_none_of_secrets() {
        check(false, &["text", "content", "structuredContent", "version", "description", "annotations"]);
        check(false, &["TEXT", "CONTENT", "STRUCTUREDCONTENT", "VERSION", "DESCRIPTION", "ANNOTATIONS"]);
    }

    #[test]
    fn names_of_secrets() {
        check(
            true,
            &[
                "password",
                "PASSWORD",
                "db.password",
                "userPassword",
                "PGPASSWORD",
                "passwd",
                "password2",
                "token",
                "authToken",
                "access_token",
                "X-Auth-Token",
                "csrftoken",
                "apiKey",
                "api-key",
                "API_KEY",
                "apikey",
                "AWS_SECRET_ACCESS_KEY",
                "private_key",
                "clientSecret",
                "client_secret_old",
                "credentials",
                "Authorization",
                "Proxy-Authorization",
                "Cookie",
                "Set-Cookie",
                "sessionId",
                "Mcp-Session-Id",
                "PHPSESSID",
                "smtp_pass",
                "dbPass",
                "Pwd",
                "MYSQL_PWD",
                "sig",
                "password_hash",
                "api_key_1",
                "secret_value",
                "X-Amz-Signature",
            ],
        );
    }

    #[test]
    fn names_of_other_things() {
        check(
            false,
            &[
                "",
                "progressToken",
                "progress_token",
                "nextPageToken",
                "max_tokens",
                "maxTokens",
                "tokens",
                "tokenizer",
                "token_count",
                "token_type",
                "token_endpoint",
                "authorization_endpoint",
                "key",
                "public_key",
                "password_file",
                "secretary",
                "session",
                "id",
                "PWD",
                "OLDPWD",
                "bypass",
                "compass",
                "pass",
                "passed",
                "author",
                "eos_token",
                "signature",
                "value",
                "12",
                "cookie_policy",
            ],
        );
    }
}
