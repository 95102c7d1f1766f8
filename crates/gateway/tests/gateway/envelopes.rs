//! The envelope in which the gateway's own tools answer.

use bridgehead_gateway::NativeTool;
use serde_json::{Value, json};

use crate::support::Fixture;

/// ENV-1: a tool of the gateway's own answers `{ok: true, data}`, or `{ok: false, error}` as an error. The answer is
/// both structured content and the same JSON in text; the output schema describes both forms.
#[tokio::test]
async fn answers_and_errors_come_in_the_envelope() {
    let schema = json!({"type": "object", "properties": {"fail": {"type": "boolean"}}});
    let tool = NativeTool::new("own", "", schema, |arguments, _| async move {
        if arguments["fail"] == true { Err("not today".into()) } else { Ok(json!({"sum": 3})) }
    });
    let fixture = Fixture::start(&[], |options| options.tools.push(tool));
    let list = fixture.gateway.list_tools();
    let definition = |name: &str| -> Value {
        list.iter().find(|tool| &*tool.name == name).unwrap().definition.decode().unwrap()
    };
    for (tool, arguments, code) in [
        ("own", json!({}), None),
        ("own", json!({"fail": true}), Some("HANDLER_ERROR")),
        ("own", json!({"fail": 5}), Some("INVALID_PARAMS")),
        ("server_ping", json!({}), None),
        ("server_ping", json!({"surplus": 1}), Some("INVALID_PARAMS")),
        ("server_health", json!({}), None),
        ("server_health", json!([]), Some("INVALID_PARAMS")),
    ] {
        let result = fixture.call(tool, arguments.clone()).await.unwrap();
        let envelope = &result["structuredContent"];
        let blocks = result["content"].as_array().unwrap();
        assert_eq!((blocks.len(), &blocks[0]["type"]), (1, &json!("text")), "{tool} {arguments}");
        let text: Value = serde_json::from_str(blocks[0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(&text, envelope, "{tool} {arguments}");
        assert_eq!(result["isError"] == true, code.is_some(), "{tool} {arguments}: {result}");
        assert_eq!(envelope["ok"], code.is_none(), "{tool} {arguments}");
        let keys: Vec<&String> = envelope.as_object().unwrap().keys().collect();
        match code {
            None => assert!(keys.len() == 2 && keys.contains(&&"data".to_owned()), "{envelope}"),
            Some(code) => {
                assert!(keys.len() == 2 && keys.contains(&&"error".to_owned()), "{envelope}");
                let error = &envelope["error"];
                assert_eq!(error["code"], code, "{envelope}");
                assert!(error["message"].as_str().is_some_and(|words| !words.is_empty()), "{envelope}");
                assert_eq!(error["details"]["issues"].is_array(), code == "INVALID_PARAMS", "{envelope}");
            }
        }
        let described = definition(tool)["outputSchema"].to_string();
        let described = bridgehead_schema::Validator::compile(&described).unwrap();
        assert!(described.check(envelope).is_ok(), "{tool} {arguments}: {envelope}");
        for other in [json!({"data": 1}), json!({"ok": "yes", "data": 1}), json!({"ok": false, "error": {}})]
        {
            assert!(described.check(&other).is_err(), "{tool}: {other} is no envelope");
        }
    }
    fixture.end().await;
}
