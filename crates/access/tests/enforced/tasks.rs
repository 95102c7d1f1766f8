//! Tasks of tools that a principal may not call any more.

use bridgehead_config::PolicyRule;
use bridgehead_testkit::{Behaviour, Mock};
use serde_json::{Value, json};

use crate::world::{Client, MODERN, World, colour, decoded, on, rule, soon, user};

const TASK: &str = r#"{"resultType":"task","taskId":"t/1","status":"working","ttlMs":null}"#;

/// A server with a tool that becomes a task, and one that tells of the task.
fn server() -> Mock {
    let changed = r#"{"taskId":"t/1","status":"completed","result":{}}"#;
    Mock::modern()
        .capabilities(r#"{"tools":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#)
        .tool("red_slow", Behaviour::raw_result(TASK))
        .tool(
            "red_tell",
            Behaviour::tell_aside("notifications/tasks", changed, Behaviour::Text("told".to_owned())),
        )
        .tool("red_drop", Behaviour::RemoveTool("red_slow".to_owned()))
        .replies("tasks/get", r#"{"resultType":"complete","taskId":"t/1","status":"working"}"#)
        .replies("tasks/update", r#"{"resultType":"complete"}"#)
        .replies("tasks/cancel", r#"{"resultType":"complete"}"#)
}

fn start(mock: Mock) -> World {
    World::start_with(&[("m", mock)], vec![colour("ada", 3, "red")], |options| {
        options.also_recorded = vec!["tasks/get"];
    })
}

fn ada() -> Client {
    let mut ada = Client::new(&user("ada"), MODERN);
    ada.capabilities = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    ada
}

async fn begin(world: &World, ada: &Client) -> Value {
    let task = ada.ask(world, "tools/call", json!({"name": "red_slow", "arguments": {}})).await.unwrap();
    assert_eq!(task["resultType"], "task", "{task}");
    task["taskId"].clone()
}

/// Asks about a task in each way; says whether all of them found it. If not, each was told what it is told of any other id.
async fn finds(world: &World, ada: &Client, id: &Value) -> bool {
    let mut found = Vec::new();
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let asked = |id: &Value| json!({"taskId": id, "inputResponses": {}});
        let answer = ada.ask(world, method, asked(id)).await;
        if let Err(error) = &answer {
            let (code, words) = world.last_failure();
            assert_eq!(code, "DENIED", "{method}");
            assert!(words.contains("line 30"), "{method}: {words}");
            let unknown = ada.ask(world, method, asked(&json!("bh1.AAAA"))).await.unwrap_err();
            assert_eq!(
                (&error["code"], &error["message"]),
                (&unknown["code"], &unknown["message"]),
                "{method}"
            );
        }
        found.push(answer.is_ok());
    }
    assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
    found[0]
}

/// The ids that a listen is told it follows, from its first message.
async fn followed(world: &World, ada: &Client, id: &Value) -> (Value, impl Future<Output = bool> + use<>) {
    let (mut notes, listening) = ada.listen(world, &json!({"taskIds": [id]}));
    let first = decoded(&soon(notes.recv()).await.unwrap());
    let rest = async move {
        // What it is told after that, and whether it ends by itself.
        let mut told = false;
        while soon(notes.recv()).await.is_some() {
            told = true;
        }
        assert!(soon(listening).await.unwrap());
        told
    };
    (first["params"]["notifications"]["taskIds"].clone(), rest)
}

/// ACC-3 (case 20): a task of a tool that is denied by now is asked about, answered, cancelled and followed like one that does not
/// exist; its server hears nothing of it. A listen that followed it before has ended.
#[tokio::test]
async fn a_task_of_a_denied_tool_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let world = start(server().transcript(&said));
    world.settled().await;
    let ada = ada();
    let id = begin(&world, &ada).await;
    assert!(finds(&world, &ada, &id).await);
    let (honoured, rest) = followed(&world, &ada, &id).await;
    assert_eq!(honoured, json!([id]));

    let deny = PolicyRule { deny_tools: on(&["m/red_slow"]), ..rule("ada", 30) };
    world.reload(vec![colour("ada", 3, "red"), deny]);
    assert!(!soon(rest).await, "the listen ends, and nothing was told");
    let asked = || std::fs::read_to_string(&said).unwrap().matches("tasks/").count();
    let before = asked();
    assert!(!finds(&world, &ada, &id).await);
    let (mut notes, listening) = ada.listen(&world, &json!({"taskIds": [id], "toolsListChanged": true}));
    let first = decoded(&soon(notes.recv()).await.unwrap());
    assert_eq!(first["params"]["notifications"], json!({"toolsListChanged": true}), "{first}");
    ada.ask(&world, "tools/call", json!({"name": "red_tell", "arguments": {}})).await.unwrap();
    world.reload(vec![colour("ada", 3, "red")]);
    let next = decoded(&soon(notes.recv()).await.unwrap());
    assert_eq!(next["method"], "notifications/tools/list_changed", "and nothing of the task before it");
    drop(notes);
    assert!(soon(listening).await.unwrap());
    assert_eq!(asked(), before, "the server was asked about the task");
    assert!(finds(&world, &ada, &id).await, "it is there again under the rules of before");
    world.end().await;
}

/// ACC-3 (case 20): the rules decide about a task by the name of its tool when the server has stopped to offer the tool.
#[tokio::test]
async fn a_task_outlives_its_tool_as_far_as_rules_allow() {
    let world = start(server());
    world.settled().await;
    let ada = ada();
    let id = begin(&world, &ada).await;
    ada.ask(&world, "tools/call", json!({"name": "red_drop", "arguments": {}})).await.unwrap();
    soon(async {
        while ada.list(&world, "tools/list", "tools", "name").await.contains(&"red_slow".to_owned()) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(finds(&world, &ada, &id).await, "the tool is gone, and the task goes on");
    let (honoured, rest) = followed(&world, &ada, &id).await;
    assert_eq!(honoured, json!([id]));
    let deny = PolicyRule { deny_tools: on(&["m/red_slow"]), ..rule("ada", 30) };
    world.reload(vec![colour("ada", 3, "red"), deny]);
    assert!(!soon(rest).await);
    assert!(!finds(&world, &ada, &id).await);
    assert_eq!(followed_now(&world, &ada, &id).await, Value::Null);
    world.end().await;
}

/// What a new listen is told it follows.
async fn followed_now(world: &World, ada: &Client, id: &Value) -> Value {
    let (mut notes, listening) = ada.listen(world, &json!({"taskIds": [id]}));
    let first = decoded(&soon(notes.recv()).await.unwrap());
    drop(notes);
    assert!(soon(listening).await.unwrap());
    first["params"]["notifications"]["taskIds"].clone()
}
