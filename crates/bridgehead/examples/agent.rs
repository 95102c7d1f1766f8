//! An agent in one file: three published servers, questions answered on the terminal, at most N calls, and a record.
//!
//! `cargo run -p bridgehead --example agent -- --calls 8`
//!
//! The servers are those of the Model Context Protocol's authors; `npx` fetches them at the first run, so Node.js must be
//! installed. One of them asks you for your name. A model would decide what to call next; here a plan
//! does, so that the example needs no account anywhere. The record is in the folder `agent-record`, and the agent's report in
//! `agent-report`, both below the current folder.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bridgehead::Elicitation;
use bridgehead::audit::{StoreOptions, StoreSink};
use bridgehead::config::ServerConfig;
use bridgehead::tools::{CallOptions, ElicitationKind, ElicitationRequest, Tools};
use serde_json::{Map, Value, json};

/// How many calls the agent makes unless it is told otherwise.
const CALLS: usize = 8;

/// What the agent does next, given the answers so far. A real agent asks a model here, with `Tools::list` and
/// `Tools::instructions` as what the model may use.
fn next(answers: &[String], report: &Path) -> Option<(&'static str, Value)> {
    let file = report.join("report.txt");
    let noted = json!([{"name": "Visitor", "entityType": "person", "observations": [answers.first()]}]);
    Some(match answers.len() {
        0 => ("everything__trigger-elicitation-request", json!({})),
        1 => ("memory__create_entities", json!({"entities": noted})),
        2 => ("memory__read_graph", json!({})),
        3 => ("files__write_file", json!({"path": file, "content": answers[2]})),
        4 => ("files__list_directory", json!({"path": report})),
        _ => return None,
    })
}

/// Runs the agent below `folder`, for at most `calls` calls. Returns the answers of the tools.
async fn run(folder: &Path, calls: usize) -> Result<Vec<String>, Box<dyn Error>> {
    let report = folder.join("agent-report");
    std::fs::create_dir_all(&report)?;
    let record = Arc::new(StoreSink::open(StoreOptions::new(folder.join("agent-record")))?);
    let npx = |name: &str, arguments: &[&str]| {
        let package = format!("@modelcontextprotocol/server-{name}@2026.8.31");
        let mut all = vec!["-y".to_owned(), package];
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        all
    };
    let allowed = report.to_string_lossy();
    let tools = Tools::builder()
        .server(ServerConfig::program("everything", "npx", npx("everything", &[]))?)
        .server(ServerConfig::program("files", "npx", npx("filesystem", &[&allowed]))?)
        .server(ServerConfig::program("memory", "npx", npx("memory", &[]))?)
        .audit(record)
        .start()
        .await?;
    println!("{} tools of {} servers", tools.list().len(), tools.health().len());

    let options = CallOptions::default().timeout(Duration::from_secs(60)).on_elicitation(ask);
    let mut answers = Vec::new();
    while let Some((tool, arguments)) = next(&answers, &report) {
        if answers.len() == calls {
            println!("stopped after {calls} calls; `--calls` allows more");
            break;
        }
        let call = tools.call_with(tool, arguments, options.clone());
        println!("\n{tool} ({})", call.id());
        let answer = call.await?.flat();
        println!("{}{}", if answer.ok { "" } else { "failed: " }, answer.result);
        answers.push(answer.result);
    }
    tools.close().await;
    Ok(answers)
}

/// Asks the person at the terminal, one line for each field that the form requires. The end of the input declines.
async fn ask(asked: ElicitationRequest) -> Elicitation<Value> {
    let ElicitationKind::Form { schema: Some(schema) } = asked.kind else { return Elicitation::Declined };
    println!("\n{} asks: {}", asked.tool, asked.message);
    let form: Value = schema.decode().unwrap_or_default();
    // A thread of its own, because a person takes time.
    let filled = tokio::task::spawn_blocking(move || fill_in(&form)).await.ok().flatten();
    filled.map_or(Elicitation::Declined, |content| Elicitation::Accepted(Value::Object(content)))
}

fn fill_in(form: &Value) -> Option<Map<String, Value>> {
    let mut filled = Map::new();
    for name in form["required"].as_array()?.iter().filter_map(Value::as_str) {
        let field = &form["properties"][name];
        print!("  {}: ", field["description"].as_str().unwrap_or(name));
        std::io::stdout().flush().ok()?;
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line).ok()? == 0 {
            return None;
        }
        let text = line.trim();
        let value = match field["type"].as_str() {
            Some("boolean") => json!(matches!(text, "y" | "yes" | "true")),
            Some("number" | "integer") => text.parse().unwrap_or_else(|_| json!(text)),
            _ => json!(text),
        };
        filled.insert(name.to_owned(), value);
    }
    Some(filled)
}

fn main() -> Result<(), Box<dyn Error>> {
    // The processes of the servers are kept by this program, started again.
    bridgehead::main_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let calls = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => CALLS,
        ["--calls", number] => number.parse().map_err(|_| format!("`{number}` is not a number of calls"))?,
        _ => return Err("usage: agent [--calls N]".into()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(&std::env::current_dir()?, calls))?;
    println!(
        "\nthe record of every call is in `agent-record`: `bridgehead audit list --folder agent-record`"
    );
    Ok(())
}
