//! Whether a pattern and a URI template have a URI in common.
//!
//! A template is listed if some resource that it stands for may be read; each resource is asked about again when it is
//! read. So the answer may be "yes" too often, never "no": what is not literal in either counts as any text.

/// A piece of a pattern or a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    Letter(char),
    /// Exactly one letter, whichever.
    One,
    /// Any text, also none.
    Any,
}

/// Whether some URI matches both the pattern and the template.
pub(super) fn may_meet(pattern: &str, template: &str) -> bool {
    meet(&of_pattern(pattern, Piece::Any), &of_template(template))
}

/// Whether every URI of a template matches a pattern. May be "no" too often.
pub(super) fn covers(pattern: &str, template: &str) -> bool {
    includes(&of_pattern(pattern, Piece::One), &of_template(template))
}

/// Whether everything that the second pattern matches is matched by the first one. May be "no" too often.
pub(super) fn covers_pattern(pattern: &str, other: &str) -> bool {
    includes(&of_pattern(pattern, Piece::One), &of_pattern(other, Piece::Any))
}

/// The pieces of a pattern; `choice` stands for what is a choice between texts.
fn of_pattern(pattern: &str, choice: Piece) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '*' => {
                pieces.push(Piece::Any);
                // `**/` also stands for nothing, so its slash may be missing.
                if choice == Piece::Any && letters.as_str().starts_with("*/") {
                    letters = letters.as_str()[2..].chars();
                }
            }
            '?' => pieces.push(Piece::One),
            '\\' => pieces.extend(letters.next().map(Piece::Letter)),
            '[' => {
                // The first letter of a class may be `]`.
                let inside = letters.as_str().trim_start_matches(['!', '^']);
                let end = inside.char_indices().skip(1).find(|(_, letter)| *letter == ']');
                letters = end.map_or("", |(at, _)| &inside[at + 1..]).chars();
                pieces.push(Piece::One);
            }
            '{' => {
                let mut depth = 1;
                let ends = |letter: &char| {
                    depth += match letter {
                        '{' => 1,
                        '}' => -1,
                        _ => 0,
                    };
                    depth == 0
                };
                letters.by_ref().find(ends);
                pieces.push(choice);
            }
            letter => pieces.push(Piece::Letter(letter)),
        }
    }
    pieces
}

fn of_template(template: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some((literal, after)) = rest.split_once('{') {
        pieces.extend(literal.chars().map(Piece::Letter));
        pieces.push(Piece::Any);
        rest = after.split_once('}').map_or("", |(_, rest)| rest);
    }
    pieces.extend(rest.chars().map(Piece::Letter));
    pieces
}

/// Whether some text fits both: position by position, where `Any` may end or take one more piece of the other.
fn meet(one: &[Piece], other: &[Piece]) -> bool {
    let width = other.len() + 1;
    let mut reached = vec![false; (one.len() + 1) * width];
    reached[0] = true;
    for a in 0..=one.len() {
        for b in 0..=other.len() {
            if !reached[a * width + b] {
                continue;
            }
            let (left, right) = (one.get(a), other.get(b));
            if left == Some(&Piece::Any) {
                reached[(a + 1) * width + b] = true;
                if right.is_some() {
                    reached[a * width + b + 1] = true;
                }
            }
            if right == Some(&Piece::Any) {
                reached[a * width + b + 1] = true;
                if left.is_some() {
                    reached[(a + 1) * width + b] = true;
                }
            }
            let fits = match (left, right) {
                (Some(Piece::Letter(left)), Some(Piece::Letter(right))) => left == right,
                (Some(Piece::One), Some(Piece::Letter(_) | Piece::One))
                | (Some(Piece::Letter(_)), Some(Piece::One)) => true,
                _ => false,
            };
            if fits {
                reached[(a + 1) * width + b + 1] = true;
            }
        }
    }
    reached[one.len() * width + other.len()]
}

/// Whether the first matches every text of the second, as far as its `Any` alone can tell.
fn includes(whole: &[Piece], part: &[Piece]) -> bool {
    let width = part.len() + 1;
    let mut reached = vec![false; (whole.len() + 1) * width];
    reached[0] = true;
    for a in 0..=whole.len() {
        for b in 0..=part.len() {
            if !reached[a * width + b] {
                continue;
            }
            match (whole.get(a), part.get(b)) {
                (Some(Piece::Any), next) => {
                    reached[(a + 1) * width + b] = true;
                    if next.is_some() {
                        reached[a * width + b + 1] = true;
                    }
                }
                (Some(Piece::Letter(left)), Some(Piece::Letter(right))) if left == right => {
                    reached[(a + 1) * width + b + 1] = true;
                }
                _ => {}
            }
        }
    }
    reached[whole.len() * width + part.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ACC-3: a template is met by a pattern if some URI of it may match.
    #[test]
    fn what_a_template_and_a_pattern_have_in_common() {
        #[track_caller]
        fn check(pattern: &str, template: &str, expected: bool) {
            assert_eq!(may_meet(pattern, template), expected, "{pattern} {template}");
        }
        check("file:///srv/**", "file:///{+path}", true);
        check("file:///srv/**", "file:///{path}/x", true);
        check("file:///srv/**", "file:///etc/{name}", false);
        check("file:///srv/a", "file:///srv/{name}", true);
        check("file:///srv/a", "file:///srv/{name}/b", false);
        check("*", "a://b", true);
        check("a://?", "a://{x}", true);
        check("a://?", "a://bc", false);
        check("a://[bc]d", "a://xd", true);
        check("a://[]]d", "a://xe", false);
        check("a://{b,c{d,e}}/f", "a://x/f", true);
        check("a://{b,c}/f", "a://x/g", false);
        check("a://\\*", "a://*", true);
        check("a://\\*", "a://b", false);
        check("a://**/b", "a://b", true);
        check("**/b", "b", true);
        check("", "", true);
        check("", "{x}", true);
        check("a", "", false);
    }

    /// ACC-3: a template is denied altogether only if all its URIs are.
    #[test]
    fn what_a_pattern_covers() {
        #[track_caller]
        fn check(pattern: &str, template: &str, expected: bool) {
            assert_eq!(covers(pattern, template), expected, "{pattern} {template}");
        }
        check("*", "file:///{+path}", true);
        check("file:///**", "file:///{+path}", true);
        check("file:///srv/**", "file:///{+path}", false);
        check("file:///?", "file:///{x}", false);
        check("file:///*x", "file:///{x}", false);
        check("file:///*x", "file:///{y}x", true);
        check("file:///a", "file:///a", true);
        check("file:///a", "file:///b", false);
        check("file:///{a,b}", "file:///{x}", false);
        check("file:///**/a", "file:///{x}a", false);
        check("file:///**/a", "file:///{x}/a", true);
        assert!(covers_pattern("file:///**", "file:///srv/**"));
        assert!(covers_pattern("a*", "ab?[c]*"));
        assert!(!covers_pattern("file:///srv/**", "file:///**"));
        assert!(!covers_pattern("a?", "ab"), "which letter it stands for is not compared");
    }
}
