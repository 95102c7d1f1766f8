//! What servers of both eras ask during a call, and what this program answers.

use std::sync::Arc;
use std::time::Duration;

use bridgehead::schema::Content;
use bridgehead::tools::{CallOptions, ElicitationKind, SamplingRefused, SamplingResult, ToolResult};
use bridgehead::{Code, Elicitation};
use bridgehead_testkit::{Behaviour, Mock};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::{World, structured};

const FORM: &str = r#"{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{"n":{"type":"number","minimum":1.0}}},"x":1.50}"#;
const PAGE: &str = r#"{"mode":"url","message":"sign in","url":"https://example.com/in","elicitationId":"7"}"#;
const SAMPLE: &str = r#"{"messages":[{"role":"user","content":{"type":"text","text":"hi"}},{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"systemPrompt":"be brief","maxTokens":9,"temperature":0.50}"#;

/// A server that asks each of the questions by a tool of its own: a legacy one during the call, a modern one by its result.
fn asking(modern: bool) -> Mock {
    let questions = [
        ("form", "elicitation/create", FORM),
        ("page", "elicitation/create", PAGE),
        ("sample", "sampling/createMessage", SAMPLE),
        ("roots", "roots/list", "{}"),
    ];
    let mock = if modern { Mock::modern() } else { Mock::legacy() };
    questions.into_iter().fold(mock.tool("received", Behaviour::Received).tool("echo", Behaviour::Echo), |mock, (name, method, params)| {
        let round = format!(r#"{{"resultType":"input_required","requestState":"s-1","inputRequests":{{"k":{{"method":"{method}","params":{params}}}}}}}"#);
        mock.tool(name, match modern {
            true => Behaviour::InputRounds(vec![round.into()]),
            false => Behaviour::ask(method, params),
        })
    })
}

/// The answer that reached the server.
fn answered(result: &ToolResult) -> Value {
    let text: Value = serde_json::from_str(&result.flat().result).unwrap();
    match text.get("inputResponses") {
        Some(responses) => responses["k"].clone(),
        None => text.get("result").cloned().unwrap_or_else(|| text["error"].clone()),
    }
}

/// LIB-1, ERA-1: a server of either era asks the user, the model and for roots during a call; the handlers see the question
/// typed and raw, and the server gets their answers.
#[tokio::test]
async fn servers_of_both_eras_are_answered() {
    let world = World::start(&[("old", asking(false)), ("new", asking(true))]).await;
    for server in ["old", "new"] {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let (elicited, sampled) = (Arc::clone(&asked), Arc::clone(&asked));
        let options = CallOptions::default()
            .on_elicitation(move |question| {
                let kind = match &question.kind {
                    ElicitationKind::Form { schema } => schema.as_ref().unwrap().as_str().to_owned(),
                    ElicitationKind::Url { url } => url.clone(),
                    other => panic!("{other:?}"),
                };
                elicited.lock().push(format!("{} {} {kind}", question.tool, question.message));
                let exact = question.params.as_str().contains("1.50");
                async move {
                    match exact {
                        true => Elicitation::Accepted(json!({"n": 4})),
                        false => Elicitation::Accepted(Value::Null),
                    }
                }
            })
            .on_sampling(move |question| {
                assert!(question.params.as_str().contains(r#""temperature":0.50"#));
                let said = question.messages.iter().map(|message| {
                    let texts: Vec<_> = message.content.iter().filter_map(Content::as_text).collect();
                    format!("{}:{}", message.role, texts.join("+"))
                });
                let said = said.collect::<Vec<_>>().join(" ");
                let (system, most) = (question.system_prompt.unwrap(), question.max_tokens.unwrap());
                sampled.lock().push(format!("{} {said} {system} {most}", question.tool));
                async { Ok(SamplingResult::text("model-1", "hello")) }
            })
            .roots(["file:///work", "file:///data"]);
        let call = async |tool: &str| {
            let called =
                world.tools.call_with(&format!("{server}__{tool}"), json!({}), options.clone()).await;
            answered(&called.unwrap())
        };
        assert_eq!(call("form").await, json!({"action": "accept", "content": {"n": 4}}));
        assert_eq!(call("page").await, json!({"action": "accept"}));
        let said = json!({"role": "assistant", "model": "model-1", "stopReason": "endTurn",
                          "content": {"type": "text", "text": "hello"}});
        assert_eq!(call("sample").await, said);
        assert_eq!(call("roots").await, json!({"roots": [{"uri": "file:///work"}, {"uri": "file:///data"}]}));
        let schema = r#"{"type":"object","properties":{"n":{"type":"number","minimum":1.0}}}"#;
        let expected = [
            format!("{server}__form who? {schema}"),
            format!("{server}__page sign in https://example.com/in"),
            format!("{server}__sample user:hi assistant:a+b be brief 9"),
        ];
        assert_eq!(*asked.lock(), expected);
    }
    assert_eq!(world.recorder.enters().len(), 8, "a call is one pair, however often it is asked");
    world.end().await;
}

/// LIB-1: what has no handler is not declared: a modern server reads so, and a legacy one is refused.
#[tokio::test]
async fn what_has_no_handler_cannot_be_asked() {
    let world = World::start(&[("old", asking(false)), ("new", asking(true))]).await;
    let declared = async |options: CallOptions| {
        world.tools.call_with("new__echo", json!({}), options).await.unwrap();
        let received = world.tools.call("new__received", json!({})).await.unwrap().flat().result;
        let meta = serde_json::from_str::<Value>(&received).unwrap()["_meta"].clone();
        meta["io.modelcontextprotocol/clientCapabilities"].clone()
    };
    let some = || CallOptions::default().on_elicitation(|_| async { Elicitation::Declined });
    assert_eq!(declared(CallOptions::default()).await, json!({}));
    assert_eq!(declared(some()).await, json!({"elicitation": {"form": {}, "url": {}}}));
    let sampling = CallOptions::default().on_sampling(|_| async { Err(SamplingRefused::new("no")) });
    assert_eq!(declared(sampling.roots([""; 0])).await, json!({"sampling": {}, "roots": {}}));

    for options in [CallOptions::default(), some()] {
        let refused = world.tools.call_with("old__sample", json!({}), options.clone()).await.unwrap();
        assert_eq!(answered(&refused)["code"], -32601, "{:?}", refused.flat());
        let refused = world.tools.call_with("new__sample", json!({}), options).await.unwrap_err();
        assert_eq!(refused.code(), Code::ProviderInvalidOutput, "{refused}");
    }
    world.end().await;
}

/// LIB-1, LIB-5: a refusal and a decline reach the server; so does the panic of a handler, as an error, and the tools go on.
#[tokio::test]
async fn handlers_refuse_and_panic() {
    let world = World::start(&[("old", asking(false)), ("new", asking(true))]).await;
    let call = async |tool: &str, options: &CallOptions| {
        world.tools.call_with(tool, json!({}), options.clone()).await.unwrap()
    };
    let refusing = CallOptions::default()
        .on_elicitation(|_| async { Elicitation::Cancelled })
        .on_sampling(|_| async { Err(SamplingRefused::new("the user said no")) });
    for server in ["old", "new"] {
        let answer = answered(&call(&format!("{server}__form"), &refusing).await);
        assert_eq!(answer, json!({"action": "cancel"}));
    }
    assert_eq!(answered(&call("old__sample", &refusing).await)["message"], "the user said no");
    let told = call("new__sample", &refusing).await;
    assert!(told.is_error() && told.flat().result.contains("the user said no"), "{:?}", told.flat());

    let panicking = CallOptions::default().on_elicitation(|question| {
        assert_eq!(question.message, "not this", "a handler that panics");
        async { Elicitation::Declined }
    });
    assert_eq!(answered(&call("old__form", &panicking).await)["message"], "the client failed to answer");
    assert_eq!(answered(&call("new__form", &panicking).await), json!({"action": "cancel"}));
    assert!(world.tools.call("old__echo", json!({})).await.is_ok());
    world.end().await;
}

/// LIB-1, PIPE-9: the time of a call stands still while its handler answers, for servers of both eras.
#[tokio::test]
async fn the_clock_stands_still_for_answers() {
    let world = World::start(&[("old", asking(false)), ("new", asking(true))]).await;
    for server in ["old", "new"] {
        let options = CallOptions::default().timeout(Duration::from_secs(20)).on_elicitation(|_| async {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(60)).await;
            tokio::time::resume();
            Elicitation::Declined
        });
        let result = world.tools.call_with(&format!("{server}__form"), json!({}), options).await.unwrap();
        assert_eq!(answered(&result), json!({"action": "decline"}));
    }
    assert_eq!(structured(&world.tools.call("old__echo", json!({"a": 1})).await.unwrap()), json!({"a": 1}));
    world.end().await;
}
