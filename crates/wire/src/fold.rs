//! Which texts a lenient reader takes for the same.
//!
//! Several decoders in common use find a member by its name without heeding case, some by the rules of Unicode: to them
//! U+017F is an `s` and U+212A is a `k`. Whoever decides by a name must know what else could be read as it.

/// Whether two texts differ in case at most.
pub fn folds_alike(left: &str, right: &str) -> bool {
    match left.is_ascii() && right.is_ascii() {
        true => left.eq_ignore_ascii_case(right),
        false => characters(left).eq(characters(right)),
    }
}

/// The text in the one form that all texts share that fold alike.
pub fn folded(text: &str) -> String {
    match text.is_ascii() {
        true => text.to_ascii_lowercase(),
        false => characters(text).collect(),
    }
}

/// By way of upper case: what has no lower case of its own, such as U+017F, has one there.
fn characters(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WIRE-1: case is not heeded, by the rules of Unicode.
    #[test]
    fn what_a_lenient_reader_takes_for_the_same() {
        #[track_caller]
        fn check(left: &str, right: &str, alike: bool) {
            assert_eq!(folds_alike(left, right), alike, "{left} {right}");
            assert_eq!(folded(left) == folded(right), alike, "{left} {right}");
        }
        check("name", "name", true);
        check("name", "NaMe", true);
        check("name", "names", false);
        check("task", "ta\u{17f}\u{212a}", true);
        check("STRASSE", "stra\u{df}e", true);
        check("\u{e4}", "\u{c4}", true);
        check("a_b", "a-b", false);
        check("", "", true);
    }
}
