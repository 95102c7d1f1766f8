//! The headers of a POST: media types, and those that mirror the body of a modern request.
//!
//! A mirrored header that is absent, repeated or different from the body is refused, so that a proxy that
//! routes by the header and the gateway that reads the body agree. Values are compared decoded.

use bridgehead_gateway::Principal;
use bridgehead_schema::{HeaderKind, HeaderParameter};
use bridgehead_wire::{Method, Object, Raw, RpcError, code, decode_header_value};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::Backend;

/// `MCP-Protocol-Version`.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// `Mcp-Session-Id`.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// `Last-Event-ID`.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The `Accept` header that nearly all clients send.
const ORDINARY: &str = "application/json, text/event-stream";
/// Integers beyond this have no exact form in every client; they are compared as text.
const LARGEST_EXACT: f64 = 9_007_199_254_740_991.0;

/// Whether the client accepts events.
pub(crate) fn accepts_events(headers: &HeaderMap) -> bool {
    accepts(headers, "text/event-stream", "text/*")
}

/// Whether the client names events first: it prefers a stream to a plain answer.
pub(crate) fn prefers_events(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .filter(|value| *value != ORDINARY)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(',').next())
        .is_some_and(|first| essence(first).eq_ignore_ascii_case("text/event-stream"))
}

/// Whether the client accepts both a JSON answer and events, as it must.
pub(crate) fn accepts_both(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).is_some_and(|value| value == ORDINARY)
        || accepts(headers, "application/json", "application/*") && accepts_events(headers)
}

fn accepts(headers: &HeaderMap, exact: &str, range: &str) -> bool {
    headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        value.split(',').any(|item| {
            let kind = essence(item);
            kind.eq_ignore_ascii_case(exact) || kind.eq_ignore_ascii_case(range) || kind == "*/*"
        })
    })
}

/// Whether the body is declared as JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        value == "application/json" || essence(value).eq_ignore_ascii_case("application/json")
    })
}

fn essence(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}

/// What the version header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version<'a> {
    Absent,
    One(&'a str),
    /// It is repeated, or is not text.
    Unreadable,
}

impl<'a> Version<'a> {
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let mut values = headers.get_all(VERSION).iter();
        match (values.next(), values.next()) {
            (None, _) => Self::Absent,
            (Some(value), None) => value.to_str().map_or(Self::Unreadable, |text| Self::One(trimmed(text))),
            (Some(_), Some(_)) => Self::Unreadable,
        }
    }

    /// The text, if there is one.
    pub(crate) const fn text(self) -> Option<&'a str> {
        match self {
            Self::One(text) => Some(text),
            Self::Absent | Self::Unreadable => None,
        }
    }
}

fn trimmed(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// The error for a header that does not mirror the body.
pub(crate) fn mismatch(reason: &str) -> RpcError {
    RpcError::new(code::HEADER_MISMATCH, reason)
}

/// Checks `Mcp-Method`, then `Mcp-Name`, then the `Mcp-Param-*` of the tool.
pub(crate) fn check_mirrored<B: Backend>(
    backend: &B,
    principal: &Principal,
    headers: &HeaderMap,
    method: &Method,
    params: Option<&Object>,
) -> Result<(), RpcError> {
    match single(headers, "Mcp-Method", &METHOD)? {
        None => return Err(mismatch("`Mcp-Method` is required")),
        Some(value) if value.as_bytes().trim_ascii() != method.as_str().as_bytes() => {
            return Err(mismatch("`Mcp-Method` differs from `method`"));
        }
        Some(_) => {}
    }
    let Some(member) = method.named_by() else { return Ok(()) };
    let name = params.and_then(|params| params.text(member));
    check_value("Mcp-Name", single(headers, "Mcp-Name", &NAME)?, name.as_deref(), |text, name| text == name)?;
    let tool = name.filter(|_| *method == Method::ToolsCall);
    tool.map_or(Ok(()), |tool| {
        check_parameters(&backend.header_parameters(principal, &tool), headers, params)
    })
}

fn check_parameters(
    parameters: &[HeaderParameter],
    headers: &HeaderMap,
    params: Option<&Object>,
) -> Result<(), RpcError> {
    if parameters.is_empty() {
        return Ok(());
    }
    let arguments = params.and_then(|params| params.get("arguments"));
    for parameter in parameters {
        let shown = format!("Mcp-Param-{}", parameter.header);
        let Ok(name) = HeaderName::try_from(shown.as_str()) else { continue };
        let header = single(headers, &shown, &name)?;
        let value = arguments.as_ref().and_then(|arguments| at_path(arguments, &parameter.path));
        match value.as_ref().map(|value| (value, value.bytes().first())) {
            None => check_value(&shown, header, None::<&str>, |_, _| false)?,
            // An object or array has no header form; the tool's schema refuses it with a better error.
            Some((_, Some(b'{' | b'['))) => {}
            Some((value, Some(b'"'))) => {
                let text = value.to_text();
                check_value(&shown, header, text.as_deref(), |text, value| text == value)?;
            }
            Some((value, _)) if parameter.kind == HeaderKind::Integer => {
                check_value(&shown, header, Some(value.as_str()), same_number)?;
            }
            Some((value, _)) => {
                check_value(&shown, header, Some(value.as_str()), |text, value| text == value)?;
            }
        }
    }
    Ok(())
}

/// The argument at `path`; `null` counts as absent.
fn at_path(arguments: &Raw, path: &[String]) -> Option<Raw> {
    let mut value = arguments.clone();
    for name in path {
        value = Object::parse(&value).ok()?.get(name)?;
    }
    (!value.is_null()).then_some(value)
}

fn single<'a>(
    headers: &'a HeaderMap,
    shown: &str,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(mismatch(&format!("`{shown}` appears more than once")));
    }
    Ok(first)
}

fn check_value<T: ?Sized>(
    shown: &str,
    header: Option<&HeaderValue>,
    value: Option<&T>,
    same: impl FnOnce(&str, &T) -> bool,
) -> Result<(), RpcError> {
    let (header, value) = match (header, value) {
        (None, None) => return Ok(()),
        (None, Some(_)) => {
            return Err(mismatch(&format!("`{shown}` is required: the body has the value it mirrors")));
        }
        (Some(_), None) => return Err(mismatch(&format!("`{shown}` mirrors nothing in the body"))),
        (Some(header), Some(value)) => (header, value),
    };
    let text =
        decode_header_value(header.as_bytes()).map_err(|error| mismatch(&format!("`{shown}`: {error}")))?;
    if same(&text, value) { Ok(()) } else { Err(mismatch(&format!("`{shown}` differs from the body"))) }
}

/// `42`, `42.0` and `4.2e1` are one number.
fn same_number(header: &str, value: &str) -> bool {
    let number = |text: &str| -> Option<f64> {
        let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
        text.parse().ok().filter(|number: &f64| digits && number.abs() <= LARGEST_EXACT)
    };
    match (number(header), number(value)) {
        (Some(header), Some(value)) => header == value,
        _ => header == value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| {
                (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
            })
            .collect()
    }

    #[test]
    fn media_types() {
        #[track_caller]
        fn check(list: &[(&str, &str)], both: bool) {
            assert_eq!(accepts_both(&headers(list)), both, "{list:?}");
        }
        check(&[("accept", "application/json, text/event-stream")], true);
        check(&[("accept", "Text/Event-Stream;q=0.5"), ("accept", "application/JSON; charset=utf-8")], true);
        check(&[("accept", "*/*")], true);
        check(&[("accept", "application/*, text/*")], true);
        check(&[("accept", "application/json")], false);
        check(&[("accept", "text/event-stream")], false);
        check(&[], false);
        assert!(is_json(&headers(&[("content-type", "application/json; charset=utf-8")])));
        assert!(!is_json(&headers(&[("content-type", "text/plain")])));
        assert!(!is_json(&headers(&[])));
    }

    #[test]
    fn the_version_header() {
        assert_eq!(Version::of(&headers(&[])), Version::Absent);
        assert_eq!(Version::of(&headers(&[("mcp-protocol-version", " x\t")])), Version::One("x"));
        let twice = headers(&[("mcp-protocol-version", "x"), ("mcp-protocol-version", "x")]);
        assert_eq!(Version::of(&twice), Version::Unreadable);
    }

    fn parameters() -> Vec<HeaderParameter> {
        let parameter = |header: &str, path: &[&str], kind| HeaderParameter {
            header: header.to_owned(),
            path: path.iter().map(|name| (*name).to_owned()).collect(),
            kind,
        };
        vec![
            parameter("Region", &["region"], HeaderKind::String),
            parameter("Count", &["page", "count"], HeaderKind::Integer),
            parameter("Dry", &["dry"], HeaderKind::Boolean),
        ]
    }

    #[track_caller]
    fn check(arguments: &str, list: &[(&str, &str)], matches: bool) {
        let params = Raw::parse(format!(r#"{{"arguments":{arguments}}}"#)).unwrap();
        let params = Object::parse(&params).unwrap();
        let outcome = check_parameters(&parameters(), &headers(list), Some(&params));
        assert_eq!(outcome.is_ok(), matches, "{arguments} {list:?}: {outcome:?}");
        if let Err(error) = outcome {
            assert_eq!(error.code(), code::HEADER_MISMATCH);
        }
    }

    #[test]
    fn mirrored_arguments() {
        check("{}", &[], true);
        check(r#"{"region":null,"page":{}}"#, &[], true);
        check(r#"{"region":"eu"}"#, &[("mcp-param-region", "eu")], true);
        check(r#"{"region":"eu"}"#, &[("Mcp-Param-Region", " eu ")], true);
        check(r#"{"region":"eu"}"#, &[("mcp-param-region", "=?base64?ZXU=?=")], true);
        check(r#"{"region":"gr\u00fcn"}"#, &[("mcp-param-region", "=?base64?Z3LDvG4=?=")], true);
        check(r#"{"region":"=?base64?x"}"#, &[("mcp-param-region", "=?base64?x")], true);
        check(r#"{"region":"eu"}"#, &[("mcp-param-region", "=?base64?ZXU?=")], false);
        check(r#"{"region":"eu"}"#, &[("mcp-param-region", "EU")], false);
        check(r#"{"region":"eu"}"#, &[], false);
        check(r#"{"region":"eu"}"#, &[("mcp-param-region", "eu"), ("mcp-param-region", "eu")], false);
        check("{}", &[("mcp-param-region", "eu")], false);
        check(r#"{"region":null}"#, &[("mcp-param-region", "null")], false);
        check(r#"{"page":{"count":42}}"#, &[("mcp-param-count", "42")], true);
        check(r#"{"page":{"count":42}}"#, &[("mcp-param-count", "42.0")], true);
        check(r#"{"page":{"count":4.2e1}}"#, &[("mcp-param-count", "42")], true);
        check(r#"{"page":{"count":42}}"#, &[("mcp-param-count", "43")], false);
        check(r#"{"page":{"count":42}}"#, &[("mcp-param-count", "inf")], false);
        check(r#"{"page":{"count":9007199254740993}}"#, &[("mcp-param-count", "9007199254740992")], false);
        check(r#"{"dry":true}"#, &[("mcp-param-dry", "true")], true);
        check(r#"{"dry":true}"#, &[("mcp-param-dry", "True")], false);
        check(r#"{"dry":false}"#, &[("mcp-param-dry", "true")], false);
        check(r#"{"region":["no header form"]}"#, &[], true);
        check(r#"{}"#, &[("mcp-param-other", "ignored")], true);
    }
}
