//! Rules that change while clients are served.

use bridgehead_config::{PolicyRule, Who};
use bridgehead_testkit::{Behaviour, Mock};
use futures_util::FutureExt;
use serde_json::{Value, json};

use crate::hidden::{both, rules};
use crate::world::{Client, LEGACY, MODERN, World, colour, decoded, on, rule, soon, user};

/// ACC-3 (case 20): a parked call that is denied after a reload does not resume: its client is told what it is told of unknown
/// tools, the call ends, and both are in the record.
#[tokio::test]
async fn a_parked_call_that_is_denied_does_not_resume() {
    let form = json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {"n": {"type": "number"}}}});
    let mock = Mock::legacy()
        .tool("red_form", Behaviour::ask("elicitation/create", form))
        .tool("red_tool", Behaviour::Echo);
    let world = World::start(&[("m", mock)], rules());
    world.settled().await;
    let mut ada = Client::new(&user("ada"), MODERN);
    ada.capabilities = json!({"elicitation": {"form": {}}});
    let call = json!({"name": "red_form", "arguments": {}});
    let park = async || {
        let asked = ada.ask(&world, "tools/call", call.clone()).await.unwrap();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let mut back = call.clone();
        back["requestState"] = asked["requestState"].clone();
        back["inputResponses"] = json!({key: {"action": "accept", "content": {"n": 1}}});
        back
    };
    let resumed = ada.ask(&world, "tools/call", park().await).await.unwrap();
    assert_eq!(resumed["resultType"], "complete", "{resumed}");

    let back = park().await;
    let deny = PolicyRule { deny_tools: on(&["m/red_form"]), ..rule("ada", 30) };
    world.reload(vec![colour("ada", 3, "red"), deny]);
    assert_eq!(world.gateway.parked(), 1);
    let denied = ada.ask(&world, "tools/call", back.clone()).await.unwrap_err();
    assert_eq!(
        (&denied["code"], &denied["data"]["code"]),
        (&json!(-32602), &json!("PROVIDER_TOOL_UNKNOWN")),
        "{denied}"
    );
    assert_eq!(world.last_failure().0, "DENIED");
    soon(async {
        while world.gateway.parked() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    world.reload(rules());
    ada.ask(&world, "tools/call", back).await.unwrap_err();
    world.end().await;
}

/// ACC-3: a reload tells only those whose lists changed, in one step, and ends what they follow and may not follow any more.
#[tokio::test]
async fn a_reload_tells_those_whose_view_changed() {
    let world = World::start(&[("m", both())], rules());
    world.settled().await;
    let (ada, eve) = (Client::new(&user("ada"), LEGACY), Client::new(&user("eve"), LEGACY));
    let (hers, other) = (ada.feed(&world), eve.feed(&world));
    for client in [&ada, &eve] {
        client.list(&world, "tools/list", "tools", "name").await;
    }
    ada.ask(&world, "resources/subscribe", json!({"uri": "red://1"})).await.unwrap();
    ada.ask(&world, "resources/subscribe", json!({"uri": "red://dir"})).await.unwrap();
    let modern = Client::new(&user("ada"), MODERN);
    let (mut lost, ended) = modern.listen(&world, &json!({"resourceSubscriptions": ["red://1"]}));
    let (mut kept, open) =
        modern.listen(&world, &json!({"resourceSubscriptions": ["red://dir", "blue://1"]}));
    assert!(decoded(&soon(lost.recv()).await.unwrap()).to_string().contains("red://1"));
    let honoured = decoded(&soon(kept.recv()).await.unwrap());
    assert!(
        honoured.to_string().contains("red://dir") && !honoured.to_string().contains("blue"),
        "{honoured}"
    );

    let deny =
        PolicyRule { deny_tools: on(&["m/red_log"]), deny_resources: on(&["m/red://1"]), ..rule("ada", 30) };
    let mut changed = rules();
    changed.push(deny);
    world.reload(changed);
    let told = |message: Value| message["method"].as_str().unwrap().to_owned();
    assert_eq!(told(decoded(&soon(hers.next()).await)), "notifications/tools/list_changed");
    assert_eq!(told(decoded(&soon(hers.next()).await)), "notifications/resources/list_changed");
    assert!(
        hers.next().now_or_never().is_none() && other.next().now_or_never().is_none(),
        "nobody else, nothing else"
    );
    assert!(soon(ended).await.unwrap(), "the listen that lost its resource ends with its result");
    assert!(!ada.list(&world, "tools/list", "tools", "name").await.contains(&"red_log".to_owned()));
    ada.ask(&world, "tools/call", json!({"name": "red_news", "arguments": {}})).await.unwrap();
    assert_eq!(
        decoded(&soon(kept.recv()).await.unwrap())["params"]["uri"],
        "red://dir/blue",
        "the other goes on"
    );
    let enters = world.recorder.enters();
    let lost = enters.iter().find(|enter| enter.call().about.subject.as_deref() == Some("red://1")).unwrap();
    let ended = |exit: &bridgehead_call::Exit| exit.correlation() == lost.call().correlation;
    assert!(world.recorder.exits().iter().any(ended), "the record of the lost subscription has ended");
    drop(kept);
    assert!(soon(open).await.unwrap());
    ada.session.end();
    world.end().await;
}

/// ACC-3 (case 19): a server's changed list is announced to those who see a difference, and to nobody else.
#[tokio::test]
async fn a_change_is_told_to_those_who_see_it() {
    let grown = bridgehead_testkit::Tool::new("red_grown", Behaviour::Echo);
    let mock = Mock::legacy()
        .capabilities(r#"{"tools":{"listChanged":true}}"#)
        .tool("red_grow", Behaviour::AddTool(Box::new(grown)))
        .tool("blue_tool", Behaviour::Echo);
    let world = World::start(&[("m", mock)], rules());
    world.settled().await;
    let (ada, eve) = (Client::new(&user("ada"), LEGACY), Client::new(&user("eve"), LEGACY));
    let (hers, other) = (ada.feed(&world), eve.feed(&world));
    for client in [&ada, &eve] {
        client.list(&world, "tools/list", "tools", "name").await;
    }
    ada.ask(&world, "tools/call", json!({"name": "red_grow", "arguments": {}})).await.unwrap();
    assert_eq!(decoded(&soon(hers.next()).await)["method"], "notifications/tools/list_changed");
    assert_eq!(ada.list(&world, "tools/list", "tools", "name").await, ["red_grow", "red_grown"]);
    assert_eq!(eve.list(&world, "tools/list", "tools", "name").await, ["blue_tool"]);
    assert!(other.next().now_or_never().is_none());
    world.end().await;
}

/// ACC-3: a legacy session is told what its client may hear by the credential that it showed last, not by the one that opened it.
#[tokio::test]
async fn a_feed_follows_the_credential_that_was_shown_last() {
    let all = PolicyRule {
        tools: on(&["m/red*"]),
        resources: on(&["m/red://dir", "m/red://dir/x"]),
        ..rule("ada", 3)
    };
    let members = Who::Group("inner".to_owned());
    let inner = PolicyRule { who: vec![members], resources: on(&["m/red://dir/blue"]), ..rule("ada", 7) };
    let world = World::start(&[("m", both())], vec![all, inner]);
    world.settled().await;
    let (outer, inner) = (user("ada"), user("ada").in_groups(["inner"]));
    let ada = Client::new(&inner, LEGACY);
    let feed = ada.feed(&world);
    ada.ask(&world, "resources/subscribe", json!({"uri": "red://dir"})).await.unwrap();
    for (shown, hears) in [(None, true), (Some(&outer), false), (Some(&inner), true)] {
        if let Some(shown) = shown {
            drop(world.gateway.feed(shown, &ada.session));
        }
        ada.ask(&world, "tools/call", json!({"name": "red_news", "arguments": {}})).await.unwrap();
        let mut told = Vec::new();
        while told.last().is_none_or(|last: &Value| last["params"]["uri"] != "red://dir/x") {
            told.push(decoded(&soon(feed.next()).await));
        }
        assert_eq!(told.iter().any(|one| one["params"]["uri"] == "red://dir/blue"), hears, "{told:?}");
    }
    ada.session.end();
    world.end().await;
}
