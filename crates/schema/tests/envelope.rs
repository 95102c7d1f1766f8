//! The envelope as a program outside of this workspace makes one.

use std::time::Duration;

use bridgehead_schema::{Content, Envelope, OutputSchema, ResultOrigin};
use serde_json::json;

/// ENV-2, ENV-4: the constructor and the mapping of blocks are public; without an output schema anything fits.
#[test]
fn a_program_makes_its_own_envelope() {
    let result =
        json!({"content": [{"type": "text", "text": "3"}, {"type": "future"}], "structuredContent": [null]});
    let origin = ResultOrigin {
        server: "demo".to_owned(),
        tool: "add".to_owned(),
        correlation_id: "id".to_owned(),
        latency: Duration::from_millis(1_234),
    };
    let envelope = Envelope::new(result.as_object().unwrap(), origin).cast(&OutputSchema::anything());
    assert_eq!(envelope.meta.content, Content::all(result.get("content")));
    assert_eq!((&envelope.data, envelope.meta.latency_ms), (&json!([null]), 1_234));
    assert!(envelope.meta.cast.is_empty() && envelope.meta.issues.is_empty() && !envelope.meta.is_error);
}
