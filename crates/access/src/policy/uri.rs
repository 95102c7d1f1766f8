//! What a server may make of a URI.
//!
//! A rule on `files/file:///srv/**` must not admit `file:///srv/../etc/passwd`, nor a rule that denies `file:///srv/secret*`
//! be passed by `file:///srv//%73ecret`. So a URI is allowed only if it is allowed both as it is written and as a server
//! may resolve it, and denied if either is.

/// The URI without percent-encoding, empty segments and dot segments; `None` if that is how it is written.
pub(super) fn resolved(uri: &str) -> Option<String> {
    let suspicious = |text: &str| text.contains(['%', '\\']) || text.contains("/.") || text.contains("//");
    let path = uri.find("://").map_or(uri, |at| &uri[at + 3..]);
    if !suspicious(path) {
        return None;
    }
    let mut text = uri.to_owned();
    // Some servers decode twice. Each round makes the text shorter, or is the last.
    loop {
        let decoded = decode(&text);
        if decoded == text {
            break;
        }
        text = decoded;
    }
    let text = text.replace('\\', "/");
    let start = text.find("://").map_or_else(|| text.find(':').map_or(0, |at| at + 1), |at| at + 3);
    let (scheme, rest) = text.split_at(start);
    // The authority stays; without a slash after it there is no path.
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let mut resolved = format!("{scheme}{authority}");
    for segment in &kept {
        resolved.push('/');
        resolved.push_str(segment);
    }
    let ends_in_folder = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
    if ends_in_folder {
        resolved.push('/');
    }
    (resolved != uri).then_some(resolved)
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

    /// ACC-3: what a server may make of a URI is what rules are asked about too.
    #[test]
    fn what_a_server_may_make_of_a_uri() {
        #[track_caller]
        fn check(uri: &str, expected: Option<&str>) {
            assert_eq!(resolved(uri).as_deref(), expected, "{uri}");
        }
        check("file:///srv/a.txt", None);
        check("file:///srv/a/", None);
        check("a://red", None);
        check("note:1", None);
        check("https://host/a?b=c", None);
        check("file:///srv/../etc/passwd", Some("file:///etc/passwd"));
        check("file:///srv/%2e%2E/etc", Some("file:///etc"));
        check("file:///srv/%252e%252e/etc", Some("file:///etc"));
        check("file:///srv/..%2fetc", Some("file:///etc"));
        check("file:///srv/..\\etc", Some("file:///etc"));
        check("file:///srv/./a//b", Some("file:///srv/a/b"));
        check("file:///srv/a/..", Some("file:///srv/"));
        check("file:///srv/a/.", Some("file:///srv/a/"));
        check("file:///../../..", Some("file:///"));
        check("file:///srv/%73ecret", Some("file:///srv/secret"));
        check("file:////srv/a", Some("file:///srv/a"));
        check("file:///srv/.hidden", None);
        check("file:///srv/100%", None);
        check("file:///srv/%zz", None);
        check("https://host%2f..%2fx/a", Some("https://host/x/a"));
        check("file:///srv/a%3f/../../etc", Some("file:///etc"));
        check("note:%61", Some("note:a"));
    }
}
