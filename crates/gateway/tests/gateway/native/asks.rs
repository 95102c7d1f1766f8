//! What a Rust handler asks its client: clients of both eras answer, and the handler goes on where it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bridgehead_call::Outcome;
use bridgehead_gateway::{
    AskError, Elicitation, NativePrompt, NativeResource, NativeTool, PromptMessage, ToolContext,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{BOTH, Client, LEGACY, MODERN, data, everything, failure, object};
use crate::support::{Fixture, until};

fn form() -> Value {
    json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
}

/// A tool that asks whatever its name says, and tells how that ended.
fn asking(name: &'static str) -> NativeTool {
    NativeTool::new(name, "", object(), move |_, cx: ToolContext| async move {
        let told = |error: AskError| match error {
            AskError::Unsupported { capability } => json!({"unsupported": capability}),
            AskError::Failed { code, message, .. } => json!({"failed": [code, message]}),
            AskError::BadAnswer { reason, .. } => json!({"bad": reason}),
            other => json!({"other": other.to_string()}),
        };
        let elicited = |answer| match answer {
            Elicitation::Accepted(content) => json!({"accepted": content}),
            Elicitation::Declined => json!("declined"),
            Elicitation::Cancelled => json!("cancelled"),
        };
        let asked = match name {
            "form" => cx.elicit_form("How many?", form()).await.map(elicited),
            "url" => {
                let opened = cx.elicit_url("Sign in.", "https://x/").await;
                opened.map(|answer| match answer {
                    Elicitation::Accepted(()) => json!("opened"),
                    Elicitation::Declined => json!("declined"),
                    Elicitation::Cancelled => json!("cancelled"),
                })
            }
            "sample" => cx.sample(&json!({"messages": [], "maxTokens": 7})).await,
            _ => cx.roots().await.map(|roots| {
                roots.iter().map(|root| json!([root.uri, root.name])).collect::<Vec<_>>().into()
            }),
        };
        Ok(asked.unwrap_or_else(told))
    })
}

const TOOLS: [&str; 4] = ["form", "url", "sample", "roots"];

fn start() -> Fixture {
    Fixture::start(&[], |options| options.tools.extend(TOOLS.map(asking)))
}

fn called(tool: &str) -> Value {
    json!({"name": tool, "arguments": {}})
}

/// LIB-2: a user fills in a form, says no, or dismisses it, in both eras. What the client is asked is the form, in the words
/// of its revision.
#[tokio::test]
async fn a_form_in_both_eras() {
    let fixture = start();
    for revision in BOTH {
        for (answer, expected) in [
            (json!({"action": "accept", "content": {"n": 3}}), json!({"accepted": {"n": 3}})),
            (json!({"action": "decline"}), json!("declined")),
            (json!({"action": "cancel"}), json!("cancelled")),
            (json!({"action": "shrug"}), json!({"bad": "its action `shrug` is not known"})),
        ] {
            let mut client = Client::new(revision, json!({"elicitation": {}}));
            let talk =
                client.talk(&fixture.gateway, "tools/call", called("form"), |_, _| Ok(answer.clone())).await;
            assert_eq!(data(&talk.outcome), &expected, "{revision}");
            let mut asked = json!({"message": "How many?", "requestedSchema": form()});
            if revision == MODERN {
                asked["mode"] = json!("form");
            }
            assert_eq!(talk.questions, [("elicitation/create".to_owned(), asked)], "{revision}");
        }
    }
    assert_eq!(fixture.gateway.parked(), 0);
    fixture.end().await;
}

/// LIB-2: a page to open, the client's model and its roots, in both eras. A legacy client knows the page by an id and is told
/// when the handler is done with it.
#[tokio::test]
async fn every_other_question_in_both_eras() {
    let fixture = start();
    let message = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "s"}});
    for revision in BOTH {
        for (tool, answer, expected) in [
            ("url", json!({"action": "accept"}), json!("opened")),
            ("url", json!({"action": "decline"}), json!("declined")),
            ("sample", message.clone(), message.clone()),
            ("sample", json!({"role": "assistant"}), json!(null)),
            (
                "roots",
                json!({"roots": [{"uri": "file:///a", "name": "a"}, {"uri": "file:///b"}]}),
                json!([["file:///a", "a"], ["file:///b", null]]),
            ),
        ] {
            let malformed = expected.is_null();
            if malformed && revision == MODERN {
                // Refused before it reaches the handler; the client may answer again.
                continue;
            }
            let mut client = Client::new(revision, everything());
            let talk =
                client.talk(&fixture.gateway, "tools/call", called(tool), |_, _| Ok(answer.clone())).await;
            match malformed {
                true => assert!(data(&talk.outcome)["bad"].is_string(), "{talk:?}"),
                false => assert_eq!(data(&talk.outcome), &expected, "{revision}"),
            }
            let [(method, params)] = &talk.questions[..] else { panic!("{talk:?}") };
            match tool {
                "sample" => {
                    assert_eq!((&**method, &params["maxTokens"]), ("sampling/createMessage", &json!(7)));
                }
                "roots" => assert_eq!((&**method, params), ("roots/list", &json!({}))),
                _ => {
                    assert_eq!((&params["mode"], &params["url"]), (&json!("url"), &json!("https://x/")));
                    let id = &params["elicitationId"];
                    assert_eq!(id.is_string(), revision == LEGACY, "{params}");
                    if revision == LEGACY && expected == "opened" {
                        let done = json!({"elicitationId": id});
                        assert_eq!(talk.notes[0]["method"], "notifications/elicitation/complete");
                        assert_eq!(talk.notes[0]["params"], done);
                    }
                }
            }
            let opened = revision == LEGACY && expected == "opened";
            assert_eq!(talk.notes.len(), usize::from(opened), "nothing more is sent: {talk:?}");
        }
    }
    let mut client = Client::new(LEGACY, everything());
    let refusal = json!({"code": -1, "message": "the user said no"});
    let talk =
        client.talk(&fixture.gateway, "tools/call", called("sample"), |_, _| Err(refusal.clone())).await;
    assert_eq!(data(&talk.outcome), &json!({"failed": [-1, "the user said no"]}));
    fixture.end().await;
}

/// LIB-2: a client is not asked for what it did not declare. The handler gets an error that names the capability, and goes
/// on; if it passes the error on, so does its client.
#[tokio::test]
async fn a_client_that_cannot_be_asked() {
    let strict = NativeTool::new("strict", "", object(), |_, cx: ToolContext| async move {
        Ok(json!(cx.roots().await?.len()))
    });
    let fixture = start();
    fixture.gateway.register(strict).unwrap();
    let needed = [
        json!({"elicitation": {}}),
        json!({"elicitation": {"url": {}}}),
        json!({"sampling": {}}),
        json!({"roots": {}}),
    ];
    for revision in BOTH {
        let mut none = Client::new(revision, json!({}));
        for (tool, needed) in TOOLS.iter().zip(&needed) {
            // One that can be asked nothing, and one that can be asked everything else.
            let mut others = everything();
            others.as_object_mut().unwrap().remove(needed.as_object().unwrap().keys().next().unwrap());
            for client in [&mut none, &mut Client::new(revision, others)] {
                let talk =
                    client.talk(&fixture.gateway, "tools/call", called(tool), |_, _| panic!("asked")).await;
                assert_eq!(data(&talk.outcome), &json!({"unsupported": needed}), "{revision} {tool}");
            }
        }
        let failed = none.call(&fixture.gateway, "strict").await;
        let error = failure(&failed);
        assert_eq!(error["code"], "HANDLER_ERROR", "{error}");
        assert_eq!(error["details"]["requiredCapabilities"], json!({"roots": {}}), "{error}");
    }
    let mut forms_only = Client::new(MODERN, json!({"elicitation": {}}));
    let talk = forms_only.talk(&fixture.gateway, "tools/call", called("url"), |_, _| panic!("asked")).await;
    assert_eq!(data(&talk.outcome), &json!({"unsupported": {"elicitation": {"url": {}}}}));
    fixture.end().await;
}

/// A tool that asks in two rounds, the second time two things at once, and counts how often it runs.
fn in_rounds(runs: &Arc<AtomicUsize>) -> NativeTool {
    let runs = Arc::clone(runs);
    NativeTool::new("rounds", "", object(), move |_, cx: ToolContext| {
        runs.fetch_add(1, Ordering::SeqCst);
        async move {
            let first = cx.elicit_form("first", form()).await?;
            let (second, roots) = tokio::join!(cx.elicit_form("second", form()), cx.roots());
            let number = |answer: Elicitation<Value>| match answer {
                Elicitation::Accepted(content) => content["n"].as_u64().unwrap(),
                _ => 0,
            };
            Ok(json!([number(first), number(second?), roots?.len()]))
        }
    })
}

/// LIB-2: a handler that asks a modern client runs once, however often the client comes back, and its call is one pair of
/// audit events. Meanwhile it is parked with its tool lock, and no other answer counts.
#[tokio::test]
async fn a_parked_handler_runs_once() {
    let runs = Arc::new(AtomicUsize::new(0));
    let tool = in_rounds(&runs);
    let fixture = Fixture::start(&[], |options| {
        options.tools.push(tool);
        options.settings.request_timeout = Duration::from_millis(200);
    });
    let client = Client::new(MODERN, everything());
    let first = client.call(&fixture.gateway, "rounds").await.unwrap();
    assert_eq!(first["resultType"], "input_required", "{first}");
    assert_eq!((fixture.gateway.parked(), runs.load(Ordering::SeqCst)), (1, 1));

    let locked = client.call(&fixture.gateway, "rounds").await.unwrap_err();
    assert_eq!(locked["data"]["code"], "PROVIDER_UNAVAILABLE", "the tool is locked while it asks: {locked}");

    let mut params = called("rounds");
    let answers = |asked: &Value, n: u64| {
        let answer = |question: &Value| match question["method"].as_str().unwrap() {
            "roots/list" => json!({"roots": []}),
            _ => json!({"action": "accept", "content": {"n": n}}),
        };
        let asked = asked["inputRequests"].as_object().unwrap();
        asked.iter().map(|(key, question)| (key.clone(), answer(question))).collect::<Value>()
    };
    params["requestState"] = first["requestState"].clone();
    params["inputResponses"] = answers(&first, 1);
    let second = client.ask(&fixture.gateway, "tools/call", params.clone()).await.unwrap();
    assert_eq!(second["inputRequests"].as_object().unwrap().len(), 2, "both at once: {second}");
    let again = client.ask(&fixture.gateway, "tools/call", params.clone()).await.unwrap_err();
    assert_eq!(again["message"], "invalid or expired requestState", "a round is answered once");
    params["requestState"] = second["requestState"].clone();
    params["inputResponses"] = answers(&second, 2);
    let done = client.ask(&fixture.gateway, "tools/call", params).await;
    assert_eq!(data(&done), &json!([1, 2, 0]));
    assert_eq!((fixture.gateway.parked(), runs.load(Ordering::SeqCst)), (0, 1), "it ran once");
    let calls = fixture.recorder.enters().len();
    assert_eq!(
        (calls, fixture.recorder.exits().len()),
        (2, 2),
        "the locked call, and one pair for the other"
    );

    let mut legacy = Client::new(LEGACY, everything());
    let talk = legacy
        .talk(&fixture.gateway, "tools/call", called("rounds"), |method, _| {
            Ok(match method {
                "roots/list" => json!({"roots": []}),
                _ => json!({"action": "accept", "content": {"n": 5}}),
            })
        })
        .await;
    assert_eq!((data(&talk.outcome), talk.questions.len()), (&json!([5, 5, 0]), 3));
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    fixture.end().await;
}

/// LIB-2, PIPE-9: the clocks of a call stand still while its client is asked, and go on afterwards.
#[tokio::test(start_paused = true)]
async fn clocks_stand_still_while_a_client_is_asked() {
    let patient = NativeTool::new("patient", "", object(), |_, cx: ToolContext| async move {
        cx.roots().await?;
        tokio::time::sleep(Duration::from_secs(9)).await;
        Ok(json!("in time"))
    })
    .concurrent();
    let late = NativeTool::new("late", "", object(), |_, cx: ToolContext| async move {
        cx.roots().await?;
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(json!("late"))
    });
    let fixture = Fixture::start(&[], |options| {
        options.settings.request_timeout = Duration::from_secs(10);
        options.settings.max_total = Duration::from_secs(12);
        options.tools.extend([patient, late]);
    });
    for (tool, expected) in [("patient", Ok("in time")), ("late", Err("PROVIDER_TIMEOUT"))] {
        // The user takes five minutes.
        let mut client = Client::new(LEGACY, everything());
        let call = client.send(&fixture.gateway, "tools/call", &called(tool), None);
        let asked = client.next().await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert!(client.respond(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}})));
        let legacy = call.await.unwrap();

        let client = Client::new(MODERN, everything());
        let asked = client.call(&fixture.gateway, tool).await.unwrap();
        tokio::time::sleep(Duration::from_secs(300)).await;
        let mut params = called(tool);
        params["requestState"] = asked["requestState"].clone();
        let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap();
        params["inputResponses"] = json!({key.as_str(): {"roots": []}});
        let modern = client.ask(&fixture.gateway, "tools/call", params).await;
        for outcome in [legacy, modern] {
            match (&outcome, expected) {
                (Ok(_), Ok(expected)) => assert_eq!(data(&outcome), expected),
                (Err(error), Err(code)) => assert_eq!(error["data"]["code"], code, "{error}"),
                other => panic!("{other:?}"),
            }
        }
    }
    fixture.end().await;
}

/// LIB-2: a user who does not answer within `question_timeout_ms` has dismissed the question; any other question fails.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_answer() {
    let fixture = start();
    for (tool, expected) in [
        ("form", json!("cancelled")),
        ("roots", json!({"failed": [-32603, "the client did not answer within 600 s"]})),
    ] {
        let mut client = Client::new(LEGACY, everything());
        let call = client.send(&fixture.gateway, "tools/call", &called(tool), None);
        let asked = client.next().await;
        assert_eq!(data(&call.await.unwrap()), &expected);
        let withdrawn = client.next().await;
        assert_eq!(withdrawn["params"]["requestId"], asked["id"], "{withdrawn}");
    }
    // A modern client that does not come back has no call any more.
    let client = Client::new(MODERN, everything());
    client.call(&fixture.gateway, "form").await.unwrap();
    assert_eq!(fixture.gateway.parked(), 1);
    tokio::time::sleep(Duration::from_secs(605)).await;
    assert_eq!((fixture.gateway.parked(), fixture.recorder.exits().len()), (0, 3));
    fixture.end().await;
}

/// LIB-2: a call that is cancelled while its client is asked drops its handler and withdraws the question, and the tool can be
/// called again.
#[tokio::test]
async fn a_call_that_is_cancelled_while_it_asks() {
    let (sender, mut dropped) = mpsc::channel(4);
    struct OnDrop(mpsc::Sender<()>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.try_send(()).unwrap();
        }
    }
    let tool = NativeTool::new("asks", "", object(), move |_, cx: ToolContext| {
        let held = OnDrop(sender.clone());
        async move {
            let _held = held;
            cx.roots().await?;
            // A modern client has come back by now.
            cx.roots().await?;
            std::future::pending().await
        }
    });
    let fixture = Fixture::start(&[], |options| options.tools.push(tool));
    let mut client = Client::new(LEGACY, everything());
    let call = client.send(&fixture.gateway, "tools/call", &called("asks"), None);
    let asked = client.next().await;
    call.abort();
    dropped.recv().await.unwrap();
    let withdrawn = client.next().await;
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
    assert!(!client.respond(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}})));

    // A modern client leaves while its second request waits for the handler.
    let client = Client::new(MODERN, everything());
    let mut params = called("asks");
    for _ in 0..2 {
        let asked = client.ask(&fixture.gateway, "tools/call", params.clone()).await.unwrap();
        let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        params["requestState"] = asked["requestState"].clone();
        params["inputResponses"] = json!({key: {"roots": []}});
    }
    let retry = client.send(&fixture.gateway, "tools/call", &params, None);
    tokio::task::yield_now().await;
    retry.abort();
    dropped.recv().await.unwrap();
    until(|| fixture.recorder.exits().len() == 2).await;
    assert!(fixture.recorder.exits().iter().all(|exit| matches!(exit.outcome(), Outcome::Cancelled)));
    assert_eq!(fixture.gateway.parked(), 0);
    fixture.end().await;
}

/// LIB-2: a handler that panics while its client is asked fails its own call. The question is withdrawn, a parked client gets
/// the error when it comes back, and the tool can be called again.
#[tokio::test]
async fn a_handler_that_panics_while_it_asks() {
    let blast = Arc::new(tokio::sync::Notify::new());
    let gun = Arc::clone(&blast);
    let tool = NativeTool::new("cursed", "", object(), move |_, cx: ToolContext| {
        let gun = Arc::clone(&gun);
        async move {
            let panicking = async {
                gun.notified().await;
                panic!("a private thing");
            };
            tokio::join!(cx.roots(), panicking).0?;
            Ok(json!(null))
        }
    });
    let fixture = Fixture::start(&[], |options| options.tools.push(tool));
    let mut client = Client::new(LEGACY, everything());
    let call = client.send(&fixture.gateway, "tools/call", &called("cursed"), None);
    let asked = client.next().await;
    blast.notify_one();
    let outcome = call.await.unwrap();
    assert_eq!(failure(&outcome)["message"], "tool `cursed` panicked");
    assert_eq!(client.next().await["params"]["requestId"], asked["id"], "the question is withdrawn");

    let client = Client::new(MODERN, everything());
    let asked = client.call(&fixture.gateway, "cursed").await.unwrap();
    blast.notify_one();
    until(|| fixture.recorder.exits().len() == 2).await;
    let mut params = called("cursed");
    params["requestState"] = asked["requestState"].clone();
    let outcome = client.ask(&fixture.gateway, "tools/call", params).await;
    assert_eq!(failure(&outcome)["code"], "HANDLER_ERROR");
    assert_eq!(fixture.gateway.parked(), 0);
    let dead = tokio::time::timeout(Duration::from_millis(1), fixture.gateway.panicked()).await;
    assert!(dead.is_err(), "a handler's panic is not the gateway's");
    fixture.end().await;
}

/// LIB-2: a handler that has returned can ask nothing more, and one that asks too much at once is told so.
#[tokio::test]
async fn what_cannot_be_asked_now() {
    let (sender, mut told) = mpsc::channel(4);
    let leaving = NativeTool::new("leaving", "", object(), move |_, cx: ToolContext| {
        let sender = sender.clone();
        async move {
            let other = cx.clone();
            let (asked, ready) = tokio::sync::oneshot::channel();
            tokio::spawn(async move {
                let open = other.roots();
                let mut open = std::pin::pin!(open);
                // The question is sent when the future is first polled.
                assert!(futures_util::poll!(&mut open).is_pending());
                asked.send(()).unwrap();
                sender.send(open.await).await.unwrap();
                sender.send(other.roots().await).await.unwrap();
            });
            ready.await.unwrap();
            Ok(json!(null))
        }
    });
    let greedy = NativeTool::new("greedy", "", object(), |_, cx: ToolContext| async move {
        let answers = futures_util::future::join_all((0..17).map(|_| cx.roots())).await;
        let refused = answers.iter().filter(|answer| matches!(answer, Err(AskError::TooMany))).count();
        Ok(json!([answers.iter().filter(|answer| answer.is_ok()).count(), refused]))
    });
    let fixture = Fixture::start(&[], |options| options.tools.extend([leaving, greedy]));
    let mut client = Client::new(LEGACY, everything());
    data(&client.call(&fixture.gateway, "leaving").await);
    for _ in 0..2 {
        assert_eq!(told.recv().await.unwrap(), Err(AskError::Ended));
    }
    let asked = client.next().await;
    assert_eq!(client.next().await["params"]["requestId"], asked["id"], "the question is withdrawn");
    for revision in BOTH {
        let mut client = Client::new(revision, everything());
        let roots = |_: &str, _: &Value| Ok(json!({"roots": []}));
        let talk = client.talk(&fixture.gateway, "tools/call", called("greedy"), roots).await;
        assert_eq!(data(&talk.outcome), &json!([16, 1]), "{revision}");
    }
    fixture.end().await;
}

/// LIB-2: the handlers of prompts and resources ask like those of tools.
#[tokio::test]
async fn prompts_and_resources_ask_too() {
    let prompt = NativePrompt::new("plan", "", |(): (), cx: ToolContext| async move {
        let roots = cx.roots().await?;
        Ok(vec![PromptMessage::user(format!("Look into {}.", roots[0].uri))])
    });
    let resource = NativeResource::new("notes://root", "root", |cx: ToolContext| async move {
        Ok(cx.roots().await?.swap_remove(0).uri)
    });
    let fixture = Fixture::start(&[], |options| {
        options.prompts.push(prompt);
        options.resources.push(resource);
    });
    for revision in BOTH {
        let mut client = Client::new(revision, everything());
        let roots = |_: &str, _: &Value| Ok(json!({"roots": [{"uri": "file:///a"}]}));
        let talk = client.talk(&fixture.gateway, "prompts/get", json!({"name": "plan"}), roots).await;
        let got = talk.outcome.unwrap();
        assert_eq!(got["messages"][0]["content"]["text"], "Look into file:///a.", "{revision}: {got}");
        let talk =
            client.talk(&fixture.gateway, "resources/read", json!({"uri": "notes://root"}), roots).await;
        let read = talk.outcome.unwrap();
        assert_eq!(read["contents"][0]["text"], "file:///a", "{revision}: {read}");
    }
    assert_eq!((fixture.recorder.enters().len(), fixture.gateway.parked()), (4, 0));
    fixture.end().await;
}
