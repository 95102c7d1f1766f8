//! Plays the client that the suite judges: a scripted client, with the gateway between it and the suite's server.
//!
//! The suite starts this program with the address of its server as the last argument. The gateway runs over stdio with
//! that address as its only server, so the suite sees what the gateway does as a client. The script only makes the calls
//! that a real client would make; nothing here talks to the suite's server directly.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use super::suite::program;
use crate::shown;

/// The variable that says where the gateway's program is.
pub(crate) const GATEWAY: &str = "BRIDGEHEAD_CONFORMANCE_GATEWAY";
/// Printed at the end of a script, so that a premature end is noticed.
pub(crate) const FINISHED: &str = "the script has finished";

const MODERN: &str = "2026-07-28";
/// How long the gateway may take for one answer, including the first one before it is ready.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
/// The gateway's own tools.
const OWN_TOOLS: [&str; 2] = ["server_ping", "server_health"];

/// Plays the client of one scenario.
pub(crate) fn run(url: &str) -> Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let scenario = variable("MCP_CONFORMANCE_SCENARIO")?;
    // These scenarios need a person who signs in.
    if scenario.starts_with("auth/") {
        bail!("{scenario} is not supported");
    }
    let revision = variable("MCP_CONFORMANCE_PROTOCOL_VERSION")?;
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_else(|_| "{}".to_owned());
    let context: Value = serde_json::from_str(&context).context("the context is not JSON")?;
    let mut client = Client::start(Path::new(&variable(GATEWAY)?), url, &revision)?;
    client.wait_until_ready()?;
    play(&scenario, &context, &mut client)?;
    client.close()?;
    println!("{FINISHED}");
    Ok(())
}

/// Makes the calls of a scenario. The suite judges them; this script checks an answer only where the suite cannot see it.
fn play(scenario: &str, context: &Value, client: &mut Client) -> Result<()> {
    let tools = client.list("tools")?;
    match scenario {
        "initialize" | "request-metadata" => {}
        "tools_call" => {
            let result = client.call("add_numbers", &json!({"a": 5, "b": 3}))?;
            ensure!(result["content"][0]["text"] == "The sum of 5 and 3 is 8", "{result}");
        }
        "http-standard-headers" => {
            for name in ["test_headers", "my-hyphenated-tool"] {
                client.call(name, &json!({}))?;
            }
            // Asks only for what the gateway lists.
            for resource in client.list("resources")? {
                client.result("resources/read", json!({"uri": resource["uri"]}))?;
            }
            for prompt in client.list("prompts")? {
                client.result("prompts/get", json!({"name": prompt["name"]}))?;
            }
        }
        "http-custom-headers" => {
            for call in context["toolCalls"].as_array().context("no calls in the context")? {
                client.call_within_schema(name(call)?, call["arguments"].clone())?;
            }
        }
        "http-invalid-tool-headers" => {
            ensure!(tools.len() == 1, "{} tools are listed where one is valid", tools.len());
            for tool in &tools {
                client.call(name(tool)?, &required_arguments(tool))?;
            }
            // Calling an unlisted tool by its name fails.
            let unlisted = client
                .ask("tools/call", json!({"name": "invalid_empty_header", "arguments": {"value": "x"}}))?;
            ensure!(unlisted["error"]["code"] == -32602, "{unlisted}");
        }
        // The server has no such call. The argument makes the validator reach the reference.
        "json-schema-ref-no-deref" => {
            client.ask(
                "tools/call",
                json!({"name": "lookup_user", "arguments": {"id": "a-1", "profile": {}}}),
            )?;
        }
        "json-schema-2020-12-preservation" => {
            let focal = tools.iter().find(|tool| tool["name"] == "json_schema_2020_12_tool");
            let schema = &focal.context("the tool whose schema matters is not listed")?["inputSchema"];
            client.call("json_schema_echo", &json!({"schema": schema}))?;
        }
        "sep-2322-client-request-state" => {
            // The unrelated call runs between the two halves of another call, and must not get its state.
            let asked = client.call("test_mrtr_echo_state", &json!({}))?;
            client.call("test_mrtr_unrelated", &json!({}))?;
            client.answer_and_retry("test_mrtr_echo_state", &asked)?;
            let asked = client.call("test_mrtr_no_state", &json!({}))?;
            client.answer_and_retry("test_mrtr_no_state", &asked)?;
            let result = client.call("test_mrtr_no_result_type", &json!({}))?;
            ensure!(result["resultType"] == "complete", "{result}");
        }
        "sse-retry" => {
            let result = client.call("test_reconnection", &json!({}))?;
            ensure!(result["content"][0]["text"] == "Reconnection test completed successfully", "{result}");
        }
        "elicitation-sep1034-client-defaults" => {
            client.call("test_client_elicitation_defaults", &json!({}))?;
        }
        other => bail!("there is no script for `{other}`"),
    }
    Ok(())
}

fn name(tool: &Value) -> Result<&str> {
    tool["name"].as_str().with_context(|| format!("no name in {tool}"))
}

/// Some text for each argument that a tool requires.
fn required_arguments(tool: &Value) -> Value {
    let required = tool["inputSchema"]["required"].as_array().into_iter().flatten();
    required.filter_map(Value::as_str).map(|name| (name.to_owned(), json!("x"))).collect::<Map<_, _>>().into()
}

/// The answer of a person who accepts a form as presented: the defaults, and true for booleans without one.
fn accepted(schema: &Value) -> Value {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let content: Map<String, Value> = properties
        .filter_map(|(name, property)| {
            let confirmed = (property["type"] == "boolean").then_some(Value::Bool(true));
            Some((name.clone(), property.get("default").cloned().or(confirmed)?))
        })
        .collect();
    json!({"action": "accept", "content": content})
}

/// A client of one era that is connected to the gateway.
struct Client {
    gateway: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    folder: PathBuf,
    revision: String,
    last_id: u64,
}

impl Client {
    fn start(gateway: &Path, url: &str, revision: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("bridgehead-conformance-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let config = folder.join("bridgehead.toml");
        fs::write(
            &config,
            format!("[audit]\nstore = \"none\"\n\n[servers.suite]\nurl = {}\n", Value::from(url)),
        )?;
        // Without a home folder the gateway stores nothing and opens no control socket.
        let mut gateway = program(gateway)
            .args(["serve", "--stdio", "--standalone", "--config"])
            .arg(&config)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("the gateway could not be started")?;
        shown::errors(&mut gateway);
        let input = gateway.stdin.take();
        let output = gateway.stdout.take().context("the gateway has no stdout")?;
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // A line that is not JSON is passed on as a string, which matches no request.
                if sender.send(serde_json::from_str(&line).unwrap_or(Value::String(line))).is_err() {
                    return;
                }
            }
        });
        let mut client = Self { gateway, input, messages, folder, revision: revision.to_owned(), last_id: 0 };
        if revision != MODERN {
            let params = json!({
                "protocolVersion": revision,
                "capabilities": {"elicitation": {}},
                "clientInfo": {"name": "conformance", "version": "1"},
            });
            let agreed = client.result("initialize", params)?;
            ensure!(agreed["protocolVersion"] == revision, "{agreed}");
            client.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        }
        Ok(client)
    }

    /// Waits until the gateway serves the suite's server, in the scenario's own revision.
    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let health = self.call("server_health", &json!({}))?;
            let server = &health["structuredContent"]["data"]["upstreams"][0];
            if server["state"] == "ready" {
                ensure!(
                    server["revision"] == self.revision,
                    "the gateway speaks {} to the suite",
                    server["revision"]
                );
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the suite's server is not served: {server}");
            std::thread::sleep(POLL);
        }
    }

    /// The suite's own items of a kind; empty if the gateway has no such list.
    fn list(&mut self, kind: &str) -> Result<Vec<Value>> {
        let answer = self.ask(&format!("{kind}/list"), json!({}))?;
        if answer["error"]["code"] == -32601 && kind != "tools" {
            return Ok(Vec::new());
        }
        let list =
            answer["result"][kind].as_array().with_context(|| format!("no list of {kind}: {answer}"))?;
        let is_own = |item: &Value| OWN_TOOLS.iter().any(|own| item["name"] == *own);
        Ok(list.iter().filter(|item| !is_own(item)).cloned().collect())
    }

    fn call(&mut self, tool: &str, arguments: &Value) -> Result<Value> {
        self.result("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// A call as the suite wants it. The suite passes `null` for an argument that is only optional, and the gateway
    /// refuses that as the schema demands. Then the call is repeated without the argument, as a model would do.
    fn call_within_schema(&mut self, tool: &str, mut arguments: Value) -> Result<()> {
        let result = self.call(tool, &arguments)?;
        if result["isError"] != true {
            return Ok(());
        }
        let given = arguments.as_object_mut().with_context(|| format!("{result}"))?;
        let before = given.len();
        given.retain(|_, value| !value.is_null());
        ensure!(given.len() < before, "{result}");
        let result = self.call(tool, &arguments)?;
        ensure!(result["isError"] != true, "{result}");
        Ok(())
    }

    /// Answers the questions in a result, and calls again.
    fn answer_and_retry(&mut self, tool: &str, asked: &Value) -> Result<()> {
        ensure!(asked["resultType"] == "input_required", "{asked}");
        let requests = asked["inputRequests"].as_object().context("the result has no questions")?;
        let responses: Map<String, Value> = requests
            .iter()
            .map(|(key, request)| (key.clone(), accepted(&request["params"]["requestedSchema"])))
            .collect();
        let mut params = json!({"name": tool, "arguments": {}, "inputResponses": responses});
        if let Some(state) = asked.get("requestState") {
            params["requestState"] = state.clone();
        }
        let result = self.result("tools/call", params)?;
        ensure!(result["resultType"] == "complete", "{result}");
        Ok(())
    }

    fn result(&mut self, method: &str, params: Value) -> Result<Value> {
        let mut answer = self.ask(method, params)?;
        ensure!(answer.get("result").is_some(), "`{method}` was answered with {answer}");
        Ok(answer["result"].take())
    }

    /// Sends a request and waits for its answer. Answers requests of the gateway that arrive in between.
    fn ask(&mut self, method: &str, mut params: Value) -> Result<Value> {
        self.last_id += 1;
        if self.revision == MODERN {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": {"name": "conformance", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
            });
        }
        self.write(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}))?;
        loop {
            let message = self
                .messages
                .recv_timeout(PATIENCE)
                .with_context(|| format!("the gateway did not answer `{method}`"))?;
            let asks = message["method"].as_str();
            if asks.is_none() && message["id"] == self.last_id {
                return Ok(message);
            }
            let (Some(asks), Some(id)) = (asks, message.get("id")) else { continue };
            let answer = if asks == "elicitation/create" {
                json!({"jsonrpc": "2.0", "id": id, "result": accepted(&message["params"]["requestedSchema"])})
            } else {
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "unknown"}})
            };
            self.write(&answer)?;
        }
    }

    fn write(&mut self, message: &Value) -> Result<()> {
        let input = self.input.as_mut().context("the gateway has no stdin")?;
        writeln!(input, "{message}").context("the gateway has closed its input")
    }

    /// Closes the input, and waits until the gateway has ended.
    fn close(&mut self) -> Result<()> {
        drop(self.input.take());
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.gateway.try_wait()? {
                ensure!(status.success(), "the gateway ended with {status}");
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the gateway did not end after its client disconnected");
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The first two fail if the gateway has already ended; a folder that stays does no harm.
        let _ = self.gateway.kill();
        let _ = self.gateway.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_accepted_with_its_defaults() {
        let schema = json!({"properties": {
            "name": {"type": "string", "default": "John"},
            "note": {"type": "string"},
            "sure": {"type": "boolean"},
            "public": {"type": "boolean", "default": false},
        }});
        let content = json!({"name": "John", "sure": true, "public": false});
        assert_eq!(accepted(&schema), json!({"action": "accept", "content": content}));
        assert_eq!(accepted(&Value::Null), json!({"action": "accept", "content": {}}));
    }

    #[test]
    fn what_a_tool_requires_is_given() {
        let tool = json!({"inputSchema": {"properties": {"a": {}, "b": {}}, "required": ["a"]}});
        assert_eq!(required_arguments(&tool), json!({"a": "x"}));
        assert_eq!(required_arguments(&json!({})), json!({}));
    }
}
