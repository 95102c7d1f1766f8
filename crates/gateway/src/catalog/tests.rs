//! Tests of merging, without servers: handles to servers that cannot start, and made-up lists.

use std::collections::HashSet;

use bridgehead_config::{GatewaySettings, Launch, ServerConfig};
use bridgehead_upstream::{RestartPolicy, Surroundings};
use serde_json::{Value, json};

use super::*;
use crate::catalog::offers::Offer;
use crate::catalog::pages::PAGE;

const SHAPE: Shape =
    Shape { mode: Mode::Full, prefix: Prefix::Auto, name_limit: 64, uris: ResourceUris::Keep };

fn upstream(name: &str) -> Upstream {
    let launch = Launch::Unusable { reason: "not for real".to_owned() };
    start(ServerConfig::new(name.parse().unwrap(), launch, &GatewaySettings::default()))
}

pub(crate) fn start(server: ServerConfig) -> Upstream {
    Upstream::start(
        server,
        Surroundings {
            environment: Arc::default(),
            limit: 1,
            credentials: None,
            changed: Arc::default(),
            notices: None,
            warm_up: Arc::new(tokio::sync::Semaphore::new(1)),
            signals: bridgehead_events::Signals::default(),
            records: bridgehead_upstream::ServerRecords::default(),
            shelf: None,
            policy: RestartPolicy::REGISTRY,
        },
    )
}

fn tool(name: &str, definition: &Value) -> Arc<Tool> {
    let mut definition = definition.clone();
    definition["name"] = json!(name);
    Arc::new(Tool {
        name: name.to_owned(),
        read_only: definition["annotations"]["readOnlyHint"] == true,
        instructions: definition["instructions"].as_str().map(str::to_owned),
        definition: Raw::encode(&definition),
        validator: None,
        headers: Arc::new([]),
        idempotent: false,
        output: OnceLock::new(),
        held: None,
    })
}

fn share(upstream: &Upstream, tools: &[(&str, Value)]) -> Arc<Share> {
    let tools = tools.iter().map(|(name, definition)| tool(name, definition)).collect();
    Arc::new(Share::new(upstream, tools, None, true, &HashSet::new(), &Queues::default()))
}

fn many(upstream: &Upstream, tools: usize, description: &str) -> Arc<Share> {
    let names: Vec<String> = (0..tools).map(|number| format!("t{number}")).collect();
    let tools: Vec<(&str, Value)> =
        names.iter().map(|name| (name.as_str(), json!({"description": description}))).collect();
    share(upstream, &tools)
}

fn offers(shares: &[Arc<Share>]) -> Offers {
    let all = shares.iter().map(|share| Offer { share: Arc::clone(share), listed: true }).collect();
    Offers { all, servers: shares.len(), ..Offers::default() }
}

fn merge(shape: Shape, offers: &Offers, before: Option<&Catalog>) -> Catalog {
    Catalog::merge(shape, &Natives::default(), offers, &Raw::literal("{}"), before)
}

fn names(catalog: &Catalog) -> Vec<&str> {
    catalog.listed().map(|route| &*route.name).collect()
}

/// All pages, as a client follows them.
fn follow(catalog: &Catalog, era: Revision) -> Vec<Value> {
    let mut pages: Vec<Value> = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page: Value = catalog.list(era, cursor.as_deref()).unwrap().to_raw().decode().unwrap();
        cursor = page["nextCursor"].as_str().map(str::to_owned);
        pages.push(page);
        if cursor.is_none() {
            return pages;
        }
    }
}

#[track_caller]
fn check_pages(servers: usize, tools: usize, expected: &[usize]) {
    let shares: Vec<_> =
        (0..servers).map(|number| many(&upstream(&format!("s{number}")), tools, "")).collect();
    let catalog = merge(SHAPE, &offers(&shares), None);
    for era in [Revision::LATEST_LEGACY, Revision::MODERN] {
        let pages = follow(&catalog, era);
        let sizes: Vec<usize> = pages.iter().map(|page| page["tools"].as_array().unwrap().len()).collect();
        assert_eq!(sizes, expected);
        let all: Vec<&str> = pages
            .iter()
            .flat_map(|page| page["tools"].as_array().unwrap())
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        assert_eq!(all, names(&catalog), "every tool once, in order");
        let scopes: HashSet<String> = pages.iter().map(|page| page["cacheScope"].to_string()).collect();
        assert_eq!(scopes.len(), 1);
    }
}

/// CAT-6: one page up to 1 000 tools, paged beyond, in both eras.
#[tokio::test]
async fn lists_are_paged_beyond_a_thousand() {
    check_pages(0, 0, &[0]);
    check_pages(4, 250, &[PAGE]);
    check_pages(7, 143, &[PAGE, 1]);
    check_pages(5, 500, &[PAGE, PAGE, 500]);
}

/// CAT-6: a cursor is valid for its list only, including other catalogs with the same list.
#[tokio::test]
async fn cursors_belong_to_a_list() {
    let (one, other) = (upstream("one"), upstream("other"));
    let shares = [many(&one, 900, ""), many(&other, 900, "")];
    let first = merge(SHAPE, &offers(&shares), None);
    let page: Value = first.list(Revision::MODERN, None).unwrap().to_raw().decode().unwrap();
    let cursor = page["nextCursor"].as_str().unwrap();
    assert!(first.list(Revision::LATEST_LEGACY, Some(cursor)).is_some());
    assert!(first.list(Revision::LATEST_LEGACY, Some("")).is_none());
    let still = Offers { starting: vec!["x".into()], ..offers(&shares) };
    let still = merge(SHAPE, &still, Some(&first));
    assert!(still.changed(&first).is_empty() && still.list(Revision::MODERN, Some(cursor)).is_some());
    let again = merge(SHAPE, &offers(&shares), None);
    assert!(again.list(Revision::MODERN, Some(cursor)).is_some(), "the same list in another process");
    let changed = merge(SHAPE, &offers(&[many(&one, 900, ""), many(&other, 900, "new")]), Some(&first));
    assert!(!changed.changed(&first).is_empty());
    assert!(changed.list(Revision::MODERN, Some(cursor)).is_none());
    let restored = merge(SHAPE, &offers(&[many(&one, 900, ""), many(&other, 900, "")]), Some(&changed));
    assert!(restored.list(Revision::MODERN, Some(cursor)).is_some());
}

/// CAT-6: 20 000 tools on 200 upstreams; refreshing one upstream keeps every route of the others.
#[tokio::test]
async fn a_refresh_touches_one_upstream() {
    let upstreams: Vec<Upstream> = (0..200).map(|number| upstream(&format!("s{number}"))).collect();
    let mut shares: Vec<_> = upstreams.iter().map(|upstream| many(upstream, 100, "")).collect();
    let before = merge(SHAPE, &offers(&shares), None);
    assert_eq!((before.routes.len(), follow(&before, Revision::MODERN).len()), (20_000, 20));
    shares[77] = many(&upstreams[77], 101, "grown");
    let after = merge(SHAPE, &offers(&shares), Some(&before));
    assert_eq!(names(&after).len(), 20_001);
    for (name, route) in &after.routes {
        let kept = before.route(name).is_some_and(|old| Arc::ptr_eq(old, route));
        assert_eq!(kept, !name.starts_with("s77__"), "{name}");
    }
    for (position, (old, new)) in before.groups.iter().zip(&after.groups).enumerate().take(200) {
        assert_eq!(Arc::ptr_eq(&old.summary, &new.summary), position != 77);
    }
    let same = merge(SHAPE, &offers(&shares), Some(&after));
    assert!(same.changed(&after).is_empty());
}

/// CAT-3, CAT-6: tools that collide are renamed and rendered again; other tools of the same server are not.
/// When the other server leaves, the plain name returns.
#[tokio::test]
async fn a_collision_renames_only_those_it_meets() {
    let (left, right) = (upstream("a"), upstream("a__b"));
    let left = share(&left, &[("b__c", json!({})), ("d", json!({}))]);
    let right = share(&right, &[("c", json!({}))]);
    let alone = merge(SHAPE, &offers(&[Arc::clone(&left)]), None);
    assert_eq!((names(&alone), alone.renamed().len()), (vec!["a__b__c", "a__d"], 0));
    let both = merge(SHAPE, &offers(&[Arc::clone(&left), right]), Some(&alone));
    assert_eq!(names(&both), ["a__b__c_bbeb6ab7", "a__d", "a__b__c_089a7a89"]);
    assert_eq!(both.renamed().len(), 2);
    assert!(Arc::ptr_eq(both.route("a__d").unwrap(), alone.route("a__d").unwrap()));
    for name in names(&both) {
        let listed: Value = both.route(name).unwrap().definition.decode().unwrap();
        assert_eq!(listed["name"], name);
    }
    let again = merge(SHAPE, &offers(&[left]), Some(&both));
    assert_eq!(names(&again), names(&alone));
}

/// SRV-5, CAT-6: hidden and unlisted tools are on no page but can be looked up.
#[tokio::test]
async fn hidden_and_unlisted_tools_are_known() {
    let reader = upstream("r");
    let shares = [
        share(&reader, &[("get", json!({"annotations": {"readOnlyHint": true}})), ("put", json!({}))]),
        share(&upstream("gone"), &[("get", json!({"annotations": {"readOnlyHint": true}}))]),
    ];
    let mut offered = offers(&shares);
    offered.all[1].listed = false;
    let catalog = merge(Shape { mode: Mode::Readonly, ..SHAPE }, &offered, None);
    assert_eq!((names(&catalog), catalog.hidden), (vec!["r__get"], 1));
    assert_eq!(catalog.route("r__put").unwrap().excluded_by, Some(Mode::Readonly));
    assert!(catalog.route("gone__get").is_some());
}

/// CAT-5: one text over the servers that are listed, under the offered names; prepared once.
#[tokio::test]
async fn instructions_of_all_servers() {
    let said = |name: &str, own: Option<&str>, words: &str| {
        let tools = vec![tool("t", &json!({"instructions": words})), tool("quiet", &json!({}))];
        Arc::new(Share::new(
            &upstream(name),
            tools,
            own.map(str::to_owned),
            true,
            &HashSet::new(),
            &Queues::default(),
        ))
    };
    let silent = merge(SHAPE, &offers(&[said("s", None, "")]), None);
    assert_eq!(silent.instructions(), None);
    let mut offered = offers(&[
        said("a", Some("Hello."), "Once."),
        said("b", None, "Twice."),
        said("c", Some("Gone."), ""),
    ]);
    offered.all[2].listed = false;
    let catalog = merge(SHAPE, &offered, None);
    let text = catalog.instructions().unwrap();
    assert_eq!(
        text.to_text().unwrap(),
        "#### MCP Server: a\n\nHello.\n\n##### Tool: a__t\n\nOnce.\n\n\
         #### MCP Server: b\n\n##### Tool: b__t\n\nTwice."
    );
    assert!(std::ptr::eq(text, catalog.instructions().unwrap()));
}

/// A tool lock outlives its catalog: otherwise a waiting call would run beside a later one.
#[tokio::test]
async fn turns_are_kept() {
    let mut server = ServerConfig::new(
        "m".parse().unwrap(),
        Launch::Unusable { reason: String::new() },
        &GatewaySettings::default(),
    );
    server.tools.entry("t".to_owned()).or_default().lock = Some(true);
    let upstream = start(server);
    let before = merge(SHAPE, &offers(&[share(&upstream, &[("t", json!({}))])]), None);
    let after = merge(SHAPE, &offers(&[share(&upstream, &[("t", json!({"new": 1}))])]), Some(&before));
    let lock = |catalog: &Catalog| catalog.route("m__t").unwrap().lock.clone().unwrap();
    assert!(Arc::ptr_eq(&lock(&before), &lock(&after)));
}

/// The route of the only Rust tool.
pub(crate) fn of_native(natives: &Natives) -> Arc<Route> {
    let catalog = Catalog::merge(SHAPE, natives, &offers(&[]), &Raw::literal("{}"), None);
    Arc::clone(catalog.listed().next().unwrap())
}

fn items(names: &[&str]) -> bridgehead_upstream::Items {
    let item = |name: &&str| {
        let definition = Raw::encode(&json!({"name": name, "uri": name, "uriTemplate": name}));
        Arc::new(bridgehead_upstream::Item { name: (*name).to_owned(), definition, held: None })
    };
    names.iter().map(item).collect()
}

/// A share with these prompts, resources and templates.
fn share_of_items(
    upstream: &Upstream,
    queues: &Queues,
    [prompts, resources, templates]: [&[&str]; 3],
) -> Share {
    let mut share = Share::new(upstream, Vec::new(), None, true, &HashSet::new(), queues);
    (share.prompts, share.resources, share.templates) = (items(prompts), items(resources), items(templates));
    share
}

/// ERA-1, CAT-6: unchanged items are reused from the previous merge; a change is reported for the list that
/// it concerns, and only that list is merged again.
#[tokio::test]
async fn lists_of_items_follow_their_servers() {
    let (upstreams, queues) = ([upstream("a"), upstream("b")], Queues::default());
    let three: [&[&str]; 3] = [&["p"], &["x://r"], &["x://{t}"]];
    let [one, other] =
        [&upstreams[0], &upstreams[1]].map(|upstream| Arc::new(share_of_items(upstream, &queues, three)));
    let both = [Arc::clone(&one), Arc::clone(&other)];
    let before = merge(SHAPE, &offers(&both), None);
    let taken_over = |after: &Catalog| {
        [
            Arc::ptr_eq(&after.prompts, &before.prompts),
            Arc::ptr_eq(&after.resources, &before.resources),
            Arc::ptr_eq(&after.templates, &before.templates),
        ]
    };
    let check = |what: &str, offers: &Offers, taken: [bool; 3], changed: Changed| {
        let after = merge(SHAPE, offers, Some(&before));
        assert_eq!(taken_over(&after), taken, "{what}");
        assert_eq!(after.changed(&before), changed, "{what}");
        after
    };
    check("nothing is new", &offers(&both), [true; 3], Changed::NONE);
    check(
        "one is starting",
        &Offers { starting: vec!["x".into()], ..offers(&both) },
        [false; 3],
        Changed::NONE,
    );
    check("one is gone", &offers(&both[..1]), [false; 3], Changed::PROMPTS);
    let mut unlisted = offers(&both);
    unlisted.all[1].listed = false;
    check("one is not listed", &unlisted, [false; 3], Changed::PROMPTS);
    check(
        "the order is another",
        &offers(&[Arc::clone(&other), Arc::clone(&one)]),
        [false; 3],
        Changed::PROMPTS,
    );
    let new = |change: fn(&mut Share)| {
        let mut share = share_of_items(&upstreams[1], &queues, three);
        [&mut share.prompts, &mut share.resources, &mut share.templates]
            .into_iter()
            .zip([&other.prompts, &other.resources, &other.templates])
            .for_each(|(new, known)| *new = Arc::clone(known));
        change(&mut share);
        offers(&[Arc::clone(&one), Arc::new(share)])
    };
    let with_prompt = check(
        "another prompt",
        &new(|share| share.prompts = items(&["p", "q"])),
        [false, true, true],
        Changed::PROMPTS,
    );
    let listed: Vec<&str> = with_prompt.prompts.listed().map(|entry| &*entry.name).collect();
    assert_eq!(listed, ["a__p", "b__p", "b__q"]);
    check(
        "another resource",
        &new(|share| share.resources = items(&["y://r"])),
        [true, false, true],
        Changed::RESOURCES,
    );
    check(
        "another template",
        &new(|share| share.templates = items(&["y://{t}"])),
        [true, true, false],
        Changed::RESOURCES,
    );
    let told = check(
        "it supports subscriptions now",
        &new(|share| share.features.subscribe = true),
        [false; 3],
        Changed::NONE,
    );
    let entry = |catalog: &Catalog, name: &str| Arc::clone(catalog.prompts.get(name).unwrap());
    let owner = |catalog: &Catalog, name: &str| match &entry(catalog, name).target {
        ItemTarget::Server { owner, .. } => owner.clone(),
        ItemTarget::Native(_) => panic!("{name} belongs to a server"),
    };
    assert!(owner(&told, "b__p").features.subscribe, "requests use the current features of the server");
    assert!(
        Arc::ptr_eq(&entry(&told, "a__p"), &entry(&before, "a__p")),
        "an unchanged server keeps its entries"
    );
    let elsewhere = share_of_items(&upstream("b"), &Queues::default(), three);
    let elsewhere = merge(SHAPE, &offers(&[Arc::clone(&one), Arc::new(elsewhere)]), Some(&before));
    assert!(!owner(&elsewhere, "b__p").upstream.is(&upstreams[1]), "another server with the same name");
}
