//! The tools that every gateway has about itself.

use std::sync::Weak;
use std::time::Duration;

use serde_json::{Value, json};

use crate::catalog::native::NativeTool;
use crate::gateway::Inner;

/// `server_ping`: version, mode, uptime. No I/O.
pub(crate) fn server_ping(gateway: Weak<Inner>) -> NativeTool {
    let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let data = json!({
        "type": "object",
        "properties": {
            "version": {"type": "string"},
            "mode": {"type": "string"},
            "uptime_ms": {"type": "integer", "minimum": 0},
        },
        "required": ["version", "mode", "uptime_ms"],
    });
    NativeTool::new(
        "server_ping",
        "Check that the gateway responds; returns its version, mode and uptime.",
        schema,
        move |_, _| {
            let gateway = gateway.upgrade();
            async move {
                let gateway = gateway.ok_or("the gateway is shutting down")?;
                Ok(json!({
                    "version": gateway.version,
                    "mode": gateway.settings.mode.to_string(),
                    "uptime_ms": whole_milliseconds(gateway.uptime()),
                }))
            }
        },
    )
    .data_schema(data)
    .read_only()
    .builtin()
}

/// `server_health`: the state of every upstream, queued calls, counters, and what the gateway offers, as far as the caller
/// may use it.
pub(crate) fn server_health(gateway: Weak<Inner>) -> NativeTool {
    let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let data = json!({
        "type": "object",
        "properties": {
            "upstreams": {"type": "array", "items": {"type": "object"}},
            "queues": {"type": "array", "items": {"type": "object"}},
            "counters": {"type": "object"},
            "capabilities": {"type": "object"},
        },
        "required": ["upstreams", "counters", "capabilities"],
    });
    let description =
        "The health of the gateway's servers: state of each, calls in flight, counters, capabilities.";
    NativeTool::new("server_health", description, schema, move |_, context| {
        let gateway = gateway.upgrade();
        async move {
            let gateway = gateway.ok_or("the gateway is shutting down")?;
            Ok::<Value, _>(json!(gateway.status_for(&context.principal)))
        }
    })
    .data_schema(data)
    .read_only()
    .builtin()
}

fn whole_milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
