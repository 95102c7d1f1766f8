//! Every tool of a server as an operation: its specification, and a function that runs it.
//!
//! The specifications are read from the server on every call of [`operations`], so they match its current list. A
//! result is an envelope whose data is cast to the tool's output schema. A result that the tool marks as an error
//! is still a result.

use std::sync::Arc;

use bridgehead_call::CorrelationId;
use bridgehead_schema::{Envelope, ResultOrigin};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{AttemptOptions, Bridge, BridgeError, Cause, call_tool, shown, timeout};
use crate::catalog::{ListError, Tool};
use crate::link::LinkError;

/// The specification of an operation.
#[derive(Debug, Clone, PartialEq)]
pub struct OperationSpec {
    /// The tool's name.
    pub name: String,
    /// The tool's description.
    pub description: Option<String>,
    /// The schema of its arguments.
    pub input_schema: Value,
    /// The schema of its data; `true` if the tool declares none.
    pub output_schema: Value,
}

/// A tool, ready to run. Clones are the same operation.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Its specification.
    pub spec: OperationSpec,
    bridge: Bridge,
    tool: Arc<Tool>,
    /// The server's name in results.
    server: Arc<str>,
}

/// All tools that the server behind `bridge` offers now, in its order. Operations made earlier do not change when
/// the list does: call this again.
///
/// # Errors
/// When the server cannot be reached or does not list its tools.
pub async fn operations(bridge: &Bridge) -> Result<Vec<Operation>, BridgeError> {
    let failed = |cause| BridgeError::new("listing the tools", 1, cause);
    let limit = timeout::resolve(&bridge.0.environment, bridge.0.options.timeout_ms)
        .map_err(|error| failed(Cause::Timing(error)))?;
    let client = bridge.live_client().await.map_err(failed)?;
    let listed = tokio::time::timeout(limit, client.list()).await;
    let tools = listed.map_err(|_| failed(Cause::Timeout(limit)))?.map_err(|error| {
        failed(match error {
            ListError::Link(error) => Cause::Link(error),
            ListError::Refused(_, error) => Cause::Rpc(error),
            ListError::Unusable(_, reason) => Cause::Link(LinkError::Unusable(reason.into())),
        })
    })?;
    let server: Arc<str> = client.server_name().unwrap_or_else(|| shown(bridge.url())).into();
    let operation = |tool: &Arc<Tool>| {
        let (bridge, tool) = (bridge.clone(), Arc::clone(tool));
        Operation { spec: OperationSpec::of(&tool), bridge, tool, server: Arc::clone(&server) }
    };
    Ok(tools.iter().map(operation).collect())
}

impl OperationSpec {
    fn of(tool: &Tool) -> Self {
        let schema = |name| tool.member(name).and_then(|schema| schema.decode().ok());
        Self {
            name: tool.name.clone(),
            description: tool.member("description").and_then(|text| text.to_text()),
            input_schema: schema("inputSchema").unwrap_or_else(|| json!({"type": "object"})),
            output_schema: tool.output_schema().map_or(Value::Bool(true), |schema| schema.schema().clone()),
        }
    }
}

impl Operation {
    /// Runs the tool.
    ///
    /// # Errors
    /// Only if there is no result: the server cannot be reached, was lost, took too long, or does not know the
    /// tool.
    pub async fn run(&self, arguments: &Value) -> Result<Envelope, BridgeError> {
        self.run_with(arguments, &AttemptOptions::default()).await
    }

    /// Runs the tool with these options.
    ///
    /// # Errors
    /// As [`Operation::run`].
    pub async fn run_with(
        &self,
        arguments: &Value,
        options: &AttemptOptions,
    ) -> Result<Envelope, BridgeError> {
        let correlation = options.correlation.unwrap_or_else(CorrelationId::mint);
        let options = options.clone().correlation(correlation);
        let began = Instant::now();
        let result = call_tool(&self.bridge, &self.spec.name, arguments, &options).await?;
        let result: Map<String, Value> = result.decode().map_err(|error| {
            let cause = LinkError::Unusable(format!("the result is not usable: {error}").into());
            let failed = BridgeError::new(format!("tool `{}`", self.spec.name), 1, Cause::Link(cause));
            BridgeError { may_have_run: true, ..failed }
        })?;
        let origin = ResultOrigin {
            server: self.server.to_string(),
            tool: self.spec.name.clone(),
            correlation_id: correlation.to_string(),
            latency: began.elapsed(),
        };
        Ok(self.tool.cast(Envelope::new(&result, origin), self.bridge.signals()))
    }
}
