//! The headers of a POST that repeat its request, and the media type of its answer's body.

use bridgehead_schema::{HeaderKind, HeaderParameter};
use bridgehead_wire::{Method, Object, Raw, encode_header_value};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::link::Mirror;

pub(super) static METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub(super) static NAME: HeaderName = HeaderName::from_static("mcp-name");
/// Larger integers have no header form.
const LARGEST_EXACT: i64 = 9_007_199_254_740_991;

/// The headers that repeat parts of a modern request.
#[derive(Debug)]
pub(super) struct Mirrored {
    method: HeaderValue,
    name: Option<HeaderValue>,
    parameters: Vec<(HeaderName, HeaderValue)>,
}

impl Mirrored {
    pub(super) fn new(method: &Method, mirror: Mirror<'_>) -> Self {
        Self {
            method: method
                .known()
                .map(HeaderValue::from_static)
                .unwrap_or_else(|| text(method.as_str().to_owned()).unwrap_or(HeaderValue::from_static(""))),
            name: mirror.name.and_then(|name| text(encode_header_value(name))),
            parameters: if mirror.parameters.is_empty() { Vec::new() } else { parameters(mirror) },
        }
    }

    /// For a message that is about no tool, prompt or resource.
    pub(super) fn told(what: &str) -> Self {
        let method = HeaderValue::from_str(what).unwrap_or(HeaderValue::from_static(""));
        Self { method, name: None, parameters: Vec::new() }
    }

    /// The headers, in the order of writing.
    pub(super) fn headers(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        let name = self.name.as_ref().map(|name| (&NAME, name));
        let parameters = self.parameters.iter().map(|(name, value)| (name, value));
        std::iter::once((&METHOD, &self.method)).chain(name).chain(parameters)
    }
}

fn text(value: String) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(Bytes::from(value)).ok()
}

fn parameters(mirror: Mirror<'_>) -> Vec<(HeaderName, HeaderValue)> {
    let arguments = mirror.params.and_then(|params| params.get("arguments"));
    let Some(arguments) = arguments else { return Vec::new() };
    let header = |parameter: &HeaderParameter| {
        let name = HeaderName::try_from(format!("mcp-param-{}", parameter.header)).ok()?;
        let value = value(parameter.kind, &at_path(&arguments, &parameter.path)?)?;
        let mut value = text(value)?;
        value.set_sensitive(true);
        Some((name, value))
    };
    mirror.parameters.iter().filter_map(header).collect()
}

/// The argument at `path`; `null` counts as absent.
fn at_path(arguments: &Raw, path: &[String]) -> Option<Raw> {
    let mut value = arguments.clone();
    for name in path {
        value = Object::parse(&value).ok()?.get(name)?;
    }
    (!value.is_null()).then_some(value)
}

/// A value in its header form. A value of the wrong type has none: the server's own refusal is clearer.
fn value(kind: HeaderKind, value: &Raw) -> Option<String> {
    match kind {
        HeaderKind::String => value.to_text().map(|text| encode_header_value(&text)),
        HeaderKind::Boolean => {
            Some(value.as_str().to_owned()).filter(|text| text == "true" || text == "false")
        }
        HeaderKind::Integer => {
            let number = value.as_str();
            // `42.0` and `4.2e1` are integers to a schema.
            let integer = number.parse::<i64>().ok().or_else(|| {
                let float = number.parse::<f64>().ok().filter(|float| float.fract() == 0.0)?;
                format!("{float}").parse().ok()
            })?;
            (integer.abs() <= LARGEST_EXACT).then(|| integer.to_string())
        }
    }
}

/// The media type of a response.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Media {
    Json,
    Events,
    #[default]
    Other,
}

impl Media {
    /// The media type that a `Content-Type` value names.
    pub(super) fn of(value: &[u8]) -> Self {
        let end = memchr::memchr(b';', value).unwrap_or(value.len());
        match value[..end].trim_ascii() {
            json if json.eq_ignore_ascii_case(b"application/json") => Self::Json,
            events if events.eq_ignore_ascii_case(b"text/event-stream") => Self::Events,
            _ => Self::Other,
        }
    }
}

/// The media type as error texts show it.
pub(super) fn media_name(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    if essence.is_empty() { "nothing".to_owned() } else { format!("`{}`", &essence[..essence.len().min(60)]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(mirror: Mirror<'_>) -> HeaderMap {
        let mirrored = Mirrored::new(&Method::ToolsCall, mirror);
        mirrored.headers().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// LINK-2: `Mcp-Name` and `Mcp-Param-*` as a modern server expects them: base64 if a header cannot carry the
    /// value, and no header for a value that is absent, null or of another type.
    #[test]
    fn a_request_is_mirrored() {
        let kinds = [
            ("a", HeaderKind::String, "Region"),
            ("b", HeaderKind::Integer, "Rows"),
            ("c", HeaderKind::Boolean, "Dry"),
        ];
        let parameters: Vec<_> = kinds
            .iter()
            .map(|(name, kind, header)| HeaderParameter {
                header: (*header).to_owned(),
                path: vec!["x".to_owned(), (*name).to_owned()],
                kind: *kind,
            })
            .collect();
        let check = |arguments: &str, expected: &[(&str, &str)]| {
            let params = Raw::parse(format!(r#"{{"arguments":{{"x":{arguments}}}}}"#)).unwrap();
            let params = Object::parse(&params).unwrap();
            let mirror = Mirror { name: Some("t"), parameters: &parameters, params: Some(&params) };
            let found = headers(mirror);
            assert_eq!(found["mcp-method"], "tools/call");
            assert_eq!(found["mcp-name"], "t");
            assert_eq!(found.len(), expected.len() + 2, "{arguments}");
            for (name, value) in expected {
                assert_eq!(found[*name], *value, "{arguments}");
            }
        };
        let all = [("mcp-param-region", "eu"), ("mcp-param-rows", "42"), ("mcp-param-dry", "true")];
        check(r#"{"a":"eu","b":42,"c":true}"#, &all);
        check(
            r#"{"a":"\u65e5\u672c","b":42.0}"#,
            &[("mcp-param-region", "=?base64?5pel5pys?="), ("mcp-param-rows", "42")],
        );
        check(r#"{"a":" x","b":-7}"#, &[("mcp-param-region", "=?base64?IHg=?="), ("mcp-param-rows", "-7")]);
        check(r#"{"a":null,"b":9007199254740992,"c":0}"#, &[]);
        check(r#"{"a":5,"b":"5","c":"true"}"#, &[]);
        check(r#"{"b":1.5}"#, &[]);
        check("7", &[]);
        let named = headers(Mirror { name: Some("grüße"), ..Mirror::default() });
        assert_eq!(named["mcp-name"], "=?base64?Z3LDvMOfZQ==?=");
    }
}
