//! What the audit sink gets for a call through the gateway.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::{CorrelationId, Era, Outcome};
use bridgehead_gateway::events::Delivery;
use bridgehead_gateway::{Caller, ClientRequest, ClientTransport, NativeTool, Principal, Session};
use bridgehead_testkit::{Behaviour, FakeClock, Mock};
use bridgehead_wire::{Object, Raw, RequestMeta, Revision, RpcError, Spliced};
use serde_json::{Value, json};

use crate::support::Fixture;

/// Calls a tool as a principal, over a transport, in an era.
async fn call(
    fixture: &Fixture,
    (principal, transport, revision): (&str, ClientTransport, Revision),
    tool: &str,
    id: &str,
) {
    let text = format!(
        r#"{{"name":"{tool}","arguments":{{"n": 1.0}},"_meta":{{"bridgehead/correlationId":"{id}"}}}}"#
    );
    let params = Object::parse(&Raw::parse(text).unwrap()).unwrap();
    let meta = RequestMeta::read(Some(&params)).unwrap();
    let principal = Principal::named(principal);
    let caller = Caller { principal, revision, transport, session: Session::new(), questioner: None };
    let request = ClientRequest { method: "tools/call".into(), params, meta, id: None };
    let _outcome = fixture.gateway.answer(&caller, &request, None).await;
}

/// AUD-1: an enter has the tool, the unchanged arguments, both times and the id. An exit has the tool, the id, whole
/// milliseconds of the monotonic clock and the outcome. Both name the principal, the transport and the server.
#[tokio::test]
async fn a_sink_gets_the_whole_call() {
    let clock = FakeClock::new();
    let turned = clock.clone();
    let slow = NativeTool::new("slow", "", json!({"type": "object"}), move |_, _| {
        turned.advance(Duration::from_micros(1_234_999));
        // A change of the wall clock does not affect the duration.
        turned.set_wall("2001-02-03T04:05:06Z".parse().unwrap());
        async { Ok(json!({"done": true})) }
    });
    let mock = Mock::legacy().tool("say", Behaviour::IsError("no".to_owned()));
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.clock = Arc::new(clock.clone());
        options.tools.push(slow);
    });
    fixture.settled().await;
    clock.advance(Duration::from_secs(5));
    clock.set_wall("1999-01-01T00:00:00Z".parse().unwrap());
    let before = bridgehead_call::Clock::monotonic(&clock);
    let ids = [(); 3].map(|()| CorrelationId::mint().to_string());
    call(&fixture, ("ada", ClientTransport::Http, Revision::MODERN), "slow", &ids[0]).await;
    call(&fixture, ("local:1000", ClientTransport::Stdio, Revision::V2025_06_18), "say", &ids[1]).await;
    call(&fixture, ("bob", ClientTransport::Memory, Revision::V2024_11_05), "nobody", &ids[2]).await;

    let (enters, exits) = (fixture.recorder.enters(), fixture.recorder.exits());
    let known: Vec<_> = enters
        .iter()
        .map(|enter| {
            let about = enter.call();
            (
                enter.tool().to_owned(),
                enter.principal().to_owned(),
                about.transport,
                about.era,
                enter.validated(),
            )
        })
        .collect();
    let expected = [
        ("slow", "ada", "http", Era::Modern, true),
        ("say", "local:1000", "stdio", Era::Legacy, true),
        ("nobody", "bob", "memory", Era::Legacy, false),
    ];
    assert_eq!(
        known,
        expected.map(|(tool, who, how, era, fits)| (tool.to_owned(), who.to_owned(), how, era, fits))
    );
    let servers: Vec<_> = enters.iter().map(|enter| enter.server().map(str::to_owned)).collect();
    assert_eq!(servers, [None, Some("m".to_owned()), None]);
    assert!(enters.iter().all(|enter| &enter.arguments()[..] == br#"{"n": 1.0}"#), "{enters:?}");
    assert_eq!(enters[0].at().to_string(), "1999-01-01T00:00:00Z");
    assert_eq!(enters[0].monotonic(), before);

    for (exit, (enter, id)) in exits.iter().zip(enters.iter().zip(&ids)) {
        assert_eq!((exit.tool(), exit.server()), (enter.tool(), enter.server()));
        assert_eq!(
            (exit.correlation().to_string(), enter.correlation().to_string()),
            (id.clone(), id.clone())
        );
    }
    assert_eq!((exits[0].duration_ms(), exits[0].queued_ms()), (1_234, 0));
    assert_eq!(exits[0].at().to_string(), "2001-02-03T04:05:06Z");
    let body = |outcome: &Outcome| match outcome {
        Outcome::Result { body, is_error } => (serde_json::from_slice::<Value>(body).unwrap(), *is_error),
        other => panic!("{other:?}"),
    };
    let (result, is_error) = body(exits[0].outcome());
    assert_eq!(
        (&result["structuredContent"], is_error),
        (&json!({"ok": true, "data": {"done": true}}), false)
    );
    let (result, is_error) = body(exits[1].outcome());
    assert_eq!(
        (&result["content"][0]["text"], is_error),
        (&json!("no"), true),
        "a tool's own error is a result"
    );
    let Outcome::Error { code, message, .. } = exits[2].outcome() else { panic!("{exits:?}") };
    assert_eq!((&**code, message.as_str()), ("PROVIDER_TOOL_UNKNOWN", "no server offers tool `nobody`"));
    fixture.end().await;
}

/// SRV-7: the gateway's health has each server's state and queue, the counters, and the capabilities, in the envelope.
/// The library's own function returns the same.
#[tokio::test]
async fn the_health_is_told_whole() {
    let mock = Mock::legacy().tool("echo", Behaviour::Echo).tool("say", Behaviour::IsError("no".to_owned()));
    let hang = NativeTool::new("hang", "", json!({"type": "object"}), |_, _| std::future::pending());
    let fixture = Fixture::start(&[("m", mock)], |options| options.tools.push(hang));
    fixture.settled().await;
    fixture.call("echo", json!({})).await.unwrap();
    fixture.call("say", json!({})).await.unwrap();
    fixture.call("nobody", json!({})).await.unwrap_err();
    let left = tokio::time::timeout(Duration::from_millis(20), fixture.call("hang", json!({})));
    assert!(left.await.is_err());
    let result = fixture.call("server_health", json!({})).await.unwrap();
    let envelope = &result["structuredContent"];
    assert_eq!(envelope["ok"], true);
    let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text, *envelope);
    let health = &envelope["data"];
    let counters = json!({
        "calls": 5, "failed": 2, "cancelled": 1, "auditExitFailures": 0, "invalidOutputs": 0, "toolsHiddenByMode": 0,
    });
    assert_eq!(health["counters"], counters);
    assert_eq!(health["capabilities"], json!({"tools": {"listChanged": true}}));
    let server = &health["upstreams"][0];
    assert_eq!(
        (&server["name"], &server["state"], &server["tools"]),
        (&json!("m"), &json!("ready"), &json!(2))
    );
    assert_eq!(server["queue"], json!({"name": null, "running": 0, "waiting": 0, "held": 0}));
    assert_eq!(fixture.gateway.health()["counters"], counters);
    fixture.end().await;
}

/// A server with one of each: tool, prompt, resource and the rest.
fn everything() -> Mock {
    let all = r#"{"tools":{},"prompts":{},"resources":{"subscribe":true},"completions":{},"logging":{}}"#;
    Mock::legacy()
        .capabilities(all)
        .tool("say", Behaviour::Text("said".to_owned()))
        .replies("prompts/list", r#"{"prompts":[{"name":"plan"}]}"#)
        .replies("prompts/get", r#"{"messages":[]}"#)
        .replies("resources/list", r#"{"resources":[{"uri":"a://r","name":"r"}]}"#)
        .replies("resources/templates/list", r#"{"resourceTemplates":[]}"#)
        .replies("resources/read", r#"{"contents":[]}"#)
        .replies("resources/subscribe", "{}")
        .replies("resources/unsubscribe", "{}")
        .replies("completion/complete", r#"{"completion":{"values":["x"]}}"#)
        .replies("logging/setLevel", "{}")
}

/// The params for each method, and the subject and server that its record names.
fn asked() -> Vec<(&'static str, Value, &'static str, Option<&'static str>)> {
    let reference = json!({"type": "ref/prompt", "name": "plan"});
    vec![
        ("prompts/get", json!({"name": "plan", "arguments": {"n": "1"}}), "plan", Some("m")),
        ("resources/read", json!({"uri": "a://r"}), "a://r", Some("m")),
        ("tools/list", json!({}), "", None),
        ("prompts/list", json!({}), "", None),
        ("resources/list", json!({}), "", None),
        ("resources/templates/list", json!({}), "", None),
        (
            "completion/complete",
            json!({"ref": reference, "argument": {"name": "n", "value": ""}}),
            "plan",
            Some("m"),
        ),
        ("logging/setLevel", json!({"level": "error"}), "", None),
        ("resources/unsubscribe", json!({"uri": "a://r"}), "a://r", None),
    ]
}

/// Asks as a legacy client of a session.
async fn ask_as(
    fixture: &Fixture,
    session: &Session,
    method: &str,
    params: &'static str,
) -> Result<Spliced, RpcError> {
    let params = Object::parse(&Raw::literal(params)).unwrap();
    let meta = RequestMeta::read(Some(&params)).unwrap();
    let caller = Caller {
        principal: Principal::local(),
        revision: Revision::V2025_11_25,
        transport: ClientTransport::Memory,
        session: session.clone(),
        questioner: None,
    };
    let request = ClientRequest { method: method.into(), params, meta, id: None };
    fixture.gateway.answer(&caller, &request, None).await
}

/// GATE-1, GATE-2: prompts and reads are recorded like calls, with their method and subject. Lists and other
/// housekeeping methods are recorded only if `audit.methods` names them.
#[tokio::test]
async fn every_surface_is_recorded() {
    for on_demand in [false, true] {
        let fixture = Fixture::start(&[("m", everything())], |options| {
            if on_demand {
                options.also_recorded = asked().iter().map(|(method, ..)| *method).collect();
            }
        });
        fixture.settled().await;
        let mut expected = Vec::new();
        for (method, params, subject, server) in asked() {
            fixture.ask(Revision::V2025_11_25, method, params).await.unwrap();
            if on_demand || matches!(method, "prompts/get" | "resources/read") {
                expected.push((method, subject.to_owned(), server.map(str::to_owned)));
            }
        }
        let recorded: Vec<_> = fixture
            .recorder
            .enters()
            .iter()
            .map(|enter| {
                assert!(enter.validated() && enter.tool().is_empty());
                let call = enter.call();
                (call.method(), call.subject().to_owned(), enter.server().map(str::to_owned))
            })
            .collect();
        assert_eq!(recorded, expected, "{on_demand}");
        let prompt = fixture.recorder.enters().remove(0);
        assert_eq!(prompt.arguments(), &r#"{"n":"1"}"#);
        let Outcome::Result { body, is_error } = fixture.recorder.exits().remove(0).outcome().clone() else {
            panic!("the prompt was got")
        };
        assert_eq!((body, is_error), (r#"{"messages":[]}"#.into(), false));
        fixture.end().await;
    }
}

/// GATE-2: a refused request leaves its pair too, and its client gets a JSON-RPC error for invalid params.
#[tokio::test]
async fn refusals_of_every_surface_are_recorded() {
    let fixture = Fixture::start(&[("m", everything())], |_| ());
    fixture.settled().await;
    let cases = [
        ("prompts/get", r#"{"name":"other"}"#, "other", "PROVIDER_TOOL_UNKNOWN"),
        ("prompts/get", r#"{"name":"plan","arguments":{"n":"1","n":"2"}}"#, "plan", "-32602"),
        ("resources/read", r#"{"uri":"a://r","uri":"a://s"}"#, "a://r", "INVALID_PARAMS"),
    ];
    for (method, params, subject, code) in cases {
        let refused = ask_as(&fixture, &Session::new(), method, params).await.unwrap_err();
        assert_eq!(refused.code(), -32602, "{method} {params}");
        let (enter, exit) =
            (fixture.recorder.enters().pop().unwrap(), fixture.recorder.exits().pop().unwrap());
        let Outcome::Error { code: recorded, .. } = exit.outcome() else { panic!("{exit:?}") };
        assert_eq!((enter.call().method(), enter.validated()), (method, false), "{params}");
        assert_eq!((enter.call().subject(), &**recorded), (subject, code), "{params}");
    }
    fixture.end().await;
}

/// GATE-2: a subscription is recorded from its request to its end: by `resources/unsubscribe`, with its session, or
/// with the gateway.
#[tokio::test]
async fn a_subscription_is_recorded_while_it_lasts() {
    let fixture = Fixture::start(&[("m", everything())], |_| ());
    fixture.settled().await;
    let session = Session::new();
    let ask = async |session: &Session, method: &str| {
        ask_as(&fixture, session, method, r#"{"uri":"a://r"}"#).await.unwrap();
    };
    let count = || (fixture.recorder.enters().len(), fixture.recorder.exits().len());
    ask(&session, "resources/subscribe").await;
    assert_eq!(count(), (1, 0), "the subscription is open");
    let enter = fixture.recorder.enters().remove(0);
    assert_eq!((enter.call().method(), enter.call().subject()), ("resources/subscribe", "a://r"));
    ask(&session, "resources/subscribe").await;
    assert_eq!(count(), (2, 1), "the second replaces the first");
    ask(&session, "resources/unsubscribe").await;
    assert_eq!(count(), (2, 2));
    ask(&session, "resources/subscribe").await;
    session.end();
    assert_eq!(count(), (3, 3), "it ends with its session");
    for exit in fixture.recorder.exits() {
        assert!(matches!(exit.outcome(), Outcome::Result { is_error: false, .. }), "{exit:?}");
    }
    let other = Session::new();
    ask(&other, "resources/subscribe").await;
    assert_eq!(count(), (4, 3));
    // The fixture's end stops the gateway and checks that every enter has its exit.
    fixture.end().await;
}

/// GATE-2, BUS-1: a recorded request is published on the bus, with its method and subject.
#[tokio::test]
async fn a_prompt_is_told_on_the_bus() {
    let fixture = Fixture::start(&[("m", everything())], |_| ());
    fixture.settled().await;
    let mut told = fixture.gateway.events().subscribe(16);
    ask_as(&fixture, &Session::new(), "prompts/get", r#"{"name":"plan"}"#).await.unwrap();
    ask_as(&fixture, &Session::new(), "prompts/get", r#"{"name":"other"}"#).await.unwrap_err();
    let mut next = async || match told.next().await {
        Some(Delivery::Event(event)) => serde_json::to_value(&*event).unwrap(),
        other => panic!("{other:?}"),
    };
    let completed = next().await;
    assert_eq!(
        (&completed["topic"], &completed["method"], &completed["subject"], &completed["server"]),
        (&json!("provider.mcp.request.completed"), &json!("prompts/get"), &json!("plan"), &json!("m"))
    );
    let failed = next().await;
    assert_eq!(
        (&failed["topic"], &failed["subject"], &failed["code"], &failed["retryable"]),
        (
            &json!("provider.mcp.request.failed"),
            &json!("other"),
            &json!("PROVIDER_TOOL_UNKNOWN"),
            &json!(false)
        )
    );
    fixture.end().await;
}

/// GATE-2: a call without a name has no subject and leaves no record; neither does the refusal of a method that is
/// never recorded.
#[tokio::test]
async fn what_is_about_nothing_is_not_recorded() {
    let fixture = Fixture::start(&[("m", everything())], |_| ());
    fixture.settled().await;
    for (method, params) in [
        ("tools/call", r#"{"arguments":{}}"#),
        ("server/discover", r#"{"_Meta":{}}"#),
        ("ping", r#"{"_Meta":{}}"#),
    ] {
        let refused = ask_as(&fixture, &Session::new(), method, params).await.unwrap_err();
        assert_eq!(refused.code(), -32602, "{method}");
    }
    assert!(fixture.recorder.enters().is_empty() && fixture.recorder.exits().is_empty());
    fixture.end().await;
}

/// GATE-3: a record names the client program: from the modern request, or from the legacy handshake. It names none if
/// the client gave none.
#[tokio::test]
async fn a_record_names_the_program_that_called() {
    let fixture = Fixture::start(&[], |_| ());
    for (revision, meta, expected) in [
        (
            Revision::MODERN,
            r#"{"io.modelcontextprotocol/clientInfo":{"name":"agent","version":"3"}}"#,
            Some("agent 3"),
        ),
        (Revision::MODERN, "{}", None),
        (Revision::V2025_11_25, "{}", Some("editor 1.2")),
    ] {
        let session = Session::new();
        session.introduce(&Raw::literal(r#"{"name":"editor","version":"1.2"}"#));
        let text = format!(r#"{{"name":"server__ping","arguments":{{}},"_meta":{meta}}}"#);
        let params = Object::parse(&Raw::parse(text).unwrap()).unwrap();
        let meta = RequestMeta::read(Some(&params)).unwrap();
        let principal = Principal::local();
        let caller =
            Caller { principal, revision, transport: ClientTransport::Memory, session, questioner: None };
        let request = ClientRequest { method: "tools/call".into(), params, meta, id: None };
        let _outcome = fixture.gateway.answer(&caller, &request, None).await;
        let enter = fixture.recorder.enters().pop().unwrap();
        assert_eq!(enter.call().about.client.as_deref(), expected, "{revision}");
    }
    fixture.end().await;
}
