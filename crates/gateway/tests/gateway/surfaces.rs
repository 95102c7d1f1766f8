//! Prompts, resources, templates and completion of several servers, in both eras.

use bridgehead_config::ResourceUris;
use bridgehead_gateway::ServerState;
use bridgehead_testkit::{Behaviour, Mock, RpcError, Verbatim};
use bridgehead_wire::Revision;
use serde_json::{Value, json};

use crate::support::Fixture;

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::MODERN;
const ALL: &str = r#"{"tools":{},"prompts":{},"resources":{},"completions":{}}"#;

fn mock(mock: Mock, name: &str) -> Mock {
    mock.capabilities(ALL)
        .replies(
            "prompts/list",
            format!(r#"{{"prompts":[{{"name":"greet", "title": "{name}","icons":[{{"src":"data:,"}}]}}]}}"#),
        )
        .replies("prompts/get", r#"{"description":"d","messages":[],"x":1.0,"asked":$PARAMS}"#)
        .replies(
            "resources/list",
            format!(
                r#"{{"resources":[{{"uri":"{name}://one","name":"one"}},{{"uri":"both://same","name":"{name}"}}]}}"#
            ),
        )
        .replies(
            "resources/templates/list",
            format!(r#"{{"resourceTemplates":[{{"uriTemplate":"{name}://item/{{id}}","name":"item"}}]}}"#),
        )
        .replies("resources/read", format!(r#"{{"contents":[{{"uri":"u","text":"{name}"}}],"asked":$PARAMS}}"#))
        .replies_about(
            "resources/read",
            "hidden://x",
            Err(RpcError { code: -32002, message: "no".into(), data: None }),
        )
        .replies("completion/complete", r#"{"completion":{"values":["v"],"n":1.0},"asked":$PARAMS}"#)
}

fn missing() -> Result<Verbatim, RpcError> {
    Err(RpcError { code: -32002, message: "Resource not found".into(), data: None })
}

async fn result(fixture: &Fixture, revision: Revision, method: &str, params: Value) -> Value {
    match fixture.ask(revision, method, params).await {
        Ok(result) => result.decode().unwrap(),
        Err(error) => panic!("{method}: {}", error.body().as_str()),
    }
}

async fn error(fixture: &Fixture, revision: Revision, method: &str, params: Value) -> Value {
    let refused = fixture.ask(revision, method, params).await;
    refused.unwrap_err().body().decode().unwrap()
}

fn values(list: &Value, list_name: &str, member: &str) -> Vec<String> {
    list[list_name]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry[member].as_str().unwrap().to_owned())
        .collect()
}

/// ERA-1: the lists of servers of both eras are merged in configuration order, for clients of both eras.
#[tokio::test]
async fn lists_are_merged() {
    let fixture =
        Fixture::start(&[("a", mock(Mock::legacy(), "a")), ("b", mock(Mock::modern(), "b"))], |_| ());
    fixture.settled().await;
    for revision in [LEGACY, MODERN] {
        let prompts = result(&fixture, revision, "prompts/list", json!({})).await;
        assert_eq!(values(&prompts, "prompts", "name"), ["a__greet", "b__greet"]);
        assert_eq!(prompts["prompts"][1]["title"], "b", "all other members are the server's");
        assert_eq!(prompts["prompts"][1]["icons"][0]["src"], "data:,");
        let resources = result(&fixture, revision, "resources/list", json!({})).await;
        assert_eq!(values(&resources, "resources", "uri"), ["a://one", "both://same", "b://one"]);
        assert_eq!(resources["resources"][1]["name"], "a", "the first server wins if both offer it");
        let templates = result(&fixture, revision, "resources/templates/list", json!({})).await;
        assert_eq!(
            values(&templates, "resourceTemplates", "uriTemplate"),
            ["a://item/{id}", "b://item/{id}"]
        );
        for list in [&prompts, &resources, &templates] {
            assert_eq!(list.get("ttlMs").is_some(), revision == MODERN);
            assert_eq!(list.get("cacheScope").is_some(), revision == MODERN);
            assert!(list.get("nextCursor").is_none());
        }
        let foreign = error(&fixture, revision, "prompts/list", json!({"cursor": "yesterday"})).await;
        assert_eq!(foreign["code"], -32602);
    }
    let discovered = result(&fixture, MODERN, "server/discover", json!({})).await;
    let initialized: Value =
        fixture.gateway.initialize(&bridgehead_gateway::Principal::local(), LEGACY).decode().unwrap();
    for capabilities in [&discovered["capabilities"], &initialized["capabilities"]] {
        assert_eq!(capabilities["prompts"], json!({"listChanged": true}));
        assert_eq!(capabilities["completions"], json!({}));
    }
    assert!(initialized["instructions"].as_str().unwrap().contains("Prompts: `a__greet`"), "CAT-5");
    fixture.end().await;
}

/// ERA-1: a prompt, a resource and a completion go to the server that has it, under its own names. The result is
/// unchanged except for the marks of the client's era.
#[tokio::test]
async fn requests_find_their_server() {
    let fixture =
        Fixture::start(&[("a", mock(Mock::legacy(), "a")), ("b", mock(Mock::modern(), "b"))], |_| ());
    fixture.settled().await;
    for revision in [LEGACY, MODERN] {
        let modern = revision == MODERN;
        for server in ["a", "b"] {
            let asked = json!({"name": format!("{server}__greet"), "arguments": {"n": "1"}});
            let got = result(&fixture, revision, "prompts/get", asked).await;
            assert_eq!(got["asked"]["name"], "greet");
            assert_eq!(got["asked"]["arguments"], json!({"n": "1"}));
            assert_eq!(got.get("resultType").is_some(), modern);
            assert!(got["_meta"]["bridgehead/correlationId"].is_string());

            for uri in [format!("{server}://one"), format!("{server}://item/7"), format!("{server}://other")]
            {
                let read = result(&fixture, revision, "resources/read", json!({"uri": uri})).await;
                assert_eq!(read["contents"][0]["text"], server, "{uri}");
                assert_eq!(read["asked"]["uri"], uri);
                assert_eq!(read.get("ttlMs").is_some(), modern, "modern clients get the cache lifetime");
            }

            let argument = json!({"name": "n", "value": "v"});
            let prompt = json!({"type": "ref/prompt", "name": format!("{server}__greet")});
            let asked = json!({"ref": prompt, "argument": argument});
            let completed = result(&fixture, revision, "completion/complete", asked).await;
            assert_eq!(completed["completion"]["values"], json!(["v"]));
            assert_eq!(completed["asked"]["ref"], json!({"type": "ref/prompt", "name": "greet"}));
            let template = json!({"type": "ref/resource", "uri": format!("{server}://item/{{id}}")});
            let asked = json!({"ref": template, "argument": argument});
            let completed = result(&fixture, revision, "completion/complete", asked).await;
            assert_eq!(completed["asked"]["ref"], template);
        }
        let same = result(&fixture, revision, "resources/read", json!({"uri": "both://same"})).await;
        assert_eq!(same["contents"][0]["text"], "a");
    }
    fixture.end().await;
}

/// ERA-4: a missing thing is refused with the code of the client's era and the URI; bad requests name the member.
#[tokio::test]
async fn what_is_not_there() {
    let one = mock(Mock::legacy(), "a").replies_about("resources/read", "a://one", missing());
    let other = mock(Mock::modern(), "b");
    let fixture = Fixture::start(&[("a", one), ("b", other)], |_| ());
    fixture.settled().await;
    for (revision, code) in [(LEGACY, -32002), (MODERN, -32602)] {
        for uri in ["hidden://x", "a://one"] {
            let refused = error(&fixture, revision, "resources/read", json!({"uri": uri})).await;
            assert_eq!(refused["code"], code, "{refused}");
            assert_eq!(refused["data"]["uri"], uri);
        }
        let unknown = error(&fixture, revision, "prompts/get", json!({"name": "greet"})).await;
        assert_eq!(unknown["code"], -32602);
        assert_eq!(unknown["data"]["prompt"], "greet");
        for (method, params) in [
            ("prompts/get", json!({})),
            ("resources/read", json!({"uri": 7})),
            ("completion/complete", json!({})),
            ("completion/complete", json!({"ref": {"type": "ref/other"}})),
            ("completion/complete", json!({"ref": {"type": "ref/prompt", "name": "x"}})),
        ] {
            let refused = error(&fixture, revision, method, params).await;
            assert_eq!(refused["code"], -32602, "{method}");
        }
    }
    fixture.end().await;
}

/// ERA-1: a surface that no server has does not exist for modern clients. It is empty for older ones, which get the
/// capabilities only once.
#[tokio::test]
async fn what_no_server_has() {
    let fixture = Fixture::start(&[("a", Mock::modern()), ("b", Mock::legacy())], |_| ());
    fixture.settled().await;
    for method in ["prompts/list", "resources/list", "resources/templates/list", "completion/complete"] {
        assert_eq!(error(&fixture, MODERN, method, json!({})).await["code"], -32601, "{method}");
    }
    let prompts = result(&fixture, LEGACY, "prompts/list", json!({})).await;
    assert_eq!(prompts["prompts"], json!([]));
    let refused = error(&fixture, LEGACY, "resources/read", json!({"uri": "a://b"})).await;
    assert_eq!(refused["code"], -32002);
    fixture.end().await;
}

/// A server without completion among others is no error.
#[tokio::test]
async fn a_server_without_completion() {
    let silent = mock(Mock::legacy(), "a").capabilities(r#"{"prompts":{},"resources":{}}"#);
    let fixture = Fixture::start(&[("a", silent), ("b", mock(Mock::modern(), "b"))], |_| ());
    fixture.settled().await;
    let asked =
        json!({"ref": {"type": "ref/prompt", "name": "a__greet"}, "argument": {"name": "n", "value": ""}});
    let completed = result(&fixture, MODERN, "completion/complete", asked).await;
    assert_eq!(completed["completion"]["values"], json!([]));
    fixture.end().await;
}

/// ERA-1: with rewritten URIs, two resources of the same URI are both available, wherever they are named.
#[tokio::test]
async fn resources_told_apart_by_server() {
    let both = |name: &str| {
        mock(Mock::legacy(), name).tool(
            "link",
            Behaviour::RawResult(
                r#"{"content":[{"type":"resource_link","uri":"both://same","name":"n"}]}"#.into(),
            ),
        )
    };
    let fixture = Fixture::start(&[("a", both("a")), ("b", both("b"))], |options| {
        options.settings.resource_uris = ResourceUris::Rewrite;
    });
    fixture.settled().await;
    let resources = result(&fixture, LEGACY, "resources/list", json!({})).await;
    let uris = values(&resources, "resources", "uri");
    assert_eq!(uris[1], "bridgehead+a:both://same");
    assert_eq!(uris[3], "bridgehead+b:both://same");
    for server in ["a", "b"] {
        for own in ["both://same".to_owned(), format!("{server}://item/7"), "not://listed".to_owned()] {
            let uri = format!("bridgehead+{server}:{own}");
            let read = result(&fixture, MODERN, "resources/read", json!({"uri": uri})).await;
            assert_eq!(read["contents"][0]["text"], server);
            assert_eq!(read["contents"][0]["uri"], format!("bridgehead+{server}:u"));
            assert_eq!(read["asked"]["uri"], own);
        }
        let called = fixture.call(&format!("{server}__link"), json!({})).await.unwrap();
        assert_eq!(called["content"][0]["uri"], format!("bridgehead+{server}:both://same"));
        let template =
            json!({"type": "ref/resource", "uri": format!("bridgehead+{server}:{server}://item/{{id}}")});
        let asked = json!({"ref": template, "argument": {"name": "id", "value": ""}});
        let completed = result(&fixture, LEGACY, "completion/complete", asked).await;
        assert_eq!(completed["asked"]["ref"]["uri"], format!("{server}://item/{{id}}"));
    }
    let refused = error(&fixture, LEGACY, "resources/read", json!({"uri": "bridgehead+nobody:x:y"})).await;
    assert_eq!(refused["code"], -32002);
    fixture.end().await;
}

/// ERA-1: an unlisted resource is requested from every server with resources, and the first that has it answers. If
/// none has it and one has failed, the client gets the failure, since that server may have it.
#[tokio::test]
async fn an_unlisted_resource_is_looked_for_everywhere() {
    let unusable = || Ok(Verbatim::from("[]"));
    let mut one = mock(Mock::legacy(), "a");
    for uri in ["only://b", "no://where"] {
        one = one.replies_about("resources/read", uri, missing());
    }
    for uri in ["fails://a", "fails://both"] {
        one = one.replies_about("resources/read", uri, unusable());
    }
    let mut other = mock(Mock::modern(), "b");
    for uri in ["no://where", "fails://both"] {
        other = other.replies_about("resources/read", uri, missing());
    }
    let fixture = Fixture::start(&[("a", one), ("b", other)], |_| ());
    fixture.settled().await;
    for (uri, expected) in [("any://thing", "a"), ("only://b", "b"), ("fails://a", "b")] {
        let read = result(&fixture, LEGACY, "resources/read", json!({"uri": uri})).await;
        assert_eq!(read["contents"][0]["text"], expected, "{uri}");
    }
    let refused = error(&fixture, LEGACY, "resources/read", json!({"uri": "no://where"})).await;
    assert_eq!(
        (&refused["code"], &refused["message"]),
        (&json!(-32002), &json!("no server has this resource"))
    );
    let failed = error(&fixture, LEGACY, "resources/read", json!({"uri": "fails://both"})).await;
    assert_eq!(failed["data"]["code"], "PROVIDER_INVALID_OUTPUT", "{failed}");
    fixture.end().await;
}

/// SRV-3: a resource that several servers may have is looked for only once starting servers are ready, since one of
/// them may list it.
#[tokio::test]
async fn a_resource_waits_for_who_may_list_it() {
    let late = mock(Mock::legacy(), "c").list_delay_ms(1_500);
    let servers = [("a", mock(Mock::legacy(), "a")), ("b", mock(Mock::modern(), "b")), ("c", late)];
    let fixture =
        Fixture::start(&servers, |options| options.settings.list_wait = std::time::Duration::from_secs(60));
    let serves = |server: usize| fixture.gateway.status().upstreams[server].state == ServerState::Ready;
    crate::support::until(|| serves(0) && serves(1)).await;
    assert!(!serves(2), "the third is still starting");
    let read = result(&fixture, LEGACY, "resources/read", json!({"uri": "c://one"})).await;
    assert_eq!(read["contents"][0]["text"], "c");
    fixture.end().await;
}
