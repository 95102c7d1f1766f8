//! Which tools of a server are offered, by patterns on their names.

use std::fmt;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// The pattern that every name matches.
const EVERYTHING: &str = "*";

/// Patterns that allow tools and patterns that deny them; a denial wins. Letter case does not matter.
#[derive(Clone)]
pub struct ToolFilter {
    allowed: Patterns,
    denied: Patterns,
}

/// A pattern that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pattern `{pattern}` cannot be used: {reason}")]
pub struct InvalidPattern {
    /// The pattern; empty if only all of them together are too much.
    pub pattern: String,
    /// What is wrong with it.
    pub reason: String,
}

/// The patterns compiled and as written, because compiled sets cannot be compared.
#[derive(Clone)]
struct Patterns {
    /// `None` if one of the patterns is `*`, as in most configurations: compiling `*` takes longer than reading the rest.
    set: Option<GlobSet>,
    written: Vec<String>,
}

impl Patterns {
    fn hold(&self, tool: &str) -> bool {
        self.set.as_ref().is_none_or(|set| set.is_match(tool))
    }
}

/// Two filters are the same if the same patterns are written.
impl PartialEq for ToolFilter {
    fn eq(&self, other: &Self) -> bool {
        self.allowed.written == other.allowed.written && self.denied.written == other.denied.written
    }
}

impl ToolFilter {
    /// Compiles patterns: globs, `*`, and `any`, which means `*`.
    ///
    /// # Errors
    /// If a pattern cannot be used.
    pub fn new<'a>(
        allowed: impl IntoIterator<Item = &'a str>,
        denied: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, InvalidPattern> {
        Ok(Self { allowed: compile(allowed)?, denied: compile(denied)? })
    }

    /// Whether the tool with this name, as its server names it, is offered.
    pub fn admits(&self, tool: &str) -> bool {
        self.allowed.hold(tool) && !self.denied.hold(tool)
    }
}

impl ToolFilter {
    /// Patterns without effect because they match none of `tools`, each with its key. A list that contains `*` has none.
    pub fn without_match(&self, tools: &[&str]) -> Vec<(&'static str, &str)> {
        let keys = [("tools_allowed", &self.allowed), ("tools_denied", &self.denied)];
        let mut without = Vec::new();
        for (key, patterns) in keys {
            let Some(set) = &patterns.set else { continue };
            let mut fits = vec![false; patterns.written.len()];
            for tool in tools {
                set.matches(tool).into_iter().for_each(|index| fits[index] = true);
            }
            let idle = patterns.written.iter().zip(fits).filter(|(_, fits)| !fits);
            without.extend(idle.map(|(pattern, _)| (key, pattern.as_str())));
        }
        without
    }
}

impl Default for ToolFilter {
    /// Admits everything.
    fn default() -> Self {
        Self {
            allowed: Patterns { set: None, written: vec![EVERYTHING.to_owned()] },
            denied: Patterns { set: Some(GlobSet::empty()), written: Vec::new() },
        }
    }
}

impl fmt::Debug for ToolFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolFilter({} allowed, {} denied)", self.allowed.written.len(), self.denied.written.len())
    }
}

fn compile<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Patterns, InvalidPattern> {
    let mut set = GlobSetBuilder::new();
    let (mut written, mut everything) = (Vec::new(), false);
    for pattern in patterns {
        let refused = |error: globset::Error| InvalidPattern {
            pattern: pattern.to_owned(),
            reason: error.kind().to_string(),
        };
        written.push(pattern.to_owned());
        if pattern == EVERYTHING || pattern.eq_ignore_ascii_case("any") {
            everything = true;
        } else {
            set.add(GlobBuilder::new(pattern).case_insensitive(true).build().map_err(refused)?);
        }
    }
    let built = || {
        let too_much =
            |error: globset::Error| InvalidPattern { pattern: String::new(), reason: error.to_string() };
        set.build().map_err(too_much)
    };
    let set = if everything { None } else { Some(built()?) };
    Ok(Patterns { set, written })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(allowed: &[&str], denied: &[&str], admitted: &[&str], refused: &[&str]) {
        let filter = ToolFilter::new(allowed.iter().copied(), denied.iter().copied()).unwrap();
        for tool in admitted {
            assert!(filter.admits(tool), "{tool}");
        }
        for tool in refused {
            assert!(!filter.admits(tool), "{tool}");
        }
    }

    /// HOUR-7: a pattern that matches no tool is found, in either list.
    #[test]
    fn patterns_that_do_nothing() {
        #[track_caller]
        fn check(allowed: &[&str], denied: &[&str], tools: &[&str], expected: &[(&str, &str)]) {
            let filter = ToolFilter::new(allowed.iter().copied(), denied.iter().copied()).unwrap();
            assert_eq!(filter.without_match(tools), expected);
        }
        check(&["*"], &["delete_*", "Drop"], &["delete_file", "drop"], &[]);
        check(
            &["*"],
            &["delete*", "drop"],
            &["deleet", "list"],
            &[("tools_denied", "delete*"), ("tools_denied", "drop")],
        );
        check(&["read", "lst"], &["any"], &["read", "list"], &[("tools_allowed", "lst")]);
        check(&["any", "x"], &[], &["a"], &[]);
        check(&["a", "b"], &[], &[], &[("tools_allowed", "a"), ("tools_allowed", "b")]);
    }

    /// CAT-4: `*`, `any` and globs match in any letter case; deny wins.
    #[test]
    fn patterns() {
        check(&["*"], &[], &["a", "B/c", ""], &[]);
        check(&["ANY"], &["any"], &[], &["a"]);
        check(
            &["read_*", "List"],
            &["*_secret"],
            &["read_file", "READ_x", "list"],
            &["write", "read_secret"],
        );
        check(&[], &[], &[], &["a"]);
        check(&["*", "x"], &["x"], &["a"], &["X"]);
        check(&["{a,b}?"], &[], &["a1", "b2"], &["c1", "a"]);
        assert!(ToolFilter::default().admits("x"));
        assert_eq!(ToolFilter::new(["a["], []).unwrap_err().pattern, "a[");
        assert!(ToolFilter::default() == ToolFilter::new(["*"], []).unwrap());
        assert!(ToolFilter::default() != ToolFilter::new(["*"], ["x"]).unwrap());
    }
}
