//! What changes in a call on its way to a server, and in its answer on the way back. All other bytes pass
//! unchanged.

use bridgehead_call::CorrelationId;
use bridgehead_upstream::{Features, stamp_modern};
use bridgehead_wire::{
    Edit, Era, Level, Method, Object, Raw, RequestMeta, Revision, Spliced, key, notification,
};
use bytes::{Bytes, BytesMut};

use crate::caller::Caller;
use crate::relay::revise;
use crate::relay::trace::Trace;

/// One member of the params that has another value for the server.
#[derive(Debug)]
pub(crate) struct Rewrite {
    pub(crate) member: &'static str,
    pub(crate) value: Spliced,
}

impl Rewrite {
    /// The server's own name of a tool or prompt.
    pub(crate) fn name(own: &str) -> Self {
        Self { member: "name", value: Raw::string(own).into() }
    }
}

/// One hop of a request: its two sides, and what the gateway adds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hop<'a> {
    pub(crate) caller: &'a Caller,
    /// The era of the server.
    pub(crate) server: Era,
    pub(crate) progress_token: Option<u64>,
    pub(crate) correlation: CorrelationId,
    /// The gateway's place in the trace, if spans are recorded.
    pub(crate) trace: Option<Trace>,
    /// The log level that the client wants.
    pub(crate) log_level: Option<Level>,
    /// Whether the server supports tasks.
    pub(crate) tasks: bool,
    /// Whether the gateway answers the server's requests for roots, whatever the client declared.
    pub(crate) roots: bool,
}

/// The params for the next hop: the server's own name of the subject, and a new `_meta` that keeps what the
/// client put there for others. A modern server is told what the client can be asked.
pub(crate) fn params_for(
    params: &Object,
    meta: &RequestMeta,
    rewrite: Option<&Rewrite>,
    hop: Hop<'_>,
) -> Spliced {
    let Hop { caller, server, progress_token, correlation, trace, log_level, tasks, roots } = hop;
    let mut edit = params.edit();
    if let Some(Rewrite { member, value }) = rewrite {
        edit.set(member, value.clone());
    }
    // Tasks of 2025-11-25 are not relayed: a call is answered by its result.
    if caller.era() == Era::Legacy && params.get("task").is_some() {
        edit.remove("task");
    }
    // A client's declaration holds for this request: the client that is asked through its result is the same.
    let declared = meta.client_capabilities.as_ref().filter(|_| caller.era() == Era::Modern);
    let meta = meta.for_next_hop(|meta| {
        if server == Era::Modern {
            // A legacy client can answer during its call what it declared at its handshake.
            let in_session = || match (caller.abilities(), roots) {
                (abilities, true) => abilities.with_roots().capabilities().into(),
                (abilities, false) => abilities.capabilities().into(),
            };
            let relayed = |all| match (relayed_capabilities(all, tasks), roots) {
                (all, true) => with_roots(all),
                (all, false) => all,
            };
            stamp_modern(meta, declared.map_or_else(in_session, relayed));
        }
        if let Some(token) = progress_token {
            meta.set(key::PROGRESS_TOKEN, Raw::encode(&token));
        }
        if let Some(trace) = trace {
            if trace.began_here {
                meta.remove(key::TRACESTATE);
            }
            meta.set(key::TRACEPARENT, Raw::string(&trace.own.to_string()));
        }
        if let Some(level) = log_level.filter(|_| server == Era::Modern) {
            meta.set(key::LOG_LEVEL, Raw::string(level.as_str()));
        }
        meta.set(key::CORRELATION_ID, correlation.to_raw());
    });
    edit.set(key::META, meta);
    edit.finish()
}

/// Whether a client declares support for tasks.
pub(crate) fn declares_tasks(capabilities: &Raw) -> bool {
    let extensions = |capabilities| Object::parse(&Object::parse(capabilities).ok()?.get("extensions")?).ok();
    capabilities.as_str().contains("extensions")
        && extensions(capabilities).is_some_and(|all: Object| all.get(key::TASKS).is_some())
}

/// A client's capabilities, without tasks if the server does not support them: such a task could not be
/// followed.
fn relayed_capabilities(capabilities: &Raw, tasks: bool) -> Spliced {
    let without_tasks = |capabilities: &Raw| {
        let object = Object::parse(capabilities).ok()?;
        let extensions = Object::parse(&object.get("extensions")?).ok()?;
        let mut kept = extensions.edit();
        kept.remove(key::TASKS);
        let mut edit = object.edit();
        edit.set("extensions", kept.finish());
        Some(edit.finish())
    };
    let extended = !tasks && capabilities.as_str().contains("extensions");
    extended.then(|| without_tasks(capabilities)).flatten().unwrap_or_else(|| capabilities.clone().into())
}

/// The same capabilities plus roots.
fn with_roots(capabilities: Spliced) -> Spliced {
    let object = Object::parse(&capabilities.to_raw()).ok();
    let Some(object) = object.filter(|object| object.get("roots").is_none()) else { return capabilities };
    let mut edit = object.edit();
    edit.set("roots", Raw::literal("{}"));
    edit.finish()
}

/// A progress notification under the client's own token.
pub(crate) fn progress_for(params: &Raw, token: &Raw, revision: Revision) -> Option<Bytes> {
    let object = Object::parse(params).ok()?;
    let mut edit = object.edit();
    edit.set(key::PROGRESS_TOKEN, token.clone());
    if revision < Revision::V2025_03_26 {
        edit.remove("message");
    }
    let mut out = BytesMut::new();
    notification(&mut out, Method::Progress.as_str(), Some(&edit.finish()));
    Some(out.freeze())
}

/// Whether a server is told of the wanted log level by a request of its own; a modern server reads it in
/// every call.
pub(crate) const fn takes_levels(server: Era, features: Features) -> bool {
    matches!(server, Era::Legacy) && features.logging
}

/// The level of a log line, and the line for clients; with several servers it names its server.
pub(crate) fn log_for(params: &Raw, server: Option<&str>) -> Option<(Level, Raw)> {
    let object = Object::parse(params).ok()?;
    let level = object.get("level")?.to_text().and_then(|level| Level::named(&level))?;
    let Some(server) = server else { return Some((level, params.clone())) };
    let logger = match object.get("logger").and_then(|logger| logger.to_text()) {
        Some(logger) => format!("{server}/{logger}"),
        None => server.to_owned(),
    };
    let mut edit = object.edit();
    edit.set("logger", Raw::string(&logger));
    Some((level, edit.finish().to_raw()))
}

/// A result, parsed as far as the gateway needs it.
pub(crate) struct Reply {
    object: Object,
    pub(crate) is_error: bool,
    kind: ReplyKind,
}

/// The kind of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyKind {
    Complete,
    /// No result yet: the server asks something first, and the client calls again.
    Question,
    /// No result yet: the call continues as a task, which the client polls.
    Task,
}

/// Which results a server may give besides complete ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Questions: both sides support them.
    Relayed,
    /// Questions and tasks: both sides support them.
    Task,
    /// Neither: the client cannot be asked this way, or the server must not ask.
    Refused,
}

impl Reply {
    /// Fails with a reason if the result cannot be passed on.
    pub(crate) fn read(result: &Raw, input: Input) -> Result<Self, &'static str> {
        let object = Object::parse(result).map_err(|_| "the result is not an object")?;
        let kind = match object.text("resultType").as_deref() {
            Some("complete") => ReplyKind::Complete,
            Some("input_required") if input != Input::Refused => ReplyKind::Question,
            Some("task") if input == Input::Task => ReplyKind::Task,
            None if object.get("resultType").is_none() => ReplyKind::Complete,
            _ => return Err("the result has an unexpected `resultType`"),
        };
        let is_error = object.get("isError").is_some_and(|raw| raw.as_str() == "true");
        Ok(Self { object, is_error, kind })
    }

    /// The result itself, if it is a question.
    pub(crate) fn asks(&self) -> Option<&Object> {
        (self.kind == ReplyKind::Question).then_some(&self.object)
    }

    /// Whether the call goes on as a task.
    pub(crate) fn is_task(&self) -> bool {
        self.kind == ReplyKind::Task
    }

    /// The result, if it is complete.
    pub(crate) fn complete(&self) -> Option<&Object> {
        (self.kind == ReplyKind::Complete).then_some(&self.object)
    }

    /// The result for a client of `revision`, with the gateway's marks in its `_meta`.
    pub(crate) fn finish(
        &self,
        revision: Revision,
        server_info: &Raw,
        correlation: CorrelationId,
    ) -> Spliced {
        self.edited(revision, server_info, correlation, |_| ())
    }

    /// The same for a result with a `ttlMs`, which says how long modern clients may cache it. Without one it
    /// must not be cached; older clients do not get the member.
    pub(crate) fn finish_kept(
        &self,
        revision: Revision,
        server_info: &Raw,
        correlation: CorrelationId,
    ) -> Spliced {
        self.edited(revision, server_info, correlation, |edit| match revision.era() {
            Era::Legacy => {
                edit.remove("ttlMs").remove("cacheScope");
            }
            Era::Modern if self.kind != ReplyKind::Complete => {}
            Era::Modern => {
                if self.object.get("ttlMs").is_none() {
                    edit.set("ttlMs", Raw::literal("0"));
                }
                if self.object.get("cacheScope").is_none() {
                    edit.set("cacheScope", Raw::literal("\"private\""));
                }
            }
        })
    }

    fn edited(
        &self,
        revision: Revision,
        server_info: &Raw,
        correlation: CorrelationId,
        more: impl FnOnce(&mut Edit<'_>),
    ) -> Spliced {
        let meta = self
            .object
            .get(key::META)
            .and_then(|meta| Object::parse(&meta).ok())
            .unwrap_or_else(Object::empty);
        let mut meta = meta.edit();
        meta.remove_if(|name| name.starts_with(key::HOP_PREFIX.as_bytes()));
        let mut edit = self.object.edit();
        match revision.era() {
            Era::Legacy => {
                edit.remove("resultType");
                for (member, change) in revise::result(&self.object, revision) {
                    match change {
                        Some(change) => edit.set(member, change),
                        None => edit.remove(member),
                    };
                }
            }
            Era::Modern => {
                if self.kind == ReplyKind::Complete {
                    edit.set("resultType", Raw::literal("\"complete\""));
                }
                meta.set(key::SERVER_INFO, server_info.clone());
            }
        }
        meta.set(key::CORRELATION_ID, correlation.to_raw());
        edit.set(key::META, meta.finish());
        more(&mut edit);
        edit.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Principal;
    use crate::caller::ClientTransport;
    use crate::life::session::Session;

    /// ERA-1: only a legacy server that supports logging is told the wanted level.
    #[test]
    fn who_is_told_of_levels() {
        for (server, logging, expected) in [
            (Era::Legacy, true, true),
            (Era::Legacy, false, false),
            (Era::Modern, true, false),
            (Era::Modern, false, false),
        ] {
            let features = Features { logging, ..Features::default() };
            assert_eq!(takes_levels(server, features), expected, "{server:?} {logging}");
        }
    }

    fn object(text: &str) -> Object {
        Object::parse(&Raw::parse(text.to_owned()).unwrap()).unwrap()
    }

    #[track_caller]
    fn sent(params: &str, tool: Option<&str>, era: Era, token: Option<u64>, expected: &str) {
        relayed(params, tool, Era::Legacy, era, token, expected);
    }

    #[track_caller]
    fn relayed(
        params: &str,
        tool: Option<&str>,
        client: Era,
        server: Era,
        token: Option<u64>,
        expected: &str,
    ) {
        let params = object(params);
        let meta = RequestMeta::read(Some(&params)).unwrap();
        let tool = tool.map(Rewrite::name);
        let caller = Caller {
            principal: Principal::local(),
            revision: if client == Era::Modern { Revision::MODERN } else { Revision::LATEST_LEGACY },
            transport: ClientTransport::Memory,
            session: Session::new(),
            questioner: None,
        };
        let correlation = CorrelationId::mint();
        let hop = Hop {
            caller: &caller,
            server,
            progress_token: token,
            correlation,
            trace: None,
            log_level: None,
            tasks: false,
            roots: false,
        };
        let sent = params_for(&params, &meta, tool.as_ref(), hop).to_raw();
        assert_eq!(sent.as_str().replace(&correlation.to_string(), "ID"), expected);
    }

    #[test]
    fn what_a_server_gets() {
        let call = r#"{"name":"s__t", "arguments":{"x": 1.0}}"#;
        let with = |name: &str| {
            format!(
                r#"{{"_meta":{{"bridgehead/correlationId":"ID"}},"name":"{name}", "arguments":{{"x": 1.0}}}}"#
            )
        };
        sent(call, None, Era::Legacy, None, &with("s__t"));
        let as_task = r#"{"name":"s__t", "arguments":{"x": 1.0},"task":{"ttl":1}}"#;
        sent(as_task, None, Era::Legacy, None, &with("s__t"));
        sent(call, Some("t"), Era::Legacy, None, &with("t"));
        sent(
            call,
            None,
            Era::Legacy,
            Some(7),
            r#"{"_meta":{"progressToken":7,"bridgehead/correlationId":"ID"},"name":"s__t", "arguments":{"x": 1.0}}"#,
        );
        let modern = r#"{"name":"t","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"sampling":{}},"traceparent":"00-1"}}"#;
        sent(
            modern,
            None,
            Era::Legacy,
            None,
            r#"{"name":"t","_meta":{"bridgehead/correlationId":"ID","traceparent":"00-1"}}"#,
        );
        let to_modern = format!(
            r#"{{"name":"t","_meta":{{"io.modelcontextprotocol/clientInfo":{{"name":"bridgehead","version":"{}"}},"bridgehead/correlationId":"ID","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{}},"traceparent":"00-1"}}}}"#,
            env!("CARGO_PKG_VERSION")
        );
        sent(modern, None, Era::Modern, None, &to_modern);
        let declared = to_modern.replace(r#"Capabilities":{}"#, r#"Capabilities":{"sampling":{}}"#);
        relayed(modern, None, Era::Modern, Era::Modern, None, &declared);
    }

    /// A client's capabilities pass unchanged, except for tasks that the server does not support.
    #[test]
    fn capabilities_that_are_relayed() {
        #[track_caller]
        fn check(declared: &'static str, expected: &str) {
            let declared = Raw::literal(declared);
            assert_eq!(relayed_capabilities(&declared, false).to_raw().as_str(), expected);
            assert_eq!(relayed_capabilities(&declared, true).to_raw().as_str(), declared.as_str());
            assert_eq!(declares_tasks(&declared), declared.as_str() != expected);
        }
        check("{}", "{}");
        check(r#"{"elicitation": {"url":{}},"x":1.0}"#, r#"{"elicitation": {"url":{}},"x":1.0}"#);
        check(
            r#"{"extensions":{"io.modelcontextprotocol\/tasks":{}, "a/b":{}},"roots":{}}"#,
            r#"{"extensions":{"a/b":{}},"roots":{}}"#,
        );
        let rooted = |declared: &'static str| with_roots(Raw::literal(declared).into()).to_raw();
        assert_eq!(rooted("{}").as_str(), r#"{"roots":{}}"#);
        assert_eq!(rooted(r#"{"roots":{"x":1}}"#).as_str(), r#"{"roots":{"x":1}}"#);
        check(r#"{"extensions":7}"#, r#"{"extensions":7}"#);
        check(r#"{"x":"extensions"}"#, r#"{"x":"extensions"}"#);
    }

    /// Between two modern sides a question passes unchanged, including every byte of the state, with the
    /// gateway's marks added.
    #[test]
    fn a_question_stays_one() {
        let text = r#"{ "resultType" : "input_required","requestState":"\u0041=/\/","inputRequests":{"k":{"method":"roots/list","params":{}}}}"#;
        let asked = Reply::read(&Raw::literal(text), Input::Relayed).unwrap();
        let id = CorrelationId::mint();
        let told = asked.finish(Revision::MODERN, &Raw::literal(r#"{"name":"b"}"#), id).to_raw();
        let marks = format!(
            r#"{{ "_meta":{{"io.modelcontextprotocol/serverInfo":{{"name":"b"}},"bridgehead/correlationId":"{id}"}},"#
        );
        assert_eq!(told.as_str(), format!("{marks}{}", &text[2..]));
        let task = Raw::literal(r#"{"resultType":"task"}"#);
        assert!(Reply::read(&task, Input::Relayed).is_err());
        let task = Reply::read(&task, Input::Task).unwrap();
        assert!(task.is_task() && task.complete().is_none() && task.asks().is_none());
        let told = task.finish(Revision::MODERN, &Raw::literal(r#"{"name":"b"}"#), id).to_raw();
        assert!(told.as_str().contains(r#""resultType":"task""#));
    }

    /// PIPE-8: the correlation id is in the result's `_meta` in both eras.
    #[test]
    fn what_a_client_gets() {
        let id = CorrelationId::mint();
        let info = Raw::literal(r#"{"name":"b"}"#);
        let result = Raw::literal(r#"{"content":[{"type":"future_block"}],"x":1.50}"#);
        let result = Reply::read(&result, Input::Refused).unwrap();
        assert_eq!(
            result.finish(Revision::LATEST_LEGACY, &info, id).to_raw().as_str(),
            format!(
                r#"{{"_meta":{{"bridgehead/correlationId":"{id}"}},"content":[{{"type":"future_block"}}],"x":1.50}}"#
            )
        );
        let modern = result.finish(Revision::MODERN, &info, id).to_raw();
        assert!(modern.as_str().starts_with(
            r#"{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"b"},"#
        ));
        let from_modern = Raw::literal(
            r#"{"resultType":"complete","content":[],"isError":true,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"u"},"v/k":1}}"#,
        );
        let from_modern = Reply::read(&from_modern, Input::Relayed).unwrap();
        assert!(from_modern.is_error);
        assert_eq!(
            from_modern.finish(Revision::LATEST_LEGACY, &info, id).to_raw().as_str(),
            format!(
                r#"{{"content":[],"isError":true,"_meta":{{"bridgehead/correlationId":"{id}","v/k":1}}}}"#
            )
        );
    }

    #[test]
    fn results_that_cannot_be_passed_on() {
        assert!(Reply::read(&Raw::literal("5"), Input::Relayed).is_err());
        let asks = Raw::literal(r#"{"resultType":"input_required"}"#);
        assert!(Reply::read(&asks, Input::Refused).is_err());
    }

    #[test]
    fn progress_carries_the_clients_token() {
        let params = Raw::literal(r#"{"progressToken":3,"progress":1.0,"message":"m"}"#);
        let token = Raw::string("mine");
        let text = progress_for(&params, &token, Revision::V2025_11_25).unwrap();
        assert_eq!(
            text,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"mine","progress":1.0,"message":"m"}}"#
        );
        let text = progress_for(&params, &token, Revision::V2024_11_05).unwrap();
        assert!(!text.windows(7).any(|part| part == b"message"));
    }
}
