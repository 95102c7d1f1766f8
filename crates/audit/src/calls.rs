//! Joins the two rows of a call again, for readers of the record.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::archive::{StoredSegment, read_segment};
use crate::records::{ReadError, RecordKind};
use crate::row::{ENTER, Row};

/// One call as the record shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedCall {
    /// The segment of its first row.
    pub segment: String,
    /// Its first row: the enter, or an exit whose enter could not be recorded.
    pub first: Row,
    /// Its exit, if it has ended and is not `first`.
    pub exit: Option<Row>,
}

/// A call as the `audit` commands print it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Flat<'a> {
    segment: &'a str,
    seq: u64,
    exit_seq: Option<u64>,
    time: &'a str,
    correlation_id: &'a str,
    principal: Option<&'a str>,
    client: Option<&'a str>,
    server: Option<&'a str>,
    method: &'a str,
    subject: &'a str,
    tool: &'a str,
    era: Option<&'a str>,
    transport: Option<&'a str>,
    validated: Option<bool>,
    outcome: &'a str,
    code: Option<&'a str>,
    message: Option<&'a str>,
    details: Option<&'a str>,
    duration_ms: Option<u64>,
    queued_ms: Option<u64>,
    bytes_in: Option<u64>,
    bytes_out: Option<u64>,
    arguments_digest: Option<&'a str>,
    result_digest: Option<&'a str>,
    arguments: Option<&'a str>,
    result: Option<&'a str>,
}

impl Serialize for RecordedCall {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (enter, exit) = (self.enter(), self.exit());
        let text =
            |row: Option<&'_ Row>, field: fn(&Row) -> Option<&str>| row.and_then(field).map(str::to_owned);
        let digest = |row| text(row, |row| row.digest.as_deref());
        let payload = |row| text(row, |row| row.payload.as_deref());
        let (digest_in, digest_out) = (digest(enter), digest(exit));
        let (payload_in, payload_out) = (payload(enter), payload(exit));
        Flat {
            segment: &self.segment,
            seq: self.first.seq,
            exit_seq: exit.map(|row| row.seq),
            time: &self.first.time,
            correlation_id: &self.first.correlation_id,
            principal: self.first.principal.as_deref(),
            client: self.first.client.as_deref(),
            server: self.first.server.as_deref(),
            method: self.method(),
            subject: self.subject(),
            tool: &self.first.tool,
            era: self.first.era.as_deref(),
            transport: self.first.transport.as_deref(),
            validated: self.first.validated,
            outcome: self.outcome(),
            code: exit.and_then(|row| row.code.as_deref()),
            message: exit.and_then(|row| row.message.as_deref()),
            details: exit.and_then(|row| row.details.as_deref()),
            duration_ms: exit.and_then(|row| row.duration_ms),
            queued_ms: exit.and_then(|row| row.queued_ms),
            bytes_in: enter.and_then(|row| row.bytes),
            bytes_out: exit.and_then(|row| row.bytes),
            arguments_digest: digest_in.as_deref(),
            result_digest: digest_out.as_deref(),
            arguments: payload_in.as_deref(),
            result: payload_out.as_deref(),
        }
        .serialize(serializer)
    }
}

impl RecordedCall {
    /// The call with these rows.
    #[must_use]
    pub const fn new(segment: String, first: Row, exit: Option<Row>) -> Self {
        Self { segment, first, exit }
    }

    /// Its enter row.
    #[must_use]
    pub fn enter(&self) -> Option<&Row> {
        (self.first.kind == ENTER).then_some(&self.first)
    }

    /// Its exit row.
    #[must_use]
    pub fn exit(&self) -> Option<&Row> {
        if self.first.kind == ENTER { self.exit.as_ref() } else { Some(&self.first) }
    }

    /// The method of the protocol.
    #[must_use]
    pub fn method(&self) -> &str {
        self.first.method.as_deref().unwrap_or("tools/call")
    }

    /// What the method is about: a tool, a prompt, a resource.
    #[must_use]
    pub fn subject(&self) -> &str {
        self.first.subject.as_deref().unwrap_or(&self.first.tool)
    }

    /// How it ended; `open` if it has not ended.
    #[must_use]
    pub fn outcome(&self) -> &str {
        self.exit().and_then(|row| row.outcome.as_deref()).unwrap_or("open")
    }
}

/// Reads all calls of these segments, in the order of their exits; calls that are still open come last.
///
/// # Errors
/// When a segment cannot be read, or when `take` fails. A malformed row is skipped: the verifier reports
/// it.
pub fn read_calls(
    segments: impl IntoIterator<Item: Into<StoredSegment>>,
    mut take: impl FnMut(RecordedCall) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    // Row numbers are per instance and continue across its segments.
    let mut open: HashMap<String, BTreeMap<u64, RecordedCall>> = HashMap::new();
    for stored in segments {
        let stored = stored.into();
        let segment = stored.name().to_owned();
        read_segment(&stored, |record| {
            if record.kind != RecordKind::Row {
                return Ok(());
            }
            let Ok(row) = serde_json::from_slice::<Row>(&record.text) else { return Ok(()) };
            let calls = open.entry(stored.instance().to_owned()).or_default();
            if row.kind == ENTER {
                let call = RecordedCall { segment: segment.clone(), first: row, exit: None };
                calls.insert(call.first.seq, call);
                return Ok(());
            }
            match row.enter.and_then(|enter| calls.remove(&enter)) {
                Some(call) => take(RecordedCall { exit: Some(row), ..call }),
                // Its enter could not be recorded, or was removed with an older segment.
                None => take(RecordedCall { segment: segment.clone(), first: row, exit: None }),
            }
        })?;
    }
    open.into_values().flat_map(BTreeMap::into_values).try_for_each(take)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GATE-2: a call names its tool; any other request names its method and its subject.
    #[test]
    fn what_a_request_was_about() {
        #[track_caller]
        fn check(more: &str, expected: (&str, &str)) {
            let text =
                format!(r#"{{"seq":1,"kind":"enter","time":"t","correlationId":"c","tool":"say"{more}}}"#);
            let first = serde_json::from_str(&text).unwrap();
            let call = RecordedCall { segment: String::new(), first, exit: None };
            assert_eq!((call.method(), call.subject()), expected);
        }
        check("", ("tools/call", "say"));
        check(r#","method":"prompts/get","subject":"plan""#, ("prompts/get", "plan"));
    }
}
