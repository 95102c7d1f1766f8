//! A tool, a prompt and a resource in Rust, through a whole server and over a transport.

use bridgehead::{
    Elicitation, NativePrompt, NativeResource, NativeTool, PromptMessage, RegisterError, Server, ToolContext,
    Transport,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::common::MemoryClient;

#[derive(Deserialize, JsonSchema)]
struct Delete {
    files: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
struct Deleted {
    count: usize,
}

#[derive(Deserialize, JsonSchema)]
struct Confirmation {
    sure: bool,
}

fn delete() -> NativeTool {
    NativeTool::typed("delete", "Deletes files.", |asked: Delete, cx: ToolContext| async move {
        cx.progress(1.0, Some(2.0), Some("asking"));
        let confirmed = cx.elicit::<Confirmation>("Delete them?").await?;
        cx.progress(2.0, Some(2.0), Some("deleting"));
        let sure = matches!(confirmed, Elicitation::Accepted(Confirmation { sure: true }));
        Ok(Deleted { count: if sure { asked.files.len() } else { 0 } })
    })
}

fn server() -> (MemoryClient, Server) {
    let (client, theirs) = tokio::io::duplex(64 * 1024);
    let hello = |(): (), _| async { Ok(vec![PromptMessage::user("Say hello.")]) };
    let server = Server::builder()
        .register(delete())
        .register_prompt(NativePrompt::new("hello", "Says hello.", hello))
        .register_resource(NativeResource::new("notes://motd", "motd", |_| async { Ok("Welcome.") }))
        .process_handlers(false)
        .transport(Transport::Memory(theirs))
        .build();
    (MemoryClient::new(client), server.unwrap())
}

fn accepted() -> Value {
    json!({"action": "accept", "content": {"sure": true}})
}

/// LIB-2: a legacy client is asked in the middle of its call, gets progress around it, and then the answer.
#[tokio::test]
async fn a_legacy_client_is_asked_over_its_transport() {
    let (mut client, server) = server();
    let running = server.start().await.unwrap();
    let handshake = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    });
    client.write(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": handshake})).await;
    let declared = client.recv().await.unwrap()["result"]["capabilities"].clone();
    assert!(declared["prompts"].is_object() && declared["resources"]["subscribe"] == true, "{declared}");
    client.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    let params =
        json!({"name": "delete", "arguments": {"files": ["a", "b"]}, "_meta": {"progressToken": "mine"}});
    client.write(&json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})).await;
    // Progress and questions travel on their own ways, so either may come first.
    let mut first = [client.recv().await.unwrap(), client.recv().await.unwrap()];
    first.sort_by_key(|message| message.get("id").is_some());
    let [progress, asked] = first;
    assert_eq!(
        (&progress["params"]["progressToken"], &progress["params"]["message"]),
        (&json!("mine"), &json!("asking"))
    );
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    client.write(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": accepted()})).await;
    assert_eq!(client.recv().await.unwrap()["params"]["message"], "deleting");
    let answer = client.recv().await.unwrap();
    assert_eq!(answer["result"]["structuredContent"], json!({"ok": true, "data": {"count": 2}}), "{answer}");
    running.stop().await;
}

/// LIB-2: a modern client is asked through its result, and comes back with the answer; its progress comes under the token of
/// the request that waits. Prompts and resources are served beside tools, and what comes later is checked the same way.
#[tokio::test]
async fn a_modern_client_is_asked_through_its_result() {
    let (mut client, server) = server();
    let running = server.start().await.unwrap();
    let mut params = json!({
        "name": "delete",
        "arguments": {"files": ["a"]},
        "_meta": {"progressToken": 1, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}},
    });
    let progress = client.request("tools/call", params.clone()).await;
    assert_eq!(progress["params"]["message"], "asking", "{progress}");
    let asked = client.recv().await.unwrap()["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    params["requestState"] = asked["requestState"].clone();
    params["inputResponses"] = json!({key: accepted()});
    params["_meta"]["progressToken"] = json!(2);
    let progress = client.request("tools/call", params).await;
    assert_eq!(
        (&progress["params"]["progressToken"], &progress["params"]["message"]),
        (&json!(2), &json!("deleting"))
    );
    let answer = client.recv().await.unwrap();
    assert_eq!(answer["result"]["structuredContent"]["data"], json!({"count": 1}), "{answer}");

    let got = client.request("prompts/get", json!({"name": "hello"})).await;
    assert_eq!(got["result"]["messages"][0]["content"]["text"], "Say hello.", "{got}");
    let read = client.request("resources/read", json!({"uri": "notes://motd"})).await;
    assert_eq!(read["result"]["contents"][0]["text"], "Welcome.", "{read}");
    let again = server.register_resource(NativeResource::new("notes://motd", "motd", |_| async { Ok("") }));
    assert_eq!(again, Err(RegisterError::DuplicateResource("notes://motd".to_owned())));
    let late = NativePrompt::new("late", "", |(): (), _| async { Ok(Vec::new()) });
    server.register_prompt(late).unwrap();
    let got = client.request("prompts/get", json!({"name": "late"})).await;
    assert_eq!(got["result"]["messages"], json!([]), "{got}");
    running.stop().await;
}
