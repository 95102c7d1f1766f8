//! All that a server may read in a URI.
//!
//! A rule on `files/file:///srv/**` must not admit `file:///srv/../etc/passwd`, nor a rule that denies `file:///srv/secret*`
//! be passed by `file:///srv//%73ecret`. Servers take URIs apart differently: before or after percent-decoding, with the query or
//! without it, `file:/srv` and `file://localhost/srv` as `file:///srv`. So a URI is allowed only if each of these readings is
//! allowed, and denied if one of them is. What parsers silently remove, such as a tab within `..`, is refused: no URI contains it.

/// Servers that decode more often than this are not known; a URI that is encoded deeper is refused.
const MAX_ENCODINGS: usize = 4;

/// More readings than any honest URI has.
const MAX_READINGS: usize = 128;

/// The readings of a URI beside the URI as it is written; `None` if the URI is refused, whatever the rules say.
pub(super) fn readings(uri: &str) -> Option<Vec<String>> {
    if has_invisible(uri) {
        return None;
    }
    let mut readings = Vec::new();
    let Some((scheme, rest)) = uri.split_once(':') else { return Some(readings) };
    let mut decoded = rest.trim().to_owned();
    for _ in 0..=MAX_ENCODINGS {
        for cut in cuts(&decoded) {
            read(scheme, cut, uri, &mut readings);
            if cut.contains('\\') {
                read(scheme, &cut.replace('\\', "/"), uri, &mut readings);
            }
        }
        if readings.len() > MAX_READINGS {
            return None;
        }
        let next = decode(&decoded);
        if next == decoded {
            return Some(readings);
        }
        if has_invisible(&next) {
            return None;
        }
        decoded = next;
    }
    None
}

/// Control characters, which some parsers remove and others keep.
fn has_invisible(text: &str) -> bool {
    text.contains(char::is_control)
}

/// The text with and without a query and a fragment: some servers know no queries, others no fragments.
fn cuts(text: &str) -> impl Iterator<Item = &str> {
    let before = |marks: &[char]| text.split(marks).next().unwrap_or(text);
    [text, before(&['?']), before(&['#']), before(&['?', '#'])].into_iter()
}

/// Adds what may be read in the part after the scheme, once each.
fn read(scheme: &str, rest: &str, written: &str, readings: &mut Vec<String>) {
    let mut add = |reading: String| {
        if reading != written && !readings.contains(&reading) {
            readings.push(reading);
        }
    };
    let is_file = scheme.eq_ignore_ascii_case("file");
    add(format!("{scheme}:{rest}"));
    let Some(hierarchy) = rest.strip_prefix("//") else {
        // `file:/srv` and `file:srv` name the file that `file:///srv` names.
        let start = if is_file { "///" } else { "" };
        for path in resolved(rest) {
            let path = if is_file { path.trim_start_matches('/') } else { &path };
            add(format!("{scheme}:{start}{path}"));
        }
        return;
    };
    let (authority, path) = hierarchy.split_at(hierarchy.find('/').unwrap_or(hierarchy.len()));
    for path in resolved(path) {
        // No server asks another host for a file. The authority is ignored, or it is the start of the path.
        if is_file {
            add(format!("{scheme}:///{}", path.trim_start_matches('/')));
        }
        add(format!("{scheme}://{authority}{path}"));
    }
    let has_dots = hierarchy.split('/').any(|segment| matches!(segment, "." | ".."));
    if is_file && !authority.is_empty() || has_dots {
        let start = if is_file { "///" } else { "//" };
        for path in resolved(hierarchy) {
            add(format!("{scheme}:{start}{}", path.trim_start_matches('/')));
        }
    }
}

/// The path with its dot segments resolved, where empty segments count and where they do not, and without the parameters of
/// segments.
fn resolved(path: &str) -> Vec<String> {
    let mut all = vec![resolve(path, true), resolve(path, false)];
    if path.contains(';') {
        let bare: Vec<&str> =
            path.split('/').map(|segment| segment.split(';').next().unwrap_or("")).collect();
        let bare = bare.join("/");
        all.extend([resolve(&bare, true), resolve(&bare, false)]);
    }
    all.dedup();
    all
}

fn resolve(path: &str, keeps_empty: bool) -> String {
    let (root, relative) = match path.strip_prefix('/') {
        Some(relative) => ("/", relative),
        None => ("", path),
    };
    let mut kept: Vec<&str> = Vec::new();
    for segment in relative.split('/') {
        match segment {
            "" if !keeps_empty => {}
            "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let mut resolved = format!("{root}{}", kept.join("/"));
    let names_folder = ["/", "/.", "/.."].iter().any(|end| path.ends_with(end));
    if names_folder && !resolved.ends_with('/') {
        resolved.push('/');
    }
    resolved
}

/// The text with each percent-encoded byte replaced by the byte.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let digit = |at: usize| others.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
                rest = &others[2..];
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ACC-3: rules are asked about all that a server may read in a URI.
    #[test]
    fn what_a_server_may_read_in_a_uri() {
        #[track_caller]
        fn check(uri: &str, expected: &[&str]) {
            let found = readings(uri).unwrap();
            for expected in expected {
                assert!(
                    found.iter().any(|reading| reading == expected),
                    "{uri}: {expected} is not in {found:?}"
                );
            }
        }
        check("file:///srv/../etc/passwd", &["file:///etc/passwd"]);
        check("file:///srv/%2e%2E/etc", &["file:///etc", "file:///srv/../etc"]);
        check("file:///srv/%252e%252e/etc", &["file:///etc", "file:///srv/%2e%2e/etc"]);
        check("file:///srv/..%2fetc", &["file:///etc"]);
        check("file:///srv/..\\etc", &["file:///etc"]);
        check("file:///srv/./a//b", &["file:///srv/a/b", "file:///srv/a//b"]);
        check("file:///srv/a/..", &["file:///srv/"]);
        check("file:///srv/a/.", &["file:///srv/a/"]);
        check("file:///../../..", &["file:///"]);
        check("file:///srv/%73ecret", &["file:///srv/secret"]);
        check("file:////srv/a", &["file:///srv/a"]);
        check("https://host%2f..%2fx/a", &["https://host/x/a"]);
        check("note:%61", &["note:a"]);
        // The query hides the way back from one parser, and is the way there for another.
        check("file:///srv/../etc/passwd?/../../srv/x", &["file:///etc/passwd", "file:///srv/x"]);
        check("file:///srv/../etc/passwd#/../../srv/x", &["file:///etc/passwd", "file:///srv/x"]);
        check("file:///srv/a%3f/../../etc", &["file:///etc", "file:///srv/a"]);
        check("file:///srv/secret?x", &["file:///srv/secret"]);
        check("https://host/a?b=c#d", &["https://host/a", "https://host/a?b=c"]);
        check("https://host/a#b?c", &["https://host/a", "https://host/a#b"]);
        // The forms of an authority.
        check("file:/srv/secret", &["file:///srv/secret"]);
        check("file:srv/secret", &["file:///srv/secret"]);
        check("FILE:/srv/secret", &["FILE:///srv/secret"]);
        check("file://localhost/srv/secret", &["file:///srv/secret"]);
        check("file://LOCALHOST/srv/secret", &["file:///srv/secret"]);
        check("file://srv/secret", &["file:///srv/secret", "file:///secret"]);
        check("file://a/../srv/secret", &["file:///srv/secret"]);
        check("notes://a/../secret", &["notes://secret", "notes://a/secret"]);
        check("file:///srv/secret;v=1", &["file:///srv/secret"]);
        check("file:///srv/..;/etc", &["file:///etc"]);
        check("file: ///srv/secret ", &["file:///srv/secret"]);
    }

    /// ACC-3: an ordinary URI has no second reading, so rules are asked once.
    #[test]
    fn an_ordinary_uri_has_one_reading() {
        for uri in [
            "file:///srv/a.txt",
            "file:///srv/a/",
            "file:///srv/.hidden",
            "file:///srv/100%",
            "file:///srv/%zz",
            "a://red",
            "note:1",
            "ui://app/view.html",
            "https://host/a",
            "name",
        ] {
            assert_eq!(readings(uri), Some(Vec::new()), "{uri}");
        }
    }

    /// ACC-3: what parsers remove, and what is encoded again and again, is refused.
    #[test]
    fn hidden_and_endless_parts_are_refused() {
        let deep = format!("file:///srv/%{}2e", "25".repeat(40_000));
        for uri in [
            "file:///srv/.\t./etc",
            "file:///srv/.\n./etc",
            "file:///srv/.\r./etc",
            "file:///srv/se\tcret",
            "file:///srv/se%09cret",
            "file:///srv/a%00",
            "file:///srv/a%2500",
            "file:///srv/\u{7f}",
            "file:///srv/\u{85}",
            "\tfile:///srv/a",
            "name\n",
            deep.as_str(),
        ] {
            assert_eq!(readings(uri), None, "{}", &uri[..uri.len().min(40)]);
        }
    }

    /// ACC-3: the number of readings is bounded, whatever the URI.
    #[test]
    fn readings_are_bounded() {
        let hostile = format!("file://a/{}", "%255c..;x//?#".repeat(2_000));
        assert!(readings(&hostile).is_none_or(|found| found.len() <= MAX_READINGS));
    }
}
