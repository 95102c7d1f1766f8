//! Which principal sees what; everything outside a view is unknown.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bridgehead_gateway::{
    Action, Authorizer, Caller, ClientRequest, ClientTransport, Decision, Principal, Session, Thing,
};
use bridgehead_testkit::{Behaviour, Mock};
use bridgehead_wire::{Object, Raw, RequestMeta, Revision, RpcError};
use serde_json::{Value, json};

use crate::support::Fixture;

/// Lets members of a group use things that contain the group's name, and everyone the shared ones; `pay` depends on its
/// arguments.
#[derive(Default)]
struct ByGroup {
    asked: AtomicUsize,
}

fn group(principal: &Principal) -> &str {
    principal.groups().next().unwrap_or("none")
}

impl Authorizer for ByGroup {
    fn class(&self, principal: &Principal) -> Arc<str> {
        group(principal).into()
    }

    fn decide(&self, principal: &Principal, _action: Action, thing: Thing<'_>) -> Decision {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match thing.name {
            "pay" => Decision::ByArguments,
            name if name.contains("shared") || name.contains(group(principal)) => Decision::Allow,
            _ => Decision::Deny,
        }
    }

    fn allows_call(&self, _principal: &Principal, tool: Thing<'_>, arguments: &Raw) -> bool {
        assert_eq!((tool.server, tool.name), (Some("m"), "pay"));
        arguments.as_str() == r#"{"amount":1}"#
    }
}

fn mock() -> Mock {
    let said = || Behaviour::Text("said".to_owned());
    Mock::legacy()
        .capabilities(r#"{"tools":{},"prompts":{},"resources":{"subscribe":true},"completions":{}}"#)
        .tool("shared", said())
        .tool("red", said())
        .tool("blue", said())
        .tool("pay", said())
        .replies("prompts/list", r#"{"prompts":[{"name":"red"},{"name":"blue"}]}"#)
        .replies("prompts/get", r#"{"messages":[]}"#)
        .replies(
            "resources/list",
            r#"{"resources":[{"uri":"a://red","name":"r"},{"uri":"a://blue","name":"b"}]}"#,
        )
        .replies("resources/templates/list", r#"{"resourceTemplates":[]}"#)
        .replies("resources/read", r#"{"contents":[]}"#)
        .replies("completion/complete", r#"{"completion":{"values":["x"]}}"#)
}

async fn ask(fixture: &Fixture, who: &Principal, method: &str, params: Value) -> Result<Value, RpcError> {
    let params = Object::parse(&Raw::encode(&params)).unwrap();
    let meta = RequestMeta::read(Some(&params)).unwrap();
    let caller = Caller {
        principal: who.clone(),
        revision: Revision::V2025_11_25,
        transport: ClientTransport::Memory,
        session: Session::new(),
        questioner: None,
    };
    let request = ClientRequest { method: method.into(), params, meta, id: None };
    let answer = fixture.gateway.answer(&caller, &request, None).await?;
    Ok(answer.to_raw().decode().unwrap())
}

fn of_group(id: &str, group: &str) -> Principal {
    Principal::named(id).in_groups([group])
}

/// Hides one server altogether.
struct WithoutSecret;

impl Authorizer for WithoutSecret {
    fn class(&self, _principal: &Principal) -> Arc<str> {
        "all".into()
    }

    fn decide(&self, _principal: &Principal, _action: Action, thing: Thing<'_>) -> Decision {
        if thing.server == Some("secret") { Decision::Deny } else { Decision::Allow }
    }

    fn may_use(&self, _principal: &Principal, _action: Action, server: Option<&str>) -> bool {
        server != Some("secret")
    }
}

/// JOIN-5: partial instructions name only servers that the principal may use.
#[tokio::test]
async fn a_starting_server_is_named_only_to_those_who_may_use_it() {
    let never = || mock().list_delay_ms(3_600_000);
    let fixture = Fixture::start(&[("secret", never()), ("open", never())], |options| {
        options.authorizer = Some(Arc::new(WithoutSecret));
    });
    let told = fixture.gateway.instructions_for(&Principal::named("ada")).unwrap();
    assert!(told.contains("MCP server `open` is still starting") && !told.contains("secret"), "{told}");
    fixture.end().await;
}

/// GATE-4: lists, calls, prompts, resources, completion, suggestions and instructions follow the view. A request for
/// anything outside it gets the same answer as for something that does not exist.
#[tokio::test]
async fn what_is_not_in_a_view_is_unknown() {
    let fixture = Fixture::start(&[("m", mock())], |options| {
        options.authorizer = Some(Arc::new(ByGroup::default()));
    });
    fixture.settled().await;
    let red = of_group("ada", "red");
    let names = async |method: &str, member: &str, name: &str| {
        let list = ask(&fixture, &red, method, json!({})).await.unwrap();
        let names: Vec<String> = list[member]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one[name].as_str().unwrap().to_owned())
            .collect();
        names
    };
    assert_eq!(names("tools/list", "tools", "name").await, ["shared", "red", "pay"]);
    assert_eq!(names("prompts/list", "prompts", "name").await, ["red"]);
    assert_eq!(names("resources/list", "resources", "uri").await, ["a://red"]);

    let refused = |outcome: Result<Value, RpcError>| {
        let error = outcome.unwrap_err();
        (error.code(), error.message().replace("blue", "NAME").replace("nope", "NAME"))
    };
    for (method, member) in [("tools/call", "name"), ("prompts/get", "name")] {
        assert!(ask(&fixture, &red, method, json!({member: "red"})).await.is_ok(), "{method}");
        let denied = refused(ask(&fixture, &red, method, json!({member: "blue"})).await);
        let unknown = refused(ask(&fixture, &red, method, json!({member: "nope"})).await);
        assert_eq!(denied, unknown, "{method}");
    }
    assert!(ask(&fixture, &red, "resources/read", json!({"uri": "a://red"})).await.is_ok());
    for uri in ["a://blue", "a://nope"] {
        let error = ask(&fixture, &red, "resources/read", json!({"uri": uri})).await.unwrap_err();
        assert_eq!(
            (error.code(), error.message().as_str()),
            (-32002, "no server has this resource"),
            "{uri}"
        );
    }
    let complete = |name: &str| json!({"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "n", "value": ""}});
    assert!(ask(&fixture, &red, "completion/complete", complete("red")).await.is_ok());
    assert!(ask(&fixture, &red, "completion/complete", complete("blue")).await.is_err());

    let nobody = of_group("eve", "none");
    let list = ask(&fixture, &nobody, "tools/list", json!({})).await.unwrap();
    assert_eq!(
        list["tools"].as_array().unwrap().len(),
        2,
        "the shared tool, and the one decided by arguments"
    );
    fixture.end().await;
}

/// GATE-4: lists are prepared once for each class, however many clients there are, and again only for a new catalog.
#[tokio::test]
async fn as_many_lists_as_classes() {
    let authorizer = Arc::new(ByGroup::default());
    let used = Arc::clone(&authorizer);
    let fixture = Fixture::start(&[("m", mock())], |options| options.authorizer = Some(used));
    fixture.settled().await;
    let mut lists = HashSet::new();
    let mut asked = Vec::new();
    for number in 0..300 {
        let who = of_group(&format!("client-{number}"), ["red", "blue", "none"][number % 3]);
        lists.insert(ask(&fixture, &who, "tools/list", json!({})).await.unwrap().to_string());
        asked.push(authorizer.asked.load(Ordering::Relaxed));
    }
    assert_eq!(lists.len(), 3);
    assert!(asked[2] > asked[1] && asked[1] > asked[0], "each class has its view: {asked:?}");
    assert_eq!(asked[299], asked[2], "and only one each");
    fixture.end().await;
}

/// GATE-4: for a tool decided by arguments the authorizer is asked about each call; a denied call is refused before it
/// runs, and recorded.
#[tokio::test]
async fn some_calls_go_by_their_arguments() {
    let fixture = Fixture::start(&[("m", mock())], |options| {
        options.authorizer = Some(Arc::new(ByGroup::default()));
    });
    fixture.settled().await;
    let red = of_group("ada", "red");
    let pay = |amount: u32| json!({"name": "pay", "arguments": {"amount": amount}});
    assert!(ask(&fixture, &red, "tools/call", pay(1)).await.is_ok());
    let refused = ask(&fixture, &red, "tools/call", pay(2)).await.unwrap();
    assert_eq!(refused["isError"], true, "{refused}");
    let text = refused["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("tool `pay` may not be called with these arguments"), "{text}");
    let enters = fixture.recorder.enters();
    let validated: Vec<bool> = enters.iter().map(bridgehead_call::Enter::validated).collect();
    assert_eq!(validated, [true, false]);
    fixture.end().await;
}
