//! What a change does to a text, for people: the lines that go and the lines that come.
//!
//! An edit changes one place of a file, so the lines before and after it are the same. Those are not shown: they may hold
//! somebody's secrets. For the same reason the shown lines pass the redactor.

use bridgehead_wire::Redactor;

/// The lines that differ, with the number of the first.
pub(crate) fn diff(before: &str, after: &str) -> String {
    let old: Vec<&str> = before.lines().collect();
    let new: Vec<&str> = after.lines().collect();
    let start = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old, new) = (old.get(start..).unwrap_or_default(), new.get(start..).unwrap_or_default());
    let end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let redactor = Redactor::default();
    let shown = |sign: char, lines: &[&str]| {
        let lines = lines.get(..lines.len() - end).unwrap_or_default().iter();
        lines.map(|line| format!("{sign}{}\n", redactor.text(line))).collect::<String>()
    };
    format!("@@ line {} @@\n{}{}", start + 1, shown('-', old), shown('+', new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lines_that_change() {
        assert_eq!(diff("a\nb\nc\n", "a\nb,\nx\nc\n"), "@@ line 2 @@\n-b\n+b,\n+x\n");
        assert_eq!(diff("", "x\n"), "@@ line 1 @@\n+x\n");
        assert_eq!(diff("a\na\n", "a\na\na\n"), "@@ line 3 @@\n+a\n");
        assert_eq!(diff("a\nb\n", "a\n"), "@@ line 2 @@\n-b\n");
        let secret = diff("", "{\"env\": {\"TOKEN\": \"ghp_0123456789abcdefghijABCDEFGHIJ012345\"}}\n");
        assert!(!secret.contains("ghp_0123456789"), "{secret}");
    }
}
