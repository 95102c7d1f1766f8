//! The two events of a call, and the ticket that ties the second to the first.
//!
//! Fields are private and there are no setters: an event can only be read. `Debug` shows the
//! size of arguments and results, never their text, because events end up in logs by accident.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_wire::{Era, Raw};
use bytes::Bytes;

use crate::Moment;

/// Names one call in the audit trail, on the event bus, in logs and in error envelopes.
///
/// A version 7 UUID: ids minted later sort later, which keeps an index over them compact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CorrelationId(uuid::Uuid);

impl CorrelationId {
    /// A new id that no other call has.
    #[must_use]
    #[inline]
    pub fn mint() -> Self {
        Self(uuid::Uuid::now_v7())
    }

    /// Reads the hyphenated form of any UUID version; other spellings (braces, `urn:`, no hyphens) are refused
    /// so that an id has one text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != uuid::fmt::Hyphenated::LENGTH {
            return None;
        }
        uuid::Uuid::try_parse(text).ok().map(Self)
    }

    /// Its text as a JSON string.
    #[must_use]
    pub fn to_raw(self) -> Raw {
        Raw::string(self.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()))
    }

    /// Its text, which can be written without an intermediate string.
    #[must_use]
    pub fn hyphenated(self) -> uuid::fmt::Hyphenated {
        self.0.hyphenated()
    }

    /// The sixteen bytes, for stores.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.hyphenated(), formatter)
    }
}

/// Who calls what: the part of a call that both of its events are built from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The tool's name as the client wrote it, also when no such tool exists.
    pub tool: Arc<str>,
    /// The server that offers the tool; none for built-in tools, Rust tools and unknown names.
    pub server: Option<Arc<str>>,
    /// On whose behalf the call is made.
    pub principal: Arc<str>,
    /// The id that both events carry.
    pub correlation: CorrelationId,
    /// The protocol era of the request.
    pub era: Era,
    /// Where the request came in: `stdio`, `http`, `memory`, or `library` for a call by the embedding program.
    pub transport: &'static str,
    /// Optional details.
    pub about: About,
}

/// The optional details of a call. Each is left out where it is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct About {
    /// The method of the protocol; left out for `tools/call`.
    pub method: Option<&'static str>,
    /// The subject of a method that calls no tool: a prompt's name, a resource's URI.
    pub subject: Option<Arc<str>>,
    /// The client program.
    pub client: Option<Arc<str>>,
    /// What the call takes from each budget that counts it.
    pub cost: Option<u64>,
    /// The ids of those budgets, separated by spaces.
    pub budgets: Option<Arc<str>>,
}

impl About {
    /// The details of a request that calls no tool. An empty subject counts as none.
    #[must_use]
    pub fn of(method: Option<&'static str>, subject: Arc<str>) -> Self {
        let subject = Some(subject).filter(|subject| !subject.is_empty());
        Self { method, subject, ..Self::default() }
    }
}

impl Call {
    /// The method of the protocol.
    #[must_use]
    pub fn method(&self) -> &'static str {
        self.about.method.unwrap_or("tools/call")
    }

    /// The subject of the method: the prompt, resource or other named thing, otherwise the tool.
    #[must_use]
    pub fn subject(&self) -> &str {
        self.about.subject.as_ref().unwrap_or(&self.tool)
    }
}

/// The place where the enter of a call was recorded, which its exit refers to. Only a sink issues tickets, so that no
/// client can choose the call that an exit belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    segment: u32,
    number: u64,
}

impl Ticket {
    /// The place of an enter: which segment of the instance, and which row.
    #[must_use]
    pub const fn new(segment: u32, number: u64) -> Self {
        Self { segment, number }
    }

    /// Which segment of the instance, from 1.
    #[must_use]
    pub const fn segment(self) -> u32 {
        self.segment
    }

    /// The number of the row.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.number
    }
}

/// A call is about to be made.
#[derive(Clone)]
pub struct Enter {
    call: Call,
    arguments: Bytes,
    at: Moment,
    validated: bool,
}

impl Enter {
    /// Records that `call` entered at `at` with `arguments`, a JSON text.
    ///
    /// `validated` is false for a call that was rejected before its tool could run.
    #[must_use]
    pub fn new(call: Call, arguments: Bytes, validated: bool, at: Moment) -> Self {
        Self { call, arguments, at, validated }
    }

    /// Who calls what; [`Exit::new`] takes it.
    #[must_use]
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The tool's name.
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.call.tool
    }

    /// The server that offers the tool, if one does.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.call.server.as_deref()
    }

    /// On whose behalf the call is made.
    #[must_use]
    pub fn principal(&self) -> &str {
        &self.call.principal
    }

    /// The arguments as JSON text.
    #[must_use]
    pub fn arguments(&self) -> &Bytes {
        &self.arguments
    }

    /// UTC time of the call.
    #[must_use]
    pub fn at(&self) -> jiff::Timestamp {
        self.at.wall
    }

    /// Monotonic time of the call, since the clock's origin.
    #[must_use]
    pub fn monotonic(&self) -> Duration {
        self.at.monotonic
    }

    /// Both readings of the clock, for the exit that follows.
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.at
    }

    /// The id shared with the exit.
    #[must_use]
    pub fn correlation(&self) -> CorrelationId {
        self.call.correlation
    }

    /// Whether the arguments passed validation (or the tool has no usable schema).
    #[must_use]
    pub fn validated(&self) -> bool {
        self.validated
    }
}

impl fmt::Debug for Enter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Enter")
            .field("call", &self.call)
            .field("arguments", &Size(&self.arguments))
            .field("at", &self.at)
            .field("validated", &self.validated)
            .finish()
    }
}

/// How a call ended.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The tool answered.
    Result {
        /// The result as JSON text.
        body: Bytes,
        /// Whether the tool marked its answer as an error.
        is_error: bool,
    },
    /// The tool did not answer, or did not run.
    Error {
        /// The stable error code.
        code: Cow<'static, str>,
        /// What went wrong, in words; without secrets.
        message: String,
        /// Further details, as JSON text.
        details: Option<Bytes>,
    },
    /// The call was cancelled or dropped before it ended.
    Cancelled,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Result { body, is_error } => formatter
                .debug_struct("Result")
                .field("body", &Size(body))
                .field("is_error", is_error)
                .finish(),
            Self::Error { code, message, details } => formatter
                .debug_struct("Error")
                .field("code", code)
                .field("message", message)
                .field("details", &details.as_ref().map(Size))
                .finish(),
            Self::Cancelled => formatter.write_str("Cancelled"),
        }
    }
}

/// A call has ended.
#[derive(Clone, Debug)]
pub struct Exit {
    tool: Arc<str>,
    server: Option<Arc<str>>,
    at: jiff::Timestamp,
    correlation: CorrelationId,
    duration_ms: u64,
    queued_ms: u64,
    refunded: bool,
    charged: Option<u64>,
    outcome: Outcome,
}

impl Exit {
    /// Records that `call`, which entered at `entered`, ended at `now` with `outcome`.
    ///
    /// Both moments must come from the same clock; only their monotonic readings count for the duration.
    #[must_use]
    #[inline]
    pub fn new(call: &Call, entered: Moment, now: Moment, outcome: Outcome) -> Self {
        let elapsed = now.monotonic.saturating_sub(entered.monotonic);
        Self {
            tool: Arc::clone(&call.tool),
            server: call.server.clone(),
            at: now.wall,
            correlation: call.correlation,
            duration_ms: milliseconds(elapsed),
            queued_ms: 0,
            refunded: false,
            charged: None,
            outcome,
        }
    }

    /// Records how long the call waited: for the tool lock before its enter, and in the server's queue after it.
    #[must_use]
    pub fn after_waiting(self, queued: Duration) -> Self {
        Self { queued_ms: milliseconds(queued), ..self }
    }

    /// Records that the call provably did not run, so that what it cost was given back.
    #[must_use]
    pub fn refunding(self) -> Self {
        Self { refunded: true, ..self }
    }

    /// Records what the call cost beyond its enter's cost, because it was sent to its server again.
    #[must_use]
    pub fn charging(self, more: u64) -> Self {
        Self { charged: Some(more), ..self }
    }

    /// What the call cost beyond its enter's cost.
    #[must_use]
    pub fn charged(&self) -> Option<u64> {
        self.charged
    }

    /// Whether what the call cost was given back.
    #[must_use]
    pub fn refunded(&self) -> bool {
        self.refunded
    }

    /// The tool's name.
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// The id shared with the enter.
    #[must_use]
    pub fn correlation(&self) -> CorrelationId {
        self.correlation
    }

    /// The server that offers the tool, if one does.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// UTC time of the end.
    #[must_use]
    pub fn at(&self) -> jiff::Timestamp {
        self.at
    }

    /// How long the call took from its enter to its exit, in whole milliseconds, rounded down.
    #[must_use]
    pub fn duration_ms(&self) -> u64 {
        self.duration_ms
    }

    /// How long it waited for the tool lock and in the server's queue together, in whole milliseconds. The wait for
    /// the lock ends before the enter, so it is not part of the duration.
    #[must_use]
    pub fn queued_ms(&self) -> u64 {
        self.queued_ms
    }

    /// The size of the result; zero without one.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        match &self.outcome {
            Outcome::Result { body, .. } => body.len(),
            Outcome::Error { .. } | Outcome::Cancelled => 0,
        }
    }

    /// How the call ended.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Stands in for a payload in `Debug` output.
struct Size<'a>(&'a Bytes);

impl fmt::Debug for Size<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "<{} bytes>", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(wall: &str, monotonic: Duration) -> Moment {
        Moment { wall: wall.parse().unwrap(), monotonic }
    }

    fn call() -> Call {
        Call {
            tool: "add".into(),
            server: Some("calculator".into()),
            principal: "ada".into(),
            correlation: CorrelationId::mint(),
            era: Era::Modern,
            transport: "http",
            about: About::default(),
        }
    }

    /// AUD-1: enter carries tool, arguments, UTC and monotonic time and the correlation id.
    #[test]
    fn enter_tells_what_it_was_built_from() {
        let call = call();
        let at = moment("2026-11-15T12:00:00Z", Duration::from_millis(7));
        let enter = Enter::new(call.clone(), Bytes::from_static(br#"{"a":1}"#), true, at);
        assert_eq!(enter.call(), &call);
        assert_eq!((enter.tool(), enter.server(), enter.principal()), ("add", Some("calculator"), "ada"));
        assert_eq!(enter.arguments().as_ref(), br#"{"a":1}"#);
        assert_eq!(enter.at().to_string(), "2026-11-15T12:00:00Z");
        assert_eq!(enter.monotonic(), Duration::from_millis(7));
        assert_eq!(enter.moment(), at);
        assert_eq!(enter.correlation(), call.correlation);
        assert!(enter.validated());
    }

    /// AUD-1: the duration is whole milliseconds of the monotonic clock; the wall clock may jump.
    #[test]
    fn exit_counts_whole_milliseconds_of_the_monotonic_clock() {
        #[track_caller]
        fn check(entered: Duration, now: Duration, expected: u64) {
            let call = call();
            let exit = Exit::new(
                &call,
                moment("2026-11-15T12:00:00Z", entered),
                moment("1999-01-01T00:00:00Z", now),
                Outcome::Cancelled,
            );
            assert_eq!(exit.duration_ms(), expected);
            assert_eq!((exit.tool(), exit.correlation()), ("add", call.correlation));
            assert_eq!(exit.outcome(), &Outcome::Cancelled);
        }
        check(Duration::ZERO, Duration::ZERO, 0);
        check(Duration::from_micros(500), Duration::from_micros(1_499), 0);
        check(Duration::from_micros(500), Duration::from_micros(2_499), 1);
        check(Duration::from_secs(1), Duration::from_secs(61), 60_000);
        check(Duration::from_secs(2), Duration::from_secs(1), 0);
        check(Duration::ZERO, Duration::MAX, u64::MAX);
    }

    /// AUD-1: exit carries either the result or the error.
    #[test]
    fn exit_keeps_its_outcome() {
        let at = moment("2026-11-15T12:00:00Z", Duration::ZERO);
        for outcome in [
            Outcome::Result { body: Bytes::from_static(b"{}"), is_error: true },
            Outcome::Error {
                code: Cow::Borrowed("HANDLER_ERROR"),
                message: "it broke".to_owned(),
                details: Some(Bytes::from_static(b"{}")),
            },
            Outcome::Cancelled,
        ] {
            assert_eq!(Exit::new(&call(), at, at, outcome.clone()).outcome(), &outcome);
        }
    }

    #[test]
    fn debug_output_keeps_payloads_out_of_logs() {
        let at = moment("2026-11-15T12:00:00Z", Duration::ZERO);
        let secret = Bytes::from_static(br#"{"token":"hunter2"}"#);
        let enter = Enter::new(call(), secret.clone(), true, at);
        let exit = Exit::new(&call(), at, at, Outcome::Result { body: secret.clone(), is_error: false });
        let failed =
            Outcome::Error { code: "HANDLER_ERROR".into(), message: "no".to_owned(), details: Some(secret) };
        let shown = format!("{enter:?} {exit:?} {failed:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("<19 bytes>"), "{shown}");
    }

    #[test]
    fn correlation_ids_have_one_spelling() {
        #[track_caller]
        fn check(text: &str, expected: Option<&str>) {
            assert_eq!(CorrelationId::parse(text).map(|id| id.to_string()).as_deref(), expected);
        }
        let text = "0199d0a5-6f2b-7c3e-8d4f-0123456789ab";
        check(text, Some(text));
        check(&text.to_uppercase(), Some(text));
        check("0199d0a56f2b7c3e8d4f0123456789ab", None);
        check("{0199d0a5-6f2b-7c3e-8d4f-0123456789ab}", None);
        check("urn:uuid:0199d0a5-6f2b-7c3e-8d4f-0123456789ab", None);
        check("0199d0a5-6f2b-7c3e-8d4f-0123456789ag", None);
        check("0199d0a5-6f2b-7c3e-8d4f-0123456789é", None);
        check("", None);
    }

    #[test]
    fn minted_ids_differ_sort_by_age_and_round_trip() {
        let ids: Vec<CorrelationId> = (0..1_000).map(|_| CorrelationId::mint()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids.iter().all(|id| CorrelationId::parse(&id.to_string()) == Some(*id)));
    }
}
