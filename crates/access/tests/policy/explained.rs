//! What is explained is what is enforced.

use bridgehead_access::policy::{Policy, Verdict};
use bridgehead_config::{PolicyRule, ThingPattern};
use bridgehead_gateway::{Action, Authorizer, Decision, Principal, PrincipalKind, Thing};
use proptest::prelude::*;

use crate::rule::{pattern, patterns, rule, thing, user};

/// ACC-4 (case 23): an explanation names the line, the word that means the principal, the key and the pattern.
#[test]
fn an_explanation_names_its_rule() {
    let policy = Policy::new(vec![
        PolicyRule { line: 3, tools: patterns(&["git/*"]), read_only: true, ..rule(&["*"]) },
        PolicyRule { line: 9, deny_tools: patterns(&["git/delete_*"]), ..rule(&["key:ci", "group:build"]) },
        PolicyRule {
            line: 14,
            tools: patterns(&["git/push"]),
            scopes: vec![(pattern("git/p*"), vec!["w".to_owned()])],
            ..rule(&["corp/ada"])
        },
    ])
    .unwrap();
    let ada = user("ada").in_groups(["build"]);
    let explain = |name| policy.explain(&ada, Action::Call, thing(name));
    let denied = explain("git/delete_repo");
    assert!(matches!(&denied.verdict, Verdict::Denied(rule) if rule.line == 9), "{denied:?}");
    assert_eq!(
        denied.to_string(),
        "the rule on line 9 (`deny_tools` for `group:build`: `git/delete_*`) denies it"
    );
    assert_eq!(policy.why_denied(&ada, Action::Call, thing("git/delete_repo")), denied.to_string());
    let pushed = explain("git/push");
    assert_eq!(pushed.to_string(), "the rule on line 14 (`tools` for `corp/ada`: `git/push`) allows it");
    assert_eq!((pushed.scopes.as_slice(), pushed.is_allowed()), (&["w".to_owned()][..], true));
    assert_eq!(pushed.rule().map(|rule| rule.line), Some(14));
    let writes = explain("git/commit");
    assert!(matches!(&writes.verdict, Verdict::NotReadOnly(rule) if rule.line == 3) && !writes.is_allowed());
    assert!(
        writes
            .to_string()
            .starts_with("the rule on line 3 (`tools` for `*`: `git/*`) allows tools that only read")
    );
    let nothing = explain("other/x");
    assert_eq!(
        (nothing.to_string().as_str(), nothing.is_allowed(), nothing.rule()),
        ("no rule allows it", false, None)
    );
    let open = Policy::new(Vec::new()).unwrap().explain(&ada, Action::Call, thing("a/b"));
    assert_eq!((open.to_string().as_str(), open.is_allowed()), ("no rule denies it", true));
}

const SERVERS: [&str; 4] = ["git", "Files", "bridgehead", "g"];
const NAMES: [&str; 9] =
    ["get", "GET_all", "delete_a", "delete_", "x", "a://srv/a", "a://srv/../a", "a://{+b}", "a://srv/{b}"];
const SERVER_PATTERNS: [&str; 6] = ["git", "FILES", "*", "g*", "bridgehead", "[gx]"];
const NAME_PATTERNS: [&str; 12] =
    ["*", "get", "GET*", "delete_*", "*_a", "?", "{get,x}", "a://**", "a://srv/**", "a://a", "*e*", "[a-e]*"];
const WHO: [&str; 6] = ["*", "corp/ada", "corp/*", "key:ci", "group:build", "local"];

fn some_patterns() -> impl Strategy<Value = Vec<ThingPattern>> {
    let one = (0..SERVER_PATTERNS.len(), 0..NAME_PATTERNS.len())
        .prop_map(|(server, name)| pattern(&format!("{}/{}", SERVER_PATTERNS[server], NAME_PATTERNS[name])));
    prop::collection::vec(one, 0..3)
}

prop_compose! {
    fn some_rule()(
        who in prop::collection::vec(0..WHO.len(), 1..3),
        allowed in [some_patterns(), some_patterns(), some_patterns()],
        denied in [some_patterns(), some_patterns(), some_patterns()],
        scoped in some_patterns(),
        read_only: bool,
        line in 1..1_000_usize,
    ) -> PolicyRule {
        let who: Vec<&str> = who.into_iter().map(|at| WHO[at]).collect();
        let ([tools, prompts, resources], [deny_tools, deny_prompts, deny_resources]) = (allowed, denied);
        let scopes = scoped.into_iter().enumerate();
        let scopes = scopes.map(|(at, on)| (on, vec![format!("s{at}"), format!("l{line}")])).collect();
        PolicyRule {
            tools, prompts, resources, deny_tools, deny_prompts, deny_resources, scopes, read_only, line, ..rule(&who)
        }
    }
}

fn principals() -> Vec<Principal> {
    let key = Principal::new("key:ci", PrincipalKind::Key);
    vec![
        user("ada"),
        user("eve").in_groups(["build"]),
        key.in_groups(["x"]),
        Principal::local(),
        Principal::named("token"),
    ]
}

/// Somebody who does something with something.
fn some_use() -> impl Strategy<Value = (usize, usize, usize, usize)> {
    (0..principals().len(), 0..ACTIONS.len(), 0..SERVERS.len(), 0..NAMES.len())
}

const ACTIONS: [(Action, bool); 5] = [
    (Action::Call, false),
    (Action::Call, true),
    (Action::Get, true),
    (Action::Read, true),
    (Action::ReadSome, true),
];

proptest! {
    /// ACC-4 (case 24): for every principal, action and thing, `explain` says what the gateway enforces, when it asks about
    /// one thing and when it prepares a view; and a server of which nothing may be used has nothing that may be.
    #[test]
    fn explain_is_enforcement(
        rules in prop::collection::vec(some_rule(), 0..5),
        uses in prop::collection::vec(some_use(), 12),
    ) {
        let policy = Policy::new(rules).unwrap();
        let principals = principals();
        for (principal, action, server, name) in uses {
            let (principal, (action, read_only)) = (&principals[principal], ACTIONS[action]);
            let server = Some(SERVERS[server]).filter(|server| *server != "bridgehead");
            let thing = Thing { server, name: NAMES[name], read_only };
            let explained = policy.explain(principal, action, thing);
            let expected = match (explained.is_allowed(), explained.scopes.as_slice()) {
                (false, _) => Decision::Deny,
                (true, []) => Decision::Allow,
                (true, scopes) => Decision::Scoped(scopes.iter().map(|scope| scope.as_str().into()).collect()),
            };
            let context = format!("{principal} {action:?} {thing:?}: {explained:?}");
            prop_assert_eq!(&policy.decide(principal, action, thing), &expected, "{}", context);
            prop_assert_eq!(&policy.decide_for(principal)(action, thing), &expected, "{}, prepared", context);
            match expected {
                Decision::Deny => {
                    prop_assert_eq!(policy.why_denied(principal, action, thing), explained.to_string());
                }
                _ => prop_assert!(policy.may_use(principal, action, server), "{}", context),
            }
        }
    }
}
