//! `bridgehead status`: shows the state of the running gateways and their servers.

use clap::Args;
use serde_json::{Value, json};

use super::exit::Exit;
use super::instance::{Which, get};
use super::join::entrance::words;
use super::output::{self, one_line};
use super::target::run_once;
use super::world::World;
use super::{Run, table};

/// A terminal of this width has room for all columns.
const WIDE: usize = 90;

/// Show the state of the running gateway and its servers
#[derive(Debug, Args)]
#[command(after_help = "If several gateways run, all are shown. Other commands then need --instance ID.
Exit codes: 0 shown, 3 no gateway is running.

Examples:
  bridgehead status
  bridgehead status --json
  bridgehead status --instance 4711")]
pub(crate) struct Status {
    #[command(flatten)]
    which: Which,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Run for Status {
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

fn run(status: &Status, world: &World) -> Exit {
    let instances = match status.which.all(world) {
        Ok(instances) => instances,
        Err(exit) => return exit,
    };
    run_once(async {
        let mut found = Vec::new();
        for instance in &instances {
            match get(instance, "status").await {
                Ok(mut told) => {
                    told["config"] = json!(instance.config);
                    let mistake = instance.config.as_deref().and_then(|file| world.mistake_in(file));
                    told["configMistake"] = json!(mistake);
                    found.push(told);
                }
                Err(refused) => {
                    refused.tell(false);
                }
            }
        }
        let exit = if found.is_empty() { Exit::Unreachable } else { Exit::Success };
        if status.json {
            return output::json_data(&json!({"gateways": found}), exit);
        }
        let texts: Vec<String> = found.iter().map(text).collect();
        output::data(&texts.join("\n"), exit)
    })
}

/// Where clients reach a listener. A plain address is one that speaks HTTP; others are told whole.
fn place(address: &str) -> String {
    match address.parse::<std::net::SocketAddr>() {
        Ok(address) => format!("http://{address}/mcp"),
        Err(_) => address.to_owned(),
    }
}

/// One gateway, for people.
fn text(status: &Value) -> String {
    let word = |key: &str| one_line(status[key].as_str().unwrap_or("?"), 200);
    let addresses: Vec<String> =
        strings(&status["addresses"]).map(|address| one_line(&place(address), 1000)).collect();
    let place =
        if addresses.is_empty() { "on stdio".to_owned() } else { format!("at {}", addresses.join(", ")) };
    let mut text = format!(
        "gateway {} {place}\n  version {}, mode {}, pid {}, up {}, {} ({} failed)\n",
        word("instance"),
        word("version"),
        word("mode"),
        status["pid"],
        duration(&status["uptimeMs"]),
        output::counted(status["counters"]["calls"].as_u64().unwrap_or_default(), "call"),
        status["counters"]["failed"],
    );
    if let Some(config) = status["config"].as_str() {
        text.push_str(&format!("  configuration {}\n", one_line(config, 1000)));
    }
    // The gateway has told so itself if it has read it.
    if let Some(mistake) = status["configMistake"].as_str().filter(|_| status["reload"]["ok"] != false) {
        text.push_str(&format!(
            "  the configuration cannot be used now, and what it was before stays in effect: {}\n",
            one_line(mistake, 1000)
        ));
    }
    if let Some(message) = status["reload"]["message"].as_str() {
        let how = if status["reload"]["ok"] == true { "reloaded" } else { "NOT reloaded" };
        let time = status["reload"]["time"].as_str().unwrap_or_default();
        text.push_str(&format!("  configuration {how} at {time}: {}\n", one_line(message, 1000)));
        for setting in strings(&status["reload"]["needsRestart"]) {
            text.push_str(&format!("  restart the gateway to apply `{}`\n", one_line(setting, 200)));
        }
    }
    text.push_str(&clients(&status["clients"]));
    text.push_str(&refused(&status["refused"]));
    let mut upstreams = status["upstreams"].as_array().cloned().unwrap_or_default();
    for server in status["arriving"].as_array().into_iter().flatten() {
        let state = server["state"].as_str().unwrap_or("?");
        let mut server = server.clone();
        server["state"] = json!(format!("{state}, not in effect yet"));
        upstreams.push(server);
    }
    if upstreams.is_empty() {
        text.push_str("  no servers\n");
        return text;
    }
    let title = ["  SERVER", "STATE", "TOOLS", "CALLS", "PID", "MEMORY", "UP", "RESTARTS", "SPEAKS"];
    let mut rows = vec![title.map(str::to_owned).to_vec()];
    rows.extend(upstreams.iter().map(row));
    if table::stdout_width().is_some_and(|width| width < WIDE) {
        rows.iter_mut().for_each(only_essential);
    }
    text.push_str(&output::table(&rows));
    for server in &upstreams {
        text.push_str(&trouble(server));
    }
    text
}

/// Leaves out what a narrow terminal has no room for: memory, time and restarts. `--json` has them.
fn only_essential(row: &mut Vec<String>) {
    row.drain(5..8);
}

/// The clients that have joined.
fn clients(joined: &Value) -> String {
    let Some(joined) = joined.as_array() else { return String::new() };
    let mut text = format!("  {} joined\n", output::counted(joined.len() as u64, "client"));
    for client in joined {
        let name = one_line(client["name"].as_str().unwrap_or("a client without a name"), 100);
        text.push_str(&format!(
            "    {name}, since {}\n",
            one_line(client["since"].as_str().unwrap_or("?"), 40)
        ));
    }
    text
}

/// The clients that did not get in although they have the same configuration, and why.
fn refused(refused: &Value) -> String {
    let told = refused.as_array().into_iter().flatten().map(|client| {
        let differs: Vec<String> = strings(&client["differs"]).map(str::to_owned).collect();
        let time = one_line(client["time"].as_str().unwrap_or("?"), 40);
        format!("  a client did not join at {time} and has a gateway of its own: {}\n", words(&differs))
    });
    told.collect()
}

fn row(server: &Value) -> Vec<String> {
    let number = |value: &Value| value.as_u64().map_or_else(|| "-".to_owned(), |number| number.to_string());
    let pid = match server["pids"].as_array().map_or(0, Vec::len) {
        0 | 1 => number(&server["pid"]),
        more => format!("{} +{}", number(&server["pid"]), more - 1),
    };
    let waiting = server["queue"]["waiting"].as_u64().unwrap_or_default();
    let held = server["queue"]["held"].as_u64().unwrap_or_default();
    let mut calls = number(&server["inFlight"]);
    for (count, word) in [(waiting, "waiting"), (held, "held")] {
        if count > 0 {
            calls.push_str(&format!(" +{count} {word}"));
        }
    }
    let word = |key: &str| one_line(server[key].as_str().unwrap_or("-"), 64);
    let containment = match server["containment"].as_str() {
        Some("group") => " (process group only, best effort)",
        _ => "",
    };
    vec![
        format!("  {}", word("name")),
        word("state"),
        number(&server["tools"]),
        calls,
        pid,
        server["memoryBytes"].as_u64().map_or_else(|| "-".to_owned(), megabytes),
        duration(&server["uptimeMs"]),
        number(&server["restarts"]),
        format!("{} over {}{containment}", word("revision"), word("transport")),
    ]
}

/// What is wrong with a server, and what to do.
fn trouble(server: &Value) -> String {
    let name = one_line(server["name"].as_str().unwrap_or_default(), 64);
    let mut text = String::new();
    if let Some(reason) = server["reason"].as_str() {
        text.push_str(&format!("\n  {name}: {}\n", one_line(reason, 1000)));
        if let Some(exit) = server["lastExit"]["status"].as_str() {
            text.push_str(&format!("    its last process ended with {}\n", one_line(exit, 200)));
        }
        for line in strings(&server["stderr"]) {
            text.push_str(&format!("    stderr: {}\n", one_line(line, 400)));
        }
        if let Some(next) = server["nextStep"].as_str() {
            text.push_str(&format!("    next: {}\n", one_line(next, 1000)));
        }
    }
    let confinement = &server["confinement"];
    for lacking in strings(&confinement["missing"]) {
        let lacking = one_line(lacking, 200);
        text.push_str(&format!("  {name}: not confined as asked: this system lacks {lacking}\n"));
    }
    for lacking in strings(&confinement["gaps"]) {
        let lacking = one_line(lacking, 200);
        text.push_str(&format!("  {name}: confined, but this system lacks {lacking}\n"));
    }
    for beside in server["beside"].as_array().into_iter().flatten() {
        let (count, reason) = (beside["count"].as_u64().unwrap_or_default(), beside["reason"].as_str());
        let reason = one_line(reason.unwrap_or_default(), 200);
        text.push_str(&format!("  {name}: {count} beside the shared one: {reason}\n"));
    }
    for finding in strings(&server["findings"]) {
        text.push_str(&format!("  {name}: {}\n", one_line(finding, 1000)));
    }
    text
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1_000_000.0)
}

fn duration(milliseconds: &Value) -> String {
    let Some(seconds) = milliseconds.as_u64().map(|milliseconds| milliseconds / 1000) else {
        return "-".to_owned();
    };
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    /// ACC-6: a listener is shown as a client writes it.
    #[test]
    fn where_listeners_are() {
        for (told, shown) in [
            ("127.0.0.1:4848", "http://127.0.0.1:4848/mcp"),
            ("[::1]:1", "http://[::1]:1/mcp"),
            ("https://10.0.0.1:443/mcp", "https://10.0.0.1:443/mcp"),
            ("unix:/run/gate.sock", "unix:/run/gate.sock"),
        ] {
            assert_eq!(place(told), shown);
        }
    }

    #[test]
    fn durations() {
        for (milliseconds, expected) in [
            (json!(999), "0 s"),
            (json!(61_000), "1 min"),
            (json!(7_260_000), "2 h 1 min"),
            (json!(90_000_000), "1 d 1 h"),
            (Value::Null, "-"),
        ] {
            assert_eq!(duration(&milliseconds), expected);
        }
    }

    #[test]
    fn a_gateway_for_people() {
        let status = json!({
            "instance": "0123456789ab", "version": "1.2.3", "mode": "full", "pid": 7, "uptimeMs": 61_000,
            "addresses": ["127.0.0.1:4848"], "config": "team.toml",
            "clients": [{"name": "editor 1.2", "since": "T1"}, {"since": "T2"}],
            "refused": [{"time": "T3", "differs": ["variables.HOME", "variables.KEY"]}],
            "counters": {"calls": 5, "failed": 1},
            "reload": {"ok": false, "time": "T", "message": "line 3: no such key", "needsRestart": []},
            "upstreams": [
                {"name": "files", "state": "ready", "tools": 3, "pid": 8, "pids": [8, 9], "memoryBytes": 12_345_678,
                 "uptimeMs": 60_000, "restarts": 1, "revision": "2025-11-25", "transport": "stdio", "inFlight": 1,
                 "queue": {"waiting": 2}, "containment": "group", "findings": ["tool `a` appears twice"],
                 "confinement": {"missing": ["walls"], "gaps": ["signals"]},
                 "beside": [{"count": 2, "reason": "its client has roots"}]},
                {"name": "web", "state": "crash-looping", "restarts": 4, "transport": "stdio", "reason": "it ended",
                 "lastExit": {"status": "exit status 7"}, "stderr": ["no licence"], "nextStep": "read its words"},
            ],
        });
        assert_snapshot!(text(&status), @r"
        gateway 0123456789ab at http://127.0.0.1:4848/mcp
          version 1.2.3, mode full, pid 7, up 1 min, 5 calls (1 failed)
          configuration team.toml
          configuration NOT reloaded at T: line 3: no such key
          2 clients joined
            editor 1.2, since T1
            a client without a name, since T2
          a client did not join at T3 and has a gateway of its own: it has other values of KEY (which the configuration names); it has other values of HOME (which every server gets)
          SERVER  STATE          TOOLS  CALLS         PID   MEMORY   UP     RESTARTS  SPEAKS
          files   ready          3      1 +2 waiting  8 +1  12.3 MB  1 min  1         2025-11-25 over stdio (process group only, best effort)
          web     crash-looping  -      -             -     -        -      4         - over stdio
          files: not confined as asked: this system lacks walls
          files: confined, but this system lacks signals
          files: 2 beside the shared one: its client has roots
          files: tool `a` appears twice

          web: it ended
            its last process ended with exit status 7
            stderr: no licence
            next: read its words
        ");
        let bare = json!({"instance": "a", "version": "1", "mode": "full", "pid": 7, "upstreams": [],
            "counters": {"calls": 0, "failed": 0},
            "reload": {"ok": true, "time": "T", "message": "m", "needsRestart": ["http.listen"]}});
        assert_snapshot!(text(&bare), @r"
        gateway a on stdio
          version 1, mode full, pid 7, up -, 0 calls (0 failed)
          configuration reloaded at T: m
          restart the gateway to apply `http.listen`
          no servers
        ");
    }

    /// JOIN-5: a server of a new configuration is shown while it starts.
    #[test]
    fn arriving_servers_are_shown() {
        let arriving = json!({"instance": "a", "counters": {}, "arriving": [
            {"name": "new", "state": "starting", "reason": "it has given no usable answer for 9 s", "stderr": ["fetching"]},
        ]});
        let shown = text(&arriving);
        for words in [
            "  new     starting, not in effect yet  ",
            "  new: it has given no usable answer",
            "stderr: fetching",
        ] {
            assert!(shown.contains(words), "{shown}");
        }
    }
}
