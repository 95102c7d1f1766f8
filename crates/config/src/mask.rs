//! Decides which parts of a configuration file a diagnostic may show.
//!
//! Threat: error output ends up in terminals, CI logs and bug reports, and configuration files hold credentials.
//! So a snippet shows a value only if the key table says that it is harmless. It leaves out the values of `env`, `headers`,
//! `proxy` and unknown keys, and arguments and addresses that look like they carry a credential. It also leaves out the
//! words of comments: commenting a line out does not make it less secret.
//! A file that does not parse has no tables to go by. Then a line is shown only if it holds a single known key with a
//! harmless value; in every other line, the letters and digits of all values are replaced.

use crate::keys::{self, KeyTable, ValueKind};
use crate::tree::{Node, Span, Value};

/// The parts of a file's text that are left out when it is shown.
#[derive(Debug)]
pub(crate) enum Mask {
    /// These ranges, sorted and without overlap.
    Ranges(Vec<Span>),
    /// Everything that could be a value, because the file could not be parsed.
    AllValues,
}

/// Words that reveal a credential, in a key or an argument.
#[rustfmt::skip]
const TELLTALES: [&str; 15] = [
    "token", "secret", "password", "passwd", "apikey", "api-key", "auth", "credential", "bearer", "-key", "_key",
    "key=", "sk-", "ghp_", "github_pat",
];

/// Keys whose values are never shown.
const HIDDEN: [&str; 2] = ["proxy", "client_secret"];

impl Mask {
    /// For a native file, which is TOML.
    pub(crate) fn native(root: &Node, text: &str) -> Self {
        let mut ranges = comments(text, &["\"\"\"", "'''", "\"", "'"], &[("#", "\n")]);
        mask_place(root, KeyTable::Root, &mut ranges);
        Self::sorted(ranges)
    }

    /// For a file of keys, which is TOML.
    pub(crate) fn keys_file(root: &Node, text: &str) -> Self {
        let mut ranges = comments(text, &["\"\"\"", "'''", "\"", "'"], &[("#", "\n")]);
        match &root.value {
            Value::Table(entries) => {
                entries.iter().for_each(|entry| mask_rows(&entry.node, KeyTable::ApiKey, &mut ranges));
            }
            _ => mask_leaves(root, &mut ranges),
        }
        Self::sorted(ranges)
    }

    /// For a client's JSON file whose servers are under one of `maps`.
    pub(crate) fn client(root: &Node, text: &str, maps: &[&str]) -> Self {
        let mut ranges = comments(text, &["\""], &[("//", "\n"), ("/*", "*/")]);
        if let Value::Table(entries) = &root.value {
            for entry in entries {
                match &entry.node.value {
                    Value::Table(servers) if maps.contains(&entry.key.as_str()) => {
                        servers
                            .iter()
                            .for_each(|server| mask_place(&server.node, KeyTable::Server, &mut ranges));
                    }
                    _ => mask_leaves(&entry.node, &mut ranges),
                }
            }
        } else {
            mask_leaves(root, &mut ranges);
        }
        Self::sorted(ranges)
    }

    fn sorted(mut ranges: Vec<Span>) -> Self {
        ranges.sort_by_key(|range| range.start);
        Mask::Ranges(ranges)
    }

    /// The masked text, and the position of `span` in it.
    pub(crate) fn apply(&self, text: &str, span: Span) -> (String, Span) {
        match self {
            Mask::AllValues => (blot_values(text), span),
            Mask::Ranges(ranges) => leave_out(text, ranges, span),
        }
    }
}

/// The contents of all comments in a text that parses. A comment runs from one of `marks` to its end. Strings, which begin
/// and end with the same fence, are skipped.
fn comments(text: &str, fences: &[&str], marks: &[(&str, &str)]) -> Vec<Span> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        if let Some(fence) = fences.iter().find(|fence| rest.starts_with(**fence)) {
            at += fence.len() + string_length(&rest[fence.len()..], fence);
        } else if let Some((mark, end)) = marks.iter().find(|(mark, _)| rest.starts_with(mark)) {
            let start = at + mark.len();
            let length = text[start..].find(end).unwrap_or(text.len() - start);
            if !text[start..start + length].trim().is_empty() {
                found.push(start..start + length);
            }
            // The end mark is then read as ordinary text.
            at = start + length;
        } else {
            at += next.len_utf8();
        }
    }
    found
}

/// The length of the rest of a string, including its closing fence. A backslash escapes the next character, except
/// between single quotes.
fn string_length(rest: &str, fence: &str) -> usize {
    let mut at = 0;
    while let Some(next) = rest[at..].chars().next() {
        if rest[at..].starts_with(fence) {
            let end = at + fence.len();
            // The content of a long string may end with up to two quotes.
            let own = rest[end..].bytes().take_while(|byte| fence.len() == 3 && fence.as_bytes()[0] == *byte);
            return end + own.take(2).count();
        }
        at += next.len_utf8();
        if next == '\\' && fence.starts_with('"') {
            at += rest[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    at
}

fn mask_place(node: &Node, place: KeyTable, ranges: &mut Vec<Span>) {
    let Value::Table(entries) = &node.value else { return mask_leaves(node, ranges) };
    for entry in entries {
        // A misspelt key is treated as the key it most resembles: `comand = "npx"` may be shown, `evn` may not.
        let meant = || keys::nearest(place, &entry.key).filter(|_| !tells(&entry.key));
        match keys::find(place, &entry.key).or_else(meant) {
            None => mask_leaves(&entry.node, ranges),
            Some(key) => match (key.kind, &entry.node.value) {
                (ValueKind::Table(inner), Value::Table(_)) => mask_place(&entry.node, inner, ranges),
                (ValueKind::Tables(inner), Value::Table(named)) => {
                    named.iter().for_each(|entry| mask_place(&entry.node, inner, ranges));
                }
                (ValueKind::Rows(inner), _) => mask_rows(&entry.node, inner, ranges),
                (ValueKind::NamedRows(inner), Value::Table(named)) => {
                    named.iter().for_each(|entry| mask_rows(&entry.node, inner, ranges));
                }
                (ValueKind::ListMap, Value::Table(lists)) => {
                    lists.iter().for_each(|entry| mask_telltales(&entry.node, ranges));
                }
                (
                    ValueKind::Map
                    | ValueKind::ListMap
                    | ValueKind::Table(_)
                    | ValueKind::Tables(_)
                    | ValueKind::NamedRows(_),
                    _,
                ) => mask_leaves(&entry.node, ranges),
                _ if HIDDEN.contains(&key.name) => mask_leaves(&entry.node, ranges),
                _ if key.name == "token_env" => mask_unless(is_variable_name, &entry.node, ranges),
                _ if key.name == "sha256" => mask_unless(is_digest, &entry.node, ranges),
                _ if names_things(key) => mask_random(&entry.node, ranges),
                _ => mask_telltales(&entry.node, ranges),
            },
        }
    }
}

fn mask_rows(node: &Node, place: KeyTable, ranges: &mut Vec<Span>) {
    match &node.value {
        Value::List(rows) => rows.iter().for_each(|row| mask_place(row, place, ranges)),
        _ => mask_leaves(node, ranges),
    }
}

fn mask_leaves(node: &Node, ranges: &mut Vec<Span>) {
    match &node.value {
        Value::Table(entries) => entries.iter().for_each(|entry| mask_leaves(&entry.node, ranges)),
        Value::List(items) => items.iter().for_each(|item| mask_leaves(item, ranges)),
        _ => ranges.push(node.span.clone()),
    }
}

/// `token_env` holds a name and `sha256` a digest. If a user writes the token or the key itself there, no log may show it.
fn mask_unless(harmless: fn(&str) -> bool, node: &Node, ranges: &mut Vec<Span>) {
    if !matches!(&node.value, Value::Text(text) if harmless(text)) {
        mask_leaves(node, ranges);
    }
}

/// Whether the text is a SHA-256 in hexadecimal.
fn is_digest(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Whether a key lists principals, groups or things that they may use. Such names often contain words like `token`.
fn names_things(key: &keys::Key) -> bool {
    key.kind == ValueKind::List
        && matches!(key.place, KeyTable::Policy | KeyTable::LimitRule | KeyTable::Auth | KeyTable::ApiKey)
}

/// Leaves out the texts of a list that look like a key.
fn mask_random(node: &Node, ranges: &mut Vec<Span>) {
    match &node.value {
        Value::List(items) => items.iter().for_each(|item| mask_random(item, ranges)),
        Value::Text(text) if !has_random(text) => {}
        _ => mask_leaves(node, ranges),
    }
}

/// Whether the text looks like the name of an environment variable, which is usually upper case.
pub(crate) fn is_variable_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase() || first == '_')
        && name.chars().all(|other| other.is_ascii_uppercase() || other.is_ascii_digit() || other == '_')
}

/// Leaves out texts that look like they carry a credential. In a list (`["--token", "abc"]`) it also leaves out the item
/// after such a text and after any flag, because a misspelt flag does not look like a credential.
fn mask_telltales(node: &Node, ranges: &mut Vec<Span>) {
    match &node.value {
        Value::Text(text) if tells(text) => ranges.push(node.span.clone()),
        Value::List(items) => {
            let (mut after_telltale, mut after_flag) = (false, false);
            for item in items {
                let text = match &item.value {
                    Value::Text(text) => text.as_str(),
                    _ => "",
                };
                let is_flag = text.starts_with('-');
                if after_telltale || after_flag && !is_flag {
                    mask_leaves(item, ranges);
                } else {
                    mask_telltales(item, ranges);
                }
                (after_telltale, after_flag) = (tells(text), is_flag);
            }
        }
        Value::Table(_) => mask_leaves(node, ranges),
        _ => {}
    }
}

fn tells(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    // `user:password@host` and query strings are where addresses carry credentials.
    lower.contains("//") && lower.contains(['@', '?'])
        || lower.split_once(':').is_some_and(|(_, rest)| rest.contains('@'))
        || has_random(text)
        || TELLTALES.iter().any(|telltale| lower.contains(telltale))
}

/// Whether a part of the text looks like a key.
pub(crate) fn has_random(text: &str) -> bool {
    text.split(|part: char| !(part.is_ascii_alphanumeric() || "+=_-".contains(part))).any(looks_random)
}

/// Whether the text is long and has digits and capital letters, like a key and unlike a name.
fn looks_random(text: &str) -> bool {
    text.len() >= 16
        && text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn leave_out(text: &str, ranges: &[Span], span: Span) -> (String, Span) {
    let mut shown = String::with_capacity(text.len());
    let mut copied = 0;
    let mut moved = span.clone();
    for range in ranges.iter().filter(|range| range.end <= text.len()) {
        if range.start < copied {
            continue;
        }
        shown.push_str(&text[copied..range.start]);
        let at = shown.len();
        shown.push('…');
        let end = shown.len();
        // Lines keep their numbers.
        shown.extend(text[range.clone()].chars().filter(|character| *character == '\n'));
        copied = range.end;

        let inside = |position: usize| range.start < position && position < range.end;
        moved.start = if inside(span.start) || span.start == range.start { at } else { moved.start };
        moved.end = if inside(span.end) || span.end == range.end { end } else { moved.end };
        if span.start >= range.end {
            moved.start = span.start - range.end + shown.len();
        }
        if span.end > range.end {
            moved.end = span.end - range.end + shown.len();
        }
    }
    shown.push_str(&text[copied..]);
    moved.end = moved.end.max(moved.start);
    (shown, moved)
}

/// Replaces the letters and digits after the key of each line, byte by byte. So positions stay the same, and the
/// punctuation, which a syntax error is about, stays visible.
fn blot_values(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut in_long_string = false;
    for line in text.split_inclusive('\n') {
        let key_end = match in_long_string {
            true => 0,
            false if is_harmless_line(line) => line.len(),
            false => key_length(line),
        };
        shown.push_str(&line[..key_end]);
        let mut rest = &line[key_end..];
        while let Some(character) = rest.chars().next() {
            let length = match quoted_key(rest) {
                // The user has to see which table the line belongs to.
                Some(key) => {
                    shown.push_str(key);
                    key.len()
                }
                None if character.is_alphanumeric() => {
                    shown.extend(std::iter::repeat_n('*', character.len_utf8()));
                    character.len_utf8()
                }
                None => {
                    shown.push(character);
                    character.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        let fences = line.matches("\"\"\"").count() + line.matches("'''").count();
        in_long_string ^= fences % 2 == 1;
    }
    shown
}

/// The quoted name of one of our keys at the start of `text`, if a colon follows it.
fn quoted_key(text: &str) -> Option<&str> {
    let (name, behind) = text.strip_prefix('"')?.split_once('"')?;
    let known = keys::KEYS.iter().any(|key| key.name == name || key.camel_case() == name);
    (known && behind.trim_start().starts_with(':')).then(|| &text[..name.len() + 2])
}

/// Whether a line of a file that does not parse can be shown: it holds one of our keys with a harmless value and nothing
/// else. The user needs to see such a line to fix it.
fn is_harmless_line(line: &str) -> bool {
    let line = line.trim();
    let bare = line.trim_start_matches(['"', '\'']);
    let length = bare.find(|next: char| !(next.is_ascii_alphanumeric() || next == '_')).unwrap_or(bare.len());
    let (name, rest) = bare.split_at(length);
    let rest = rest.trim_start_matches(['"', '\'', ' ', '\t', '=', ':']);
    let known = |key: &&keys::Key| {
        let shown = matches!(
            key.kind,
            ValueKind::Flag
                | ValueKind::Integer { .. }
                | ValueKind::Text
                | ValueKind::Choice(_)
                | ValueKind::FlagOr(_)
                | ValueKind::List
        );
        let hidden = HIDDEN.contains(&key.name) || ["token_env", "sha256"].contains(&key.name);
        (key.name == name || key.camel_case() == name) && shown && !hidden
    };
    // A comment, another key or the value after a flag may hold anything.
    let more = ["#", "/*", "{", "=", "\":", "' :", "\" :"].iter().any(|mark| rest.contains(mark))
        || rest.matches("//").count() > usize::from(name == "url");
    let flag = rest
        .split(|next: char| next.is_whitespace() || "\"'[,".contains(next))
        .any(|word| word.starts_with('-'));
    keys::KEYS.iter().any(|key| known(&key)) && !more && !flag && !tells(rest)
}

/// The length of the text at the start of a line that is certainly a key or a table header.
fn key_length(line: &str) -> usize {
    let indent = line.len() - line.trim_start().len();
    let rest = &line[indent..];
    let word = |text: &str| {
        text.find(|character: char| !(character.is_ascii_alphanumeric() || "_-.".contains(character)))
            .unwrap_or(text.len())
    };
    if let Some(header) = rest.strip_prefix('[') {
        let header = header.strip_prefix('[').unwrap_or(header);
        let (start, length) = (line.len() - header.len(), word(header));
        return if header[length..].starts_with(']') { start + length } else { indent };
    }
    let quote = usize::from(rest.starts_with(['"', '\'']));
    let length = word(&rest[quote..]);
    let after = rest[quote + length..].strip_prefix(&rest[..quote]);
    match after {
        Some(after) if length > 0 && after.trim_start().starts_with(['=', ':']) => indent + quote + length,
        _ => indent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{read_json, read_toml};

    #[track_caller]
    fn check(toml: &str, expected: &str) {
        let mask = Mask::native(&read_toml(toml).unwrap(), toml);
        assert_eq!(mask.apply(toml, 0..0).0, expected);
    }

    #[test]
    fn only_harmless_values_are_shown() {
        check("[gateway]\nmode = \"full\"", "[gateway]\nmode = \"full\"");
        check("[servers.a]\nenv = { K = \"v\" }", "[servers.a]\nenv = { K = … }");
        check("[servers.a.env]\nK = '''\nv\n'''\n", "[servers.a.env]\nK = …\n\n\n");
        check("[servers.a]\nevn = { K = 1 }", "[servers.a]\nevn = { K = … }");
        check("[servers.a]\ncomand = 'npx'", "[servers.a]\ncomand = 'npx'");
        check("[servers.a]\npin = 'v'\n", "[servers.a]\npin = …\n");
        check("servers.a.args = ['-y', '--token', 'v', 'x']", "servers.a.args = ['-y', …, …, 'x']");
        check("servers.a.args = ['--api-key=v']", "servers.a.args = […]");
        check(
            "servers.a.args = ['--tokn', 'v', 'x', '-y', '-p', 'v']",
            "servers.a.args = ['--tokn', …, 'x', '-y', '-p', …]",
        );
        check("servers.a.args = ['--token', '-v']", "servers.a.args = […, …]");
        check(
            "servers.a.args = ['server-filesystem', 'x/c2VjcmV0LXZhbHVl']",
            "servers.a.args = ['server-filesystem', …]",
        );
        check("servers.a.url = 'https//u:v@host'", "servers.a.url = …");
        check("servers.a.url = 'https://u:v@host'", "servers.a.url = …");
        check("[http]\ntoken_fil = 'v'", "[http]\ntoken_fil = …");
        check("[http]\ntoken = 'v'", "[http]\ntoken = …");
        check("[http]\ntoken_env = 'sk-v'", "[http]\ntoken_env = …");
        check("[http]\ntoken_env = 'MY_TOKEN'", "[http]\ntoken_env = 'MY_TOKEN'");
        check("[http]\ntoken_env = '_T0KEN'", "[http]\ntoken_env = '_T0KEN'");
        check("[http]\ntoken_env = '0_SECRET'", "[http]\ntoken_env = …");
        check("[http]\ntoken_env = 'Secret'", "[http]\ntoken_env = …");
        check("servers = 'v'", "servers = …");
    }

    /// ACC-3: a snippet of a rule shows whom and what it names; a key, a secret and what looks like one stay hidden.
    #[test]
    fn rules_are_shown_and_keys_are_not() {
        let digest = "0f".repeat(32);
        for shown in [
            "[[policy]]\nwho = ['token', 'key:ci']\ntools = ['auth/get_token']",
            "[[limits.rules]]\nwho = ['group:secret-keepers']",
            "[auth]\noperators = ['key:api_key']",
            &format!("[[auth.keys.ci]]\nsha256 = 'sha256:{digest}'\ngroups = ['token']"),
        ] {
            check(shown, shown);
        }
        check("[[auth.keys.ci]]\nsha256 = 'short'", "[[auth.keys.ci]]\nsha256 = …");
        check("[[auth.keys.ci]]\nkey = 'v'", "[[auth.keys.ci]]\nkey = …");
        check("[[policy]]\nwho = ['key:bhk_A1B2C3D4E5F6G7H8', 'x']", "[[policy]]\nwho = […, 'x']");
        check("[policy]\nwho = ['v']", "[policy]\nwho = […]");
        check("[auth.keys]\nci = 'v'", "[auth.keys]\nci = …");
        check(
            "[auth.issuers.a.introspection]\nclient_id = 'x'\nclient_secret = 'v'",
            "[auth.issuers.a.introspection]\nclient_id = 'x'\nclient_secret = …",
        );
        check(
            "[[policy]]\nscopes = { 'a/b' = ['repo'], 'c/d' = ['v-token'] }",
            "[[policy]]\nscopes = { 'a/b' = ['repo'], 'c/d' = […] }",
        );
        let text = format!("# v\n[[ci]]\nsha256 = '{digest}'\nnote = 'v'\n[x]\ny = 'v'\n");
        let mask = Mask::keys_file(&read_toml(&text).unwrap(), &text);
        let expected = format!("#…\n[[ci]]\nsha256 = '{digest}'\nnote = …\n[x]\ny = …\n");
        assert_eq!(mask.apply(&text, 0..0).0, expected);
    }

    #[test]
    fn a_client_file_shows_servers_only() {
        let text = r#"{"key": "v", "mcpServers": {"a": {"command": "x", "env": {"K": "v"}}}}"#;
        let mask = Mask::client(&read_json(text).unwrap(), text, &["mcpServers"]);
        let shown = mask.apply(text, 0..0).0;
        assert_eq!(shown, r#"{"key": …, "mcpServers": {"a": {"command": "x", "env": {"K": …}}}}"#);
    }

    #[test]
    fn words_of_comments_are_left_out() {
        check("[gateway] # v\nmode = \"full\" #", "[gateway] #…\nmode = \"full\" #");
        check("#v\nservers.a.command = 'a # b' # v", "#…\nservers.a.command = 'a # b' #…");
        check(r#"servers.a.command = "a \" # b" # v"#, r#"servers.a.command = "a \" # b" #…"#);
        check("servers.a.command = 'a\\' # v", "servers.a.command = 'a\\' #…");
        check("servers.a.command = '''\n' # b\n''' # é", "servers.a.command = '''\n' # b\n''' #…");
        check(
            "servers.a.command = \"\"\"\n\" # b\"\"\"\" # v",
            "servers.a.command = \"\"\"\n\" # b\"\"\"\" #…",
        );
        check("servers.'a # b'.command = 'x' # v", "servers.'a # b'.command = 'x' #…");
        let text =
            "{\"mcpServers\": {\"a//\": {\"command\": \"x\", // \"url\": \"v\"\n /* v\n */ \"args\": []}}}";
        let mask = Mask::client(&read_json(text).unwrap(), text, &["mcpServers"]);
        let expected = "{\"mcpServers\": {\"a//\": {\"command\": \"x\", //…\n /*…\n*/ \"args\": []}}}";
        assert_eq!(mask.apply(text, 0..0).0, expected);
    }

    #[test]
    fn the_caret_moves_with_the_text() {
        let text = "[servers.a]\nenv = { K = \"a long value\", L = 2 } # x";
        let mask = Mask::native(&read_toml(text).unwrap(), text);
        for (target, expected) in [
            ("K", "K"),
            ("K = ", "K = "),
            ("\"a long value\"", "…"),
            ("\"a long", "…"),
            ("value\"", "…"),
            ("long", "…"),
            ("L", "L"),
            ("# x", "#…"),
        ] {
            let start = text.find(target).unwrap();
            let (shown, span) = mask.apply(text, start..start + target.len());
            assert_eq!(&shown[span], expected, "{target}");
        }
    }

    /// HOUR-11: if a file does not parse, only lines with a harmless value are shown.
    #[test]
    fn a_broken_file_shows_keys_and_punctuation() {
        #[track_caller]
        fn check(line: &str, expected: &str) {
            assert_eq!(Mask::AllValues.apply(line, 0..0).0, expected);
        }
        check("K = \"v3ry secrét", "K = \"**** ******* ".trim_end());
        check("  \"env\": {\"K\": \"v\"", "  \"env\": {\"*\": \"*\"");
        check("[servers.a]", "[servers.a]");
        check("[[auth.keys.ci]]", "[[auth.keys.ci]]");
        check("sha256 = 'abc'", "sha256 = '***'");
        check("client_secret = \"abc\"", "client_secret = \"***\"");
        for shown in [
            "command = npx",
            "mode \"full\"",
            "  \"command\": \"npx\"",
            "url = https://host/mcp",
            "args = [\"x\" \"y\"]",
        ] {
            check(shown, shown);
        }
        check("command = npx # v", "command = *** # *");
        check("command = npx --pin v", "command = *** --*** *");
        check("args = [\"-p\" \"v\"]", "args = [\"-*\" \"*\"]");
        check("command = \"x\", env = { K = \"v\" }", "command = \"*\", *** = { * = \"*\" }");
        check("\"command\": \"x\" \"env\": {\"K\": \"v\"}", "\"command\": \"*\" \"env\": {\"*\": \"*\"}");
        check("url = https://u:v@host", "url = *****://*:*@****");
        check("proxy = http://host", "proxy = ****://****");
        check("token_env = abc", "token_env = ***");
        check("  \"c2VjcmV0==\"", "  \"********==\"");
        check("[ \"abc\" ", "[ \"***\" ");
        check("\"env\" {\"args\": v", "\"***\" {\"args\": *");
        check("= \"abc\"", "= \"***\"");
        check("  : abc", "  : ***");
        check("K = \"\"\"\nabc=\n\"\"\"\nL = 1", "K = \"\"\"\n***=\n\"\"\"\nL = *");
    }
}
