//! What a POST carries besides the headers of every request, and what its response's body holds.

use bridgehead_schema::{HeaderKind, HeaderParameter};
use bridgehead_wire::{Method, Object, Raw, encode_header_value};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::link::Mirror;

pub(super) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// Integers beyond this have no header form.
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
            method: match method {
                Method::ToolsCall => HeaderValue::from_static("tools/call"),
                other => text(other.as_str().to_owned()).unwrap_or(HeaderValue::from_static("")),
            },
            name: mirror.name.and_then(|name| text(encode_header_value(name))),
            parameters: if mirror.parameters.is_empty() { Vec::new() } else { parameters(mirror) },
        }
    }

    pub(super) fn write(&self, headers: &mut HeaderMap) {
        headers.insert(METHOD, self.method.clone());
        if let Some(name) = &self.name {
            headers.insert(NAME, name.clone());
        }
        for (name, value) in &self.parameters {
            headers.insert(name, value.clone());
        }
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

/// The argument at `path`; `null` is as good as absent.
fn at_path(arguments: &Raw, path: &[String]) -> Option<Raw> {
    let mut value = arguments.clone();
    for name in path {
        value = Object::parse(&value).ok()?.get(name)?;
    }
    (!value.is_null()).then_some(value)
}

/// A value as a header has it. One of another type than the schema says has no header form: the server will
/// refuse it in better words.
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

/// What a response says that its body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Events,
    Other,
}

impl Media {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let value =
            headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match value.split(';').next().unwrap_or_default().trim() {
            json if json.eq_ignore_ascii_case("application/json") => Self::Json,
            events if events.eq_ignore_ascii_case("text/event-stream") => Self::Events,
            _ => Self::Other,
        }
    }
}

/// The media type as it may be shown.
pub(super) fn media_name(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    if essence.is_empty() { "nothing".to_owned() } else { format!("`{}`", &essence[..essence.len().min(60)]) }
}

/// The pieces of a body until it is whole. Joined once, and not at all if it came in one.
///
/// Where the length is known each piece is copied to its place as it comes: a piece holds on to the whole buffer that it
/// was read into, and a long body would be in memory twice and more.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    parts: Vec<Bytes>,
    whole: BytesMut,
    /// How long the body is; nothing if that is not known.
    expected: usize,
    size: usize,
}

impl Pieces {
    /// For a body of this length, if it is known. It must have been found acceptable.
    pub(super) fn expecting(length: Option<u64>) -> Self {
        let expected = length.and_then(|length| usize::try_from(length).ok()).unwrap_or_default();
        Self { expected, ..Self::default() }
    }

    pub(super) fn push(&mut self, part: Bytes) {
        self.size += part.len();
        if part.len() >= self.expected {
            self.parts.push(part);
            return;
        }
        if self.whole.is_empty() {
            self.whole.reserve(self.expected);
        }
        self.whole.extend_from_slice(&part);
    }

    pub(super) const fn size(&self) -> usize {
        self.size
    }

    pub(super) fn join(&mut self) -> Bytes {
        match self.parts.as_slice() {
            [] => return std::mem::take(&mut self.whole).freeze(),
            [_] => return self.parts.pop().unwrap_or_default(),
            _ => {}
        }
        let mut whole = BytesMut::with_capacity(self.size);
        for part in self.parts.drain(..) {
            whole.extend_from_slice(&part);
        }
        whole.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(mirror: Mirror<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        Mirrored::new(&Method::ToolsCall, mirror).write(&mut headers);
        headers
    }

    /// LINK-2: `Mcp-Name` and `Mcp-Param-*` as a modern server wants them, base64 where a header cannot carry
    /// the value, and nothing for a value that is absent, null or of another type.
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
