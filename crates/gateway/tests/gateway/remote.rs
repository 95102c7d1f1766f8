//! Calls to a server over HTTP: the error a client gets for each kind of refusal.

use std::sync::Arc;

use bridgehead_config::{GatewaySettings, Launch, Remote, RemoteTransport, Secret, ServerConfig, Url};
use bridgehead_testkit::peer::{Asked, Part, Peer, json_reply, reply};
use bridgehead_upstream::credentials::{ConfiguredHeaders, CredentialSource};
use bridgehead_wire::Revision;
use serde_json::{Value, json};

use crate::support::Fixture;

fn answer(asked: &Asked, result: &Value) -> Vec<Part> {
    json_reply(&json!({"jsonrpc": "2.0", "id": asked.json()["id"], "result": result}))
}

/// A modern server whose tools behave as their names say.
fn script(asked: &Asked) -> Vec<Part> {
    let body = asked.json();
    match asked.rpc().as_str() {
        "server/discover" => answer(
            asked,
            &json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}, "ttlMs": 0, "cacheScope": "public"}),
        ),
        "tools/list" => {
            let names = ["echo", "html", "down", "denied", "deep"];
            let schema = json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
            let tools: Vec<Value> =
                names.iter().map(|name| json!({"name": name, "inputSchema": schema})).collect();
            answer(
                asked,
                &json!({"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}),
            )
        }
        _ => match body["params"]["name"].as_str() {
            Some("html") => reply("200 OK", &["content-type: text/html"], "<p>hello</p>"),
            Some("down") => reply("502 Bad Gateway", &[], ""),
            Some("denied") => reply("401 Unauthorized", &["www-authenticate: Bearer hunter2"], ""),
            _ => answer(
                asked,
                &json!({"resultType": "complete", "content": [{"type": "text", "text": asked.header("mcp-param-region")}]}),
            ),
        },
    }
}

/// ERR-1, LINK-2, LINK-6: an answer over HTTP, and the errors for invalid answers.
#[tokio::test]
async fn calls_over_http() {
    let peer = Peer::start(script).await;
    let launch = Launch::Remote(Remote::new(peer.url("/mcp").parse().unwrap()));
    let fixture = Fixture::start(&[], |options| {
        options.servers.push(ServerConfig::new("far".parse().unwrap(), launch, &GatewaySettings::default()));
    });
    fixture.names().await;
    let params = json!({"name": "echo", "arguments": {"region": "eu-1"}});
    let result: Value =
        fixture.ask(Revision::V2025_11_25, "tools/call", params).await.unwrap().decode().unwrap();
    assert_eq!(result["content"][0]["text"], "eu-1", "the argument travels as a header too");
    assert_eq!(peer.asked_for("tools/call")[0].header("mcp-name"), "echo");
    for (tool, code, may_have_run, words) in [
        ("html", "PROVIDER_INVALID_OUTPUT", true, "`text/html` where JSON or an event stream was expected"),
        ("down", "PROVIDER_UNAVAILABLE", true, "has a fault of its own (502"),
        ("denied", "PROVIDER_UNAVAILABLE", false, "wants a sign-in (401 with a challenge)"),
    ] {
        let error = fixture.call(tool, json!({})).await.unwrap_err();
        assert_eq!(error["data"]["code"], code, "{error}");
        assert_eq!(error["data"]["mayHaveRun"], may_have_run, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(words) && message.starts_with("server `far`"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
    let status = fixture.gateway.status().upstreams.remove(0);
    assert_eq!((status.transport, status.pid, status.era), ("http", None, Some("modern")));
    fixture.end().await;
}

/// GATE-7: the gateway's credential source provides a server's credentials, and refusals read the same as without one.
#[tokio::test]
async fn credentials_come_from_their_source() {
    let peer = Peer::start(script).await;
    let url: Url = peer.url("/mcp").parse().unwrap();
    let launch = Launch::Remote(Remote::new(url.clone()));
    let fixture = Fixture::start(&[], |options| {
        options.servers.push(ServerConfig::new("far".parse().unwrap(), launch, &GatewaySettings::default()));
        options.credentials = Some(CredentialSource::new(move |remote| {
            assert_eq!(remote.url, url);
            let mut signed_in = remote.clone();
            signed_in.headers.insert("Authorization".to_owned(), Secret::new("Bearer hunter2"));
            Some(Arc::new(ConfiguredHeaders::of(&signed_in)))
        }));
    });
    fixture.names().await;
    assert!(fixture.call("echo", json!({})).await.is_ok());
    let error = fixture.call("denied", json!({})).await.unwrap_err();
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("wants a sign-in (401 with a challenge)") && !message.contains("hunter2"),
        "{message}"
    );
    let asked = peer.asked();
    assert!(asked.iter().all(|asked| asked.header("authorization") == "Bearer hunter2"), "{asked:?}");
    assert_eq!(peer.asked_for("tools/call").len(), 2, "a request with fixed credentials is not retried");
    fixture.end().await;
}

/// A remote server that cannot be reached says so, and what to check.
#[tokio::test]
async fn the_status_of_a_remote_server() {
    let fixture = Fixture::start(&[], |options| {
        for (name, url) in [("a", "http://127.0.0.1:9/"), ("b", "ws://127.0.0.1:9/")] {
            let launch = Launch::Remote(Remote::new(url.parse().unwrap()));
            options.servers.push(ServerConfig::new(
                name.parse().unwrap(),
                launch,
                &GatewaySettings::default(),
            ));
        }
        let sse =
            Remote { transport: RemoteTransport::Sse, ..Remote::new("http://127.0.0.1:9/".parse().unwrap()) };
        let server =
            ServerConfig::new("c".parse().unwrap(), Launch::Remote(sse), &GatewaySettings::default());
        options.servers.push(server);
    });
    fixture.names().await;
    let status = fixture.gateway.status();
    let transports: Vec<_> = status.upstreams.iter().map(|server| server.transport).collect();
    assert_eq!(transports, ["http", "websocket", "sse"]);
    for server in status.upstreams {
        assert!(server.reason.unwrap().contains("is the server running there?"));
        assert!(server.next_step.unwrap().contains("check `url`"));
    }
    fixture.end().await;
}
