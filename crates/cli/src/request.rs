//! Requests to the gateway that a verb uses: lists, page by page, and requests during which a server may ask something.
//!
//! All requests are of the modern era, in which they are stateless: a gateway in this process and one behind a socket answer
//! them alike. A question of a server is the result of the request; the request is then sent again with the answers.

use std::io::Read;
use std::time::Duration;

use bridgehead::{Gateway, Principal};
use bridgehead_gateway::{Caller, ClientRequest, ClientTransport, ProgressSink, Session};
use bridgehead_wire::{Method, Object, Raw, RequestMeta, Revision, RpcError, code, key};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::answering::Answering;
use super::target::Target;

/// How many progress notifications may wait to be shown.
const PROGRESS_CAPACITY: usize = 64;
/// How many pages of a list are read at most.
const MAX_PAGES: usize = 1000;
/// How often a server may ask during one request.
const MAX_ROUNDS: u32 = 64;
/// The first pause before a request is sent again to a server that asks nothing but to come back; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The gateway did not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The connection ended after the request was sent.
    #[error(
        "the connection to the gateway at {gateway} was lost ({reason}); what was asked for may have happened"
    )]
    Lost { gateway: String, reason: String },
    /// The answer is an error.
    #[error("{}", .0.message())]
    Answered(RpcError),
    /// The server asks what nobody here can answer.
    #[error("{0}")]
    Unanswerable(String),
    /// The answer takes too long.
    #[error("the server did not answer within {} s", .0.as_secs())]
    Late(Duration),
}

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listed {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl Listed {
    /// The method, and the member of its result that holds the entries.
    const fn method(self) -> (Method, &'static str) {
        match self {
            Self::Tools => (Method::ToolsList, "tools"),
            Self::Prompts => (Method::PromptsList, "prompts"),
            Self::Resources => (Method::ResourcesList, "resources"),
            Self::Templates => (Method::TemplatesList, "resourceTemplates"),
        }
    }
}

/// A request during which a server may ask something.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
    pub(crate) method: Method,
    /// The members of its parameters.
    pub(crate) members: Vec<(&'static str, Raw)>,
    /// Who answers.
    pub(crate) answering: &'a Answering,
    /// How long the server may take; a person's time does not count.
    pub(crate) timeout: Option<Duration>,
}

impl Asking<'_> {
    fn params(&self, round: &Round) -> String {
        let asked = [("inputResponses", &round.responses), ("requestState", &round.state)];
        let asked = asked.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let members = self.members.iter().map(|(name, value)| (*name, value)).chain(asked);
        let members: String =
            members.map(|(name, value)| format!(r#""{name}":{},"#, value.as_str())).collect();
        format!(r#"{{{members}"_meta":{}}}"#, meta(&self.answering.capabilities(), true))
    }

    fn member(&self, name: &str) -> Option<&Raw> {
        self.members.iter().find(|(member, _)| *member == name).map(|(_, value)| value)
    }
}

/// What one round of questions adds to the request.
#[derive(Debug, Default)]
struct Round {
    responses: Option<Raw>,
    state: Option<Raw>,
}

impl Target {
    /// All entries of a list, each unchanged. A gateway whose servers have nothing of the kind may not know the method.
    pub(crate) async fn list(&self, what: Listed) -> Result<Vec<Raw>, AskError> {
        let (method, member) = what.method();
        let mut all = Vec::new();
        let mut cursor: Option<Raw> = None;
        for _ in 0..MAX_PAGES {
            let meta = meta(&json!({}), false);
            let params = match &cursor {
                Some(cursor) => format!(r#"{{"cursor":{},"_meta":{meta}}}"#, cursor.as_str()),
                None => format!(r#"{{"_meta":{meta}}}"#),
            };
            let result = match self.ask(&method, params, &[], &mut |_: &Value| {}).await {
                Err(AskError::Answered(error))
                    if what != Listed::Tools && error.code() == code::METHOD_NOT_FOUND =>
                {
                    break;
                }
                other => other?,
            };
            let malformed = || not_understood(method.as_str());
            let page = Object::parse(&result).map_err(|_| malformed())?;
            let listed: Vec<Box<RawValue>> =
                page.get(member).and_then(|listed| listed.decode().ok()).ok_or_else(malformed)?;
            all.extend(listed.iter().filter_map(|entry| Raw::parse(entry.get().to_owned()).ok()));
            cursor = page.get("nextCursor").filter(|cursor| !cursor.is_null());
            if cursor.is_none() {
                break;
            }
        }
        Ok(all)
    }

    /// The instructions of servers and tools for the model, as one text; `None` if there are none.
    pub(crate) async fn instructions(&self) -> Result<Option<String>, AskError> {
        let params = format!(r#"{{"_meta":{}}}"#, meta(&json!({}), false));
        let result = self.ask(&Method::Discover, params, &[], &mut |_: &Value| {}).await?;
        let result = Object::parse(&result).map_err(|_| not_understood("server/discover"))?;
        Ok(result.get("instructions").and_then(|text| text.to_text()))
    }

    /// Sends a request and answers what the server asks meanwhile; `on_progress` gets the parameters of each progress
    /// notification.
    pub(crate) async fn converse(
        &self,
        asking: &Asking<'_>,
        mut on_progress: impl FnMut(&Value),
    ) -> Result<Raw, AskError> {
        let (mut round, mut headers) = (Round::default(), Vec::new());
        let (mut left, mut pause) = (asking.timeout, FIRST_PAUSE);
        for _ in 0..MAX_ROUNDS {
            let began = Instant::now();
            let params = asking.params(&round);
            let sent = async {
                match self.ask(&asking.method, params.clone(), &headers, &mut on_progress).await {
                    // The tool's schema may require some arguments as headers too.
                    Err(AskError::Answered(error))
                        if error.code() == code::HEADER_MISMATCH && headers.is_empty() =>
                    {
                        headers = self.parameter_headers(asking).await?;
                        self.ask(&asking.method, params, &headers, &mut on_progress).await
                    }
                    other => other,
                }
            };
            let result = match left {
                None => sent.await?,
                Some(left) => timeout(left, sent)
                    .await
                    .map_err(|_| AskError::Late(asking.timeout.unwrap_or_default()))??,
            };
            left = left.map(|left| left.saturating_sub(began.elapsed()));
            let Ok(object) = Object::parse(&result) else { return Ok(result) };
            if object.text("resultType").as_deref() != Some("input_required") {
                return Ok(result);
            }
            round = Round { responses: None, state: object.get("requestState") };
            match object.get("inputRequests") {
                Some(requests) => {
                    let answers = asking.answering.answer(&requests).await;
                    round.responses = Some(answers.map_err(AskError::Unanswerable)?);
                }
                None if round.state.is_some() => {
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                None => return Err(not_understood(asking.method.as_str())),
            }
        }
        Err(AskError::Unanswerable(format!("the server asked {MAX_ROUNDS} times without an end")))
    }

    async fn parameter_headers(&self, asking: &Asking<'_>) -> Result<Vec<(String, String)>, AskError> {
        let name = asking.member("name").and_then(Raw::to_text).unwrap_or_default();
        let tools = self.list(Listed::Tools).await?;
        let schema = tools
            .iter()
            .filter_map(|tool| tool.decode::<Value>().ok())
            .find(|tool| tool["name"] == name.as_str())
            .map(|tool| tool["inputSchema"].clone())
            .unwrap_or_default();
        let arguments: Value =
            asking.member("arguments").and_then(|arguments| arguments.decode().ok()).unwrap_or_default();
        let parameters = bridgehead_schema::header_parameters(&schema).unwrap_or_default();
        let value = |path: &[String]| {
            let value = path.iter().fold(&arguments, |value, name| &value[name.as_str()]);
            match value {
                Value::String(text) => Some(text.clone()),
                Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
                Value::Null | Value::Array(_) | Value::Object(_) => None,
            }
        };
        Ok(parameters
            .iter()
            .filter_map(|parameter| {
                let value = value(&parameter.path)?;
                Some((format!("mcp-param-{}", parameter.header.to_ascii_lowercase()), value))
            })
            .collect())
    }

    async fn ask(
        &self,
        method: &Method,
        params: String,
        headers: &[(String, String)],
        on_progress: &mut impl FnMut(&Value),
    ) -> Result<Raw, AskError> {
        match self {
            Self::Here(gateway) => ask_here(gateway, method.clone(), params, on_progress).await,
            Self::There(remote) | Self::Running(remote, _) => {
                remote.ask(method, &params, headers, on_progress).await
            }
        }
    }
}

async fn ask_here(
    gateway: &Gateway,
    method: Method,
    params: String,
    on_progress: &mut impl FnMut(&Value),
) -> Result<Raw, AskError> {
    let unusable =
        || AskError::Answered(RpcError::new(code::INVALID_PARAMS, "the request could not be built"));
    let raw = Raw::parse(params).map_err(|_| unusable())?;
    let params = Object::parse(&raw).map_err(|_| unusable())?;
    let meta = RequestMeta::read(Some(&params)).map_err(|_| unusable())?;
    let caller = Caller {
        principal: Principal::local(),
        revision: Revision::MODERN,
        transport: ClientTransport::Memory,
        session: Session::new(),
        questioner: None,
    };
    let (sink, mut progress) = ProgressSink::channel(PROGRESS_CAPACITY);
    let asked = ClientRequest { method, params, meta, id: None };
    let mut answering = bridgehead_front::answer(gateway, &caller, &asked, Some(sink));
    let mut show = |notification: bytes::Bytes| {
        if let Ok(notification) = serde_json::from_slice::<Value>(&notification) {
            on_progress(&notification["params"]);
        }
    };
    let outcome = loop {
        tokio::select! {
            biased;
            Some(notification) = progress.recv() => show(notification),
            outcome = &mut answering => break outcome,
        }
    };
    while let Ok(notification) = progress.try_recv() {
        show(notification);
    }
    outcome.map(|result| result.to_raw()).map_err(AskError::Answered)
}

/// The `_meta` of a modern request.
fn meta(capabilities: &Value, with_progress: bool) -> Value {
    let mut meta = json!({
        key::PROTOCOL_VERSION: Revision::MODERN.as_str(),
        key::CLIENT_CAPABILITIES: capabilities,
        key::CLIENT_INFO: {"name": "bridgehead", "version": env!("CARGO_PKG_VERSION")},
    });
    if with_progress {
        meta[key::PROGRESS_TOKEN] = json!(1);
    }
    meta
}

fn not_understood(method: &str) -> AskError {
    AskError::Unreachable(format!("the answer to `{method}` is malformed"))
}

/// Reads JSON from an option: the text itself, or @FILE.
pub(crate) fn read_json(given: &str, option: &str) -> Result<Raw, String> {
    let text = match given.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read `{file}` for {option}: {error}"))?,
        None => given.to_owned(),
    };
    Raw::parse(text.trim().to_owned()).map_err(|error| format!("{option} is not JSON: {error}"))
}

/// Reads `--args`: a JSON object, @FILE, or - for stdin.
pub(crate) fn read_arguments(given: &str) -> Result<Raw, String> {
    let raw = if given == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| format!("cannot read stdin for --args: {error}"))?;
        Raw::parse(text.trim().to_owned()).map_err(|error| format!("--args is not JSON: {error}"))?
    } else {
        read_json(given, "--args")?
    };
    if raw.is_object() {
        Ok(raw)
    } else {
        Err("--args must be a JSON object, such as '{\"a\":1}'".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_must_be_an_object() {
        assert_eq!(read_arguments(r#" {"a": 1.0} "#).unwrap().as_str(), r#"{"a": 1.0}"#);
        for bad in ["", "{", "[1]", "1", "@/no/such/file"] {
            assert!(read_arguments(bad).is_err(), "{bad}");
        }
    }
}
