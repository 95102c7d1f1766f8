//! Shows what came of a request: progress, blocks of content, and errors, whose cause decides the exit code.

use bridgehead_wire::code::{INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND};
use bridgehead_wire::{Code, RpcError};
use serde_json::{Value, json};

use super::exit::Exit;
use super::output;
use super::request::AskError;

/// Servers that do not serve, each with the reason.
pub(crate) type Failures = [(String, String)];

/// Shows a progress notification.
pub(crate) fn progress(params: &Value) {
    let number = |key: &str| params[key].as_f64().map(|number| number.to_string());
    let Some(done) = number("progress") else { return };
    let mut line = format!("progress {done}");
    if let Some(total) = number("total") {
        line.push_str(&format!(" of {total}"));
    }
    if let Some(message) = params["message"].as_str() {
        line.push_str(&format!(": {}", output::one_line(message, 200)));
    }
    output::talk(&line);
}

/// A block of content as text: its words, or a line about it. `--json` shows the whole block.
pub(crate) fn block(block: &Value) -> String {
    if let Some(words) = block["text"].as_str().filter(|_| block["type"] == "text") {
        return words.to_owned();
    }
    if let Some(words) = block["resource"]["text"].as_str().filter(|_| block["type"] == "resource") {
        return words.to_owned();
    }
    let kind = block["type"].as_str().unwrap_or("unknown");
    let of =
        |value: &Value| ["uri", "mimeType"].iter().find_map(|key| value[*key].as_str().map(str::to_owned));
    let detail = of(block).or_else(|| of(&block["resource"])).unwrap_or_default();
    format!("[{} {}]", output::one_line(kind, 40), output::one_line(&detail, 200)).replace(" ]", "]")
}

/// Reports that servers do not serve.
pub(crate) fn warn(failures: &Failures) {
    for (server, reason) in failures {
        output::talk(&format!("warning: server `{server}` does not serve: {reason}"));
    }
}

/// Servers that do not serve, for programs.
pub(crate) fn failed(failures: &Failures) -> Value {
    failures.iter().map(|(server, reason)| json!({"server": server, "reason": reason})).collect()
}

/// The error instead of one that says that no server has anything of a kind: nobody has this one of it.
pub(crate) fn unknown(error: AskError, message: &str) -> AskError {
    match error {
        AskError::Answered(answered) if answered.code() == METHOD_NOT_FOUND => {
            let data = json!({"code": Code::ProviderToolUnknown.as_str()});
            AskError::Answered(RpcError::with_data(INVALID_PARAMS, message, &data))
        }
        other => other,
    }
}

/// Reports why there is no result.
pub(crate) fn refused(error: &AskError, failures: &Failures, as_json: bool) -> Exit {
    let answered = match error {
        AskError::Answered(answered) => answered,
        AskError::Unreachable(_) | AskError::Lost { .. } | AskError::Unanswerable(_) | AskError::Late(_) => {
            let exit = match error {
                AskError::Unreachable(_) | AskError::Lost { .. } => Exit::Unreachable,
                _ => Exit::Failure,
            };
            if as_json {
                let mut told = json!({"message": error.to_string()});
                if matches!(error, AskError::Lost { .. }) {
                    told["data"] = json!({"retryable": true, "mayHaveRun": true});
                }
                return output::json_data(&json!({"error": told}), exit);
            }
            output::talk(&format!("error: {error}"));
            return exit;
        }
    };
    let data: Value = answered.data().and_then(|data| data.decode().ok()).unwrap_or_default();
    let exit = exit_of(answered, &data, failures);
    if exit == Exit::Unreachable {
        warn(failures);
    }
    if as_json {
        let body: Value = answered.body().decode().unwrap_or_default();
        return output::json_data(&json!({"error": body}), exit);
    }
    output::talk(&format!("error: {}", answered.message()));
    if let Some(hint) = data["hint"].as_str() {
        output::talk(&format!("hint: {hint}"));
    }
    exit
}

/// The exit code for an error answer.
fn exit_of(error: &RpcError, data: &Value, failures: &Failures) -> Exit {
    match data["code"].as_str() {
        // What is not known may belong to a server that did not start.
        Some("PROVIDER_TOOL_UNKNOWN") if failures.is_empty() => Exit::Usage,
        None if is_unknown_resource(error, data) && failures.is_empty() => Exit::Usage,
        Some(
            "PROVIDER_TOOL_UNKNOWN"
            | "PROVIDER_UNAVAILABLE"
            | "PROVIDER_INIT_FAILED"
            | "SANDBOX_UNAVAILABLE"
            | "mcp_restart_in_progress"
            | "mcp_restart_failed",
        ) => Exit::Unreachable,
        None if is_unknown_resource(error, data) => Exit::Unreachable,
        _ => Exit::Failure,
    }
}

/// Whether an error means that nobody has the resource: it then names the URI.
pub(crate) fn is_unknown_resource(error: &RpcError, data: &Value) -> bool {
    [INVALID_PARAMS, RESOURCE_NOT_FOUND].contains(&error.code()) && data["uri"].is_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_told_in_a_line() {
        for (given, expected) in [
            (json!({"type": "text", "text": "a\nb"}), "a\nb"),
            (json!({"type": "image", "mimeType": "image/png"}), "[image image/png]"),
            (json!({"type": "resource_link", "uri": "file:a"}), "[resource_link file:a]"),
            (json!({"type": "resource", "resource": {"uri": "file:a", "text": "t"}}), "t"),
            (json!({"type": "resource", "resource": {"uri": "file:a", "blob": "t"}}), "[resource file:a]"),
            (json!({"type": "new"}), "[new]"),
        ] {
            assert_eq!(block(&given), expected);
        }
    }

    /// JOIN-8: that no server has prompts at all is told as that nobody has this one.
    #[test]
    fn a_method_that_nobody_has() {
        let answered = |code| AskError::Answered(RpcError::new(code, "m"));
        let AskError::Answered(error) = unknown(answered(METHOD_NOT_FOUND), "none") else { panic!() };
        let data = error.data().unwrap().decode().unwrap();
        assert_eq!((&*error.message(), exit_of(&error, &data, &[])), ("none", Exit::Usage));
        assert_eq!(unknown(answered(INVALID_PARAMS), "none").to_string(), "m");
    }

    /// JOIN-8: a name or URI that nobody has is a mistake of the caller, unless a server that may have it does not serve.
    #[test]
    fn causes_decide_the_exit_code() {
        #[track_caller]
        fn check(code: i64, data: &Value, expected: (Exit, Exit)) {
            let error = RpcError::with_data(code, "m", data);
            let failures = [("a".to_owned(), "b".to_owned())];
            assert_eq!((exit_of(&error, data, &[]), exit_of(&error, data, &failures)), expected);
        }
        check(-32602, &json!({"code": "PROVIDER_TOOL_UNKNOWN"}), (Exit::Usage, Exit::Unreachable));
        check(-32603, &json!({"code": "PROVIDER_UNAVAILABLE"}), (Exit::Unreachable, Exit::Unreachable));
        check(-32603, &json!({"code": "PROVIDER_TIMEOUT"}), (Exit::Failure, Exit::Failure));
        for code in [-32602, -32002] {
            check(code, &json!({"uri": "a:b"}), (Exit::Usage, Exit::Unreachable));
        }
        check(-32602, &json!({}), (Exit::Failure, Exit::Failure));
        check(-32603, &json!({"uri": "a:b"}), (Exit::Failure, Exit::Failure));
    }
}
