//! A row: what the store keeps of an event, as the JSON text that is hashed, stored and exported.
//!
//! The text is made once, when the event arrives, and is never rebuilt from its parts: a verifier hashes the stored
//! bytes. The row's number comes first in the text, though it is known last.

use std::borrow::Cow;
use std::cell::Cell;

use bridgehead_wire::{Era, Redactor};
use bytes::Bytes;
use serde::Deserialize;

use crate::hash::LEAF;
use crate::{CorrelationId, Enter, Exit, Hash, Outcome, Ticket};

/// What is kept of arguments and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Payloads {
    /// Their text without its secrets, and a digest of what they were.
    #[default]
    Redacted,
    /// Only the digest.
    Digest,
    /// Neither.
    None,
}

/// The longest payload whose text a row keeps; of a longer one it keeps the size and the digest.
pub(crate) const LONGEST_PAYLOAD: usize = 64 * 1024;

/// The kind of an enter row.
pub(crate) const ENTER: &str = "enter";
/// The kind of an exit row.
pub(crate) const EXIT: &str = "exit";
/// The outcome of a call whose end was not recorded.
pub const INTERRUPTED: &str = "interrupted";

/// One row, read back from its text.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Row {
    /// Its number in the chain of its instance, from 1.
    pub seq: u64,
    /// For an exit, the number of its enter; `None` if the enter could not be recorded.
    #[serde(default)]
    pub enter: Option<u64>,
    /// For an exit, the index of its enter's segment; `None` in format 1.
    #[serde(default)]
    pub enter_segment: Option<u32>,
    /// `enter` or `exit`.
    pub kind: String,
    /// UTC time by the wall clock, which may jump: the numbers, not the times, give the order of rows.
    pub time: String,
    /// The correlation id of the call.
    pub correlation_id: String,
    /// The tool's name as the client wrote it.
    pub tool: String,
    /// The server that offers it.
    #[serde(default)]
    pub server: Option<String>,
    /// The method of the protocol (enter); `None` for `tools/call`.
    #[serde(default)]
    pub method: Option<String>,
    /// The subject of the method, if it is not a tool (enter).
    #[serde(default)]
    pub subject: Option<String>,
    /// The client program (enter).
    #[serde(default)]
    pub client: Option<String>,
    /// What the call takes from each budget that counts it (enter).
    #[serde(default)]
    pub cost: Option<u64>,
    /// The ids of those budgets, separated by spaces (enter).
    #[serde(default)]
    pub budgets: Option<String>,
    /// The principal of the call (enter).
    #[serde(default)]
    pub principal: Option<String>,
    /// The protocol era of the request (enter).
    #[serde(default)]
    pub era: Option<String>,
    /// The transport that the request came over (enter).
    #[serde(default)]
    pub transport: Option<String>,
    /// Whether the arguments passed validation (enter).
    #[serde(default)]
    pub validated: Option<bool>,
    /// `result`, `toolError`, `error`, `cancelled` or `interrupted` (exit).
    #[serde(default)]
    pub outcome: Option<String>,
    /// Whether what the call cost was given back, because it provably did not run (exit).
    #[serde(default)]
    pub refunded: Option<bool>,
    /// The stable error code (exit).
    #[serde(default)]
    pub code: Option<String>,
    /// What went wrong, without secrets (exit).
    #[serde(default)]
    pub message: Option<String>,
    /// More about the error, as JSON text without its secrets (exit).
    #[serde(default)]
    pub details: Option<String>,
    /// How long the call took from its enter to its exit (exit).
    #[serde(default)]
    pub duration_ms: Option<u64>,
    /// How long it waited for the tool's lock and in the server's queue (exit).
    #[serde(default)]
    pub queued_ms: Option<u64>,
    /// The size of the arguments (enter) or the result (exit).
    #[serde(default)]
    pub bytes: Option<u64>,
    /// SHA-256 of the original arguments or result.
    #[serde(default)]
    pub digest: Option<String>,
    /// Their text without its secrets.
    #[serde(default)]
    pub payload: Option<String>,
}

/// A row that lacks only its numbers.
pub(crate) struct Draft {
    pub(crate) kind: RowKind,
    /// For an exit, where its enter is.
    pub(crate) ticket: Option<Ticket>,
    /// [`ROOM`] for the numbers, then the rest of the text, including the closing brace.
    bytes: Vec<u8>,
}

/// The most bytes that the numbers take, with their names and the leaf prefix.
const ROOM: usize = 96;

/// Which of the two events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind {
    Enter,
    Exit,
}

/// What is kept of payloads, and how secrets are removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keeping {
    pub(crate) payloads: Payloads,
    pub(crate) redactor: Redactor,
}

/// A time as rows and checkpoints write it.
pub(crate) fn time_text(time: jiff::Timestamp) -> String {
    format!("{time:.6}")
}

impl Keeping {
    pub(crate) fn enter(&self, event: &Enter) -> Draft {
        let call = event.call();
        let mut text = Text::begin(
            event.arguments().len(),
            ENTER,
            event.at(),
            call.correlation,
            &call.tool,
            call.server.as_deref(),
        );
        if let Some(method) = call.about.method {
            text.string("method", method);
        }
        if let Some(subject) = &call.about.subject {
            text.string("subject", subject);
        }
        if let Some(client) = &call.about.client {
            text.string("client", client);
        }
        if let Some(cost) = call.about.cost {
            text.number("cost", cost);
        }
        if let Some(budgets) = &call.about.budgets {
            text.string("budgets", budgets);
        }
        text.string("principal", &call.principal);
        text.plain(match call.era {
            Era::Legacy => r#","era":"legacy""#,
            Era::Modern => r#","era":"modern""#,
        });
        text.string("transport", call.transport);
        text.plain(if event.validated() { r#","validated":true"# } else { r#","validated":false"# });
        self.keep(call.subject(), event.arguments(), &mut text);
        Draft { kind: RowKind::Enter, ticket: None, bytes: text.end() }
    }

    pub(crate) fn exit(&self, ticket: Option<Ticket>, event: &Exit) -> Draft {
        let (tool, correlation) = (event.tool(), event.correlation());
        let mut text =
            Text::begin(event.payload_bytes(), EXIT, event.at(), correlation, tool, event.server());
        let payload = match event.outcome() {
            Outcome::Result { body, is_error } => {
                text.plain(if *is_error { r#","outcome":"toolError""# } else { r#","outcome":"result""# });
                Some(body)
            }
            Outcome::Error { code, message, details } => {
                text.plain(r#","outcome":"error""#);
                text.string("code", code);
                if self.payloads == Payloads::Redacted {
                    text.string("message", &self.redactor.text(message));
                    if let Some(details) = details.as_ref().filter(|details| details.len() <= LONGEST_PAYLOAD)
                    {
                        text.string("details", &String::from_utf8_lossy(&self.redactor.json(tool, details)));
                    }
                }
                None
            }
            Outcome::Cancelled => {
                text.plain(r#","outcome":"cancelled""#);
                None
            }
        };
        if event.refunded() {
            text.plain(r#","refunded":true"#);
        }
        if let Some(more) = event.charged() {
            text.number("cost", more);
        }
        text.number("durationMs", event.duration_ms());
        text.number("queuedMs", event.queued_ms());
        if let Some(body) = payload {
            self.keep(tool, body, &mut text);
        }
        Draft { kind: RowKind::Exit, ticket, bytes: text.end() }
    }

    /// Writes what is kept of a payload.
    fn keep(&self, tool: &str, payload: &Bytes, text: &mut Text) {
        text.number("bytes", payload.len() as u64);
        if self.payloads != Payloads::None {
            text.plain(r#","digest":""#);
            text.0.extend_from_slice(&Hash::of(payload).digits());
            text.plain("\"");
        }
        if payload.len() <= LONGEST_PAYLOAD && self.payloads == Payloads::Redacted {
            let kept = self.redactor.json(tool, payload);
            // It is UTF-8 unless an embedding program passed other bytes; the lossy conversion is slow.
            let lossy = || String::from_utf8_lossy(&kept);
            text.string("payload", &str::from_utf8(&kept).map_or_else(|_| lossy(), Cow::Borrowed));
        }
    }
}

/// The members of a row after its numbers, written one by one. This avoids a serializer: every call waits for its two
/// rows to be made, and most of their content needs no escaping.
struct Text(Vec<u8>);

impl Text {
    /// `payload` is the length of the payload that may follow.
    fn begin(
        payload: usize,
        kind: &str,
        time: jiff::Timestamp,
        correlation: CorrelationId,
        tool: &str,
        server: Option<&str>,
    ) -> Self {
        // Leaves room for escaped quotes, so that the buffer rarely has to grow.
        let kept = if payload <= LONGEST_PAYLOAD { payload + payload / 4 } else { 0 };
        let mut text = Self(Vec::with_capacity(ROOM + 384 + kept));
        text.0.extend_from_slice(&[0; ROOM]);
        text.plain("\"kind\":\"");
        text.plain(kind);
        text.plain("\",\"time\":\"");
        text.time(time);
        text.plain("\",\"correlationId\":\"");
        text.plain(correlation.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()));
        text.plain("\"");
        text.string("tool", tool);
        if let Some(server) = server {
            text.string("server", server);
        }
        text
    }

    /// Text that needs no escaping.
    fn plain(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Writes the time with six decimals, so that times line up and sort as text. Within one second only the decimals
    /// change, and the rest is cached.
    fn time(&mut self, time: jiff::Timestamp) {
        thread_local! {
            static SECOND: Cell<(i64, [u8; 19])> = const { Cell::new((i64::MIN, [0; 19])) };
        }
        let (second, decimals) = (time.as_second(), time.subsec_microsecond());
        if second < 0 || decimals < 0 {
            // Before 1970 the decimals count backwards.
            return self.plain(&time_text(time));
        }
        let (mut kept, mut text) = SECOND.get();
        if kept != second {
            let whole = time_text(time);
            match whole.as_bytes().first_chunk() {
                Some(first) => (kept, text) = (second, *first),
                None => return self.plain(&whole),
            }
            SECOND.set((kept, text));
        }
        self.0.extend_from_slice(&text);
        self.plain(".");
        let (mut digits, mut left) = (*b"000000Z", decimals);
        for digit in digits[..6].iter_mut().rev() {
            *digit += u8::try_from(left % 10).unwrap_or_default();
            left /= 10;
        }
        self.0.extend_from_slice(&digits);
    }

    fn name(&mut self, name: &str) {
        self.plain(",\"");
        self.plain(name);
        self.plain("\":");
    }

    fn string(&mut self, name: &str, value: &str) {
        self.name(name);
        // Writing to memory cannot fail.
        let _ = serde_json::to_writer(&mut self.0, value);
    }

    fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        // Writing to memory cannot fail.
        let _ = serde_json::to_writer(&mut self.0, &value);
    }

    fn end(mut self) -> Vec<u8> {
        self.plain("}");
        self.0
    }
}

impl Draft {
    /// The exit of a call whose end was not recorded. `segment` is the segment of its enter.
    pub(crate) fn interrupted(segment: u32, enter: &Row, now: jiff::Timestamp) -> Option<Self> {
        let correlation = CorrelationId::parse(&enter.correlation_id)?;
        let mut text = Text::begin(0, EXIT, now, correlation, &enter.tool, enter.server.as_deref());
        text.string("outcome", INTERRUPTED);
        // Its duration is unknown.
        text.plain(r#","durationMs":null,"queuedMs":null"#);
        let ticket = Some(Ticket::new(segment, enter.seq));
        Some(Self { kind: RowKind::Exit, ticket, bytes: text.end() })
    }

    #[cfg(test)]
    pub(crate) fn empty(kind: RowKind) -> Self {
        Self { kind, ticket: None, bytes: vec![0; ROOM] }
    }

    /// About how much memory it takes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The whole row with its number and, for an exit, the place of its enter as this format writes it.
    pub(crate) fn numbered(&mut self, format: u32, seq: u64, enter: Option<Ticket>) -> Numbered<'_> {
        let mut front = Front { room: &mut self.bytes[..ROOM], at: ROOM };
        front.put(b",");
        if let Some(enter) = enter {
            if format > 1 {
                front.number(enter.segment().into());
                front.put(b",\"enterSegment\":");
            }
            front.number(enter.number());
            front.put(b",\"enter\":");
        }
        front.number(seq);
        front.put(b"{\"seq\":");
        front.put(&[LEAF]);
        let start = front.at;
        Numbered(&self.bytes[start..])
    }
}

impl AsMut<Self> for Draft {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

/// A whole row after the leaf prefix, so that hashing it needs no copy.
pub(crate) struct Numbered<'a>(&'a [u8]);

impl Numbered<'_> {
    pub(crate) fn leaf(&self) -> Hash {
        Hash::of(self.0)
    }

    pub(crate) fn text(&self) -> &[u8] {
        &self.0[1..]
    }
}

/// Fills a buffer from its end.
struct Front<'a> {
    room: &'a mut [u8],
    at: usize,
}

impl Front<'_> {
    fn put(&mut self, text: &[u8]) {
        let end = self.at;
        self.at -= text.len();
        self.room[self.at..end].copy_from_slice(text);
    }

    fn number(&mut self, mut number: u64) {
        loop {
            self.put(&[b'0' + u8::try_from(number % 10).unwrap_or_default()]);
            number /= 10;
            if number == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::FORMAT;
    use crate::{About, Call, Moment};

    fn call() -> Call {
        Call {
            tool: "files__read".into(),
            server: Some("files".into()),
            principal: "ada".into(),
            correlation: CorrelationId::parse("0199d0a5-6f2b-7c3e-8d4f-0123456789ab").unwrap(),
            era: Era::Modern,
            transport: "http",
            about: About::default(),
        }
    }

    fn at() -> Moment {
        Moment { wall: "2026-11-15T12:00:00.5Z".parse().unwrap(), monotonic: Duration::from_millis(7) }
    }

    fn whole(mut draft: Draft, seq: u64) -> String {
        // After a failed write a draft gets other numbers.
        draft.numbered(FORMAT, u64::MAX, Some(Ticket::new(u32::MAX, u64::MAX)));
        let ticket = draft.ticket;
        let numbered = draft.numbered(FORMAT, seq, ticket);
        assert_eq!(numbered.leaf(), Hash::leaf(numbered.text()));
        String::from_utf8(numbered.text().to_vec()).unwrap()
    }

    /// AUD-1, AUD-4: the text of an enter row is fixed byte for byte, because it is what is hashed.
    #[test]
    fn an_enter_row_is_this_text() {
        let enter = Enter::new(call(), Bytes::from_static(br#"{"token":"x"}"#), true, at());
        let text = whole(Keeping::default().enter(&enter), 3);
        assert_eq!(
            text,
            concat!(
                r#"{"seq":3,"kind":"enter","time":"2026-11-15T12:00:00.500000Z","#,
                r#""correlationId":"0199d0a5-6f2b-7c3e-8d4f-0123456789ab","tool":"files__read","server":"files","#,
                r#""principal":"ada","era":"modern","transport":"http","validated":true,"bytes":13,"#,
                r#""digest":"0671a8b1bf91a307b4c72ecd2986fa7cdc0d28aef3a4e00aafd12ca17de5b8fc","#,
                r#""payload":"{\"token\":\"[redacted]\"}"}"#,
            )
            .replace(
                "0671a8b1bf91a307b4c72ecd2986fa7cdc0d28aef3a4e00aafd12ca17de5b8fc",
                &Hash::of(br#"{"token":"x"}"#).to_string()
            )
        );
        let row: Row = serde_json::from_str(&text).unwrap();
        assert_eq!((row.seq, row.era.as_deref(), row.bytes), (3, Some("modern"), Some(13)));
    }

    /// AUD-1: an exit row has the result, or the error with its code, message and details, without their secrets.
    #[test]
    fn an_exit_row_tells_how_it_ended() {
        #[track_caller]
        fn check(outcome: Outcome, expected: &str) {
            let now = Moment { monotonic: Duration::from_millis(50), ..at() };
            let exit = Exit::new(&call(), at(), now, outcome).after_waiting(Duration::from_millis(2));
            let keeping = Keeping { payloads: Payloads::Redacted, ..Keeping::default() };
            let text = whole(keeping.exit(Some(Ticket::new(2, 3)), &exit), 4);
            let (_, tail) = text.split_once(r#""server":"files","#).unwrap();
            assert_eq!(tail, expected);
            assert!(text.starts_with(r#"{"seq":4,"enter":3,"enterSegment":2,"kind":"exit","#), "{text}");
        }
        let digest = Hash::of(b"{}");
        check(
            Outcome::Result { body: Bytes::from_static(b"{}"), is_error: false },
            &format!(
                r#""outcome":"result","durationMs":43,"queuedMs":2,"bytes":2,"digest":"{digest}","payload":"{{}}"}}"#
            ),
        );
        check(
            Outcome::Error { code: "HANDLER_ERROR".into(), message: "password=x".to_owned(), details: None },
            r#""outcome":"error","code":"HANDLER_ERROR","message":"password=[redacted]","durationMs":43,"queuedMs":2}"#,
        );
        let failed = |details: Bytes| Outcome::Error {
            code: "-32050".into(),
            message: "no".to_owned(),
            details: Some(details),
        };
        check(
            failed(Bytes::from_static(br#"{"token":"x","n":1}"#)),
            r#""outcome":"error","code":"-32050","message":"no","details":"{\"token\":\"[redacted]\",\"n\":1}","durationMs":43,"queuedMs":2}"#,
        );
        check(
            failed(Bytes::from(format!("\"{}\"", "x".repeat(LONGEST_PAYLOAD)))),
            r#""outcome":"error","code":"-32050","message":"no","durationMs":43,"queuedMs":2}"#,
        );
        check(Outcome::Cancelled, r#""outcome":"cancelled","durationMs":43,"queuedMs":2}"#);
    }

    /// WIRE-2: an exit in a segment of format 1 names its enter as that format does, and one without a ticket names none.
    #[test]
    fn an_exit_names_its_enter_as_the_format_says() {
        let exit = Exit::new(&call(), at(), at(), Outcome::Cancelled);
        let mut draft = Keeping::default().exit(Some(Ticket::new(2, 3)), &exit);
        let ticket = draft.ticket;
        let text = String::from_utf8(draft.numbered(1, 4, ticket).text().to_vec()).unwrap();
        assert!(text.starts_with(r#"{"seq":4,"enter":3,"kind":"exit","#), "{text}");
        let text = whole(Keeping::default().exit(None, &exit), 4);
        assert!(text.starts_with(r#"{"seq":4,"kind":"exit","#), "{text}");
    }

    /// WIRE-2: an enter has the optional facts about its call, where they are known.
    #[test]
    fn an_enter_row_tells_what_is_known_of_the_call() {
        let mut about = About::of(Some("resources/read"), "file:///notes".into());
        about.client = Some("editor 1.2".into());
        let enter = Enter::new(Call { about, ..call() }, Bytes::from_static(b"{}"), true, at());
        let row: Row = serde_json::from_str(&whole(Keeping::default().enter(&enter), 1)).unwrap();
        assert_eq!(
            (row.method.as_deref(), row.subject.as_deref(), row.client.as_deref(), row.principal.as_deref()),
            (Some("resources/read"), Some("file:///notes"), Some("editor 1.2"), Some("ada"))
        );
    }

    /// ACC-5: an enter has what its call costs and which budgets count it; the exit of a call that did not run says so.
    #[test]
    fn rows_tell_what_a_call_costs() {
        let mut about = About::default();
        (about.cost, about.budgets) = (Some(3), Some("5f0c 77aa".into()));
        let enter = Enter::new(Call { about, ..call() }, Bytes::from_static(b"{}"), true, at());
        let text = whole(Keeping::default().enter(&enter), 1);
        let row: Row = serde_json::from_str(&text).unwrap();
        assert_eq!((row.cost, row.budgets.as_deref(), row.refunded), (Some(3), Some("5f0c 77aa"), None));
        let exit = Exit::new(&call(), at(), at(), Outcome::Cancelled);
        let row: Row = serde_json::from_str(&whole(Keeping::default().exit(None, &exit), 2)).unwrap();
        assert_eq!((row.cost, row.refunded), (None, None));
        let row: Row =
            serde_json::from_str(&whole(Keeping::default().exit(None, &exit.refunding()), 2)).unwrap();
        assert_eq!(row.refunded, Some(true));
    }

    #[test]
    fn times_are_written_as_everywhere() {
        for time in [
            "2026-11-15T12:00:00.5Z",
            "2026-11-15T12:00:00.000001999Z",
            "2026-11-15T12:00:00.999999999Z",
            "2026-11-15T12:00:01Z",
            "1970-01-01T00:00:00Z",
            "1969-12-31T23:59:59.25Z",
            "9999-12-30T21:59:59.999999Z",
            "2026-11-15T12:00:00.5Z",
        ] {
            let (time, mut text) = (time.parse().unwrap(), Text(Vec::new()));
            text.time(time);
            assert_eq!(String::from_utf8(text.0).unwrap(), time_text(time));
        }
    }

    /// AUD-4: `digest` keeps no text and `none` not even a digest; sizes stay.
    #[test]
    fn less_can_be_kept() {
        let enter = Enter::new(call(), Bytes::from_static(br#"{"a":"b"}"#), true, at());
        for (payloads, digest) in [(Payloads::Digest, true), (Payloads::None, false)] {
            let keeping = Keeping { payloads, ..Keeping::default() };
            let row: Row = serde_json::from_str(&whole(keeping.enter(&enter), 1)).unwrap();
            assert_eq!((row.bytes, row.digest.is_some(), row.payload), (Some(9), digest, None));
            let details = Some(Bytes::from_static(b"{}"));
            let failed = Outcome::Error { code: "X".into(), message: "why".to_owned(), details };
            let exit = Exit::new(&call(), at(), at(), failed);
            let row: Row = serde_json::from_str(&whole(keeping.exit(None, &exit), 2)).unwrap();
            assert_eq!((row.code.as_deref(), row.message, row.details), (Some("X"), None, None));
        }
    }

    /// AUD-2: the text of a payload longer than 64 KB is not kept.
    #[test]
    fn a_long_payload_leaves_its_size_and_digest() {
        let fits = Bytes::from(format!("\"{}\"", "x".repeat(64 * 1024 - 2)));
        let enter = Enter::new(call(), fits.clone(), true, at());
        let row: Row = serde_json::from_str(&whole(Keeping::default().enter(&enter), 1)).unwrap();
        assert_eq!(row.payload.map(|payload| payload.len()), Some(fits.len()));
        let long = Bytes::from(format!("\"{}\"", "x".repeat(64 * 1024 - 1)));
        let enter = Enter::new(call(), long.clone(), true, at());
        let row: Row = serde_json::from_str(&whole(Keeping::default().enter(&enter), 1)).unwrap();
        assert_eq!((row.bytes, row.payload), (Some(long.len() as u64), None));
        assert_eq!(row.digest, Some(Hash::of(&long).to_string()));
    }
}
