//! `bridgehead events`: shows events of a running gateway as they happen.

use bridgehead_wire::visible_line;
use clap::Args;
use serde_json::Value;

use super::exit::Exit;
use super::instance::{Which, follow, in_route};
use super::target::run_until_signal;
use super::world::World;
use super::{Run, output};

/// What the names of most topics begin with. People need not read or write it.
const COMMON: &str = "provider.mcp.";

/// How long a part of a line may be.
const LONGEST: usize = 2000;

/// Show events of the running gateway as they happen
#[derive(Debug, Args)]
#[command(
    after_help = "Each line has the time (UTC), the topic, the server, who asked, and what happened. --json prints every event whole.
Exit codes: 0 ended, also by Ctrl-C; 2 no such topic or server, 3 no gateway is running.

Examples:
  bridgehead events
  bridgehead events --topic tool --server files
  bridgehead events --json | jq .topic"
)]
pub(crate) struct Events {
    /// Only topics that begin with this; may be repeated
    #[arg(long, value_name = "TOPIC")]
    topic: Vec<String>,
    /// Only events of this server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl Run for Events {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

fn run(events: &Events, world: &World) -> Exit {
    let instance = match events.which.one(world) {
        Ok(instance) => instance,
        Err(exit) => return exit,
    };
    let named = events.topic.iter().chain(&events.server);
    if let Some(Err(refused)) = named.map(|name| in_route(name)).find(Result::is_err) {
        return refused.tell(events.json);
    }
    let topics = events.topic.iter().map(|topic| format!("topic={}", whole_topic(topic)));
    let server = events.server.iter().map(|server| format!("server={server}"));
    let query: Vec<String> = topics.chain(server).collect();
    run_until_signal(async {
        let show = |event: &Value| output::stream(&shown(event, events.json));
        match follow(&instance, &format!("events?{}", query.join("&")), show).await {
            Ok(()) => {
                output::talk("the gateway has ended");
                Exit::Success
            }
            Err(refused) => refused.tell(events.json),
        }
    })
}

fn shown(event: &Value, as_json: bool) -> String {
    if as_json {
        return visible_line(&event.to_string()).into_owned();
    }
    if let Some(missed) = event["missed"].as_u64() {
        let verb = if missed == 1 { "is" } else { "are" };
        return format!("({} {verb} missing here)", output::counted(missed, "event"));
    }
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    let topic = text("topic").strip_prefix(COMMON).unwrap_or(text("topic"));
    let server = event["server"].as_str().unwrap_or("-");
    let part = |text: &str| output::one_line(text, LONGEST);
    let line = format!(
        "{}  {:<18}  {:<10}  {}",
        part(&output::time(text("time"))),
        part(topic),
        part(server),
        part(&sentence(topic, event))
    );
    line.trim_end().to_owned()
}

/// What happened, in words.
fn sentence(topic: &str, event: &Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    let number = |key: &str| event[key].as_u64().unwrap_or_default();
    let names = |key: &str| {
        let names: Vec<&str> =
            event[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let about = || match (event["tool"].as_str(), text("subject")) {
        (Some(tool), _) => format!("`{tool}`"),
        (None, "") => text("method").to_owned(),
        (None, subject) => format!("{} `{subject}`", text("method")),
    };
    let took = || format!("{} ms", number("durationMs"));
    let by = || match (event["principal"].as_str(), event["client"].as_str()) {
        (Some(principal), Some(client)) => format!("{principal} ({client}): "),
        (Some(principal), None) => format!("{principal}: "),
        (None, _) => String::new(),
    };
    match topic {
        "tools.discovered" => format!("has {}: {}", output::counted(number("count"), "tool"), names("names")),
        "tools.refreshed" => format!(
            "listed its tools again; added: {}; removed: {}; unchanged: {}",
            names("added"),
            names("removed"),
            number("unchanged")
        ),
        "tool.completed" | "request.completed" => {
            format!("{}{} answered in {}: {}", by(), about(), took(), words(text("summary")))
        }
        "tool.failed" | "request.failed" => {
            let again = if event["retryable"] == true { " (trying again may help)" } else { "" };
            format!("{}{} failed with {}{again}: {}", by(), about(), text("code"), text("message"))
        }
        "disconnected" => "the connection was lost".to_owned(),
        "reconnected" => "the connection is back".to_owned(),
        "reconnect.exhausted" => "the connection is lost and is not tried again".to_owned(),
        "init.started" => "is starting".to_owned(),
        "init.finished" => match text("outcome") {
            "ready" => format!("is ready after {} with {}", took(), output::counted(number("tools"), "tool")),
            "cancelled" => "is no longer needed, so its start ended".to_owned(),
            _ => format!("did not start within {}: {}", took(), text("error")),
        },
        "probe" => match event["error"].as_str() {
            None => format!("is well: answered `{}` in {}", text("kind"), took()),
            Some(error) => format!("failed the probe `{}` after {}: {error}", text("kind"), took()),
        },
        "restart" => {
            format!(
                "restarts in {} ms (attempt {}): {}",
                number("delayMs"),
                number("attempt"),
                text("reason")
            )
        }
        "process.exited" => {
            format!("process {} ended with {}: {}", number("pid"), text("status"), text("reason"))
        }
        "audit.checkpoint" => {
            let sealed = if event["sealed"] == true { ", which is complete" } else { "" };
            let rows = output::counted(number("count"), "row");
            format!("checkpoint after {rows} of segment {}{sealed}; head {}", text("segment"), text("head"))
        }
        _ => rest(event),
    }
}

/// The first words of a result, whose text may be cut anywhere; the text itself if it has none.
fn words(result: &str) -> String {
    let Some((_, text)) = result.split_once(r#""text":""#) else { return result.to_owned() };
    let mut escaped = false;
    let end = text.find(|letter| {
        let ends = letter == '"' && !escaped;
        escaped = letter == '\\' && !escaped;
        ends
    });
    let text = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
    serde_json::from_str(&format!("\"{text}\"")).unwrap_or_else(|_| text.to_owned())
}

/// What an event of a newer gateway says.
fn rest(event: &Value) -> String {
    let common = ["time", "topic", "server", "correlationId"];
    let own = event
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, value)| !common.contains(&key.as_str()) && !value.is_null());
    own.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// A topic as the gateway knows it; the part that most have in common may be left out.
fn whole_topic(topic: &str) -> String {
    let is_whole = topic.is_empty() || ["provider", "audit"].iter().any(|first| topic.starts_with(first));
    if is_whole { topic.to_owned() } else { format!("{COMMON}{topic}") }
}

#[cfg(test)]
mod tests {
    use bridgehead_events::Topic;
    use serde_json::json;

    use super::*;

    /// JOIN-8: a person reads the words of a result, not its JSON.
    #[test]
    fn the_words_of_a_result() {
        #[track_caller]
        fn check(result: &str, expected: &str) {
            assert_eq!(words(result), expected);
        }
        check(r#"{"content":[{"type":"text","text":"a \"b\" \\"},{"text":"c"}]}"#, r#"a "b" \"#);
        check(r#"{"content":[{"type":"text","text":"cut of"#, "cut of");
        check(r#"{"content":[{"text":"cut \"#, r"cut \");
        check(r#"{"structuredContent":{"a":1}}"#, r#"{"structuredContent":{"a":1}}"#);
    }

    /// JOIN-8: every topic is told as a sentence, with the time, the topic, the server and the caller before it; `--json` has every member.
    #[test]
    fn events_for_people_and_programs() {
        #[track_caller]
        fn check(topic: &str, own: &Value, expected: &str) {
            let mut event = json!({"topic": topic, "time": "2026-11-17T10:00:00.012Z", "correlationId": "c",
                "server": "files"});
            event.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
            let short = topic.trim_start_matches("provider.mcp.");
            let line = format!("2026-11-17 10:00:00.012Z  {short:<18}  files       {expected}");
            assert_eq!(shown(&event, false), line);
            assert_eq!(shown(&event, true), event.to_string());
        }
        let table = [
            ("provider.mcp.tools.discovered", json!({"count": 2, "names": ["a", "b"]}), "has 2 tools: a, b"),
            (
                "provider.mcp.tools.refreshed",
                json!({"added": ["c"], "removed": [], "unchanged": 2}),
                "listed its tools again; added: c; removed: none; unchanged: 2",
            ),
            (
                "provider.mcp.tool.completed",
                json!({"tool": "files__read", "principal": "ada", "client": "ide 1", "summary": "s", "durationMs": 7}),
                "ada (ide 1): `files__read` answered in 7 ms: s",
            ),
            (
                "provider.mcp.tool.failed",
                json!({"tool": "t", "principal": "ada", "client": null, "code": "PROVIDER_TIMEOUT",
                    "retryable": true, "message": "m"}),
                "ada: `t` failed with PROVIDER_TIMEOUT (trying again may help): m",
            ),
            (
                "provider.mcp.request.completed",
                json!({"method": "prompts/get", "subject": "p", "summary": "s", "durationMs": 7}),
                "prompts/get `p` answered in 7 ms: s",
            ),
            (
                "provider.mcp.request.failed",
                json!({"method": "tools/list", "subject": "", "code": "-7", "retryable": false, "message": "m"}),
                "tools/list failed with -7: m",
            ),
            ("provider.mcp.disconnected", json!({}), "the connection was lost"),
            ("provider.mcp.reconnected", json!({}), "the connection is back"),
            ("provider.mcp.reconnect.exhausted", json!({}), "the connection is lost and is not tried again"),
            ("provider.mcp.init.started", json!({}), "is starting"),
            (
                "provider.mcp.init.finished",
                json!({"outcome": "ready", "tools": 1, "durationMs": 40, "error": null}),
                "is ready after 40 ms with 1 tool",
            ),
            (
                "provider.mcp.init.finished",
                json!({"outcome": "failed", "tools": 0, "durationMs": 40, "error": "no"}),
                "did not start within 40 ms: no",
            ),
            (
                "provider.mcp.init.finished",
                json!({"outcome": "cancelled", "tools": 0, "durationMs": 40, "error": null}),
                "is no longer needed, so its start ended",
            ),
            (
                "provider.mcp.probe",
                json!({"ok": true, "kind": "ping", "durationMs": 3, "error": null}),
                "is well: answered `ping` in 3 ms",
            ),
            (
                "provider.mcp.probe",
                json!({"ok": false, "kind": "ping", "durationMs": 3, "error": "late"}),
                "failed the probe `ping` after 3 ms: late",
            ),
            (
                "provider.mcp.restart",
                json!({"attempt": 2, "delayMs": 1000, "reason": "it ended"}),
                "restarts in 1000 ms (attempt 2): it ended",
            ),
            (
                "provider.mcp.process.exited",
                json!({"pid": 7, "status": "exit status 1", "reason": "r"}),
                "process 7 ended with exit status 1: r",
            ),
            (
                "audit.checkpoint",
                json!({"segment": "s", "count": 1, "root": "r", "head": "h", "sealed": true}),
                "checkpoint after 1 row of segment s, which is complete; head h",
            ),
            ("provider.mcp.new", json!({"a": 1, "b": null}), "a=1"),
        ];
        for (topic, own, expected) in &table {
            check(topic, own, expected);
        }
        for topic in Topic::ALL {
            assert!(table.iter().any(|(told, ..)| *told == topic.as_str()), "{topic} has no sentence");
        }
    }

    #[test]
    fn events_without_a_server_and_missing_ones() {
        let event = json!({"topic": "audit.new", "time": "10:00", "server": null});
        assert_eq!(shown(&event, false), "10:00  audit.new           -");
        assert_eq!(shown(&json!({"missed": 3}), false), "(3 events are missing here)");
        assert_eq!(shown(&json!({"missed": 1}), false), "(1 event is missing here)");
    }

    #[test]
    fn topics_may_be_short() {
        for (given, whole) in [
            ("tool", "provider.mcp.tool"),
            ("provider.mcp.tool", "provider.mcp.tool"),
            ("audit.checkpoint", "audit.checkpoint"),
            ("", ""),
        ] {
            assert_eq!(whole_topic(given), whole);
        }
    }
}
