//! `bridgehead logs`: shows what a server of a running gateway writes to stderr, and log lines about it.

use clap::Args;
use serde_json::Value;

use super::exit::Exit;
use super::instance::{Which, follow, get, in_route};
use super::target::run_until_signal;
use super::world::World;
use super::{Run, output};

/// Show what a server of the running gateway writes to stderr
#[derive(Debug, Args)]
#[command(
    after_help = "The gateway keeps the last lines of each server across restarts, with secrets removed.
Exit codes: 0 shown, also if Ctrl-C ends --follow; 2 no such server, 3 no gateway is running.

Examples:
  bridgehead logs files
  bridgehead logs files --follow --tail 10
  bridgehead logs files --json"
)]
pub(crate) struct Logs {
    /// The server, as `bridgehead status` shows it
    name: String,
    /// Keep printing new lines as they come
    #[arg(long, short)]
    follow: bool,
    /// How many of the last lines to show
    #[arg(long, value_name = "LINES", default_value_t = 100)]
    tail: u32,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl Run for Logs {
    fn json(&self) -> bool {
        self.json
    }

    fn only_reads(&self) -> bool {
        true
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

fn run(logs: &Logs, world: &World) -> Exit {
    let instance = match logs.which.one(world) {
        Ok(instance) => instance,
        Err(exit) => return exit,
    };
    let tail = logs.tail;
    let name = match in_route(&logs.name) {
        Ok(name) => name,
        Err(refused) => return refused.tell(logs.json),
    };
    run_until_signal(async {
        let show = |line: &Value| output::stream(&shown(line, logs.json));
        let outcome = if logs.follow {
            let followed = follow(&instance, &format!("logs?server={name}&tail={tail}&follow=1"), show).await;
            followed.inspect(|()| output::talk("the gateway has ended"))
        } else {
            get(&instance, &format!("logs?server={name}&tail={tail}")).await.map(|answer| {
                let lines = answer["lines"].as_array();
                let _ = lines.into_iter().flatten().all(show);
            })
        };
        match outcome {
            Ok(()) => Exit::Success,
            Err(refused) => refused.tell(logs.json),
        }
    })
}

fn shown(line: &Value, as_json: bool) -> String {
    if as_json {
        return line.to_string();
    }
    if let Some(missed) = line["missed"].as_u64() {
        let verb = if missed == 1 { "is" } else { "are" };
        return format!("({} {verb} missing here)", output::counted(missed, "line"));
    }
    let part = |key: &str| output::one_line(line[key].as_str().unwrap_or_default(), usize::MAX);
    // The log of the gateway calls the server `mcp:files`; people call it `files`.
    let server = part("label");
    let server = server.strip_prefix("mcp:").unwrap_or(&server);
    format!("{}  {server}  {}: {}", output::time(&part("time")), part("source"), part("text"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_for_people_and_programs() {
        let line = json!({"time": "2026-11-17T10:00:00.012Z", "label": "mcp:a", "source": "stderr", "text": "x\u{1b}[2Jy"});
        assert_eq!(shown(&line, false), "2026-11-17 10:00:00.012Z  a  stderr: x\\u001b[2Jy");
        assert_eq!(shown(&line, true), line.to_string());
        assert_eq!(shown(&json!({"missed": 3}), false), "(3 lines are missing here)");
        assert_eq!(shown(&json!({"missed": 3}), true), r#"{"missed":3}"#);
    }
}
