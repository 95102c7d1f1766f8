//! "Did you mean": the known names nearest to one that does not exist.

use bridgehead_gateway::similar;

use super::output::one_line;

/// How long the suggestion may be: the names are those of others.
const LONGEST: usize = 500;

/// "did you mean `a` or `b`?", or `otherwise` if no known name is near.
pub(crate) fn meant<'k>(name: &str, known: impl IntoIterator<Item = &'k str>, otherwise: &str) -> String {
    match similar(name, known.into_iter()).as_slice() {
        [] => otherwise.to_owned(),
        near => one_line(&format!("did you mean `{}`?", near.join("` or `")), LONGEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-8: a name that is nearly right gets the right one, any other what to do instead.
    #[test]
    fn the_nearest_names() {
        let known = ["files", "fetch", "git\u{1b}"];
        assert_eq!(meant("flies", known, "see `x`"), "did you mean `files`?");
        assert_eq!(meant("git", known, "see `x`"), "did you mean `git\\u001b`?");
        assert_eq!(meant("nothing like it", known, "see `x`"), "see `x`");
        assert_eq!(meant("f", ["f1", "f2"], ""), "did you mean `f1` or `f2`?");
    }
}
