//! What rules allow, deny and ask for.

use bridgehead_access::policy::{Policy, PolicyError};
use bridgehead_config::PolicyRule;
use bridgehead_gateway::{Action, Authorizer, Decision, Principal, PrincipalKind, Thing};

use crate::rule::{pattern, patterns, rule, thing, user};

#[track_caller]
fn check(policy: &Policy, principal: &Principal, action: Action, allowed: &[&str], denied: &[&str]) {
    for name in allowed {
        assert_ne!(policy.decide(principal, action, thing(name)), Decision::Deny, "{name} is denied");
    }
    for name in denied {
        assert_eq!(policy.decide(principal, action, thing(name)), Decision::Deny, "{name} is allowed");
    }
}

/// ACC-3 (case 21): any deny beats any allow, whatever the order and whomever the rules name; letter case does not matter.
#[test]
fn a_denial_beats_a_permission() {
    let allow =
        PolicyRule { tools: patterns(&["GitHub/*", "files/Read_*"]), ..rule(&["group:build", "key:ci"]) };
    let deny = PolicyRule { deny_tools: patterns(&["github/DELETE_*"]), ..rule(&["corp/ada"]) };
    for rules in [vec![allow.clone(), deny.clone()], vec![deny, allow]] {
        let policy = Policy::new(rules).unwrap();
        let ada = user("ada").in_groups(["build"]);
        let granted = ["github/get", "github/Create", "GITHUB/x", "files/read_a", "files/READ_b"];
        check(
            &policy,
            &ada,
            Action::Call,
            &granted,
            &["github/delete_repo", "github/Delete_Repo", "files/write"],
        );
        let ci = Principal::new("key:ci", PrincipalKind::Key);
        check(&policy, &ci, Action::Call, &["github/delete_repo"], &["files/write", "other/x"]);
        check(
            &policy,
            &user("eve"),
            Action::Call,
            &[],
            &["github/get", "files/read_a", "bridgehead/server_ping"],
        );
    }
}

/// ACC-3: without rules everything is allowed, with rules that only deny everything else is; once a rule allows something,
/// what no rule allows is denied, also of other kinds and to others.
#[test]
fn what_no_rule_speaks_of() {
    let open = Policy::new(Vec::new()).unwrap();
    check(&open, &user("ada"), Action::Call, &["a/b", "bridgehead/server_ping"], &[]);
    let deny =
        PolicyRule { deny_tools: patterns(&["a/b"]), deny_prompts: patterns(&["a/p"]), ..rule(&["corp/*"]) };
    let denying = Policy::new(vec![deny.clone()]).unwrap();
    check(&denying, &user("ada"), Action::Call, &["a/c", "a/p", "b/b"], &["a/b"]);
    check(&denying, &user("ada"), Action::Get, &["a/b"], &["a/p"]);
    check(&denying, &Principal::local(), Action::Call, &["a/b"], &[]);
    let allow = PolicyRule { prompts: patterns(&["a/*"]), ..rule(&["local"]) };
    let allowing = Policy::new(vec![deny, allow]).unwrap();
    check(&allowing, &user("ada"), Action::Call, &[], &["a/c", "b/b", "bridgehead/server_ping"]);
    check(&allowing, &Principal::local(), Action::Get, &["a/p"], &["b/p"]);
    check(&allowing, &Principal::local(), Action::Call, &[], &["a/p"]);
}

/// ACC-3: the gateway's own things belong to the server `bridgehead`; a pattern on the server does not reach into the name.
#[test]
fn a_pattern_has_a_server_and_a_name() {
    let allow = PolicyRule {
        tools: patterns(&["bridgehead/server_*", "*/delete_*", "s?/x", "a/[bc]"]),
        ..rule(&["*"])
    };
    let policy = Policy::new(vec![allow]).unwrap();
    let allowed = ["bridgehead/server_ping", "any/delete_x", "s1/x", "a/b", "A/C"];
    let denied = ["bridgehead/other", "any/path/delete_x", "other/server_ping", "s12/x", "a/d"];
    check(&policy, &user("ada"), Action::Call, &allowed, &denied);
}

/// ACC-3: `read_only` admits only tools that say that they change nothing, and other rules stay as they are.
#[test]
fn read_only_rules_admit_readers() {
    let reads = PolicyRule { tools: patterns(&["files/*"]), read_only: true, ..rule(&["*"]) };
    let writes = PolicyRule { tools: patterns(&["files/touch"]), ..rule(&["corp/ada"]) };
    let policy = Policy::new(vec![reads, writes]).unwrap();
    let decide = |who: &str, name, read_only| {
        policy.decide(&user(who), Action::Call, Thing { server: Some("files"), name, read_only })
    };
    assert_eq!(decide("eve", "cat", true), Decision::Allow);
    assert_eq!(decide("eve", "rm", false), Decision::Deny);
    assert_eq!(decide("eve", "touch", false), Decision::Deny);
    assert_eq!(decide("ada", "touch", false), Decision::Allow);
    assert_eq!(decide("ada", "rm", false), Decision::Deny);
}

/// ACC-3 (case 16): a tool that needs scopes is visible and needs all of them: those of every rule that speaks of the
/// principal. All scopes of all rules are known, each once.
#[test]
fn scopes_add_up() {
    let scopes = |written: &[(&str, &[&str])]| {
        written
            .iter()
            .map(|(on, needed)| (pattern(on), needed.iter().map(|one| (*one).to_owned()).collect()))
            .collect()
    };
    let policy = Policy::new(vec![
        PolicyRule {
            tools: patterns(&["git/*"]),
            scopes: scopes(&[("git/create_*", &["write", "read"])]),
            ..rule(&["*"])
        },
        PolicyRule {
            scopes: scopes(&[("git/*", &["read"]), ("git/create_repo", &["admin"])]),
            ..rule(&["corp/ada"])
        },
    ])
    .unwrap();
    let needed = |who: &str, name| match policy.decide(&user(who), Action::Call, thing(name)) {
        Decision::Scoped(scopes) => scopes.join(" "),
        other => format!("{other:?}"),
    };
    assert_eq!(needed("ada", "git/create_repo"), "admin read write");
    assert_eq!(needed("ada", "git/create_issue"), "read write");
    assert_eq!(needed("ada", "git/get"), "read");
    assert_eq!(needed("eve", "git/create_repo"), "read write");
    assert_eq!(needed("eve", "git/get"), "Allow");
    assert_eq!(needed("eve", "other/create_x"), "Deny");
    assert_eq!(policy.scopes(), ["admin", "read", "write"]);
    assert_eq!(policy.decide(&user("ada"), Action::Get, thing("git/create_x")), Decision::Deny);
}

/// ACC-3: a resource is decided by its URI as it is written and as a server may resolve it.
#[test]
fn a_uri_cannot_be_written_around_a_rule() {
    let policy = Policy::new(vec![PolicyRule {
        resources: patterns(&["files/file:///srv/**"]),
        deny_resources: patterns(&["files/file:///srv/secret*"]),
        ..rule(&["*"])
    }])
    .unwrap();
    let allowed = [
        "files/file:///srv/a",
        "files/file:///srv/a/b.txt",
        "files/FILE:///SRV/A",
        "files/file:///srv/a%20b",
        "files/file:///srv/a?page=2#top",
    ];
    let denied = [
        "files/file:///etc/passwd",
        "files/file:///srv/../etc/passwd",
        "files/file:///srv/%2e%2e/etc/passwd",
        "files/file:///srv/%252e%252e/etc/passwd",
        "files/file:///srv/secret",
        "files/file:///srv/%73ecret",
        "files/file:///srv//secret",
        "files/file:///srv/a/../Secret/x",
        "files/file:///srv/../etc/passwd?/../../srv/x",
        "files/file:///srv/../etc/passwd#/../../srv/x",
        "files/file:///srv/.\t./etc/passwd",
        "files/file:///srv/a/.\n./secret",
        "files/file:///srv/se\tcret",
        "files/file:///srv/se%09cret",
        "files/file:/srv/secret",
        "files/file://localhost/srv/secret",
        "files/file://srv/secret",
        "files/file:///srv/a?/../secret",
        "other/file:///srv/a",
    ];
    check(&policy, &user("ada"), Action::Read, &allowed, &denied);
    // A policy that only denies is passed around in the same ways.
    let open = Policy::new(vec![PolicyRule {
        deny_resources: patterns(&["files/file:///srv/secret*"]),
        ..rule(&["*"])
    }])
    .unwrap();
    let around = [
        "files/file:/srv/secret",
        "files/file://localhost/srv/secret",
        "files/file:///srv/x?/../secret",
        "files/file:///srv/secret?x",
        "files/file:///srv/se\rcret",
    ];
    check(&open, &user("ada"), Action::Read, &["files/file:///srv/a", "files/file:/srv/a"], &around);
}

/// ACC-3: a template is there if some resource that it stands for may be read.
#[test]
fn a_template_is_there_for_what_it_may_stand_for() {
    let policy = Policy::new(vec![PolicyRule {
        resources: patterns(&["files/file:///srv/**", "notes/note:*"]),
        deny_resources: patterns(&["files/file:///srv/secret/**", "notes/note:*"]),
        ..rule(&["*"])
    }])
    .unwrap();
    let allowed = ["files/file:///{+path}", "files/file:///srv/{name}", "files/File:///SRV/{name}"];
    let denied =
        ["files/file:///etc/{name}", "files/file:///srv/secret/{name}", "notes/note:{id}", "notes/{+any}"];
    check(&policy, &user("ada"), Action::ReadSome, &allowed, &denied);
    let open =
        Policy::new(vec![PolicyRule { deny_resources: patterns(&["a/x://b/*"]), ..rule(&["*"]) }]).unwrap();
    check(&open, &user("ada"), Action::ReadSome, &["a/x://{b}", "a/x://c/{d}"], &["a/x://b/{c}"]);
}

/// ACC-3 (case 25): the class of a principal is the set of rules that speak of it, so 10 000 principals have as many classes
/// as there are such sets.
#[test]
fn classes_are_sets_of_rules() {
    let rules = (0..1_000).map(|number| {
        let group = format!("group:g{}", number % 8);
        PolicyRule { tools: patterns(&[&format!("s{number}/*")]), ..rule(&[&group]) }
    });
    let policy = Policy::new(rules.collect()).unwrap();
    let class = |number: usize| {
        policy.class(&user(&format!("u{number}")).in_groups([format!("g{}", number % 8).as_str()]))
    };
    let mut classes: Vec<_> = (0..10_000).map(class).collect();
    classes.sort();
    classes.dedup();
    assert_eq!(classes.len(), 8);
    assert!(classes.iter().all(|class| class.len() < 512), "{classes:?}");
    assert_ne!(policy.class(&user("u")), classes[0]);
    assert_eq!(policy.class(&user("u")), policy.class(&user("v").in_groups(["unknown"])));
}

/// ACC-3: whether a principal might use something of a server is answered without knowing what the server has.
#[test]
fn servers_of_which_nothing_may_be_used() {
    let policy = Policy::new(vec![
        PolicyRule {
            tools: patterns(&["a/x_*", "*/ping"]),
            prompts: patterns(&["b/*"]),
            ..rule(&["corp/ada"])
        },
        PolicyRule { tools: patterns(&["c/*"]), deny_tools: patterns(&["c/*"]), ..rule(&["*"]) },
        PolicyRule { deny_prompts: patterns(&["d/x"]), ..rule(&["*"]) },
    ])
    .unwrap();
    let may = |who: &str, action, server: &str| policy.may_use(&user(who), action, Some(server));
    assert!(may("ada", Action::Call, "a") && may("ada", Action::Call, "A") && may("ada", Action::Call, "z"));
    assert!(may("ada", Action::Get, "b") && !may("ada", Action::Get, "a") && !may("ada", Action::Read, "a"));
    assert!(!may("ada", Action::Call, "c"), "all of it is denied");
    assert!(!may("eve", Action::Call, "a") && !may("eve", Action::Get, "b"));
    assert!(
        policy.may_use(&user("ada"), Action::Call, None) && !policy.may_use(&user("eve"), Action::Call, None)
    );
    let denying =
        Policy::new(vec![PolicyRule { deny_tools: patterns(&["a/*", "b/x"]), ..rule(&["*"]) }]).unwrap();
    assert!(!denying.may_use(&user("ada"), Action::Call, Some("a")));
    assert!(denying.may_use(&user("ada"), Action::Call, Some("b")));
}

/// ACC-3: rules are replaced in one step; the digest tells whether they say something else, wherever they stand.
#[test]
fn rules_are_replaced() {
    let first = PolicyRule { tools: patterns(&["a/*"]), ..rule(&["*"]) };
    let policy = Policy::new(vec![first.clone()]).unwrap();
    let (digest, class) = (policy.digest(), policy.class(&user("ada")));
    assert_eq!(digest.len(), 64);
    assert_eq!(policy.replace(vec![PolicyRule { line: 7, ..first.clone() }]), Ok(false));
    assert_eq!((policy.digest(), policy.class(&user("ada"))), (digest.clone(), class.clone()));
    check(&policy, &user("ada"), Action::Call, &["a/x"], &["b/x"]);
    let bad = policy.replace(vec![PolicyRule { line: 3, tools: patterns(&["b/x["]), ..first.clone() }]);
    let expected =
        PolicyError { line: 3, pattern: "b/x[".to_owned(), reason: bad.clone().unwrap_err().reason };
    assert_eq!(bad, Err(expected));
    check(&policy, &user("ada"), Action::Call, &["a/x"], &["b/x"]);
    assert_eq!(policy.replace(vec![PolicyRule { read_only: true, ..first.clone() }]), Ok(true));
    assert_eq!(policy.replace(vec![PolicyRule { tools: patterns(&["b/*"]), ..first }]), Ok(true));
    check(&policy, &user("ada"), Action::Call, &["b/x"], &["a/x"]);
    assert!(policy.digest() != digest && policy.class(&user("ada")) != class);
}
