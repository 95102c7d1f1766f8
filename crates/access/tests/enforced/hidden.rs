//! What a principal may not use is not there.

use std::time::Duration;

use bridgehead_config::PolicyRule;
use bridgehead_gateway::Principal;
use bridgehead_testkit::{Behaviour, Initialize, Mock};
use bridgehead_wire::Revision;
use serde_json::{Value, json};

use crate::world::{Client, LEGACY, MODERN, World, colour, decoded, on, rule, soon, user};

/// A server with two of everything.
pub(crate) fn both() -> Mock {
    let said = || Behaviour::Text("said".to_owned());
    Mock::legacy()
        .capabilities(
            r#"{"tools":{},"prompts":{},"resources":{"subscribe":true},"completions":{},"logging":{},"experimental":{"x":{}}}"#,
        )
        .instructions("Call blue_tool after red_tool.")
        .tool("red_tool", said())
        .tool("blue_tool", said())
        .tool(
            "red_news",
            Behaviour::tell_aside(
                "notifications/resources/updated",
                r#"{"uri":"red://dir/blue"}"#,
                Behaviour::tell_aside("notifications/resources/updated", r#"{"uri":"red://dir/x"}"#, said()),
            ),
        )
        .tool(
            "red_log",
            Behaviour::tell_aside(
                "notifications/message",
                r#"{"level":"error","data":"blue_tool was called"}"#,
                Behaviour::tell_aside("notifications/message", r#"{"level":"error","data":"all is well"}"#, said()),
            ),
        )
        .replies("prompts/list", r#"{"prompts":[{"name":"red_prompt"},{"name":"blue_prompt"}]}"#)
        .replies("prompts/get", r#"{"messages":[]}"#)
        .replies(
            "resources/list",
            r#"{"resources":[{"uri":"red://1","name":"r"},{"uri":"blue://1","name":"b"},{"uri":"red://dir","name":"d"}]}"#,
        )
        .replies(
            "resources/templates/list",
            r#"{"resourceTemplates":[{"uriTemplate":"red://t/{x}","name":"r"},{"uriTemplate":"blue://t/{x}","name":"b"}]}"#,
        )
        .replies("resources/read", r#"{"contents":[]}"#)
        .replies("resources/subscribe", "{}")
        .replies("logging/setLevel", "{}")
        .replies("completion/complete", r#"{"completion":{"values":["x"]}}"#)
}

pub(crate) fn rules() -> Vec<PolicyRule> {
    vec![colour("ada", 3, "red"), colour("eve", 9, "blue")]
}

fn without_id(error: &Value, name: &str) -> String {
    let mut error = error.clone();
    if let Some(data) = error["data"].as_object_mut() {
        data.remove("correlationId");
    }
    error.to_string().replace(name, "NAME")
}

/// Every way to name something: method, params and the name in them.
fn uses(colour: &str) -> Vec<(&'static str, Value, String)> {
    let (tool, prompt) = (format!("{colour}_tool"), format!("{colour}_prompt"));
    let (uri, template) = (format!("{colour}://1"), format!("{colour}://t/{{x}}"));
    let concrete = format!("{colour}://t/7");
    let argument = json!({"name": "x", "value": ""});
    vec![
        ("tools/call", json!({"name": tool, "arguments": {}}), tool),
        ("prompts/get", json!({"name": prompt}), prompt.clone()),
        ("resources/read", json!({"uri": uri}), uri),
        ("resources/read", json!({"uri": concrete}), concrete),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": prompt}, "argument": argument}),
            prompt,
        ),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/resource", "uri": template}, "argument": argument}),
            template,
        ),
    ]
}

/// ACC-3 (case 17): two principals have disjoint lists on every surface, in both eras, interleaved; what is the other's
/// is answered byte for byte like what does not exist.
#[tokio::test]
async fn two_principals_share_nothing() {
    let world = World::start(&[("m", both())], rules());
    world.settled().await;
    for revision in [LEGACY, MODERN, Revision::V2025_03_26] {
        let clients = [
            ("red", "blue", Client::new(&user("ada"), revision)),
            ("blue", "red", Client::new(&user("eve"), revision)),
        ];
        for (method, member, name) in [
            ("tools/list", "tools", "name"),
            ("prompts/list", "prompts", "name"),
            ("resources/list", "resources", "uri"),
            ("resources/templates/list", "resourceTemplates", "uriTemplate"),
        ] {
            for (own, _, client) in &clients {
                let listed = client.list(&world, method, member, name).await;
                assert!(
                    !listed.is_empty() && listed.iter().all(|one| one.starts_with(own)),
                    "{method} {listed:?}"
                );
            }
        }
        for (own, other, client) in &clients {
            for ((method, params, _), (_, denied, name)) in uses(own).into_iter().zip(uses(other)) {
                client.ask(&world, method, params).await.unwrap_or_else(|error| panic!("{method}: {error}"));
                let denied = client.ask(&world, method, denied).await.unwrap_err();
                let unknown_name = name.replace(other, "wxyz");
                let unknown = uses("wxyz").into_iter().find(|(m, _, n)| *m == method && *n == unknown_name);
                let unknown = client.ask(&world, method, unknown.unwrap().1).await.unwrap_err();
                assert_eq!(
                    without_id(&denied, &name),
                    without_id(&unknown, &unknown_name),
                    "{method} {revision}"
                );
            }
        }
    }
    world.end().await;
}

/// ACC-3: a completion names nothing that its principal may not read, nor how much of it there is.
#[tokio::test]
async fn completions_name_only_what_may_be_read() {
    let mock = Mock::legacy()
        .capabilities(r#"{"resources":{},"completions":{}}"#)
        .replies("resources/list", r#"{"resources":[]}"#)
        .replies(
            "resources/templates/list",
            r#"{"resourceTemplates":[{"uriTemplate":"file:///{dir}/{name}","name":"f"},{"uriTemplate":"file:///{a,b}","name":"g"}]}"#,
        )
        .replies(
            "completion/complete",
            r#"{"completion":{"values":["public","secret","../secret","notes"],"total":40,"hasMore":true}}"#,
        );
    let rules = vec![
        PolicyRule {
            resources: on(&["m/file:///public/**", "m/file:///notes/*"]),
            deny_resources: on(&["m/file:///notes/secret"]),
            ..rule("ada", 3)
        },
        PolicyRule { resources: on(&["m/**"]), ..rule("eve", 9) },
    ];
    let world = World::start(&[("m", mock)], rules);
    world.gateway.settled().await;
    for revision in [LEGACY, MODERN] {
        let ask = async |who: &str, template: &str, argument: &str, context: Value| {
            let params = json!({
                "ref": {"type": "ref/resource", "uri": template},
                "argument": {"name": argument, "value": ""},
                "context": {"arguments": context},
            });
            let client = Client::new(&user(who), revision);
            client.ask(&world, "completion/complete", params).await.unwrap()["completion"].clone()
        };
        let all = json!({"values": ["public", "secret", "../secret", "notes"], "total": 40, "hasMore": true});
        let two = "file:///{dir}/{name}";
        assert_eq!(ask("ada", two, "dir", json!({})).await, json!({"values": ["public", "notes"]}));
        let known = ask("ada", two, "name", json!({"dir": "notes"})).await;
        assert_eq!(known, json!({"values": ["public", "notes"]}), "`notes/secret` is denied");
        assert_eq!(ask("ada", "file:///{a,b}", "a", json!({})).await, json!({"values": []}));
        assert_eq!(ask("eve", two, "dir", json!({"x": "y"})).await, all);
    }
    world.end().await;
}

/// ACC-3 (case 18): while servers are starting, what is denied waits exactly as long as what does not exist, and what belongs
/// to a server of which nothing may be used does not wait at all.
#[tokio::test(start_paused = true)]
async fn denied_and_unknown_wait_alike() {
    let slow = || Mock::legacy().tool("red_tool", Behaviour::Echo).on_initialize(Initialize::Silent);
    let rules = vec![PolicyRule { deny_tools: on(&["m/blue*"]), ..colour("ada", 1, "red") }];
    let world = World::start_with(&[("m", slow()), ("n", slow())], rules, |options| {
        options.servers.iter_mut().for_each(|server| server.request_timeout = Some(Duration::from_secs(40)));
    });
    let ada = Client::new(&user("ada"), LEGACY);
    let took = async |method: &str, params: Value| {
        let began = tokio::time::Instant::now();
        let error = ada.ask(&world, method, params).await.unwrap_err();
        (began.elapsed(), error)
    };
    let call = |name: &str| json!({"name": name, "arguments": {}});
    let ((denied, one), (unknown, other), (hidden, told), (nowhere, nothing)) = tokio::join!(
        took("tools/call", call("m__blue_tool")),
        took("tools/call", call("m__none")),
        took("tools/call", call("n__red_tool")),
        took("tools/call", call("o__red_tool")),
    );
    assert_eq!(denied, unknown);
    assert_eq!(without_id(&one, "m__blue_tool"), without_id(&other, "m__none"));
    assert_eq!(hidden, nowhere);
    assert_eq!(
        without_id(&told, "n__red_tool"),
        without_id(&nothing, "o__red_tool"),
        "not even that it is starting"
    );
    assert!(hidden < denied, "{hidden:?} {denied:?}");
    let resource = |uri: &str| json!({"uri": uri});
    let ((denied, one), (unknown, other)) = tokio::join!(
        took("resources/read", resource("blue://1")),
        took("resources/read", resource("none://1"))
    );
    assert_eq!((denied, without_id(&one, "blue://1")), (unknown, without_id(&other, "none://1")));
    world.end().await;
}

/// ACC-3 (case 19): instructions, capabilities, health, suggestions, log lines and changes of resources tell nothing of what a
/// principal may not use.
#[tokio::test]
async fn nothing_else_tells_of_it() {
    let ping = |user| PolicyRule { tools: on(&["bridgehead/*"]), ..rule(user, 20) };
    let tools_only = PolicyRule { tools: on(&["m/red*"]), ..rule("tim", 30) };
    let mut all = rules();
    all.extend([ping("ada"), ping("all"), tools_only]);
    let everything = on(&["*/*"]);
    all.push(PolicyRule {
        tools: everything.clone(),
        prompts: everything.clone(),
        resources: everything,
        ..rule("all", 40)
    });
    let hidden = Mock::legacy().instructions("I am hidden.").tool("x", Behaviour::Echo);
    let world = World::start(&[("m", both()), ("hidden", hidden)], all);
    world.settled().await;
    let initialized = |who: &str| -> Value { world.gateway.initialize(&user(who), LEGACY).decode().unwrap() };
    let ada = initialized("ada").to_string();
    assert!(!ada.contains("blue") && !ada.contains("hidden") && ada.contains("red_prompt"), "{ada}");
    assert!(initialized("all").to_string().contains("Call blue_tool after red_tool."));
    let tim = initialized("tim");
    assert_eq!(
        (tim["capabilities"].get("prompts"), tim["capabilities"].get("resources")),
        (None, None),
        "{tim}"
    );
    assert!(initialized("ada")["capabilities"]["prompts"].is_object());
    let nobody = initialized("nobody");
    assert!(
        nobody.get("instructions").is_none() && nobody["capabilities"].get("experimental").is_none(),
        "{nobody}"
    );

    let health = async |who: &str| {
        let client = Client::new(&user(who), LEGACY);
        let answer = client
            .ask(&world, "tools/call", json!({"name": "server_health", "arguments": {}}))
            .await
            .unwrap();
        answer["structuredContent"]["data"].clone()
    };
    let seen = health("ada").await;
    assert_eq!(seen["upstreams"].as_array().unwrap().len(), 1, "{seen}");
    assert_eq!((&seen["upstreams"][0]["name"], &seen["upstreams"][0]["tools"]), (&json!("m"), &json!(3)));
    assert!(seen["counters"].get("calls").is_none() && !seen.to_string().contains("hidden"), "{seen}");
    let whole = health("all").await;
    assert_eq!(
        (whole["upstreams"].as_array().unwrap().len(), whole["counters"]["calls"].is_number()),
        (2, true)
    );

    let ada = Client::new(&user("ada"), LEGACY);
    let near =
        ada.ask(&world, "tools/call", json!({"name": "m__blue_toll", "arguments": {}})).await.unwrap_err();
    assert!(!near.to_string().contains("blue_tool"), "{near}");
    assert_eq!(near["data"]["server"], Value::Null, "{near}");

    let feed = ada.feed(&world);
    ada.ask(&world, "logging/setLevel", json!({"level": "debug"})).await.unwrap();
    ada.ask(&world, "resources/subscribe", json!({"uri": "red://dir"})).await.unwrap();
    let deny = PolicyRule { deny_resources: on(&["m/red://dir/blue"]), ..rule("ada", 50) };
    let mut changed = rules();
    changed.extend([ping("ada"), deny]);
    world.reload(changed);
    ada.ask(&world, "tools/call", json!({"name": "m__red_news", "arguments": {}})).await.unwrap();
    let mut told = Vec::new();
    while told.last().is_none_or(|last: &Value| last["params"]["uri"] != "red://dir/x") {
        told.push(decoded(&soon(feed.next()).await));
    }
    assert!(told.iter().all(|one| one["params"]["uri"] != "red://dir/blue"), "{told:?}");
    ada.ask(&world, "tools/call", json!({"name": "m__red_log", "arguments": {}})).await.unwrap();
    let line = decoded(&soon(feed.next()).await);
    assert_eq!(
        line["params"]["data"], "all is well",
        "the line that names a hidden tool is left out: {line}"
    );
    ada.session.end();
    world.end().await;
}

/// ACC-3 (case 19): instructions that name something hidden of their server are not shown: a tool, a prompt, a resource or a template,
/// in any letter case. A longer word, or a name of another server, gives nothing away.
#[tokio::test]
async fn instructions_that_name_what_is_hidden() {
    const ALL: [(&str, &str, bool); 8] = [
        ("tool", "First call Blue_Tool.", false),
        ("prompt", "Use the prompt `blue_prompt` then.", false),
        ("resource", "Read blue://1 at the start.", false),
        ("template", "Any blue://t/{x} will do.", false),
        ("longer", "See blue_tools and blue_prompt2 and dark-blue_tool.", true),
        ("other", "Not blue_thing, that is another server's.", true),
        ("own", "Call red_tool, get red_prompt, read red://1.", true),
        ("mine", "Call mine__red_tool, not mine__blue_tool.", false),
    ];
    for (name, words, shown) in ALL {
        let all = on(&["*/red*"]);
        let red = PolicyRule { tools: all.clone(), prompts: all.clone(), resources: all, ..rule("ada", 3) };
        let thing = Mock::legacy().tool("red_x", Behaviour::Echo).tool("blue_thing", Behaviour::Echo);
        let world = World::start(&[(name, both().instructions(words)), ("thing", thing)], vec![red]);
        world.settled().await;
        let told: Value = world.gateway.initialize(&user("ada"), LEGACY).decode().unwrap();
        let told = told["instructions"].as_str().unwrap();
        assert_eq!(told.contains(words), shown, "{name}: {told}");
        assert!(told.contains("red_prompt") && !told.contains("`blue_prompt`"), "{name}: {told}");
        world.end().await;
    }
}

/// ACC-3 (case 18): who may use only prompts, or only resources, of a server that is starting waits for it as long as anybody
/// else, and is told that it is starting; who may use nothing of it is told nothing.
#[tokio::test(start_paused = true)]
async fn a_starting_server_exists_for_whoever_may_use_anything_of_it() {
    let slow = Mock::legacy().tool("red_tool", Behaviour::Echo).on_initialize(Initialize::Silent);
    let prompts = PolicyRule { prompts: on(&["m/red*"]), ..rule("ada", 1) };
    let resources = PolicyRule { resources: on(&["m/red*"]), ..rule("eve", 2) };
    let tools = PolicyRule { tools: on(&["m/red*"]), ..rule("tim", 3) };
    let other = PolicyRule { tools: on(&["n/red*"]), ..rule("bob", 4) };
    let world = World::start_with(&[("m", slow)], vec![prompts, resources, tools, other], |options| {
        options.servers.iter_mut().for_each(|server| server.request_timeout = Some(Duration::from_secs(20)));
    });
    let told = |who: &str| {
        let told = world.gateway.instructions_for(&user(who));
        told.is_some_and(|text| text.contains("`m`"))
    };
    assert_eq!(["ada", "eve", "tim", "bob"].map(told), [true, true, true, false]);
    let took = async |who: &str, method: &str, params: Value| {
        let began = tokio::time::Instant::now();
        Client::new(&user(who), LEGACY).ask(&world, method, params).await.unwrap_err();
        began.elapsed()
    };
    let call = json!({"name": "m__red_tool", "arguments": {}});
    let (prompt, resource, tool, nothing) = tokio::join!(
        took("ada", "prompts/get", json!({"name": "m__red_prompt"})),
        took("eve", "resources/read", json!({"uri": "red://1"})),
        took("tim", "tools/call", call.clone()),
        took("bob", "tools/call", call),
    );
    assert_eq!((prompt, resource), (tool, tool));
    assert!(nothing < tool, "{nothing:?} {tool:?}");
    world.end().await;
}

/// ACC-3 (case 19): a server of which a principal sees nothing says nothing to it, although the principal may read its resources:
/// they are read by their URI, and its instructions and its experimental capabilities are for those who see something of it.
#[tokio::test]
async fn a_server_that_only_has_resources_to_read_says_nothing() {
    let on_its_own = || {
        Mock::legacy()
            .capabilities(r#"{"tools":{},"resources":{},"experimental":{"x":{}}}"#)
            .instructions("Be brief.")
            .tool("blue_tool", Behaviour::Echo)
            .replies("resources/list", r#"{"resources":[{"uri":"red://1","name":"r"}]}"#)
            .replies("resources/templates/list", r#"{"resourceTemplates":[]}"#)
            .replies("resources/read", r#"{"contents":[]}"#)
    };
    let resources = |user, line, uri: &str| PolicyRule { resources: on(&[uri]), ..rule(user, line) };
    let tools = PolicyRule { tools: on(&["m/green*"]), ..rule("tim", 5) };
    let rules = vec![resources("ada", 1, "m/green://*"), resources("eve", 3, "m/red://*"), tools];
    let world = World::start(&[("m", on_its_own())], rules);
    world.settled().await;
    for (who, reads, sees) in [("ada", "green://1", false), ("eve", "red://1", true), ("tim", "", false)] {
        for revision in [LEGACY, MODERN] {
            let client = Client::new(&user(who), revision);
            let told = match revision {
                LEGACY => world.gateway.initialize(&user(who), LEGACY).decode().unwrap(),
                _ => client.ask(&world, "server/discover", json!({})).await.unwrap(),
            };
            assert_eq!(told.to_string().contains("Be brief."), sees, "{who} {told}");
            assert_eq!(told["capabilities"].get("experimental").is_some(), sees, "{who} {told}");
            assert_eq!(told["capabilities"].get("resources").is_some(), who != "tim", "{who} {told}");
            if !reads.is_empty() {
                client.ask(&world, "resources/read", json!({"uri": reads})).await.unwrap();
            }
            let listed = match who {
                "tim" => Vec::new(),
                _ => client.list(&world, "resources/list", "resources", "uri").await,
            };
            assert_eq!(!listed.is_empty(), sees, "{who} {listed:?}");
        }
    }
    world.end().await;
}

/// ACC-3, ACC-9 (case 23): a denial leaves its pair, with the code DENIED and the rule; the wire says what it says of unknown names.
#[tokio::test]
async fn a_denial_is_recorded_with_its_rule() {
    let mut all = rules();
    all.push(PolicyRule {
        deny_tools: on(&["m/red_log"]),
        deny_prompts: on(&["m/*"]),
        deny_resources: on(&["m/red://1"]),
        ..rule("*", 14)
    });
    let world = World::start(&[("m", both())], all);
    world.settled().await;
    let ada = Client::new(&user("ada"), LEGACY);
    let denied = async |method: &str, params: Value| {
        let error = ada.ask(&world, method, params).await.unwrap_err();
        (error["code"].clone(), world.last_failure())
    };
    let by_rule = |key: &str, on: &str| {
        ("DENIED".to_owned(), format!("the rule on line 14 (`{key}` for `*`: `m/{on}`) denies it"))
    };
    let no_rule = ("DENIED".to_owned(), "no rule allows it".to_owned());
    let call = |name: &str| json!({"name": name, "arguments": {}});
    assert_eq!(
        denied("tools/call", call("red_log")).await,
        (json!(-32602), by_rule("deny_tools", "red_log"))
    );
    assert_eq!(denied("tools/call", call("blue_tool")).await, (json!(-32602), no_rule.clone()));
    assert_eq!(
        denied("prompts/get", call("red_prompt")).await,
        (json!(-32602), by_rule("deny_prompts", "*"))
    );
    assert_eq!(
        denied("resources/read", json!({"uri": "red://1"})).await,
        (json!(-32002), by_rule("deny_resources", "red://1"))
    );
    assert_eq!(denied("resources/subscribe", json!({"uri": "blue://1"})).await, (json!(-32002), no_rule));
    let unknown = ada.ask(&world, "tools/call", call("none")).await.unwrap_err();
    assert_eq!(unknown["data"]["code"], "PROVIDER_TOOL_UNKNOWN");
    assert_eq!(world.last_failure().0, "PROVIDER_TOOL_UNKNOWN");
    let enters = world.recorder.enters();
    assert!(enters.iter().all(|enter| *enter.call().principal == *"corp/ada"));
    assert!(enters[..4].iter().all(|enter| !enter.validated()), "none of them ran");
    let modern = Client::new(&user("ada"), MODERN);
    modern.ask(&world, "prompts/get", call("red_prompt")).await.unwrap_err();
    assert_eq!(world.last_failure(), by_rule("deny_prompts", "*"), "also where the method is not offered");
    world.end().await;
}

/// ACC-3 (case 22): rules speak of the names that servers know, so neither a prefix nor a rename changes what they mean.
#[tokio::test]
async fn names_of_the_gateway_do_not_matter() {
    let one = || Mock::legacy().tool("red_tool", Behaviour::Echo).tool("blue_tool", Behaviour::Echo);
    for prefix in [bridgehead_config::Prefix::Always, bridgehead_config::Prefix::Auto] {
        let world = World::start_with(&[("m", one()), ("n", one())], rules(), |options| {
            options.settings.prefix = prefix;
            options.settings.max_name_length = 10;
        });
        world.settled().await;
        let ada = Client::new(&user("ada"), LEGACY);
        let seen = ada.list(&world, "tools/list", "tools", "name").await;
        assert_eq!(seen.len(), 1, "{seen:?}");
        ada.ask(&world, "tools/call", json!({"name": seen[0], "arguments": {}})).await.unwrap();
        let eve = Client::new(&user("eve"), LEGACY);
        eve.ask(&world, "tools/call", json!({"name": seen[0], "arguments": {}})).await.unwrap_err();
        world.end().await;
    }
}

/// ACC-3 (case 16): a tool that needs scopes is listed; a call without them names all that are needed and does not run.
#[tokio::test]
async fn a_missing_scope_is_named() {
    let scopes = vec![(on(&["m/red_tool"]).remove(0), vec!["write".to_owned(), "read".to_owned()])];
    let world = World::start(&[("m", both())], vec![PolicyRule { scopes, ..colour("ada", 3, "red") }]);
    world.settled().await;
    let call = json!({"name": "red_tool", "arguments": {}});
    for (principal, allowed) in [
        (user("ada"), false),
        (user("ada").with_scopes(["read"]), false),
        (user("ada").with_scopes(["use", "read"]).requiring(["use", "read"]), false),
        (user("ada").with_scopes(["other", "write", "read"]), true),
    ] {
        let client = Client::new(&principal, LEGACY);
        assert!(client.list(&world, "tools/list", "tools", "name").await.contains(&"red_tool".to_owned()));
        let answer = client.ask(&world, "tools/call", call.clone()).await;
        assert_eq!(answer.is_ok(), allowed, "{answer:?}");
        if let Err(error) = answer {
            assert_eq!(
                (&error["code"], &error["data"]["code"]),
                (&json!(-32603), &json!("INSUFFICIENT_SCOPE"))
            );
            // What every request needs belongs to it: a token with only the rest would be refused.
            let scopes = match principal.required_scopes().count() {
                0 => "read write",
                _ => "use read write",
            };
            assert_eq!((&error["data"]["scope"], &error["data"]["server"]), (&json!(scopes), &json!("m")));
            assert_eq!(world.last_failure().0, "INSUFFICIENT_SCOPE");
        }
    }
    assert_eq!(world.policy.scopes(), ["read", "write"]);
    world.end().await;
}

/// ACC-3: the gateway's own user may be named, and the gateway's own tools are asked about too.
#[tokio::test]
async fn the_gateways_own_tools_are_asked_about() {
    let allow = PolicyRule {
        who: vec![bridgehead_config::Who::Local],
        tools: on(&["bridgehead/server_ping"]),
        ..rule("*", 1)
    };
    let world = World::start(&[], vec![allow]);
    let local = Client::new(&Principal::local(), LEGACY);
    assert_eq!(local.list(&world, "tools/list", "tools", "name").await, ["server_ping"]);
    local.ask(&world, "tools/call", json!({"name": "server_health", "arguments": {}})).await.unwrap_err();
    assert!(Client::new(&user("ada"), LEGACY).list(&world, "tools/list", "tools", "name").await.is_empty());
    world.end().await;
}
