//! Which era a message belongs to, and what its parameters must hold there.
//!
//! The era is decided for each message separately, from the message alone (on HTTP also from one header): a
//! connection may carry both eras at once. These functions are pure; the transports add their own rules.

use bridgehead_gateway::ClientRequest;
use bridgehead_wire::{
    Abilities, Era, Id, MetaError, Method, Object, Raw, RequestMeta, Revision, RpcError, code, key,
};

/// How a message is to be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// By itself, from what its envelope says.
    Modern,
    /// As the opening of a legacy session.
    Initialize,
    /// Within a legacy session.
    Legacy,
}

/// Decides from the envelope (`claims_version`), the HTTP version header where there is one, and the
/// method, in this order.
pub(crate) fn decide(claims_version: bool, header: Option<&str>, method: &Method) -> Served {
    if claims_version || header.is_some_and(is_modern_version) {
        Served::Modern
    } else if *method == Method::Initialize {
        Served::Initialize
    } else {
        Served::Legacy
    }
}

/// Whether `version` names the modern revision or one that is still to come.
pub(crate) fn is_modern_version(version: &str) -> bool {
    let is_date = version.len() == 10
        && version.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    is_date && version >= Revision::V2026_07_28.as_str()
}

/// The error for a method that an era does not have.
pub(crate) fn no_such_method(method: &Method, era: Era) -> RpcError {
    let era = match era {
        Era::Modern => Revision::V2026_07_28.as_str(),
        Era::Legacy => "this session's revision",
    };
    RpcError::new(code::METHOD_NOT_FOUND, &format!("no method `{}` in {era}", shown(method)))
}

/// A method's name for an error or a log line, cut to 64 characters.
pub(crate) fn shown(method: &Method) -> String {
    method.as_str().chars().take(64).collect()
}

/// The parameters of a request, found but not yet checked against the rules of an era.
#[derive(Debug)]
pub(crate) struct Reading {
    params: Result<Object, MetaError>,
    meta: Result<RequestMeta, MetaError>,
    claims_version: bool,
}

impl Reading {
    /// Reads `params`.
    pub(crate) fn of(params: Option<&Raw>) -> Self {
        let object = match params {
            None => Ok(Object::empty()),
            Some(raw) => Object::parse(raw).map_err(|_| MetaError::NoParams),
        };
        let meta = object.as_ref().map_err(|error| *error).and_then(|object| RequestMeta::read(Some(object)));
        let claims_version = match &meta {
            Ok(meta) => meta.protocol_version.is_some(),
            // An envelope with another error, or with an unusable version, still claims a version.
            Err(_) => object
                .as_ref()
                .ok()
                .and_then(|object| object.get(key::META))
                .and_then(|meta| Object::parse(&meta).ok())
                .is_some_and(|meta| meta.get(key::PROTOCOL_VERSION).is_some()),
        };
        Self { params: object, meta, claims_version }
    }

    /// Whether `_meta` names a protocol version, usable or not.
    pub(crate) const fn claims_version(&self) -> bool {
        self.claims_version
    }

    /// The parameters, where they are an object.
    #[cfg(feature = "http")]
    pub(crate) fn params(&self) -> Option<&Object> {
        self.params.as_ref().ok()
    }

    /// Whether the client wants progress notifications.
    #[cfg(feature = "http")]
    pub(crate) fn wants_progress(&self) -> bool {
        self.meta.as_ref().is_ok_and(|meta| meta.progress_token.is_some())
    }

    /// The envelope of a modern request, complete.
    pub(crate) fn envelope(&self) -> Result<&RequestMeta, RpcError> {
        let meta = self.meta.as_ref().map_err(|error| invalid_params(*error))?;
        meta.check_modern().map_err(invalid_params)?;
        Ok(meta)
    }

    /// The request for the gateway, which checks the correlation id in it.
    pub(crate) fn into_request(self, method: Method, id: &Id) -> Result<ClientRequest, RpcError> {
        let params = self.params.map_err(invalid_params)?;
        let meta = self.meta.map_err(invalid_params)?;
        let id = (method == Method::Listen).then(|| id.clone());
        Ok(ClientRequest { method, params, meta, id })
    }
}

fn invalid_params(error: MetaError) -> RpcError {
    RpcError::new(code::INVALID_PARAMS, &error.to_string())
}

/// Refuses a version that is not served in an envelope, and names the ones that are.
pub(crate) fn check_served(version: &str) -> Result<(), RpcError> {
    let supported = Revision::V2026_07_28.as_str();
    if version == supported {
        return Ok(());
    }
    let requested: String = version.chars().take(64).collect();
    Err(RpcError::with_data(
        code::UNSUPPORTED_PROTOCOL_VERSION,
        "this protocol version is not served here",
        &serde_json::json!({ "supported": [supported], "requested": requested }),
    ))
}

/// The revision to answer to a legacy `initialize`.
pub(crate) fn negotiate(params: Option<&Raw>) -> Result<Revision, RpcError> {
    let params = params.and_then(|params| Object::parse(params).ok());
    if let Some(why) = params.as_ref().and_then(|params| params.ambiguous(Method::Initialize.params())) {
        return Err(RpcError::new(code::INVALID_PARAMS, &format!("`params` of `initialize`: {why}")));
    }
    params
        .and_then(|params| params.get("protocolVersion"))
        .and_then(|version| version.to_text())
        .map(|version| Revision::negotiate(&version))
        .ok_or_else(|| RpcError::new(code::INVALID_PARAMS, "`params.protocolVersion` must be a string"))
}

/// The abilities that a legacy client declares at `initialize`, as far as its revision has them.
pub(crate) fn abilities(params: Option<&Raw>, revision: Revision) -> Abilities {
    params
        .and_then(|params| Object::parse(params).ok())
        .and_then(|params| params.get("capabilities"))
        .map_or(Abilities::NONE, |capabilities| Abilities::declared(&capabilities).as_of(revision))
}

/// How a legacy client describes itself at `initialize`.
pub(crate) fn client_info(params: Option<&Raw>) -> Option<Raw> {
    Object::parse(params?).ok()?.get("clientInfo")
}

/// The id that a `notifications/cancelled` names.
pub(crate) fn cancelled_id(params: Option<&Raw>) -> Option<Id> {
    params
        .and_then(|params| Object::parse(params).ok())
        .and_then(|params| params.get("requestId"))
        .and_then(Id::new)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENVELOPE: &str = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}"#;

    fn reading(params: &str) -> Reading {
        Reading::of(Some(&Raw::parse(params.to_owned()).unwrap()))
    }

    #[test]
    fn the_era_of_a_message() {
        #[track_caller]
        fn check(params: Option<&str>, header: Option<&str>, method: &str, expected: Served) {
            let raw = params.map(|params| Raw::parse(params.to_owned()).unwrap());
            let claims = Reading::of(raw.as_ref()).claims_version();
            assert_eq!(decide(claims, header, &Method::from(method)), expected);
        }
        let unknown = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"1999-01-01"}}"#;
        let unusable = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":7}}"#;
        let elsewhere =
            r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":{}}}"#;
        // 1. The envelope decides, whatever else there is.
        check(Some(ENVELOPE), None, "tools/list", Served::Modern);
        check(Some(ENVELOPE), Some("2025-06-18"), "tools/list", Served::Modern);
        check(Some(ENVELOPE), None, "initialize", Served::Modern);
        check(Some(unknown), None, "tools/list", Served::Modern);
        check(Some(unusable), None, "tools/list", Served::Modern);
        check(Some(elsewhere), None, "tools/list", Served::Modern);
        // 2. Then the header.
        check(None, Some("2026-07-28"), "tools/list", Served::Modern);
        check(None, Some("2026-07-28"), "initialize", Served::Modern);
        check(Some("{}"), Some("2031-01-01"), "tools/list", Served::Modern);
        // 3. Then the method; 4. the rest is legacy.
        check(Some("{}"), None, "initialize", Served::Initialize);
        check(Some("{}"), Some("2025-11-25"), "initialize", Served::Initialize);
        check(None, None, "tools/list", Served::Legacy);
        check(Some(r#"{"_meta":{"progressToken":1}}"#), Some("2025-06-18"), "tools/call", Served::Legacy);
        check(Some("[]"), None, "tools/list", Served::Legacy);
        check(None, Some("next"), "tools/list", Served::Legacy);
        check(None, Some("zzzz-zz-zz"), "tools/list", Served::Legacy);
    }

    proptest! {
        // A failing case is printed whole; no file is left behind.
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// The era of any message is decided by the four rules.
        #[test]
        fn the_era_agrees_with_the_rules(
            params in prop_oneof![
                Just(None),
                prop::sample::select(&["null", "[]", "7", "\"x\"", "{}", "[{\"_meta\":{}}]"][..]).prop_map(|text| Some(text.to_owned())),
                (any::<bool>(), envelope()).prop_map(|(first, meta)| Some(match first {
                    true => format!(r#"{{"_meta":{meta},"name":"x"}}"#),
                    false => format!(r#"{{"name":"x", "_meta" : {meta} }}"#),
                })),
            ],
            header in prop_oneof![
                Just(None),
                prop::sample::select(Revision::ALL.map(Revision::as_str).to_vec()).prop_map(|version| Some(version.to_owned())),
                "20[0-9]{2}-[0-9]{2}-[0-9]{2}".prop_map(Some),
                "[0-9a-z é-]{0,12}".prop_map(Some),
            ],
            method in prop_oneof![
                prop::sample::select(&["initialize", "ping", "tools/list", "tools/call", "server/discover"][..]).prop_map(str::to_owned),
                any::<String>(),
            ],
        ) {
            let raw = params.as_ref().map(|params| Raw::parse(params.clone()).unwrap());
            let reading = Reading::of(raw.as_ref());
            let found = decide(reading.claims_version(), header.as_deref(), &Method::from(method.as_str()));

            let decoded: serde_json::Value =
                params.as_deref().map(|params| serde_json::from_str(params).unwrap()).unwrap_or_default();
            let in_envelope = decoded["_meta"].get(key::PROTOCOL_VERSION).is_some();
            let in_header = header.as_deref().is_some_and(|version| {
                let parts: Vec<_> = version.split('-').collect();
                let numbers = parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
                numbers && parts.iter().map(|part| part.len()).eq([4, 2, 2]) && version >= "2026-07-28"
            });
            let expected = match (in_envelope || in_header, method.as_str()) {
                (true, _) => Served::Modern,
                (false, "initialize") => Served::Initialize,
                (false, _) => Served::Legacy,
            };
            prop_assert_eq!(found, expected);

            // The rest of a reading must accept any message too.
            let _ = (reading.envelope().is_ok(), reading.wants_progress(), negotiate(raw.as_ref()), cancelled_id(raw.as_ref()));
            if let Ok(request) = reading.into_request(Method::from(method.as_str()), &1.into()) {
                prop_assert_eq!(request.method.as_str(), method.as_str());
            }
        }
    }

    /// A `_meta` with any of the members that are read there, usable or not.
    fn envelope() -> impl Strategy<Value = String> {
        let value = prop::sample::select(
            &[
                "null",
                "7",
                "1.5",
                "{}",
                "[]",
                "\"\"",
                "\"2026-07-28\"",
                "\"2025-06-18\"",
                "\"x\"",
                "\"0199c1a4-7a51-7c3e-8a4f-3f1c2f2f9b11\"",
            ][..],
        );
        let names = [
            key::PROTOCOL_VERSION,
            key::PROGRESS_TOKEN,
            key::CORRELATION_ID,
            key::CLIENT_CAPABILITIES,
            "other",
        ];
        let members = prop::sample::subsequence(names.to_vec(), 0..=names.len());
        prop_oneof![
            1 => value.clone().prop_map(str::to_owned),
            4 => (members, prop::collection::vec(value, names.len())).prop_map(|(names, values)| {
                let members: Vec<_> = names.iter().zip(values).map(|(name, value)| format!(r#""{name}":{value}"#)).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    }

    #[test]
    fn a_modern_envelope_must_be_complete() {
        assert!(reading(ENVELOPE).envelope().is_ok());
        for params in ["{}", "[]", r#"{"_meta":7}"#, r#"{"_meta":{}}"#] {
            assert_eq!(reading(params).envelope().unwrap_err().code(), code::INVALID_PARAMS, "{params}");
        }
    }

    #[test]
    fn progress_is_wanted_by_its_token() {
        #[track_caller]
        fn check(params: &str, wanted: bool) {
            assert_eq!(reading(params).wants_progress(), wanted, "{params}");
        }
        check(r#"{"_meta":{"progressToken":1}}"#, true);
        check(r#"{"_meta":{"progressToken":"a"}}"#, true);
        check(r#"{"_meta":{"progressToken":{}}}"#, false);
        check(r#"{"_meta":{}}"#, false);
        check("{}", false);
        check("[]", false);
        check(ENVELOPE, false);
    }

    #[test]
    fn only_the_modern_revision_is_served_inline() {
        assert!(check_served("2026-07-28").is_ok());
        let error = check_served("2025-11-25").unwrap_err();
        assert_eq!(error.code(), code::UNSUPPORTED_PROTOCOL_VERSION);
        let data: serde_json::Value = error.data().unwrap().decode().unwrap();
        assert_eq!(data, serde_json::json!({ "supported": ["2026-07-28"], "requested": "2025-11-25" }));
    }

    #[test]
    fn initialize_needs_a_version_and_gets_a_legacy_one() {
        let of = |params: &str| negotiate(Some(&Raw::parse(params.to_owned()).unwrap()));
        assert_eq!(of(r#"{"protocolVersion":"2025-03-26"}"#), Ok(Revision::V2025_03_26));
        assert_eq!(of(r#"{"protocolVersion":"2026-07-28"}"#), Ok(Revision::LATEST_LEGACY));
        assert_eq!(of("{}").unwrap_err().code(), code::INVALID_PARAMS);
        assert_eq!(negotiate(None).unwrap_err().code(), code::INVALID_PARAMS);
    }
}
