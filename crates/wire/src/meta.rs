//! The `_meta` of a request: which keys are the hop's own, and what they say.

use std::borrow::Cow;

use crate::{Ambiguous, Edit, Level, Object, Raw, Spliced};

/// The keys, in one place.
pub mod key {
    /// The member that holds them.
    pub const META: &str = "_meta";
    /// The revision a modern request speaks.
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    /// What the modern client can do.
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    /// Who the modern client says it is.
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    /// Which log lines the client wants with this request.
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    /// Who the server says it is, on results.
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    /// Which `subscriptions/listen` a notification belongs to.
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    /// In capabilities: the extension for calls that continue as tasks.
    pub const TASKS: &str = "io.modelcontextprotocol/tasks";
    /// The extension that gives tools a user interface.
    pub const UI: &str = "io.modelcontextprotocol/ui";
    /// What progress notifications refer to.
    pub const PROGRESS_TOKEN: &str = "progressToken";
    /// Prefix of the keys that belong to one hop and are made anew for the next.
    pub const HOP_PREFIX: &str = "io.modelcontextprotocol/";
    /// Prefix of our own keys.
    pub const OWN_PREFIX: &str = "bridgehead/";
    /// The correlation id, in requests that bring one and on every result of a call.
    pub const CORRELATION_ID: &str = "bridgehead/correlationId";
    /// Which trace a request belongs to, and which of its spans sent it.
    pub const TRACEPARENT: &str = "traceparent";
    /// What tracing systems add to it.
    pub const TRACESTATE: &str = "tracestate";
    /// Our own key: marks a tool whose description is from its server's last run.
    pub const CACHED: &str = "bridgehead/cached";
}

/// The keys that a peer or the gateway acts on: all readers must agree about these.
const READ: [&str; 9] = [
    key::PROTOCOL_VERSION,
    key::CLIENT_CAPABILITIES,
    key::CLIENT_INFO,
    key::LOG_LEVEL,
    key::PROGRESS_TOKEN,
    key::SUBSCRIPTION_ID,
    key::CORRELATION_ID,
    key::TRACEPARENT,
    key::TRACESTATE,
];

/// Why a `_meta` is not acceptable; all are `-32602`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// Params are absent or not an object.
    #[error("`params` must be an object")]
    NoParams,
    /// `_meta` is not an object.
    #[error("`params._meta` must be an object")]
    NotAnObject,
    /// A key that we read appears more than once.
    #[error("`{0}` appears more than once")]
    Repeated(&'static str),
    /// A key differs from one that we read only in what some readers ignore.
    #[error(
        "a key in `params._meta` is spelled nearly like `{0}`, and some readers would treat it as that; remove it or spell it exactly so"
    )]
    Resembles(&'static str),
    /// A required key is absent.
    #[error("`params._meta` lacks `{0}`")]
    Missing(&'static str),
    /// A key has a value of the wrong type or range.
    #[error("`{0}` in `params._meta` has an unusable value")]
    Unusable(&'static str),
}

/// What a request's `_meta` says to this hop.
#[derive(Debug, Clone)]
pub struct RequestMeta {
    object: Object,
    present: bool,
    /// The revision it claims; its presence makes the request modern.
    pub protocol_version: Option<String>,
    /// The client's capabilities, an object.
    pub client_capabilities: Option<Raw>,
    /// Where progress is to be reported.
    pub progress_token: Option<Raw>,
    /// A correlation id brought along, not yet checked.
    pub correlation_id: Option<String>,
    /// The least severe log lines that a modern client wants with this request.
    pub log_level: Option<Level>,
}

impl RequestMeta {
    /// Reads the `_meta` of `params`; absent ones read as empty.
    pub fn read(params: Option<&Object>) -> Result<Self, MetaError> {
        let Some(raw) = params.and_then(|params| params.get(key::META)) else {
            return Ok(Self::empty());
        };
        if params.is_some_and(|params| params.repeats(key::META)) {
            return Err(MetaError::Repeated(key::META));
        }
        let object = Object::parse(&raw).map_err(|_| MetaError::NotAnObject)?;
        match object.ambiguous(&READ) {
            Some(Ambiguous::Repeated(name)) => return Err(MetaError::Repeated(name)),
            Some(Ambiguous::Resembles(name)) => return Err(MetaError::Resembles(name)),
            None => {}
        }
        let meta = Self::from_object(object, true);
        if meta.object.get(key::PROTOCOL_VERSION).is_some() && meta.protocol_version.is_none() {
            return Err(MetaError::Unusable(key::PROTOCOL_VERSION));
        }
        if let Some(token) = &meta.progress_token
            && crate::Id::new(token.clone()).is_none()
        {
            return Err(MetaError::Unusable(key::PROGRESS_TOKEN));
        }
        Ok(meta)
    }

    /// The `_meta` of a request that has none.
    pub fn empty() -> Self {
        Self::from_object(Object::empty(), false)
    }

    fn from_object(object: Object, present: bool) -> Self {
        let text = |name| object.text(name).map(Cow::into_owned);
        Self {
            protocol_version: text(key::PROTOCOL_VERSION),
            client_capabilities: object.get(key::CLIENT_CAPABILITIES),
            progress_token: object.get(key::PROGRESS_TOKEN),
            correlation_id: text(key::CORRELATION_ID),
            log_level: object.text(key::LOG_LEVEL).and_then(|level| Level::named(&level)),
            object,
            present,
        }
    }

    /// What a modern request must have beyond a version: `_meta`, the client's capabilities, and a log
    /// level that exists, if it names one.
    pub fn check_modern(&self) -> Result<(), MetaError> {
        if !self.present {
            return Err(MetaError::Missing(key::META));
        }
        if self.protocol_version.is_none() {
            return Err(MetaError::Missing(key::PROTOCOL_VERSION));
        }
        match &self.client_capabilities {
            None => return Err(MetaError::Missing(key::CLIENT_CAPABILITIES)),
            Some(raw) if !raw.is_object() => return Err(MetaError::Unusable(key::CLIENT_CAPABILITIES)),
            Some(_) => {}
        }
        if self.object.get(key::CLIENT_INFO).is_some_and(|info| !info.is_object()) {
            return Err(MetaError::Unusable(key::CLIENT_INFO));
        }
        match self.log_level.is_none() && self.object.get(key::LOG_LEVEL).is_some() {
            true => Err(MetaError::Unusable(key::LOG_LEVEL)),
            false => Ok(()),
        }
    }

    /// The `_meta` for the next hop: this hop's keys and ours are gone, everything else is kept as it
    /// came, and `add` puts in what the next hop needs.
    pub fn for_next_hop(&self, add: impl FnOnce(&mut Edit<'_>)) -> Spliced {
        let mut edit = self.object.edit();
        edit.remove_if(|name| {
            name.starts_with(key::HOP_PREFIX.as_bytes())
                || name.starts_with(key::OWN_PREFIX.as_bytes())
                || name == key::PROGRESS_TOKEN.as_bytes()
        });
        add(&mut edit);
        edit.finish()
    }

    /// Who the modern client says it is: an object. Read on demand, like the trace.
    pub fn client_info(&self) -> Option<Raw> {
        self.object.get(key::CLIENT_INFO)
    }

    /// The trace that it claims to belong to, not yet checked. Read on demand, because it is rarely needed.
    pub fn traceparent(&self) -> Option<String> {
        self.object.text(key::TRACEPARENT).map(Cow::into_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(params: &str) -> Result<RequestMeta, MetaError> {
        let object = Object::parse(&Raw::parse(params.to_owned()).unwrap()).unwrap();
        RequestMeta::read(Some(&object))
    }

    #[track_caller]
    fn modern(meta: &str, expected: Result<(), MetaError>) {
        assert_eq!(read(&format!(r#"{{"_meta":{meta}}}"#)).and_then(|meta| meta.check_modern()), expected);
    }

    #[test]
    fn a_modern_request_needs_version_and_capabilities() {
        const V: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#;
        const C: &str = r#""io.modelcontextprotocol/clientCapabilities":{}"#;
        modern(&format!("{{{V},{C}}}"), Ok(()));
        modern(&format!("{{{C}}}"), Err(MetaError::Missing(key::PROTOCOL_VERSION)));
        modern(&format!("{{{V}}}"), Err(MetaError::Missing(key::CLIENT_CAPABILITIES)));
        modern(
            &format!("{{{V},{C},\"io.modelcontextprotocol/logLevel\":\"loud\"}}"),
            Err(MetaError::Unusable(key::LOG_LEVEL)),
        );
        modern(&format!("{{{V},{C},\"io.modelcontextprotocol/logLevel\":\"info\"}}"), Ok(()));
        modern(&format!("{{{V},{V},{C}}}"), Err(MetaError::Repeated(key::PROTOCOL_VERSION)));
        modern(
            r#"{"progressToken":1,"traceparent":"","traceparent":""}"#,
            Err(MetaError::Repeated(key::TRACEPARENT)),
        );
        modern(r#"{"progressToken":1,"ProgressToken":2}"#, Err(MetaError::Resembles(key::PROGRESS_TOKEN)));
        modern(r#"{"progre\u017fsToken":1}"#, Err(MetaError::Resembles(key::PROGRESS_TOKEN)));
        modern("5", Err(MetaError::NotAnObject));
        modern(r#"{"progressToken":{}}"#, Err(MetaError::Unusable(key::PROGRESS_TOKEN)));
        modern(
            r#"{"io.modelcontextprotocol/protocolVersion":7}"#,
            Err(MetaError::Unusable(key::PROTOCOL_VERSION)),
        );
        assert_eq!(read("{}").and_then(|meta| meta.check_modern()), Err(MetaError::Missing(key::META)));
    }

    #[test]
    fn the_next_hop_gets_foreign_keys_only() {
        let meta = read(
            r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28", "traceparent":"00-a", "progressToken":1, "bridgehead/x":1, "acme/y": 1.0}}"#,
        )
        .unwrap();
        let next = meta.for_next_hop(|edit| {
            edit.set(key::PROGRESS_TOKEN, Raw::literal("7"));
        });
        assert_eq!(next.to_raw().as_str(), r#"{"traceparent":"00-a", "progressToken":7, "acme/y": 1.0}"#);
    }
}
