//! `bridgehead demo-server`: the bundled server, so that a new user can try a gateway without any configuration.
//!
//! Its four tools show a plain answer, structured output, progress with cancellation, and an error. It serves both eras
//! through the same front as the gateway; this module only adds the tools. It ends when its stdin ends.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_front::{Backend, LineOptions, serve_lines};
use bridgehead_gateway::{
    Caller, ClientRequest, ClientTransport, Feed, Feeds, Principal, ProgressSink, Session,
};
use bridgehead_schema::HeaderParameter;
use bridgehead_wire::{Era, Method, Raw, Revision, RpcError, Spliced, code, key, notification};
use bytes::BytesMut;
use clap::Args;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Run;
use super::exit::Exit;

/// The longest line it reads.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// The number of steps of `sleep`; it reports progress before the first step and after each.
const STEPS: u64 = 10;
/// The longest `sleep`: ten minutes.
const LONGEST_MS: u64 = 600_000;

/// The bundled demo server, on stdin and stdout
#[derive(Debug, Args)]
pub(crate) struct DemoServer {}

impl Run for DemoServer {
    /// It is a server like any other.
    fn run_anywhere(&self) -> Option<Exit> {
        Some(run())
    }
}

fn run() -> Exit {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Exit::Failure;
    };
    let options = LineOptions {
        principal: Principal::local(),
        transport: ClientTransport::Stdio,
        max_message_bytes: MAX_MESSAGE_BYTES,
    };
    let demo = Demo::default();
    let serving =
        serve_lines(tokio::io::stdin(), tokio::io::stdout(), demo, options, CancellationToken::new());
    let served = runtime.block_on(serving);
    runtime.shutdown_background();
    if served.is_ok() { Exit::Success } else { Exit::Failure }
}

/// The backend of the front.
#[derive(Debug, Clone, Default)]
struct Demo {
    /// They send nothing, because the tools never change.
    feeds: Feeds,
}

impl Backend for Demo {
    async fn answer(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let mut result = match (&request.method, caller.era()) {
            (Method::ToolsList, _) => json!({"tools": tools()}),
            (Method::ToolsCall, _) => call(request, progress).await?,
            (Method::Discover, Era::Modern) => json!({
                "supportedVersions": [Revision::MODERN.as_str()],
                "capabilities": {"tools": {}},
            }),
            (method, _) => {
                let message = format!("method `{method}` is not offered");
                return Err(RpcError::new(code::METHOD_NOT_FOUND, &message));
            }
        };
        if caller.era() == Era::Modern {
            result["resultType"] = json!("complete");
            result[key::META] = json!({key::SERVER_INFO: server_info()});
            if request.method != Method::ToolsCall {
                result["ttlMs"] = json!(3_600_000);
                result["cacheScope"] = json!("public");
            }
        }
        Ok(Raw::encode(&result).into())
    }

    fn initialize(&self, _principal: &Principal, revision: Revision) -> Raw {
        Raw::encode(&json!({
            "protocolVersion": revision.as_str(),
            "capabilities": {"tools": {}},
            "serverInfo": server_info(),
        }))
    }

    fn header_parameters(&self, _principal: &Principal, _tool: &str) -> Arc<[HeaderParameter]> {
        Arc::new([])
    }

    fn serves(&self, _principal: &Principal, _era: Era, method: &Method) -> bool {
        matches!(method, Method::Discover | Method::ToolsList | Method::ToolsCall)
    }

    fn feed(&self, _principal: &Principal, session: &Session) -> Feed {
        session.feed_or(|number| self.feeds.open_session(number))
    }
}

fn server_info() -> Value {
    json!({"name": "bridgehead-demo", "version": env!("CARGO_PKG_VERSION")})
}

fn tools() -> Value {
    json!([
        {
            "name": "echo",
            "description": "Gives back the text it gets.",
            "inputSchema": {
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
            },
            "annotations": {"readOnlyHint": true},
        },
        {
            "name": "add",
            "description": "Adds two numbers; the sum is structured output.",
            "inputSchema": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
            "outputSchema": {
                "type": "object",
                "properties": {"sum": {"type": "number"}},
                "required": ["sum"],
            },
            "annotations": {"readOnlyHint": true},
        },
        {
            "name": "sleep",
            "description": "Waits for some milliseconds and reports its progress; can be cancelled.",
            "inputSchema": {
                "type": "object",
                "properties": {"ms": {"type": "integer", "minimum": 0, "maximum": LONGEST_MS}},
                "required": ["ms"],
            },
            "annotations": {"readOnlyHint": true},
        },
        {
            "name": "fail",
            "description": "Fails with the message it gets, like a tool that cannot do its work.",
            "inputSchema": {"type": "object", "properties": {"message": {"type": "string"}}},
        },
    ])
}

async fn call(request: &ClientRequest, progress: Option<ProgressSink>) -> Result<Value, RpcError> {
    let invalid = |message: &str| RpcError::new(code::INVALID_PARAMS, message);
    let name = request.params.get("name").and_then(|name| name.to_text()).unwrap_or_default();
    let arguments: Value = match request.params.get("arguments") {
        Some(raw) => raw.decode().map_err(|_| invalid("`params.arguments` is not readable"))?,
        None => json!({}),
    };
    Ok(match name.as_str() {
        "echo" => match arguments["text"].as_str() {
            Some(text) => said(text, false),
            None => said("`text` must be a string", true),
        },
        "add" => match sum(&arguments["a"], &arguments["b"]) {
            Some(sum) => {
                let mut result = said(&json!({"sum": sum}).to_string(), false);
                result["structuredContent"] = json!({"sum": sum});
                result
            }
            None => said("`a` and `b` must be numbers with a finite sum", true),
        },
        "sleep" => match arguments["ms"].as_u64().filter(|ms| *ms <= LONGEST_MS) {
            Some(ms) => {
                sleep(ms, request.meta.progress_token.as_ref(), progress).await;
                said(&format!("slept for {ms} ms"), false)
            }
            None => said(&format!("`ms` must be a whole number from 0 to {LONGEST_MS}"), true),
        },
        "fail" => said(arguments["message"].as_str().unwrap_or("failed, as asked"), true),
        _ => return Err(invalid(&format!("no tool `{name}`"))),
    })
}

fn said(text: &str, is_error: bool) -> Value {
    json!({"content": [{"type": "text", "text": text}], "isError": is_error})
}

/// The sum; whole numbers stay whole if the result fits into 64 bits.
fn sum(a: &Value, b: &Value) -> Option<Value> {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) if a.checked_add(b).is_some() => Some(json!(a + b)),
        _ => serde_json::Number::from_f64(a.as_f64()? + b.as_f64()?).map(Value::Number),
    }
}

/// Sleeps and reports progress. Dropping the future cancels it.
async fn sleep(ms: u64, token: Option<&Raw>, progress: Option<ProgressSink>) {
    let start = tokio::time::Instant::now();
    for step in 0..=STEPS {
        let passed = ms * step / STEPS;
        tokio::time::sleep_until(start + Duration::from_millis(passed)).await;
        if let (Some(token), Some(progress)) = (token, &progress) {
            let params = json!({
                key::PROGRESS_TOKEN: token.decode::<Value>().unwrap_or_default(),
                "progress": step,
                "total": STEPS,
                "message": format!("{passed} of {ms} ms"),
            });
            let mut out = BytesMut::new();
            notification(&mut out, Method::Progress.as_str(), Some(&Raw::encode(&params).into()));
            progress.send(out.freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stay_whole_where_they_can() {
        #[track_caller]
        fn check(a: &Value, b: &Value, expected: Option<&Value>) {
            assert_eq!(sum(a, b).as_ref(), expected);
        }
        check(&json!(1), &json!(2), Some(&json!(3)));
        check(&json!(1.5), &json!(2), Some(&json!(3.5)));
        check(&json!(i64::MAX), &json!(1), Some(&json!(9_223_372_036_854_775_808.0)));
        check(&json!(f64::MAX), &json!(f64::MAX), None);
        check(&json!("1"), &json!(2), None);
    }
}
