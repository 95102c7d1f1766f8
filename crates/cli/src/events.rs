//! `bridgehead events`: shows events of a running gateway as they happen.

use clap::Args;
use serde_json::Value;

use super::exit::Exit;
use super::instance::{Which, follow};
use super::target::run_until_signal;
use super::world::World;
use super::{Run, output};

/// Show events of the running gateway as they happen
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 ended, also by Ctrl-C; 2 no such topic or server, 3 no gateway is running.

Examples:
  bridgehead events
  bridgehead events --topic provider.mcp.tool --server files
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
    let topics = events.topic.iter().map(|topic| format!("topic={topic}"));
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
        return event.to_string();
    }
    if let Some(missed) = event["missed"].as_u64() {
        return format!("({missed} events are missing here)");
    }
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    let mut line = format!("{} {} {}", text("time"), text("server"), text("topic")).replace("  ", " ");
    let common = ["time", "topic", "server", "correlationId"];
    for (key, value) in event.as_object().into_iter().flatten() {
        if !common.contains(&key.as_str()) && !value.is_null() {
            line.push_str(&format!(" {key}={value}"));
        }
    }
    output::one_line(&line, 2000)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_for_people_and_programs() {
        let event = json!({"topic": "provider.mcp.restart", "time": "T", "correlationId": "c", "server": "a",
            "attempt": 1, "error": null});
        assert_eq!(shown(&event, false), "T a provider.mcp.restart attempt=1");
        let event = json!({"topic": "t", "time": "T", "server": null});
        assert_eq!(shown(&event, false), "T t");
        assert_eq!(shown(&json!({"missed": 3}), false), "(3 events are missing here)");
        assert_eq!(shown(&event, true), event.to_string());
    }
}
