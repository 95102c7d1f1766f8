//! The operator's own redaction rules: text by pattern, and values by their path in the arguments and results
//! of a tool.
//!
//! What must stay true: no pattern matches the empty text or the mark, so that redacting twice is redacting
//! once; matching takes time linear in the text, which the regex engine guarantees.

use std::borrow::Cow;
use std::collections::HashMap;

use regex::Regex;

use super::{Edit, MARK, QUOTED_MARK, skip_blank, string_at, value_end};

/// A rule that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The pattern is not a valid regular expression.
    #[error("{0}")]
    Pattern(String),
    /// The pattern would hide everything.
    #[error("the pattern matches the empty text, so it would hide everything")]
    Empty,
    /// The pattern matches the text that replaces a secret.
    #[error("the pattern matches `[redacted]`, the text that replaces a secret; make it more specific")]
    Mark,
    /// The path does not begin with `/`.
    #[error("a path begins with `/`, such as `/user/ssn` or `/items/*/key`")]
    Path,
}

/// Patterns and paths. An empty set hides nothing.
#[derive(Debug, Default)]
pub struct Rules {
    patterns: Vec<Regex>,
    paths: HashMap<String, Vec<Vec<String>>>,
}

/// Two sets are the same if both hide the same.
impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        let patterns = |rules: &Self| rules.patterns.iter().map(Regex::to_string).collect::<Vec<_>>();
        patterns(self) == patterns(other) && self.paths == other.paths
    }
}

impl Rules {
    /// Hides every text that matches a regular expression.
    ///
    /// # Errors
    /// When it is not valid, or matches the empty text or the mark.
    pub fn pattern(&mut self, pattern: &str) -> Result<(), RuleError> {
        let regex = Regex::new(pattern).map_err(|error| RuleError::Pattern(error.to_string()))?;
        if regex.is_match("") {
            return Err(RuleError::Empty);
        }
        if regex.is_match(MARK) {
            return Err(RuleError::Mark);
        }
        self.patterns.push(regex);
        Ok(())
    }

    /// Hides the value at `path` in the arguments and the results of `tool`, or of every tool if `tool` is `*`. A path is
    /// a sequence of steps after `/`. A `*` step matches any member or element; `~1` and `~0` stand for `/` and `~`.
    ///
    /// # Errors
    /// When it does not begin with `/`.
    pub fn path(&mut self, tool: &str, path: &str) -> Result<(), RuleError> {
        let steps = path.strip_prefix('/').ok_or(RuleError::Path)?;
        let steps = steps.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
        self.paths.entry(tool.to_owned()).or_default().push(steps);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.patterns.is_empty() && self.paths.is_empty()
    }

    pub(super) fn has_patterns(&self) -> bool {
        !self.patterns.is_empty()
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.is_match(text))
    }

    pub(super) fn text<'a>(&self, text: Cow<'a, str>) -> Cow<'a, str> {
        self.patterns.iter().fold(text, |text, pattern| {
            match pattern.replace_all(&text, regex::NoExpand(MARK)) {
                Cow::Borrowed(_) => text,
                Cow::Owned(hidden) => Cow::Owned(hidden),
            }
        })
    }

    /// The text without the values at the paths of `tool`; `None` if there are none.
    pub(super) fn hide_paths(&self, tool: &str, json: &[u8]) -> Option<Vec<u8>> {
        if self.paths.is_empty() {
            return None;
        }
        let named = self.paths.get(tool).into_iter().chain(self.paths.get("*"));
        let paths: Vec<&[String]> = named.flatten().map(Vec::as_slice).collect();
        let mut edit = Edit::of(json);
        hide(&mut edit, skip_blank(json, 0), &paths);
        edit.finish()
    }
}

/// Walks the value at `start` as far as the paths go; returns the position after it.
fn hide(edit: &mut Edit<'_>, start: usize, paths: &[&[String]]) -> usize {
    let json = edit.json;
    if paths.iter().any(|path| path.is_empty()) {
        let end = value_end(json, start);
        edit.replace(start, end, QUOTED_MARK);
        return end;
    }
    let object = match json.get(start) {
        _ if paths.is_empty() => return value_end(json, start),
        Some(b'{') => true,
        Some(b'[') => false,
        _ => return value_end(json, start),
    };
    let mut at = skip_blank(json, start + 1);
    let mut index = 0_usize;
    while let Some(byte) = json.get(at) {
        if matches!(byte, b'}' | b']') {
            return at + 1;
        }
        let name = if object {
            let (end, name) = string_at(json, None, at);
            let name = name.map_or_else(|| "*".to_owned(), Cow::into_owned);
            // After the colon; in text that is not JSON, somewhere after the name.
            at = skip_blank(json, skip_blank(json, end) + 1).min(json.len());
            name
        } else {
            index.to_string()
        };
        let deeper: Vec<&[String]> = paths
            .iter()
            .filter_map(|path| path.split_first())
            .filter(|(step, _)| **step == name || *step == "*")
            .map(|(_, rest)| rest)
            .collect();
        at = skip_blank(json, hide(edit, at, &deeper));
        index += 1;
        if json.get(at) == Some(&b',') {
            at = skip_blank(json, at + 1);
        } else if !matches!(json.get(at), Some(b'}' | b']')) {
            return json.len();
        }
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Raw, Redactor};

    fn redactor() -> Redactor {
        let mut rules = Rules::default();
        rules.pattern(r"\b\d{16}\b").unwrap();
        rules.pattern("(?i)project-[a-z]+").unwrap();
        for path in ["/user/ssn", "/items/*/key", "/list/1", "/a~1b/*"] {
            rules.path("crm__save", path).unwrap();
        }
        rules.path("*", "/everywhere").unwrap();
        Redactor::with(rules)
    }

    /// AUD-4: the operator's patterns hide text and numbers, in free text and in JSON; hiding again changes nothing.
    #[test]
    fn patterns_hide_what_they_match() {
        #[track_caller]
        fn check(json: &str, expected: &str) {
            let once = redactor().json("any", json.as_bytes());
            assert_eq!(once, expected.as_bytes());
            assert!(Raw::parse(once.to_vec()).is_ok());
            assert_eq!(redactor().json("any", &once), once);
        }
        check(r#"{"card":4111111111111111,"n":12}"#, r#"{"card":"[redacted]","n":12}"#);
        check(
            r#"["pay 4111111111111111 now", 4111111111111111 ]"#,
            r#"["pay [redacted] now", "[redacted]" ]"#,
        );
        check(r#"{"Project-Manhattan":"a\u0070roject-x"}"#, r#"{"[redacted]":"a[redacted]"}"#);
        check("4111111111111111", "\"[redacted]\"");
        check(r#"{"password":"x","a":-1.5e3}"#, r#"{"password":"[redacted]","a":-1.5e3}"#);
        assert_eq!(
            redactor().text("card 4111111111111111, password=x"),
            "card [redacted], password=[redacted]"
        );
        assert!(matches!(redactor().text("nothing"), Cow::Borrowed(_)));
    }

    /// AUD-4: the paths of a tool hide their values, whatever their type, and no other byte; other tools keep
    /// theirs.
    #[test]
    fn paths_hide_values_of_their_tool() {
        #[track_caller]
        fn check(json: &str, expected: &str) {
            let json = json.as_bytes();
            let once = redactor().json("crm__save", json);
            assert_eq!(once, expected.as_bytes());
            assert!(Raw::parse(once.to_vec()).is_ok());
            assert_eq!(redactor().json("crm__save", &once), once);
            assert_eq!(redactor().json("other", json), json);
        }
        check(
            r#"{ "user" : {"ssn": {"a":[1]} , "b":1.0} }"#,
            r#"{ "user" : {"ssn": "[redacted]" , "b":1.0} }"#,
        );
        check(
            r#"{"items":[{"key":1,"b":"2"},{"key":"x"}],"key":3}"#,
            r#"{"items":[{"key":"[redacted]","b":"2"},{"key":"[redacted]"}],"key":3}"#,
        );
        check(
            r#"{"list":[1,2,3],"items":[],"user":{}}"#,
            r#"{"list":[1,"[redacted]",3],"items":[],"user":{}}"#,
        );
        check(r#"{"a/b":{"c":1,"d":[{}]}}"#, r#"{"a/b":{"c":"[redacted]","d":"[redacted]"}}"#);
        check(r#"{"us\u0065r":{"ssn":1}}"#, r#"{"us\u0065r":{"ssn":"[redacted]"}}"#);
        check("7", "7");
    }

    #[test]
    fn a_path_of_all_tools_holds_for_each() {
        for tool in ["crm__save", "other"] {
            let hidden = redactor().paths(tool, br#"{"everywhere":[1],"password":"x"}"#);
            assert_eq!(*hidden, *br#"{"everywhere":"[redacted]","password":"x"}"#);
        }
    }

    #[test]
    fn text_that_is_no_json_is_walked_without_harm() {
        for text in
            ["{", "{\"user\"", "{\"user\":", "{\"user\":{\"ssn\"", "[1,", "{,}", "{\"a\" 1}", "[}", "", " "]
        {
            let _ = redactor().json("crm__save", text.as_bytes());
        }
    }

    #[test]
    fn rules_that_cannot_work_are_refused() {
        let mut rules = Rules::default();
        assert!(matches!(rules.pattern("("), Err(RuleError::Pattern(_))));
        assert_eq!(rules.pattern("x*"), Err(RuleError::Empty));
        assert_eq!(rules.pattern("red"), Err(RuleError::Mark));
        assert_eq!(rules.path("t", "user"), Err(RuleError::Path));
        assert!(rules.is_empty());
    }
}
