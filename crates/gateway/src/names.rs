//! The names under which tools are offered: unique, short enough, and stable when other servers join.

use std::collections::HashMap;

/// Between the server's name and the tool's.
const SEPARATOR: &str = "__";
/// What is taken from a name that had to be shortened: `_` and eight hexadecimal digits.
const SUFFIX: usize = 9;

/// A tool that wants a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) server: &'a str,
    pub(crate) tool: &'a str,
    pub(crate) prefixed: bool,
}

/// Names for all of `wanted`, in their order. `taken` are names that are spoken for (the built-ins): an
/// upstream tool called like one is prefixed. Whoever collides after that, or is longer than `limit`, gets
/// a short form whose hash depends on server and tool alone; no one keeps the name by coming first.
pub(crate) fn expose(wanted: &[Wanted<'_>], taken: &[&str], limit: usize) -> Vec<String> {
    let plain: Vec<String> = wanted
        .iter()
        .map(|want| {
            if want.prefixed || taken.contains(&want.tool) {
                format!("{}{SEPARATOR}{}", want.server, want.tool)
            } else {
                want.tool.to_owned()
            }
        })
        .collect();
    let mut uses: HashMap<&str, usize> = taken.iter().map(|name| (*name, 1)).collect();
    for name in &plain {
        *uses.entry(name).or_default() += 1;
    }
    let unique = |name: &String| uses.get(name.as_str()) == Some(&1);
    let mut names: Vec<String> = wanted
        .iter()
        .zip(&plain)
        .map(|(want, name)| {
            if unique(name) && name.chars().count() <= limit {
                name.clone()
            } else {
                short(name, want, limit, 0)
            }
        })
        .collect();
    // Two short forms, or a short form and a plain name, could still be equal: hash on until none are.
    let mut owners: HashMap<String, usize> = HashMap::new();
    for position in 0..names.len() {
        let mut salt = 0;
        while taken.contains(&names[position].as_str()) || owners.contains_key(&names[position]) {
            salt += 1;
            names[position] = short(&plain[position], &wanted[position], limit, salt);
        }
        owners.insert(names[position].clone(), position);
    }
    names
}

/// Whether a name looks like one of `server`'s. Good enough to explain an unknown name, never to route one.
pub(crate) fn is_under(name: &str, server: &str) -> bool {
    name.strip_prefix(server).is_some_and(|rest| rest.starts_with(SEPARATOR))
}

fn short(name: &str, want: &Wanted<'_>, limit: usize, salt: u32) -> String {
    let kept: String = name.chars().take(limit.saturating_sub(SUFFIX)).collect();
    let mut hash = Fnv::new();
    hash.add(want.server.as_bytes());
    hash.add(&[0]);
    hash.add(want.tool.as_bytes());
    if salt > 0 {
        hash.add(&salt.to_le_bytes());
    }
    format!("{kept}_{:08x}", hash.folded())
}

/// FNV-1a: a published function, so that names stay the same across builds and releases, which the
/// standard library's hashers do not promise.
struct Fnv(u64);

impl Fnv {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    const fn folded(&self) -> u32 {
        ((self.0 >> 32) ^ (self.0 & 0xffff_ffff)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(wanted: &[(&str, &str, bool)], expected: &[&str]) {
        let wanted: Vec<Wanted<'_>> = wanted
            .iter()
            .map(|(server, tool, prefixed)| Wanted { server, tool, prefixed: *prefixed })
            .collect();
        assert_eq!(expose(&wanted, &["server_ping"], 20), expected);
    }

    /// CAT-3: prefix, built-in names, collisions, length.
    #[test]
    fn names_by_rule() {
        check(&[("files", "read", true)], &["files__read"]);
        check(&[("files", "read", false)], &["read"]);
        check(&[("files", "server_ping", false)], &["files__server_ping"]);
        check(&[("a", "x", false), ("b", "x", false)], &["x_e1f4230d", "x_ed11935c"]);
        check(&[("a", "b__c", true), ("a__b", "c", true)], &["a__b__c_bbeb6ab7", "a__b__c_089a7a89"]);
        check(&[("server", "a_name_that_is_long", true)], &["server__a_n_ccb2f4e8"]);
    }

    /// CAT-3: a server that joins changes no name but those it collides with.
    #[test]
    fn names_are_stable() {
        let one = Wanted { server: "a", tool: "x", prefixed: false };
        let other = Wanted { server: "b", tool: "x", prefixed: false };
        let third = Wanted { server: "c", tool: "x", prefixed: false };
        let few = expose(&[one, other], &[], 64);
        let many = expose(&[third, other, one], &[], 64);
        assert_eq!((&few[0], &few[1]), (&many[2], &many[1]));
    }

    /// CAT-3: whatever the input, names are unique and no longer than the limit.
    #[test]
    fn names_are_unique_and_short() {
        let tools: Vec<String> = (0..50).map(|n| "t".repeat(n % 7 + 60)).collect();
        let wanted: Vec<Wanted<'_>> =
            tools.iter().map(|tool| Wanted { server: "s", tool, prefixed: true }).collect();
        let names = expose(&wanted, &[], 64);
        let unique: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert!(names.iter().all(|name| name.chars().count() <= 64));
    }
}
