//! Whom rules speak of.

use std::collections::HashMap;

use bridgehead_config::{PolicyRule, Who};
use bridgehead_gateway::{Principal, PrincipalKind};

/// The rules by whom they speak of, so that finding those of a principal takes a look-up for its id and for each of its
/// groups, however many rules there are.
#[derive(Debug)]
pub(super) struct WhoIndex {
    rules: HashMap<Who, Vec<usize>>,
    count: usize,
    own_user: u32,
}

/// A set of rules, by their places in the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RuleSet(Box<[u64]>);

impl RuleSet {
    /// A set without rules, of `count` possible ones.
    pub(super) fn empty(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)].into())
    }

    /// Adds a rule.
    pub(super) fn add(&mut self, rule: usize) {
        self.0[rule / 64] |= 1 << (rule % 64);
    }

    /// Whether a rule is in it.
    pub(super) fn has(&self, rule: usize) -> bool {
        self.0.get(rule / 64).is_some_and(|word| word & (1 << (rule % 64)) != 0)
    }

    /// The set as a text.
    pub(super) fn name(&self) -> String {
        self.0.iter().map(|word| format!("{word:x}")).collect::<Vec<_>>().join(".")
    }
}

impl WhoIndex {
    pub(super) fn new(rules: &[PolicyRule]) -> Self {
        let mut index: HashMap<Who, Vec<usize>> = HashMap::new();
        for (number, rule) in rules.iter().enumerate() {
            for who in &rule.who {
                index.entry(who.clone()).or_default().push(number);
            }
        }
        Self { rules: index, count: rules.len(), own_user: own_user() }
    }

    /// The rules that speak of a principal.
    pub(super) fn of(&self, principal: &Principal) -> RuleSet {
        let mut found = RuleSet::empty(self.count);
        for who in names(principal, self.own_user) {
            self.rules.get(&who).into_iter().flatten().for_each(|rule| found.add(*rule));
        }
        found
    }
}

/// Everything that rules may call a principal: those words of which [`Principal::is`] says that they mean it.
fn names(principal: &Principal, own_user: u32) -> Vec<Who> {
    let id = principal.as_str();
    let after = |prefix: &str| id.strip_prefix(prefix).map(str::to_owned);
    let mut names = vec![Who::Everyone];
    match principal.kind() {
        PrincipalKind::Local => {
            let user = after("local:").and_then(|user| user.parse().ok());
            names.extend(user.map(Who::LocalUser));
            names.extend((user == Some(own_user)).then_some(Who::Local));
        }
        PrincipalKind::Token => names.extend((id == "token").then_some(Who::Token)),
        PrincipalKind::Key => names.extend(after("key:").map(Who::Key)),
        PrincipalKind::Proxy => names.extend(after("proxy:").map(Who::Proxy)),
        PrincipalKind::Issuer => {
            if let Some((issuer, subject)) = id.split_once('/') {
                let of =
                    |subject: &str| Who::Subject { issuer: issuer.to_owned(), subject: subject.to_owned() };
                names.push(of("*"));
                names.extend((subject != "*").then(|| of(subject)));
            }
        }
        _ => {}
    }
    names.extend(principal.groups().map(|group| Who::Group(group.to_owned())));
    names
}

/// The user that runs this program.
fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(issuer: &str, subject: &str) -> Who {
        Who::Subject { issuer: issuer.to_owned(), subject: subject.to_owned() }
    }

    /// ACC-3: each kind of principal is meant by its own words only: a name means nothing without its kind.
    #[test]
    fn whom_a_word_means() {
        let own = own_user();
        let all = [
            Who::Everyone,
            Who::Local,
            Who::LocalUser(own),
            Who::LocalUser(own + 1),
            Who::Token,
            Who::Key("ci".to_owned()),
            Who::Key("ada".to_owned()),
            Who::Group("build".to_owned()),
            subject("corp", "ada"),
            subject("corp", "*"),
            subject("other", "ada"),
            Who::Proxy("ada".to_owned()),
        ];
        let check = |principal: Principal, expected: &[&str]| {
            let meant: Vec<String> =
                all.iter().filter(|who| principal.is(who)).map(ToString::to_string).collect();
            let expected: Vec<&str> = [&["*"], expected].concat();
            assert_eq!(meant, expected, "{principal}");
            let rule =
                |who: &Who| PolicyRule { who: vec![who.clone()], ..super::super::rules::tests::rule() };
            let index = WhoIndex::new(&all.iter().map(rule).collect::<Vec<_>>());
            let found = index.of(&principal);
            let found: Vec<String> = all
                .iter()
                .enumerate()
                .filter(|(at, _)| found.has(*at))
                .map(|(_, who)| who.to_string())
                .collect();
            assert_eq!(found, expected, "{principal}, by the index");
        };
        let (me, other) = (format!("local:{own}"), format!("local:{}", own + 1));
        check(Principal::local(), &["local", &me]);
        check(Principal::new(&me, PrincipalKind::Local), &["local", &me]);
        check(Principal::new(&other, PrincipalKind::Local), &[&other]);
        check(Principal::new("token", PrincipalKind::Token), &["token"]);
        check(Principal::new("key:ci", PrincipalKind::Key).in_groups(["build"]), &["key:ci", "group:build"]);
        check(Principal::new("corp/ada", PrincipalKind::Issuer), &["corp/ada", "corp/*"]);
        check(Principal::new("corp/*", PrincipalKind::Issuer), &["corp/*"]);
        check(Principal::new("corp/key:ci", PrincipalKind::Issuer), &["corp/*"]);
        check(Principal::new("other/ada", PrincipalKind::Issuer), &["other/ada"]);
        check(
            Principal::new("corp/ada", PrincipalKind::Issuer).in_groups(["other", "build"]),
            &["group:build", "corp/ada", "corp/*"],
        );
        check(Principal::new("proxy:ada", PrincipalKind::Proxy), &["proxy:ada"]);
        check(
            Principal::new("proxy:ada", PrincipalKind::Proxy).in_groups(["build"]),
            &["group:build", "proxy:ada"],
        );
        check(Principal::named("other").in_groups(["build"]), &["group:build"]);
        check(Principal::new("ada", PrincipalKind::Key), &[]);
        check(Principal::new("key:ci", PrincipalKind::Proxy), &[]);
        check(Principal::new("local", PrincipalKind::Issuer), &[]);
        check(Principal::named("other"), &[]);
    }

    /// Rules beyond the first word of the set are found too.
    #[test]
    fn a_set_has_what_was_added() {
        let mut set = RuleSet::empty(130);
        [0, 63, 64, 129].into_iter().for_each(|rule| set.add(rule));
        let found: Vec<usize> = (0..200).filter(|rule| set.has(*rule)).collect();
        assert_eq!(found, [0, 63, 64, 129]);
        assert_eq!(set.name(), "8000000000000001.1.2");
        assert_ne!(set, RuleSet::empty(130));
    }
}
