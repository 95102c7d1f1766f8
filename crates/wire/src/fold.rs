//! Which names a lenient reader treats as equal.
//!
//! Several common decoders ignore case when they look up a member by its name. Some follow the rules of Unicode: to them
//! U+017F is an `s` and U+212A is a `k`. Code that decides by a name must know which other spellings could be read as it.

/// Whether two texts are equal except for case.
pub fn folds_alike(left: &str, right: &str) -> bool {
    match left.is_ascii() && right.is_ascii() {
        true => left.eq_ignore_ascii_case(right),
        false => characters(left).eq(characters(right)),
    }
}

/// The text in canonical form: texts that fold alike have the same one.
pub fn folded(text: &str) -> String {
    match text.is_ascii() {
        true => text.to_ascii_lowercase(),
        false => characters(text).collect(),
    }
}

/// Goes through upper case first: U+017F is its own lower case, but its upper case is `S`.
fn characters(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WIRE-1: case is ignored, by the rules of Unicode.
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
