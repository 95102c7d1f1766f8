//! Tools and questions whose schemas come from Rust types.

use std::collections::BTreeMap;

use bridgehead_gateway::{AskError, Elicitation, NativeTool, RegisterError, ToolContext};
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::{BOTH, Client, LEGACY, data, everything, failure};
use crate::support::Fixture;

/// What to count.
#[derive(Deserialize, JsonSchema)]
struct CountWords {
    /// The texts to count in.
    texts: Vec<Text>,
    /// Whether each word counts once.
    #[serde(default)]
    once: bool,
}

/// A text that is not empty.
#[derive(JsonSchema)]
#[schemars(transparent)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        assert!(text != "panic", "a private thing");
        match text.trim().is_empty() {
            true => Err(D::Error::custom("a text must have words")),
            false => Ok(Self(text)),
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct Counted {
    words: usize,
    by_text: Vec<Count>,
}

#[derive(Serialize, JsonSchema)]
struct Count {
    words: usize,
}

fn count_words() -> NativeTool {
    NativeTool::typed("count_words", "Counts words.", |asked: CountWords, _cx: ToolContext| async move {
        let by_text: Vec<Count> =
            asked.texts.iter().map(|text| Count { words: text.0.split_whitespace().count() }).collect();
        let words: usize = by_text.iter().map(|count| count.words).sum();
        Ok(Counted { words: if asked.once { words.min(1) } else { words }, by_text })
    })
}

fn call(arguments: &Value) -> Value {
    json!({"name": "count_words", "arguments": arguments})
}

/// LIB-2: a typed tool takes its type and answers with its type, in both eras. Its schemas are on the wire, and its answer
/// fits the output schema.
#[tokio::test]
async fn there_and_back() {
    let fixture = Fixture::start(&[], |options| options.tools.push(count_words()));
    for revision in BOTH {
        let client = Client::new(revision, json!({}));
        let list = client.ask(&fixture.gateway, "tools/list", json!({})).await.unwrap();
        let tools = list["tools"].as_array().unwrap();
        let listed = tools.iter().find(|tool| tool["name"] == "count_words").unwrap();
        assert_eq!(
            listed["inputSchema"],
            json!({
                "type": "object",
                "description": "What to count.",
                "properties": {
                    "texts": {"type": "array", "items": {"$ref": "#/$defs/Text"}, "description": "The texts to count in."},
                    "once": {"type": "boolean", "default": false, "description": "Whether each word counts once."},
                },
                "required": ["texts"],
                "$defs": {"Text": {"type": "string", "description": "A text that is not empty."}},
            }),
            "{revision}"
        );
        let output = &listed["outputSchema"];
        assert_eq!(
            output["properties"]["data"]["properties"]["words"],
            json!({"type": "integer", "minimum": 0})
        );
        assert_eq!(output["$defs"]["Count"]["required"], json!(["words"]), "{output}");

        let answered =
            client.ask(&fixture.gateway, "tools/call", call(&json!({"texts": ["a b", "c"]}))).await;
        assert_eq!(
            data(&answered),
            &json!({"words": 3, "by_text": [{"words": 2}, {"words": 1}]}),
            "{revision}"
        );
        let described = bridgehead_schema::Validator::compile(&output.to_string()).unwrap();
        described.check(&answered.unwrap()["structuredContent"]).unwrap();
    }
    fixture.end().await;
}

/// LIB-2: arguments that do not fit the schema, and arguments that fit but that the type refuses, are INVALID_PARAMS with
/// where and why. The handler does not run, and the record says that the call was not validated.
#[tokio::test]
async fn bad_arguments() {
    let fixture = Fixture::start(&[], |options| options.tools.push(count_words()));
    for revision in BOTH {
        let client = Client::new(revision, json!({}));
        for (arguments, path, schema_path, message) in [
            (json!({"texts": "a"}), "/texts", "/properties/texts/type", "array"),
            (json!({"texts": ["a", "  "]}), "/texts/1", "", "a text must have words"),
        ] {
            let refused = client.ask(&fixture.gateway, "tools/call", call(&arguments)).await;
            let error = failure(&refused);
            assert_eq!(error["code"], "INVALID_PARAMS", "{error}");
            let issue = &error["details"]["issues"][0];
            assert_eq!(
                (&issue["path"], &issue["schemaPath"]),
                (&json!(path), &json!(schema_path)),
                "{error}"
            );
            assert!(issue["message"].as_str().unwrap().contains(message), "{error}");
        }
        let panicked = client.ask(&fixture.gateway, "tools/call", call(&json!({"texts": ["panic"]}))).await;
        let error = failure(&panicked);
        assert_eq!(
            (&error["code"], &error["message"]),
            (&json!("HANDLER_ERROR"), &json!("tool `count_words` panicked"))
        );
    }
    assert!(fixture.recorder.enters().iter().all(|enter| !enter.validated()));
    fixture.end().await;
}

/// LIB-2: a type that is no object cannot be the arguments of a tool, and a result that is no JSON is the tool's failure.
#[tokio::test]
async fn types_that_do_not_work() {
    let fixture = Fixture::start(&[], |_| ());
    let text = NativeTool::typed("text", "", |text: String, _| async move { Ok(text) });
    let refused = fixture.gateway.register(text);
    assert!(matches!(&refused, Err(RegisterError::BadSchema { tool, .. }) if tool == "text"), "{refused:?}");

    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let odd = NativeTool::typed("odd", "", |_: Nothing, _| async {
        Ok(BTreeMap::from([(vec![1_u8], "a list is no name of a member")]))
    });
    let refused = fixture.gateway.register(odd);
    assert_eq!(refused, Ok(()));
    let client = Client::new(LEGACY, json!({}));
    let failed = client.call(&fixture.gateway, "odd").await;
    let error = failure(&failed);
    assert_eq!(error["code"], "HANDLER_ERROR", "{error}");
    assert!(error["message"].as_str().unwrap().contains("cannot be written as JSON"), "{error}");
    fixture.end().await;
}

#[derive(Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
enum Channel {
    /// To everyone.
    Stable,
    /// To the brave.
    Beta,
}

#[derive(Deserialize, JsonSchema, Serialize)]
struct Release {
    /// Where it goes.
    channel: Channel,
    #[schemars(range(min = 1, max = 100))]
    percent: u8,
    note: Option<String>,
}

/// LIB-2: a form for a Rust type, answered in both eras; an answer that does not fit the type is an error that says where,
/// and a type that no form can ask for is refused before the client is asked.
#[tokio::test]
async fn a_form_for_a_type() {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "it is never asked for")]
    struct Nested {
        inner: Release,
    }
    let tool = NativeTool::typed("release", "", |_: Nothing, cx: ToolContext| async move {
        match cx.elicit::<Nested>("?").await {
            Err(AskError::NotAForm { name, reason }) => {
                assert!(name == "Nested" && reason.contains("`inner`"));
            }
            _ => panic!("it was asked"),
        }
        Ok(match cx.elicit::<Release>("Release it?").await {
            Ok(Elicitation::Accepted(release)) => json!(release),
            Ok(Elicitation::Declined) => json!("declined"),
            Ok(Elicitation::Cancelled) => json!("cancelled"),
            Err(error) => json!(error.to_string()),
        })
    });
    let fixture = Fixture::start(&[], |options| options.tools.push(tool));
    let bad = "the client's answer to `elicitation/create` cannot be used: ";
    for revision in BOTH {
        for (answer, expected) in [
            (
                json!({"action": "accept", "content": {"channel": "beta", "percent": 5}}),
                Ok(json!({"channel": "beta", "percent": 5, "note": null})),
            ),
            (json!({"action": "accept", "content": {"channel": "beta", "percent": 0}}), Err("`/percent`: ")),
            (json!({"action": "accept", "content": {"channel": "alpha", "percent": 5}}), Err("`/channel`: ")),
            (json!({"action": "accept"}), Err("")),
            (json!({"action": "decline"}), Ok(json!("declined"))),
            (json!({"action": "cancel"}), Ok(json!("cancelled"))),
        ] {
            let mut client = Client::new(revision, everything());
            let params = json!({"name": "release", "arguments": {}});
            let talk = client.talk(&fixture.gateway, "tools/call", params, |_, _| Ok(answer.clone())).await;
            match expected {
                Ok(expected) => assert_eq!(data(&talk.outcome), &expected, "{revision}"),
                Err(place) => {
                    let told = data(&talk.outcome).as_str().unwrap();
                    assert!(told.starts_with(&format!("{bad}{place}")), "{told}");
                }
            }
            let [(_, asked)] = &talk.questions[..] else { panic!("{talk:?}") };
            let channels = json!([{"const": "stable", "title": "To everyone."}, {"const": "beta", "title": "To the brave."}]);
            assert_eq!(
                asked["requestedSchema"],
                json!({
                    "type": "object",
                    "properties": {
                        "channel": {"type": "string", "oneOf": channels, "description": "Where it goes."},
                        "percent": {"type": "integer", "minimum": 1, "maximum": 100},
                        "note": {"type": "string"},
                    },
                    "required": ["channel", "percent"],
                }),
                "{revision}"
            );
        }
    }
    fixture.end().await;
}
