//! The names under which tools are offered: unique, short enough, and stable when other servers join.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::catalog::fnv::Fnv;

/// Separates the server's name from the tool's.
const SEPARATOR: &str = "__";
/// The length of the suffix of a shortened name: `_` and eight hexadecimal digits.
const SUFFIX: usize = 9;

/// A tool that wants a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) server: &'a str,
    pub(crate) tool: &'a str,
    /// The name it gets if no other tool wants it and it is not too long.
    pub(crate) plain: &'a Arc<str>,
}

/// The plain name of a tool. `taken` holds reserved names (the built-ins): an upstream tool with such a name
/// is prefixed.
pub(crate) fn plain(server: &str, tool: &str, prefixed: bool, taken: &HashSet<&str>) -> Arc<str> {
    if prefixed || taken.contains(tool) { format!("{server}{SEPARATOR}{tool}").into() } else { tool.into() }
}

/// Names for all of `wanted`, in the same order. A tool whose plain name collides with another or with one in
/// `taken`, or is longer than `limit`, gets a short form. Its hash depends on server and tool alone: coming
/// first does not keep a name.
pub(crate) fn expose(wanted: &[Wanted<'_>], taken: &HashSet<&str>, limit: usize) -> Vec<Arc<str>> {
    let mut uses: HashMap<&str, usize> = HashMap::with_capacity(wanted.len());
    for want in wanted {
        *uses.entry(want.plain).or_default() += 1;
    }
    let fits =
        |name: &str| uses.get(name) == Some(&1) && !taken.contains(name) && name.chars().count() <= limit;
    // A short form may equal another short form or a name that is kept: add a salt until it is unique.
    let mut shortened: HashSet<Arc<str>> = HashSet::new();
    wanted
        .iter()
        .map(|want| {
            if fits(want.plain) {
                return Arc::clone(want.plain);
            }
            let mut salt = 0;
            loop {
                let name: Arc<str> = short(want, limit, salt).into();
                if !taken.contains(&*name) && !fits(&name) && shortened.insert(Arc::clone(&name)) {
                    return name;
                }
                salt += 1;
            }
        })
        .collect()
}

/// Whether a name looks like one of `server`'s. Use it to explain an unknown name, never to route.
pub(crate) fn is_under(name: &str, server: &str) -> bool {
    name.strip_prefix(server).is_some_and(|rest| rest.starts_with(SEPARATOR))
}

/// Whether a name may be a short form: it ends with `_` and eight hexadecimal digits.
pub(crate) fn may_be_short(name: &str) -> bool {
    let end =
        name.len().checked_sub(SUFFIX).and_then(|at| name.get(at..)).and_then(|end| end.strip_prefix('_'));
    end.is_some_and(|digits| digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
}

fn short(want: &Wanted<'_>, limit: usize, salt: u32) -> String {
    let kept: String = want.plain.chars().take(limit.saturating_sub(SUFFIX)).collect();
    let mut hash = Fnv::new();
    hash.add(want.server.as_bytes());
    hash.add(&[0]);
    hash.add(want.tool.as_bytes());
    if salt > 0 {
        hash.add(&salt.to_le_bytes());
    }
    format!("{kept}_{:08x}", hash.folded())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the search on another thread, so that a search that never ends fails the test.
    #[track_caller]
    fn exposed(wanted: &[(&str, &str, bool)], taken: &[&str], limit: usize) -> Vec<Arc<str>> {
        let owned = |text: &&str| (*text).to_owned();
        let taken: Vec<String> = taken.iter().map(owned).collect();
        let wanted: Vec<(String, String, bool)> =
            wanted.iter().map(|(server, tool, prefixed)| (owned(server), owned(tool), *prefixed)).collect();
        let (sender, found) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(exposed_here(&wanted, &taken, limit)));
        found.recv_timeout(std::time::Duration::from_secs(15)).expect("unique names within 15 seconds")
    }

    fn exposed_here(wanted: &[(String, String, bool)], taken: &[String], limit: usize) -> Vec<Arc<str>> {
        let taken = taken.iter().map(String::as_str).collect();
        let plain: Vec<Arc<str>> =
            wanted.iter().map(|(server, tool, prefixed)| plain(server, tool, *prefixed, &taken)).collect();
        let wanted: Vec<Wanted<'_>> = wanted
            .iter()
            .zip(&plain)
            .map(|((server, tool, _), plain)| Wanted { server, tool, plain })
            .collect();
        expose(&wanted, &taken, limit)
    }

    #[track_caller]
    fn check(wanted: &[(&str, &str, bool)], expected: &[&str]) {
        let names = exposed(wanted, &["server_ping"], 20);
        assert_eq!(names.iter().map(|name| &**name).collect::<Vec<_>>(), expected);
    }

    #[track_caller]
    fn is_unique_and_short(names: &[Arc<str>], limit: usize) {
        let unique: HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
        assert!(names.iter().all(|name| name.chars().count() <= limit), "{names:?}");
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

    /// CAT-3: a tool whose own name equals another tool's short form keeps it; the short form changes.
    #[test]
    fn a_short_form_gives_way() {
        check(
            &[("a", "x", false), ("b", "x", false), ("c", "x_e1f4230d", false)],
            &["x_dc5f140c", "x_ed11935c", "x_e1f4230d"],
        );
    }

    /// CAT-3: a server that joins changes only the names it collides with.
    #[test]
    fn names_are_stable() {
        let (one, other, third) = (("a", "x", false), ("b", "x", false), ("c", "x", false));
        let few = exposed(&[one, other], &[], 64);
        let many = exposed(&[third, other, one], &[], 64);
        assert_eq!((&few[0], &few[1]), (&many[2], &many[1]));
    }

    /// CAT-3: for any tools in any order, names are unique, not reserved and within the limit, and a tool
    /// keeps a name that no other tool wants.
    #[test]
    fn names_hold_for_every_mixture() {
        const ALL: [(&str, &str, bool); 11] = [
            ("a", "x", false),
            ("b", "x", false),
            ("c", "x", true),
            ("a", "b__x", true),
            ("a__b", "x", true),
            ("b", "server_ping", false),
            ("c", "b__server_ping", false),
            ("c", "x_e1f4230d", false),
            ("d", "x_ed11935c", false),
            ("d", "a_name_that_is_long", true),
            ("e", "a_name_that_is_much_longer", false),
        ];
        for mixture in 0_u32..1 << ALL.len() {
            let mut wanted: Vec<_> = (0..ALL.len())
                .filter(|position| mixture & (1 << position) != 0)
                .map(|position| ALL[position])
                .collect();
            let names = exposed(&wanted, &["server_ping"], 20);
            is_unique_and_short(&names, 20);
            assert!(names.iter().all(|name| &**name != "server_ping"));
            wanted.reverse();
            let mut reversed = exposed(&wanted, &["server_ping"], 20);
            reversed.reverse();
            assert_eq!(names, reversed, "names do not depend on the order");
        }
    }

    /// CAT-6: the work grows with the number of tools, even if all of them collide.
    #[test]
    fn twenty_thousand_names() {
        let servers: Vec<String> = (0..200).map(|number| format!("s{number}")).collect();
        let tools: Vec<String> =
            (0..100).map(|number| format!("{}{number}", "t".repeat(number % 80))).collect();
        let taken: Vec<String> = (0..20_000).map(|number| format!("native{number}")).collect();
        let taken: Vec<&str> = taken.iter().map(String::as_str).collect();
        for prefixed in [true, false] {
            let wanted: Vec<_> = servers
                .iter()
                .flat_map(|server| tools.iter().map(move |tool| (server.as_str(), tool.as_str(), prefixed)))
                .collect();
            is_unique_and_short(&exposed(&wanted, &taken, 64), 64);
        }
    }
}
