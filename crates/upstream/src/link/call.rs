//! One tool call made by a program: shared by the bridge and the provider.
//!
//! A program has no client of the gateway behind it. So the params are built here, and a server's questions go
//! unanswered. The gateway relays a client's params instead (`gateway/src/relay`).

use bridgehead_call::CorrelationId;
use bridgehead_schema::HeaderParameter;
use bridgehead_wire::{Code, Era, Method, Object, Raw, RpcError, key};
use serde_json::{Value, json};

use super::{Exchange, LinkError, Mirror, modern_params};

/// The call that a program makes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolCall<'a> {
    /// The tool's name at the server.
    pub(crate) name: &'a str,
    pub(crate) arguments: &'a Value,
    pub(crate) correlation: CorrelationId,
}

impl Exchange {
    /// Calls a tool and waits for its answer. `headers` are the arguments that are also sent as headers, if the
    /// server wants that.
    pub(crate) async fn call_tool(
        &mut self,
        era: Era,
        call: ToolCall<'_>,
        headers: &[HeaderParameter],
    ) -> Result<Result<Raw, RpcError>, LinkError> {
        let params = Raw::encode(&json!({
            "name": call.name,
            "arguments": call.arguments,
            key::META: {key::CORRELATION_ID: call.correlation.to_string()},
        }));
        let members = Object::parse(&params).unwrap_or_else(|_| Object::empty());
        let sent = match era {
            Era::Legacy => params.into(),
            Era::Modern => modern_params(&members),
        };
        let mirror = Mirror { name: Some(call.name), parameters: headers, params: Some(&members) };
        self.send_mirrored(&Method::ToolsCall, &sent, mirror).await;
        self.answer().await
    }
}

impl LinkError {
    /// The error code of a call that ends with this error.
    pub const fn code(&self) -> Code {
        match self {
            Self::Closed(_) | Self::Crashed(_) => Code::ProviderCrashed,
            Self::Refused { .. } => Code::ProviderUnavailable,
            Self::Unusable(_) | Self::TooLarge { .. } => Code::ProviderInvalidOutput,
        }
    }
}
