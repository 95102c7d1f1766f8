//! The requests of the load: the bytes of whole HTTP requests whose id is changed in place.

use std::net::SocketAddr;

/// The first id. All ids have the same number of digits, so that a request never changes its length.
pub const FIRST_ID: u32 = 10_000_000;
const DIGITS: usize = 8;
const MODERN_META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}"#;

/// The era of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// 2026-07-28: every request is self-contained.
    Modern,
    /// 2025-11-25: one session per connection.
    Legacy,
}

impl Era {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Modern, Self::Legacy];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Modern => "modern",
            Self::Legacy => "legacy",
        }
    }

    const fn version(self) -> &'static str {
        match self {
            Self::Modern => "2026-07-28",
            Self::Legacy => "2025-11-25",
        }
    }
}

/// The kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// `tools/call` of `echo`, with a text that differs in each request.
    Call,
    /// `tools/list`.
    List,
    /// `server/discover` in the modern era, `initialize` in the legacy one.
    Greet,
}

/// One request, ready to be sent again and again.
#[derive(Debug, Clone)]
pub struct Template {
    bytes: Vec<u8>,
    body_at: usize,
    /// Where the digits of the id stand.
    places: Vec<usize>,
}

impl Template {
    /// The request, with a session id if there is one.
    pub fn new(address: SocketAddr, era: Era, ask: Ask, session: Option<&str>) -> Self {
        Self::named(address, era, ask, session, "echo")
    }

    /// Like [`new`](Self::new), for a gateway that offers `echo` as `tool`.
    pub fn named(address: SocketAddr, era: Era, ask: Ask, session: Option<&str>, tool: &str) -> Self {
        let meta = if era == Era::Modern { MODERN_META } else { "" };
        let (method, name, params) = match (ask, era) {
            (Ask::Call, _) => {
                let separator = if meta.is_empty() { "" } else { "," };
                let arguments = format!(r#""name":"{tool}","arguments":{{"text":"message {FIRST_ID}"}}"#);
                ("tools/call", Some(tool), format!("{meta}{separator}{arguments}"))
            }
            (Ask::List, _) => ("tools/list", None, meta.to_owned()),
            (Ask::Greet, Era::Modern) => ("server/discover", None, meta.to_owned()),
            (Ask::Greet, Era::Legacy) => (
                "initialize",
                None,
                r#""protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}"#.to_owned(),
            ),
        };
        Self::post(address, era, (method, name), &params, session)
    }

    /// A call of any tool by a modern client, with arguments as JSON text.
    pub fn call(address: SocketAddr, tool: &str, arguments: &str) -> Self {
        let params = format!(r#"{MODERN_META},"name":"{tool}","arguments":{arguments}"#);
        Self::post(address, Era::Modern, ("tools/call", Some(tool)), &params, None)
    }

    fn post(
        address: SocketAddr,
        era: Era,
        (method, name): (&str, Option<&str>),
        params: &str,
        session: Option<&str>,
    ) -> Self {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{FIRST_ID},"method":"{method}","params":{{{params}}}}}"#);
        let mut head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n",
            body.len()
        );
        if method != "initialize" {
            head.push_str(&format!("MCP-Protocol-Version: {}\r\n", era.version()));
        }
        if era == Era::Modern {
            head.push_str(&format!("Mcp-Method: {method}\r\n"));
            head.push_str(&name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default());
        }
        head.push_str(&session.map(|id| format!("Mcp-Session-Id: {id}\r\n")).unwrap_or_default());
        head.push_str("\r\n");
        let body_at = head.len();
        let bytes = [head, body].concat().into_bytes();
        let places = memchr::memmem::find_iter(&bytes, FIRST_ID.to_string().as_bytes()).collect();
        Self { bytes, body_at, places }
    }

    /// The same request, made with a key.
    #[must_use]
    pub fn bearing(mut self, key: &str) -> Self {
        let header = format!("Authorization: Bearer {key}\r\n");
        // Before the empty line that ends the head.
        let at = self.body_at - 2;
        self.bytes.splice(at..at, header.bytes());
        self.body_at += header.len();
        self.places.iter_mut().for_each(|place| *place += header.len());
        self
    }

    /// The request that ends `session`.
    pub fn goodbye(address: SocketAddr, session: &str) -> Self {
        let head = format!(
            "DELETE /mcp HTTP/1.1\r\nHost: {address}\r\nMCP-Protocol-Version: 2025-11-25\r\nMcp-Session-Id: {session}\r\n\r\n"
        );
        Self { body_at: head.len(), bytes: head.into_bytes(), places: Vec::new() }
    }

    /// Writes `id` into all its places.
    pub fn stamp(&mut self, id: u32) {
        let digits = digits(id);
        for at in &self.places {
            self.bytes[*at..*at + DIGITS].copy_from_slice(&digits);
        }
    }

    /// The whole request.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The JSON-RPC message in it.
    pub fn body(&self) -> &[u8] {
        &self.bytes[self.body_at..]
    }
}

/// The digits of an id. Ids wrap around after the last one with this many digits.
pub fn digits(id: u32) -> [u8; DIGITS] {
    let mut left = FIRST_ID + id % (9 * FIRST_ID);
    let mut digits = [b'0'; DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    digits
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_stamped_request_is_valid_and_its_length_is_told() {
        for era in Era::ALL {
            let mut template = Template::new(([127, 0, 0, 1], 80).into(), era, Ask::Call, Some("s1"));
            template.stamp(12_345);
            let body: Value = serde_json::from_slice(template.body()).unwrap();
            assert_eq!(body["id"], 10_012_345);
            assert_eq!(body["params"]["arguments"]["text"], "message 10012345");
            let text = String::from_utf8(template.bytes().to_vec()).unwrap();
            assert!(text.contains(&format!("Content-Length: {}\r\n", template.body().len())), "{text}");
            assert_eq!(text.contains("Mcp-Name: echo\r\n"), era == Era::Modern);
        }
    }

    #[test]
    fn ids_keep_their_length() {
        assert_eq!(&digits(0), b"10000000");
        assert_eq!(&digits(89_999_999), b"99999999");
        assert_eq!(&digits(90_000_000), b"10000000");
    }
}
