//! What an embedding program decides itself: who may use what, how much, and with which credentials.

use std::sync::Arc;

use bridgehead::config::{GatewaySettings, Launch, Remote, Secret, ServerConfig};
use bridgehead::credentials::{ConfiguredHeaders, CredentialSource};
use bridgehead::{
    Action, Allowance, Authorizer, Code, Decision, GatewayError, Limited, Limiter, NativeTool, Principal,
    Server, Thing, Transport,
};
use bridgehead_testkit::Recorder;
use bridgehead_testkit::peer::{Peer, reply};
use serde_json::json;

use crate::common::MemoryClient;

/// Hides the tool of this name.
struct Hides(&'static str);

impl Authorizer for Hides {
    fn class(&self, _principal: &Principal) -> Arc<str> {
        "all".into()
    }

    fn decide(&self, _principal: &Principal, _action: Action, thing: Thing<'_>) -> Decision {
        if thing.name == self.0 { Decision::Deny } else { Decision::Allow }
    }
}

/// Lets nobody call the tool of this name.
struct Stops(&'static str);

impl Limiter for Stops {
    fn admit(&self, _principal: &Principal, request: Limited<'_>) -> Result<Allowance, GatewayError> {
        match request.name == self.0 {
            true => Err(GatewayError::new(Code::ProviderUnavailable, "not today")),
            false => Ok(Allowance::free()),
        }
    }
}

fn tool(name: &str) -> NativeTool {
    NativeTool::new(name, "", json!({"type": "object"}), |_, _| async { Ok(json!("done")) })
}

/// GATE-3, GATE-4, GATE-7: the server uses the embedder's authorizer, limiter, recorded methods and credentials.
#[tokio::test]
async fn an_embedder_decides() {
    let peer = Peer::start(|_| reply("401 Unauthorized", &[], "")).await;
    let remote = Remote::new(peer.url("/mcp").parse().unwrap());
    let upstream =
        ServerConfig::new("far".parse().unwrap(), Launch::Remote(remote), &GatewaySettings::default());
    let signed_in = CredentialSource::new(|remote| {
        let mut remote = remote.clone();
        remote.headers.insert("Authorization".to_owned(), Secret::new("Bearer hunter2"));
        Some(Arc::new(ConfiguredHeaders::of(&remote)))
    });
    let recorder = Recorder::new();
    let (client, theirs) = tokio::io::duplex(64 * 1024);
    let mut client = MemoryClient::new(client);
    let server = Server::builder()
        .transport(Transport::Memory(theirs))
        .upstream(upstream)
        .register(tool("open"))
        .register(tool("hidden"))
        .register(tool("stopped"))
        .audit(Arc::new(recorder.clone()))
        .also_recorded(vec!["tools/list"])
        .authorizer(Arc::new(Hides("hidden")))
        .limiter(Arc::new(Stops("stopped")))
        .credentials(signed_in)
        .process_handlers(false)
        .build()
        .unwrap();
    let running = server.start().await.unwrap();
    assert_ne!(client.call("open").await["isError"], json!(true));
    let params = json!({"name": "stopped", "arguments": {}});
    let stopped = client.request("tools/call", params).await["error"].clone();
    assert_eq!(
        (&stopped["data"]["code"], &stopped["message"]),
        (&json!("PROVIDER_UNAVAILABLE"), &json!("not today"))
    );
    let list = client.request("tools/list", json!({})).await["result"]["tools"].clone();
    let offered = |name: &str| list.as_array().unwrap().iter().any(|tool| tool["name"] == name);
    assert!(offered("open") && offered("stopped") && !offered("hidden"), "{list}");
    peer.until("the remote server was asked", |peer| !peer.asked().is_empty()).await;
    assert!(peer.asked().iter().all(|asked| asked.header("authorization") == "Bearer hunter2"));
    running.stop().await;
    let methods: Vec<_> = recorder.enters().iter().map(|enter| enter.call().method()).collect();
    assert_eq!(methods, ["tools/call", "tools/call", "tools/list"]);
}
