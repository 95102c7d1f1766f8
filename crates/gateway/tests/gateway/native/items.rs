//! Prompts and resources written in Rust: listed, served, refused and announced like those of servers.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::Outcome;
use bridgehead_config::ResourceUris;
use bridgehead_gateway::{
    Action, Authorizer, Decision, Feed, NativePrompt, NativeResource, Principal, PromptMessage,
    RegisterError, Role, Thing, ToolFailure,
};
use bridgehead_testkit::Mock;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{BOTH, Client, LEGACY, MODERN, everything};
use crate::support::Fixture;

#[derive(Deserialize)]
struct Greeting {
    name: String,
    times: Option<u8>,
}

fn greet() -> NativePrompt {
    NativePrompt::new("greet", "Greets someone.", |asked: Greeting, cx| async move {
        if asked.name == "nobody" {
            return Err(ToolFailure::new("there is nobody to greet").with_details(json!({"name": "nobody"})));
        }
        assert!(asked.name != "panic", "a private thing");
        let hello = "hello ".repeat(asked.times.unwrap_or(1).into());
        let picture = json!({"type": "image", "data": "AA==", "mimeType": "image/png"});
        Ok(vec![
            PromptMessage::user(format!("Say {hello}to {} for {}.", asked.name, cx.principal)),
            PromptMessage::assistant("I will."),
            PromptMessage::new(Role::User, picture),
        ])
    })
    .title("Greet")
    .argument("name", "Who is greeted.")
    .optional_argument("times", "How often.")
}

#[derive(Deserialize)]
struct Page {
    number: u16,
}

fn resources() -> Vec<NativeResource> {
    let motd = NativeResource::new("notes://motd", "motd", |_| async { Ok("Welcome.") })
        .mime_type("text/plain")
        .title("Today")
        .description("The message of the day.");
    let picture = NativeResource::new("notes://picture", "picture", |_| async { Ok(vec![0_u8, 255]) });
    let broken = NativeResource::new("notes://broken", "broken", |_| async {
        Err::<String, _>(ToolFailure::new("it is torn"))
    });
    let page = NativeResource::template("notes://page/{number}", "page", |page: Page, _| async move {
        Ok((page.number < 10).then(|| format!("page {}", page.number)))
    })
    .mime_type("text/markdown");
    vec![motd, picture, broken, page]
}

fn start() -> Fixture {
    Fixture::start(&[], |options| {
        options.prompts.push(greet());
        options.resources.extend(resources());
    })
}

/// LIB-2: the lists and the capabilities of both eras show Rust prompts, resources and templates.
#[tokio::test]
async fn they_are_listed() {
    let fixture = start();
    for revision in BOTH {
        let client = Client::new(revision, json!({}));
        let list = async |method: &str| client.ask(&fixture.gateway, method, json!({})).await.unwrap();
        let arguments = json!([
            {"name": "name", "description": "Who is greeted.", "required": true},
            {"name": "times", "description": "How often.", "required": false},
        ]);
        let prompt = json!({"name": "greet", "title": "Greet", "description": "Greets someone.", "arguments": arguments});
        assert_eq!(list("prompts/list").await["prompts"], json!([prompt]), "{revision}");
        let listed = list("resources/list").await;
        let motd = json!({
            "uri": "notes://motd", "name": "motd", "title": "Today", "mimeType": "text/plain",
            "description": "The message of the day.",
        });
        assert_eq!(listed["resources"][0], motd, "{revision}");
        assert_eq!(listed["resources"].as_array().unwrap().len(), 3, "{revision}");
        let template =
            json!({"uriTemplate": "notes://page/{number}", "name": "page", "mimeType": "text/markdown"});
        assert_eq!(
            list("resources/templates/list").await["resourceTemplates"],
            json!([template]),
            "{revision}"
        );
    }
    let discovered = Client::new(MODERN, json!({})).ask(&fixture.gateway, "server/discover", json!({})).await;
    let initialized: Value = fixture.gateway.initialize(&Principal::local(), LEGACY).decode().unwrap();
    for answer in [&discovered.unwrap(), &initialized] {
        assert_eq!(answer["capabilities"]["prompts"], json!({"listChanged": true}));
        assert_eq!(answer["capabilities"]["resources"], json!({"listChanged": true, "subscribe": true}));
        assert!(answer["capabilities"].get("completions").is_none(), "{answer}");
    }
    fixture.end().await;
}

/// LIB-2: a prompt and a resource are served in both eras, with the marks of a result, and each request is recorded.
#[tokio::test]
async fn they_are_served() {
    let fixture = start();
    for revision in BOTH {
        for capabilities in [json!({}), everything()] {
            let client = Client::new(revision, capabilities);
            let gateway = &fixture.gateway;
            let params = json!({"name": "greet", "arguments": {"name": "Ada", "times": "2"}});
            let got = client.ask(gateway, "prompts/get", params).await.unwrap();
            assert_eq!(got["description"], "Greets someone.", "{got}");
            let text = format!("Say hello hello to Ada for {}.", Principal::local());
            let messages = json!([
                {"role": "user", "content": {"type": "text", "text": text}},
                {"role": "assistant", "content": {"type": "text", "text": "I will."}},
                {"role": "user", "content": {"type": "image", "data": "AA==", "mimeType": "image/png"}},
            ]);
            assert_eq!(got["messages"], messages, "{revision}");
            assert!(got["_meta"]["bridgehead/correlationId"].is_string(), "{got}");

            let read =
                async |uri: &str| client.ask(gateway, "resources/read", json!({"uri": uri})).await.unwrap();
            let motd = read("notes://motd").await;
            let text = json!({"uri": "notes://motd", "mimeType": "text/plain", "text": "Welcome."});
            assert_eq!(motd["contents"], json!([text]), "{revision}");
            assert_eq!(motd.get("ttlMs").is_some(), revision == MODERN, "{motd}");
            assert_eq!(
                read("notes://picture").await["contents"],
                json!([{"uri": "notes://picture", "blob": "AP8="}])
            );
            let page = json!({"uri": "notes://page/7", "mimeType": "text/markdown", "text": "page 7"});
            assert_eq!(read("notes://page/7").await["contents"], json!([page]));
        }
    }
    let enters = fixture.recorder.enters();
    let rows: Vec<_> =
        enters.iter().map(|enter| (enter.call().method(), enter.call().about.subject.as_deref())).collect();
    assert_eq!(rows[..2], [("prompts/get", Some("greet")), ("resources/read", Some("notes://motd"))]);
    assert_eq!((rows.len(), enters.iter().all(bridgehead_call::Enter::validated)), (16, true));
    fixture.end().await;
}

/// LIB-2: arguments that a prompt does not take are refused with where and why, before the handler runs.
#[tokio::test]
async fn bad_arguments_of_a_prompt() {
    let fixture = start();
    for revision in BOTH {
        let client = Client::new(revision, json!({}));
        for (arguments, path, part) in [
            (json!({}), "/name", "it is required"),
            (json!({"name": 7}), "/name", "it is not a text"),
            (json!({"name": "Ada", "times": "often"}), "/times", "not a whole number"),
            (json!([]), "", "not an object"),
        ] {
            let params = json!({"name": "greet", "arguments": arguments});
            let error = client.ask(&fixture.gateway, "prompts/get", params).await.unwrap_err();
            assert_eq!(
                (&error["code"], &error["data"]["code"]),
                (&json!(-32602), &json!("INVALID_PARAMS")),
                "{error}"
            );
            let issue = &error["data"]["details"]["issues"][0];
            assert_eq!(issue["path"], path, "{error}");
            assert!(issue["message"].as_str().unwrap().contains(part), "{error}");
            assert_eq!(error["data"]["mayHaveRun"], false, "{error}");
        }
        let absent = client.ask(&fixture.gateway, "prompts/get", json!({"name": "greet"})).await.unwrap_err();
        assert_eq!(absent["code"], -32602, "{absent}");
    }
    assert!(fixture.recorder.enters().iter().all(|enter| !enter.validated()));
    fixture.end().await;
}

/// LIB-2: the failure and the panic of a handler are errors of their own request, without the panic's text.
#[tokio::test]
async fn handlers_fail_safely() {
    let fixture = start();
    let client = Client::new(LEGACY, json!({}));
    let get = |name: &str| json!({"name": "greet", "arguments": {"name": name}});
    let error = client.ask(&fixture.gateway, "prompts/get", get("nobody")).await.unwrap_err();
    assert_eq!(
        (&error["code"], &error["data"]["code"]),
        (&json!(-32603), &json!("HANDLER_ERROR")),
        "{error}"
    );
    assert_eq!(
        (&error["data"]["prompt"], &error["data"]["details"]["name"]),
        (&json!("greet"), &json!("nobody"))
    );
    let error = client.ask(&fixture.gateway, "prompts/get", get("panic")).await.unwrap_err();
    assert_eq!(error["message"], "prompt `greet` panicked", "{error}");
    let broken = json!({"uri": "notes://broken"});
    let error = client.ask(&fixture.gateway, "resources/read", broken).await.unwrap_err();
    assert_eq!(
        (&error["message"], &error["data"]["resource"]),
        (&json!("it is torn"), &json!("notes://broken"))
    );
    let ended = |exit: &bridgehead_call::Exit| matches!(exit.outcome(), Outcome::Error { code, .. } if code == "HANDLER_ERROR");
    assert!(fixture.recorder.exits().iter().all(ended));
    fixture.end().await;
}

/// LIB-2: a resource that its template's handler does not have is not found, in the words of the client's era; so is one
/// whose parts the handler cannot take.
#[tokio::test]
async fn resources_that_do_not_exist() {
    let fixture = start();
    for (revision, code) in [(LEGACY, -32002), (MODERN, -32602)] {
        let client = Client::new(revision, json!({}));
        for uri in ["notes://page/11", "notes://page/x", "notes://page/", "notes://nothing"] {
            let error =
                client.ask(&fixture.gateway, "resources/read", json!({"uri": uri})).await.unwrap_err();
            assert_eq!((&error["code"], &error["data"]["uri"]), (&json!(code), &json!(uri)), "{error}");
        }
    }
    fixture.end().await;
}

/// Lets `ada` use everything, and everyone else only what is public.
struct Public;

impl Authorizer for Public {
    fn class(&self, principal: &Principal) -> Arc<str> {
        principal.as_str().into()
    }

    fn decide(&self, principal: &Principal, action: Action, thing: Thing<'_>) -> Decision {
        assert_eq!(thing.server, None);
        let public = match action {
            Action::Call => true,
            Action::Get => false,
            Action::Read => matches!(thing.name, "notes://motd" | "notes://page/1"),
            Action::ReadSome => thing.name == "notes://page/{number}",
        };
        if public || principal.as_str() == "ada" { Decision::Allow } else { Decision::Deny }
    }
}

/// LIB-2, GATE-4: what an authorizer denies is unknown: not listed, and refused in the same words as what does not exist. Both
/// refusals are recorded.
#[tokio::test]
async fn what_is_denied_is_unknown() {
    let fixture = Fixture::start(&[], |options| {
        options.prompts.push(greet());
        options.resources.extend(resources());
        options.authorizer = Some(Arc::new(Public));
    });
    let gateway = &fixture.gateway;
    for revision in BOTH {
        let (mut ada, mut eve) = (Client::new(revision, json!({})), Client::new(revision, json!({})));
        (ada.principal, eve.principal) = (Principal::named("ada"), Principal::named("eve"));
        let greet = json!({"name": "greet", "arguments": {"name": "x"}});
        ada.ask(gateway, "prompts/get", greet.clone()).await.unwrap();
        let told = |error: &Value, name: &str| {
            let message = error["message"].as_str().unwrap().replace(name, "NAME");
            (error["code"].clone(), message)
        };
        let denied = eve.ask(gateway, "prompts/get", greet).await.unwrap_err();
        let unknown = eve.ask(gateway, "prompts/get", json!({"name": "other"})).await.unwrap_err();
        assert_eq!(told(&denied, "greet"), told(&unknown, "other"));
        let listed = eve.ask(gateway, "resources/list", json!({})).await.unwrap();
        assert_eq!(listed["resources"].as_array().unwrap().len(), 1, "{listed}");
        for uri in ["notes://motd", "notes://page/1"] {
            eve.ask(gateway, "resources/read", json!({"uri": uri})).await.unwrap();
        }
        ada.ask(gateway, "resources/read", json!({"uri": "notes://page/2"})).await.unwrap();
        let unknown = eve.ask(gateway, "resources/read", json!({"uri": "notes://none"})).await.unwrap_err();
        for uri in ["notes://picture", "notes://page/2"] {
            let denied = eve.ask(gateway, "resources/read", json!({"uri": uri})).await.unwrap_err();
            assert_eq!(told(&denied, uri), told(&unknown, "notes://none"));
        }
    }
    let eve: Value = gateway.initialize(&Principal::named("eve"), LEGACY).decode().unwrap();
    assert!(eve["capabilities"].get("prompts").is_none(), "she has none: {eve}");
    let (enters, exits) = (fixture.recorder.enters(), fixture.recorder.exits());
    let refused = exits.iter().filter(|exit| matches!(exit.outcome(), Outcome::Error { .. })).count();
    // To a modern client without any prompts the method is not offered; what exists for others is recorded all the same.
    assert_eq!((enters.len(), refused), (17, 9));
    fixture.end().await;
}

/// A server that has a prompt, a resource and a template with the names of ours.
fn rival() -> Mock {
    Mock::legacy()
        .capabilities(r#"{"tools":{},"prompts":{},"resources":{},"completions":{}}"#)
        .replies("prompts/list", r#"{"prompts":[{"name":"greet"},{"name":"other"}]}"#)
        .replies("prompts/get", r#"{"messages":[],"asked":$PARAMS}"#)
        .replies("resources/list", r#"{"resources":[{"uri":"notes://motd","name":"theirs"}]}"#)
        .replies(
            "resources/templates/list",
            r#"{"resourceTemplates":[{"uriTemplate":"notes://page/{any}","name":"theirs"}]}"#,
        )
        .replies("resources/read", r#"{"contents":[{"uri":"u","text":"theirs"}]}"#)
        .replies("completion/complete", r#"{"completion":{"values":["v"]}}"#)
}

fn names(list: &Value, member: &str) -> Vec<String> {
    let all = list.as_array().unwrap().iter();
    all.map(|one| one[member].as_str().unwrap().to_owned()).collect()
}

/// LIB-2, CAT-3: what is written in Rust keeps its name and its URI. A server's prompt of that name is prefixed; a server's
/// resource with that URI can be reached if URIs carry their servers.
#[tokio::test]
async fn names_that_a_server_has_too() {
    for uris in [ResourceUris::Keep, ResourceUris::Rewrite] {
        let fixture = Fixture::start(&[("m", rival())], |options| {
            options.settings.resource_uris = uris;
            options.prompts.push(greet());
            options.resources.extend(resources());
        });
        fixture.settled().await;
        let client = Client::new(LEGACY, json!({}));
        let ask =
            async |method: &str, params: Value| client.ask(&fixture.gateway, method, params).await.unwrap();
        let listed = ask("prompts/list", json!({})).await;
        assert_eq!(names(&listed["prompts"], "name"), ["m__greet", "other", "greet"]);
        let theirs = ask("prompts/get", json!({"name": "m__greet"})).await;
        assert_eq!(theirs["asked"]["name"], "greet", "{theirs}");
        let ours = ask("prompts/get", json!({"name": "greet", "arguments": {"name": "Ada"}})).await;
        assert!(ours.get("asked").is_none(), "{ours}");
        let text =
            async |uri: &str| ask("resources/read", json!({"uri": uri})).await["contents"][0]["text"].clone();
        assert_eq!(
            (text("notes://motd").await, text("notes://page/3").await),
            (json!("Welcome."), json!("page 3"))
        );
        let listed = names(&ask("resources/list", json!({})).await["resources"], "uri");
        match uris {
            ResourceUris::Keep => assert_eq!(listed, ["notes://motd", "notes://picture", "notes://broken"]),
            ResourceUris::Rewrite => {
                assert_eq!(listed[0], "bridgehead+m:notes://motd");
                assert_eq!(text("bridgehead+m:notes://motd").await, "theirs");
                assert_eq!(text("bridgehead+m:notes://page/3").await, "theirs");
            }
        }
        // Completion is declared because of the server; ours complete nothing.
        let argument = json!({"name": "name", "value": "A"});
        for (reference, expected) in [
            (json!({"type": "ref/prompt", "name": "greet"}), json!([])),
            (json!({"type": "ref/resource", "uri": "notes://page/{number}"}), json!([])),
            (json!({"type": "ref/resource", "uri": "notes://motd"}), json!([])),
            (json!({"type": "ref/prompt", "name": "other"}), json!(["v"])),
        ] {
            let params = json!({"ref": reference, "argument": argument});
            assert_eq!(
                ask("completion/complete", params).await["completion"]["values"],
                expected,
                "{reference}"
            );
        }
        fixture.end().await;
    }
}

async fn told(feed: &Feed) -> Value {
    let message = tokio::time::timeout(Duration::from_secs(30), feed.next()).await.unwrap();
    serde_json::from_slice(&message).unwrap()
}

/// LIB-2: a prompt or a resource that is registered while the gateway runs is announced and served; a refused one changes
/// nothing.
#[tokio::test]
async fn they_may_come_later() {
    let fixture = Fixture::start(&[], |_| ());
    let client = Client::new(LEGACY, json!({}));
    let modern = Client::new(MODERN, json!({}));
    let refused = modern.ask(&fixture.gateway, "prompts/list", json!({})).await.unwrap_err();
    assert_eq!(refused["code"], -32601, "{refused}");
    let feed = fixture.gateway.feed(&Principal::local(), &client.session);
    fixture.gateway.register_prompt(greet()).unwrap();
    assert_eq!(told(&feed).await["method"], "notifications/prompts/list_changed");
    for resource in resources() {
        fixture.gateway.register_resource(resource).unwrap();
        assert_eq!(told(&feed).await["method"], "notifications/resources/list_changed");
    }
    assert_eq!(
        fixture.gateway.register_prompt(greet()),
        Err(RegisterError::DuplicatePrompt("greet".to_owned()))
    );
    assert!(matches!(
        fixture.gateway.register_resource(NativeResource::new("motd", "", |_| async { Ok("") })),
        Err(RegisterError::BadUri { .. })
    ));
    for client in [&client, &modern] {
        let listed = client.ask(&fixture.gateway, "prompts/list", json!({})).await.unwrap();
        assert_eq!(names(&listed["prompts"], "name"), ["greet"]);
        client.ask(&fixture.gateway, "resources/read", json!({"uri": "notes://motd"})).await.unwrap();
    }
    fixture.end().await;
}

/// LIB-2: clients of both eras subscribe to a Rust resource and are told when the program says that it has changed.
#[tokio::test]
async fn changes_are_announced() {
    let fixture = start();
    let gateway = &fixture.gateway;
    let client = Client::new(LEGACY, json!({}));
    let feed = gateway.feed(&Principal::local(), &client.session);
    for uri in ["notes://motd", "notes://page/1"] {
        assert_eq!(client.ask(gateway, "resources/subscribe", json!({"uri": uri})).await, Ok(json!({})));
    }
    let unknown =
        client.ask(gateway, "resources/subscribe", json!({"uri": "notes://none"})).await.unwrap_err();
    assert_eq!(unknown["code"], -32002);

    let (sink, mut notes) = bridgehead_gateway::ProgressSink::channel(8);
    let filter = json!({"resourceSubscriptions": ["notes://motd", "notes://none"]});
    let listening = {
        let params = bridgehead_testkit::client::modern_params(json!({"notifications": filter}));
        let params = bridgehead_wire::Object::parse(&bridgehead_wire::Raw::encode(&params)).unwrap();
        let meta = bridgehead_wire::RequestMeta::read(Some(&params)).unwrap();
        let id = bridgehead_wire::Id::new(bridgehead_wire::Raw::string("l"));
        let request =
            bridgehead_gateway::ClientRequest { method: "subscriptions/listen".into(), params, meta, id };
        let caller = bridgehead_gateway::Caller {
            principal: Principal::local(),
            revision: MODERN,
            transport: bridgehead_gateway::ClientTransport::Memory,
            session: bridgehead_gateway::Session::new(),
            questioner: None,
        };
        let gateway = gateway.clone();
        tokio::spawn(async move { gateway.answer(&caller, &request, Some(sink)).await.map(drop) })
    };
    let mut note = async || -> Value {
        let note = tokio::time::timeout(Duration::from_secs(30), notes.recv()).await.unwrap().unwrap();
        serde_json::from_slice(&note).unwrap()
    };
    let acknowledged = note().await;
    let honoured = &acknowledged["params"]["notifications"]["resourceSubscriptions"];
    assert_eq!(honoured, &json!(["notes://motd"]), "{acknowledged}");

    // Registering something must not end the subscriptions.
    gateway.register_prompt(NativePrompt::new("late", "", |(): (), _| async { Ok(Vec::new()) })).unwrap();
    assert_eq!(told(&feed).await["method"], "notifications/prompts/list_changed");
    gateway.resource_updated("notes://picture");
    gateway.resource_updated("notes://motd");
    gateway.resource_updated("notes://page/1");
    let updated = note().await;
    assert_eq!(
        (&updated["method"], &updated["params"]["uri"]),
        (&json!("notifications/resources/updated"), &json!("notes://motd"))
    );
    for uri in ["notes://motd", "notes://page/1"] {
        assert_eq!(told(&feed).await["params"], json!({"uri": uri}));
    }
    client.ask(gateway, "resources/unsubscribe", json!({"uri": "notes://motd"})).await.unwrap();
    gateway.resource_updated("notes://motd");
    gateway.resource_updated("notes://page/1");
    assert_eq!(told(&feed).await["params"], json!({"uri": "notes://page/1"}));
    drop(notes);
    listening.await.unwrap().unwrap();
    client.session.end();
    fixture.end().await;
}
