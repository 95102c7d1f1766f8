//! Suggests names that a name may be a misspelling of. Only messages for people use it, never routing.
//!
//! A client that keeps asking for unknown names must not keep a thread busy: long names are not compared, and
//! only the first 1 000 candidates are.

use crate::access::Principal;
use crate::gateway::Inner;

/// How many names are suggested.
const TOLD: usize = 3;
/// How many names are compared.
const COMPARED: usize = 1_000;
/// Longer names are not compared.
const LONGEST: usize = 128;

/// The names in `known` that `name` may be a misspelling of, nearest first, at most three.
pub fn similar<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Vec<&'k str> {
    if name.is_empty() || name.len() > LONGEST {
        return Vec::new();
    }
    let lower = name.to_lowercase();
    let tolerance = |known: &str| 2.max(known.len() / 3);
    let mut near: Vec<(usize, &str)> = known
        .filter(|known| known.starts_with(name) || known.len().abs_diff(name.len()) <= tolerance(known))
        .take(COMPARED)
        .map(|known| (strsim::osa_distance(&known.to_lowercase(), &lower), known))
        .filter(|(distance, known)| *distance <= tolerance(known) || known.starts_with(name))
        .collect();
    near.sort_unstable();
    near.dedup();
    // With a common prefix all names are near; drop those much farther away than the nearest.
    let nearest = near.first().map_or(0, |(distance, _)| *distance);
    near.retain(|(distance, _)| *distance <= nearest + 1);
    near.into_iter().take(TOLD).map(|(_, known)| known).collect()
}

impl Inner {
    /// The listed names that a client may have meant. A name without its server's prefix counts as near.
    pub(crate) fn similar_names(&self, principal: &Principal, kind: &str, name: &str) -> Vec<String> {
        let catalog = self.view(principal);
        let names: Vec<&str> = match kind {
            "prompt" => catalog.prompts.listed().map(|entry| &*entry.name).collect(),
            _ => catalog.listed().map(|route| &*route.name).collect(),
        };
        let own = |known: &&str| known.split_once("__").is_some_and(|(_, tool)| tool == name);
        let prefixed: Vec<&str> = names.iter().copied().filter(own).take(TOLD).collect();
        let near = if prefixed.is_empty() { similar(name, names.into_iter()) } else { prefixed };
        near.into_iter().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HOUR-11: the nearest names, and none for a name that is like no other.
    #[test]
    fn the_nearest_comes_first() {
        #[track_caller]
        fn check(name: &str, expected: &[&str]) {
            let known = ["files__read", "files__write", "git__log", "a"];
            assert_eq!(similar(name, known.into_iter()), expected, "{name}");
        }
        check("files__raed", &["files__read"]);
        check("Files__Read", &["files__read"]);
        check("files__", &["files__read", "files__write"]);
        check("something else", &[]);
        check("", &[]);
        check(&"files__read".repeat(20), &[]);
    }

    /// HOUR-11: two typos in a short name, one in three letters of a longer one, and any name that begins
    /// with it.
    #[test]
    fn how_far_a_name_may_be() {
        #[track_caller]
        fn check(name: &str, known: &[&str], expected: &[&str]) {
            assert_eq!(similar(name, known.iter().copied()), expected, "{name}");
        }
        check("xyc", &["abc"], &["abc"]);
        check("xyz", &["abc"], &[]);
        check("abcde", &["abc"], &["abc"]);
        check("abcdef", &["abc"], &[]);
        check("xxxdefghi", &["abcdefghi"], &["abcdefghi"]);
        check("xxxxefghi", &["abcdefghi"], &[]);
        check("abcdefghijkl", &["abcdefghi"], &["abcdefghi"]);
        check("abcdefghijklm", &["abcdefghi"], &[]);
        check("ab", &["abcdefghijkl"], &["abcdefghijkl"]);
        check("read", &["reed", "raed", "reads", "read_all", "read"], &["read", "raed", "reads"]);
        check("aaaa", &["aaab", "aabb"], &["aaab", "aabb"]);
        check("aaaaaaaaa", &["aaaaaaaab", "aaaaaabbb"], &["aaaaaaaab"]);
        check(&"a".repeat(LONGEST), &[&"a".repeat(LONGEST)], &[&"a".repeat(LONGEST)]);
        check(&"a".repeat(LONGEST + 1), &[&"a".repeat(LONGEST + 1)], &[]);
    }
}
