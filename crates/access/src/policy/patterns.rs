//! Which patterns of which rules match a thing.
//!
//! Patterns are sorted by server first, so that a name is compared with those that can concern it: those of its server by
//! name, those of servers by pattern, and those of every server. A pattern on all names (`github/*`) is compared with none, and a
//! pattern that many rules have is compared once.

use std::collections::HashMap;

use bridgehead_config::ThingPattern;
use globset::{Candidate, Glob, GlobBuilder, GlobMatcher, GlobSet, GlobSetBuilder};

use super::PolicyError;

/// What a pattern of a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Allows what it matches.
    Allow,
    /// Allows those that say that they change nothing.
    AllowReadOnly,
    /// Denies what it matches.
    Deny,
    /// Asks for scopes, by their place in the list of all.
    Scopes(usize),
}

/// A pattern of a rule.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    pub(super) rule: usize,
    pub(super) effect: Effect,
    /// Of the name, in lower case.
    pub(super) name: String,
}

/// The patterns on one kind of thing.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    /// By server, in lower case.
    by_server: HashMap<String, Bucket>,
    /// Of servers by pattern.
    by_pattern: Vec<(GlobMatcher, Bucket)>,
    /// Of every server.
    everywhere: Bucket,
    /// How many [`SameName`] there are.
    pub(super) distinct: usize,
}

/// Patterns on the names of some servers.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Those that match every name.
    pub(super) every_name: Vec<Pattern>,
    names: GlobSet,
    /// In the order of `names`.
    others: Vec<SameName>,
}

/// All patterns of a bucket that match the same names.
#[derive(Debug)]
pub(super) struct SameName {
    /// Its number among those of a [`Patterns`].
    pub(super) number: usize,
    pub(super) patterns: Vec<Pattern>,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { every_name: Vec::new(), names: GlobSet::empty(), others: Vec::new() }
    }
}

/// Patterns on the way into a [`Patterns`].
#[derive(Default)]
pub(super) struct PatternsBuilder {
    /// By the pattern of the server, in lower case.
    by_server: HashMap<String, Vec<(Pattern, Glob)>>,
}

impl PatternsBuilder {
    pub(super) fn add(
        &mut self,
        line: usize,
        rule: usize,
        effect: Effect,
        pattern: &ThingPattern,
    ) -> Result<(), PolicyError> {
        let refused = |reason: String| PolicyError { line, pattern: pattern.to_string(), reason };
        let (server, name) = (pattern.server.to_lowercase(), pattern.name.to_lowercase());
        glob(&server).map_err(refused)?;
        let glob = glob(&name).map_err(refused)?;
        self.by_server.entry(server).or_default().push((Pattern { rule, effect, name }, glob));
        Ok(())
    }

    pub(super) fn build(self) -> Result<Patterns, PolicyError> {
        let mut built = Patterns::default();
        for (server, patterns) in self.by_server {
            let refused = |reason: String| PolicyError { line: 0, pattern: format!("{server}/…"), reason };
            let (every_name, others): (Vec<_>, Vec<_>) =
                patterns.into_iter().partition(|(pattern, _)| is_everything(&pattern.name));
            let mut names = GlobSetBuilder::new();
            let (mut places, mut same): (HashMap<String, usize>, Vec<SameName>) = Default::default();
            for (pattern, glob) in others {
                let at = *places.entry(pattern.name.clone()).or_insert_with(|| {
                    names.add(glob);
                    same.push(SameName { number: built.distinct, patterns: Vec::new() });
                    built.distinct += 1;
                    same.len() - 1
                });
                same[at].patterns.push(pattern);
            }
            let bucket = Bucket {
                every_name: every_name.into_iter().map(|(pattern, _)| pattern).collect(),
                names: names.build().map_err(|error| refused(error.to_string()))?,
                others: same,
            };
            if is_everything(&server) {
                built.everywhere = bucket;
            } else if is_plain(&server) {
                built.by_server.insert(server, bucket);
            } else {
                built.by_pattern.push((glob(&server).map_err(refused)?.compile_matcher(), bucket));
            }
        }
        Ok(built)
    }
}

impl Patterns {
    /// The patterns that concern a server, whose name is in lower case.
    pub(super) fn of_server(&self, server: &str) -> impl Iterator<Item = &Bucket> {
        let by_pattern = self.by_pattern.iter().filter(move |(matcher, _)| matcher.is_match(server));
        let own = self.by_server.get(server);
        own.into_iter().chain(by_pattern.map(|(_, bucket)| bucket)).chain([&self.everywhere])
    }
}

impl Bucket {
    /// All its patterns.
    pub(super) fn all(&self) -> impl Iterator<Item = &Pattern> {
        self.every_name.iter().chain(self.others.iter().flat_map(|same| &same.patterns))
    }

    /// Those that match a name and not every name; `found` is scratch space.
    pub(super) fn matching<'b>(
        &'b self,
        name: &Candidate<'_>,
        found: &'b mut Vec<usize>,
    ) -> impl Iterator<Item = &'b SameName> {
        found.clear();
        if !self.others.is_empty() {
            self.names.matches_candidate_into(name, found);
        }
        found.iter().filter_map(|at| self.others.get(*at))
    }
}

/// A pattern whose `*` stands for any text, slashes too, as in the other patterns of the configuration.
fn glob(pattern: &str) -> Result<Glob, String> {
    let built = GlobBuilder::new(pattern).literal_separator(false).backslash_escape(true).build();
    built.map_err(|error| error.kind().to_string())
}

/// Whether one pattern matches a text, in any letter case. For explanations: it compiles the pattern each time.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let mut builder = GlobBuilder::new(pattern);
    builder.literal_separator(false).backslash_escape(true).case_insensitive(true);
    builder.build().is_ok_and(|glob| glob.compile_matcher().is_match(text))
}

fn is_everything(pattern: &str) -> bool {
    !pattern.is_empty() && pattern.bytes().all(|byte| byte == b'*')
}

fn is_plain(pattern: &str) -> bool {
    !pattern.contains(['*', '?', '[', ']', '{', '}', '\\'])
}
