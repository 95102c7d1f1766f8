//! What the program prints on stderr, and `explain`.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, Ran, program, signal, until};

/// Every line, parsed as a JSON object.
#[track_caller]
fn lines(stderr: &str) -> Vec<Value> {
    let parsed = stderr.lines().map(|line| {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for member in ["level", "timestamp", "message"] {
            assert!(object[member].is_string(), "no {member}: {line}");
        }
        object
    });
    parsed.collect()
}

/// HOUR-11: with `--log-format json` stderr carries only JSON: log, banner, warnings, errors, usage.
#[tokio::test]
async fn a_json_log_is_only_json() {
    let place = Place::new();
    let demo = json!({"command": program().display().to_string(), "args": ["demo-server"], "colour": "red"});
    let servers = json!({"demo": demo, "broken": {"command": "/no/such/program"}});
    let file = place.file("client.json", &json!({"mcpServers": servers}).to_string());
    let file = file.to_str().unwrap();
    let json_log = ["--log-format", "json"];
    let serve = [&["serve", "--listen", "127.0.0.1:0", "--config", file][..], &json_log].concat();
    let mut gateway = place.start(&serve, &[]);
    until(|| {
        (gateway.stderr().contains("/mcp") && gateway.stderr().contains("did not come up")).then_some(())
    })
    .await;
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
    let told = lines(&gateway.stderr());
    let has = |level: &str, words: &str| {
        told.iter().any(|line| line["level"] == level && line["message"].as_str().unwrap().contains(words))
    };
    assert!(
        has("INFO", "serves MCP at http://127.0.0.1:") && has("WARN", "unknown key `colour`"),
        "{told:?}"
    );

    #[track_caller]
    fn check(ran: &Ran, code: i32, words: &str) {
        assert_eq!(ran.code, Some(code), "{ran:?}");
        let told = lines(&ran.stderr);
        let is_told =
            |line: &Value| line["level"] == "ERROR" && line["message"].as_str().unwrap().contains(words);
        assert!(told.iter().any(is_told), "{told:?}");
    }
    let run = async |arguments: &[&str]| place.run(&[arguments, &json_log].concat()).await;
    check(&run(&["call", "nope", "--config", file]).await, 2, "no server offers tool `nope`");
    check(&run(&["call"]).await, 2, "required arguments");
    check(&run(&["status"]).await, 3, "no gateway is running");
    let wrong = place.file("wrong.toml", "[gateway]\nmod = 1\n");
    let wrong = run(&["check", "--config", wrong.to_str().unwrap()]).await;
    check(&wrong, 78, "unknown key `mod`");
    assert_eq!(lines(&wrong.stderr)[0]["line"], 2);
}

/// HOUR-11: a hint names a command of the installed program, and that command works.
#[tokio::test]
async fn a_hint_can_be_followed() {
    let place = Place::new();
    let unknown = place.run(&["call", "nope"]).await;
    let words = "hint: `bridgehead explain PROVIDER_TOOL_UNKNOWN` tells cause and cure\n";
    assert!(unknown.stderr.contains(words), "{}", unknown.stderr);
    let explained = place.run(&["explain", "provider_tool_unknown"]).await;
    assert_eq!((explained.code, explained.stderr.as_str()), (Some(0), ""));
    assert!(
        explained.stdout.contains("\nCure\n----\n")
            && explained.stdout.contains("\nA tool is not found\n====="),
        "{explained:?}"
    );
    let topics = place.run(&["explain"]).await;
    assert!(topics.stdout.lines().any(|topic| topic == "a-server-does-not-start"), "{topics:?}");
    let wrong = place.run(&["explain", "PROVIDER_TIMOUT"]).await;
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("did you mean `PROVIDER_TIMEOUT`?"), "{wrong:?}");
}
