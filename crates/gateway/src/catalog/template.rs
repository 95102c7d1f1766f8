//! Tells whether a URI may have been made from a URI template (RFC 6570).
//!
//! The match is approximate: it only picks the server to ask, and the server decides. `{name}` matches
//! anything but `/`, `?` and `#`; an expression with an operator matches anything, including nothing.

/// Whether `uri` matches `template`. The work is bounded by the product of their lengths.
pub(crate) fn matches(template: &str, uri: &str) -> bool {
    let Some(parts) = parse(template) else { return false };
    // The prefixes of the URI that the parts so far can match.
    let mut reached = vec![false; uri.len() + 1];
    reached[0] = true;
    for part in parts {
        let mut next = vec![false; uri.len() + 1];
        match part {
            Part::Literal(text) => {
                for at in (0..=uri.len()).filter(|at| reached[*at]) {
                    if uri.as_bytes()[at..].starts_with(text.as_bytes()) {
                        next[at + text.len()] = true;
                    }
                }
            }
            Part::Segment => {
                let mut open = false;
                for (at, byte) in uri.bytes().enumerate() {
                    open |= reached[at];
                    open &= !matches!(byte, b'/' | b'?' | b'#');
                    next[at + 1] = open;
                }
            }
            Part::Anything => {
                let first = reached.iter().position(|reached| *reached).unwrap_or(next.len());
                next[first..].fill(true);
            }
        }
        reached = next;
    }
    reached[uri.len()]
}

enum Part<'a> {
    Literal(&'a str),
    Segment,
    Anything,
}

fn parse(template: &str) -> Option<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        parts.push(Part::Literal(&rest[..open]));
        let close = open + rest[open..].find('}')?;
        let simple = rest[open + 1..close].starts_with(|first: char| first.is_alphanumeric() || first == '_')
            && !rest[open + 1..close].contains([',', '*']);
        parts.push(if simple { Part::Segment } else { Part::Anything });
        rest = &rest[close + 1..];
    }
    parts.push(Part::Literal(rest));
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_template_may_stand_for() {
        #[track_caller]
        fn check(template: &str, uri: &str, expected: bool) {
            assert_eq!(matches(template, uri), expected, "{template} {uri}");
        }
        check("a://b", "a://b", true);
        check("a://b", "a://b/c", false);
        check("test://template/{id}/data", "test://template/7/data", true);
        check("test://template/{id}/data", "test://template/7/8/data", false);
        check("test://template/{id}/data", "test://template//data", false);
        check("test://template/{id}/data", "test://template/7/dat", false);
        check("x://{a}-{b}", "x://1-2-3", true);
        check("x://{a}", "x://\u{e4}", true);
        check("file:///{+path}", "file:///a/b/c.txt", true);
        check("file:///{path*}", "file:///a/b", true);
        check("s://q{?a,b}", "s://q", true);
        check("s://q{?a,b}", "s://q?a=1&b=2", true);
        check("s://{unclosed", "s://x", false);
        check("{scheme}://x", "a://x", true);
        check("{scheme}://x", "a/b://x", false);
        check("s://a,{b}", "s://a,1", true);
        check("s://a,{b}", "s://a,1/2", false);
        check("s://{_b}", "s://1/2", false);
        check("s://{b,c}", "s://1/2", true);
        check("{+a}{+b}{+c}{+d}{+e}!", &"x".repeat(10_000), false);
    }
}
