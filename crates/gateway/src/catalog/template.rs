//! Tells whether a URI may have been made from a URI template (RFC 6570), and from which values.
//!
//! For servers the match is approximate: it only picks the server to ask, and the server decides. `{name}`
//! matches anything but `/`, `?` and `#`; an expression with an operator matches anything, including nothing.
//! A template of ours has only expressions whose values can be told: `{name}` and `{+name}`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Whether `uri` matches `template`. The work is bounded by the product of their lengths.
pub(crate) fn matches(template: &str, uri: &str) -> bool {
    let Some(parts) = parse(template) else { return false };
    let reached = parts.iter().fold(nothing_yet(uri), |reached, part| part.reach(&reached, uri));
    reached[uri.len()]
}

/// The prefixes of the URI that no part at all matches: the empty one.
fn nothing_yet(uri: &str) -> Vec<bool> {
    let mut reached = vec![false; uri.len() + 1];
    reached[0] = true;
    reached
}

enum Part<'a> {
    Literal(&'a str),
    /// `{name}`.
    Segment(&'a str),
    /// Any other expression.
    Anything(&'a str),
}

fn parse(template: &str) -> Option<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        parts.push(Part::Literal(&rest[..open]));
        let close = open + rest[open..].find('}')?;
        let expression = &rest[open + 1..close];
        let simple = expression.starts_with(|first: char| first.is_alphanumeric() || first == '_')
            && !expression.contains([',', '*']);
        parts.push(if simple { Part::Segment(expression) } else { Part::Anything(expression) });
        rest = &rest[close + 1..];
    }
    parts.push(Part::Literal(rest));
    Some(parts)
}

/// The template with the values that are known; what has none stays an expression. `None` if a value's place cannot be told:
/// its variable is not in the template, or in an expression that this does not expand.
pub(crate) fn expanded(template: &str, values: &[(&str, &str)]) -> Option<String> {
    let mut text = String::with_capacity(template.len());
    let mut placed = 0;
    for part in parse(template)? {
        let (operator, name) = match part {
            Part::Literal(literal) => {
                text.push_str(literal);
                continue;
            }
            Part::Segment(name) => ("", name),
            Part::Anything(expression) => {
                let name = expression.trim_start_matches(['+', '#', '/', '.', '?', '&', ';']);
                expression.split_at(expression.len() - name.len())
            }
        };
        let Some((_, value)) = values.iter().find(|(known, _)| *known == name) else {
            if values.iter().any(|(known, _)| name.split([',', ':', '*']).any(|part| part == *known)) {
                return None;
            }
            let _ = write!(text, "{{{operator}{name}}}");
            continue;
        };
        placed += 1;
        let _ = match operator {
            "" => write!(text, "{}", encoded(value)),
            "+" => write!(text, "{value}"),
            "#" => write!(text, "#{value}"),
            "/" | "." => write!(text, "{operator}{}", encoded(value)),
            "?" | "&" | ";" => write!(text, "{operator}{name}={}", encoded(value)),
            _ => return None,
        };
    }
    (placed == values.len()).then_some(text)
}

/// A value with everything but unreserved characters percent-encoded.
fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(byte.into()),
            // Writing to a string cannot fail.
            byte => drop(write!(text, "%{byte:02X}")),
        }
    }
    text
}

/// A template of ours.
pub(crate) struct Template<'a>(Vec<Part<'a>>);

impl<'a> Template<'a> {
    /// `None` if there is an expression other than `{name}` and `{+name}`, a name twice, or no expression at all.
    pub(crate) fn parse(template: &'a str) -> Option<Self> {
        let template = Self(parse(template)?);
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let mut names: Vec<&str> = Vec::new();
        for part in &template.0 {
            match part {
                Part::Literal(text) if text.contains('}') => return None,
                Part::Literal(_) => {}
                Part::Segment(_) | Part::Anything(_) => {
                    let name = part.variable().filter(|name| is_name(name) && !names.contains(name))?;
                    names.push(name);
                }
            }
        }
        (!names.is_empty()).then_some(template)
    }

    /// The values that make `uri` from the template, without percent-encoding; `None` if there are none. If several
    /// would, the first variables have the shortest values.
    pub(crate) fn variables(&self, uri: &str) -> Option<BTreeMap<String, String>> {
        let mut reached = vec![nothing_yet(uri)];
        for part in &self.0 {
            reached.push(part.reach(reached.last()?, uri));
        }
        let mut end = uri.len();
        if !reached.pop()?[end] {
            return None;
        }
        let mut variables = BTreeMap::new();
        for (part, before) in self.0.iter().zip(&reached).rev() {
            let begins = |begin: &usize| {
                let Some(text) = uri.get(*begin..end).filter(|_| before[*begin]) else { return false };
                match part {
                    Part::Literal(literal) => text == *literal,
                    Part::Segment(_) => !text.is_empty() && !text.contains(['/', '?', '#']),
                    Part::Anything(_) => true,
                }
            };
            let begin = (0..=end).find(begins)?;
            if let Some(name) = part.variable() {
                variables.insert(name.to_owned(), decoded(&uri[begin..end]));
            }
            end = begin;
        }
        Some(variables)
    }
}

impl<'a> Part<'a> {
    /// The prefixes of the URI that the parts up to this one can match; `reached` is the same without this one.
    fn reach(&self, reached: &[bool], uri: &str) -> Vec<bool> {
        let mut next = vec![false; uri.len() + 1];
        match self {
            Self::Literal(text) => {
                for at in (0..=uri.len()).filter(|at| reached[*at]) {
                    if uri.as_bytes()[at..].starts_with(text.as_bytes()) {
                        next[at + text.len()] = true;
                    }
                }
            }
            Self::Segment(_) => {
                let mut open = false;
                for (at, byte) in uri.bytes().enumerate() {
                    open |= reached[at];
                    open &= !matches!(byte, b'/' | b'?' | b'#');
                    next[at + 1] = open;
                }
            }
            Self::Anything(_) => {
                let first = reached.iter().position(|reached| *reached).unwrap_or(next.len());
                next[first..].fill(true);
            }
        }
        next
    }

    /// The name of the variable of a part, in a template of ours.
    fn variable(&self) -> Option<&'a str> {
        match self {
            Self::Literal(_) => None,
            Self::Segment(name) => Some(name),
            Self::Anything(expression) => expression.strip_prefix('+'),
        }
    }
}

/// A part of a URI without percent-encoding; unchanged if that would not be a text.
fn decoded(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        let digits =
            others.get(..2).filter(|_| first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[2..];
            }
            None => {
                bytes.push(first);
                rest = others;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| part.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ACC-3: a completed value is judged by the URI that it makes.
    #[test]
    fn values_take_their_places() {
        #[track_caller]
        fn check(template: &str, values: &[(&str, &str)], expected: Option<&str>) {
            assert_eq!(expanded(template, values).as_deref(), expected, "{template}");
        }
        check("file:///{a}/{b}", &[("a", "x y")], Some("file:///x%20y/{b}"));
        check("file:///{a}/{b}", &[("a", "x"), ("b", "../z")], Some("file:///x/..%2Fz"));
        check("file:///{+path}", &[("path", "a/b")], Some("file:///a/b"));
        check(
            "a://h{/p}{.e}{?q}{&r}{#f}",
            &[("p", "1"), ("q", "2"), ("f", "3")],
            Some("a://h/1{.e}?q=2{&r}#3"),
        );
        check("file:///{a}", &[("b", "x")], None);
        check("file:///{a}", &[("a", "x"), ("b", "y")], None);
        check("file:///{a,b}", &[("a", "x")], None);
        check("file:///{+a:3}", &[("a", "x")], None);
        check("file:///{a*}", &[("a", "x")], None);
        check("file:///{", &[("a", "x")], None);
    }

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

    /// LIB-2: the values of the variables of a template of ours.
    #[test]
    fn what_the_variables_are() {
        #[track_caller]
        fn check(template: &str, uri: &str, expected: Option<&[(&str, &str)]>) {
            let found = Template::parse(template).unwrap().variables(uri);
            let expected = expected.map(|all| {
                all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
            });
            assert_eq!(found, expected, "{template} {uri}");
            assert_eq!(matches(template, uri), expected.is_some(), "{template} {uri}");
        }
        check("n://{year}/{month}", "n://2026/7", Some(&[("month", "7"), ("year", "2026")]));
        check("n://{year}/{month}", "n://2026/7/1", None);
        check("n://{a}", "n://", None);
        check("n://{a}!", "n://x%20y%C3%A4%!", Some(&[("a", "x yä%")]));
        check("n://{a}", "n://%ff%4", Some(&[("a", "%ff%4")]));
        check("n://{+path}", "n://a/b?c", Some(&[("path", "a/b?c")]));
        check("n://{+path}", "n://", Some(&[("path", "")]));
        check("n://{+folder}/{file}", "n://a/b/c", Some(&[("file", "c"), ("folder", "a/b")]));
        check("n://{a}-{b}", "n://1-2-3", Some(&[("a", "1"), ("b", "2-3")]));
        check("n://{a}{b}", "n://äö", Some(&[("a", "ä"), ("b", "ö")]));
    }

    /// LIB-2: only templates whose values can be told are templates of ours.
    #[test]
    fn which_templates_can_be_ours() {
        for template in
            ["n://x", "n://{?a}", "n://{a*}", "n://{a,b}", "n://{a}/{a}", "n://{}", "n://{a}}", "n://{a"]
        {
            assert!(Template::parse(template).is_none(), "{template}");
        }
        assert!(Template::parse("n://{a_1}/{+b}").is_some());
    }
}
