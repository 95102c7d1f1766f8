//! The requests made to the gateway through rmcp, and the answers it must give.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use rmcp::handler::client::progress::ProgressDispatcher;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, ProgressNotificationParam,
    ProtocolVersion, ServerResult, SubscriptionFilter,
};
use rmcp::service::{
    NotificationContext, PeerRequestOptions, RequestHandle, RoleClient, RunningService, ServiceError,
};
use rmcp::{ClientHandler, ErrorData};
use serde_json::{Value, json};

/// The tools that every mock behind the gateway offers.
const TOOLS: [&str; 7] = ["echo", "slow", "hang", "fail", "refuse", "cancelled", "grow"];
const POLL: Duration = Duration::from_millis(20);

/// A client that stores its notifications for the checks that wait for them.
#[derive(Default)]
pub(crate) struct Listener {
    reports: ProgressDispatcher,
    changes: AtomicUsize,
}

impl ClientHandler for Listener {
    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    async fn on_progress(
        &self,
        report: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.reports.handle_notification(report).await;
    }
}

/// A client and its connection to the gateway.
pub(crate) type Connection = RunningService<RoleClient, Listener>;

/// The checks of one server behind the gateway.
pub(crate) struct Checks<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) upstream: &'static str,
}

/// Every tool of every server is listed, in order, with its schema.
pub(crate) async fn list(connection: &Connection, upstreams: &[&str]) -> Result<((), String)> {
    let tools = connection.list_all_tools().await?;
    let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).filter(|name| name.contains("__")).collect();
    let expected: Vec<String> = upstreams
        .iter()
        .flat_map(|upstream| TOOLS.iter().map(move |tool| format!("{upstream}__{tool}")))
        .collect();
    ensure!(names == expected, "listed: {names:?}");
    let echo = tools.iter().find(|tool| tool.name == "new__echo").context("no tool new__echo")?;
    ensure!(echo.input_schema.get("required") == Some(&json!(["text"])), "{:?}", echo.input_schema);
    Ok(((), format!("{} tools", tools.len())))
}

/// Every server has as many tools as it should; returns how many there are in all.
pub(crate) async fn count(connection: &Connection, servers: &BTreeMap<String, usize>) -> Result<usize> {
    let tools = connection.list_tools(None).await?.tools;
    for (server, expected) in servers {
        let own = tools.iter().filter(|tool| tool.name.starts_with(&format!("{server}__"))).count();
        ensure!(own == *expected, "{own} tools of {server} instead of {expected}");
    }
    Ok(tools.len())
}

/// The server that starts slowly answers a call.
pub(crate) async fn call_slow(connection: &Connection) -> Result<()> {
    let thought =
        json!({"thought": "slowly", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": false});
    let order = CallToolRequestParams::new("slow__sequentialthinking");
    let order = order.with_arguments(thought.as_object().cloned().unwrap_or_default());
    let result = connection.call_tool(order).await?;
    ensure!(result.is_error != Some(true), "{result:?}");
    Ok(())
}

impl Checks<'_> {
    fn order(&self, tool: &str, arguments: Value) -> CallToolRequestParams {
        let order = CallToolRequestParams::new(format!("{}__{tool}", self.upstream));
        match arguments {
            Value::Object(arguments) => order.with_arguments(arguments),
            _ => order,
        }
    }

    async fn call(&self, tool: &str, arguments: Value) -> Result<CallToolResult, ServiceError> {
        self.connection.call_tool(self.order(tool, arguments)).await
    }

    /// A call that can be cancelled and whose progress can be followed.
    async fn open(&self, tool: &str) -> Result<RequestHandle<RoleClient>, ServiceError> {
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(self.order(tool, json!({}))));
        self.connection.send_cancellable_request(request, PeerRequestOptions::no_options()).await
    }

    pub(crate) async fn echo(&self) -> Result<()> {
        let given = json!({"text": "Grüße, 世界 🦀", "nested": {"list": [1, 2.5, null, true], "empty": {}}});
        let result = self.call("echo", given.clone()).await?;
        ensure!(result.is_error != Some(true), "{result:?}");
        ensure!(serde_json::from_str::<Value>(text(&result)?)? == given, "{result:?}");
        ensure!(result.structured_content.as_ref() == Some(&given), "{result:?}");
        Ok(())
    }

    pub(crate) async fn parallel(&self) -> Result<()> {
        try_join_all((0..20).map(async |index| {
            let given = json!({"text": format!("call {index}")});
            let result = self.call("echo", given.clone()).await?;
            ensure!(result.structured_content == Some(given), "call {index} got {result:?}");
            Ok(())
        }))
        .await?;
        Ok(())
    }

    pub(crate) async fn progress(&self) -> Result<()> {
        let call = self.open("slow").await?;
        let mut reports = self.connection.service().reports.subscribe(call.progress_token.clone()).await;
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let report = reports.next().await.context("no more progress")?;
            seen.push((report.progress, report.total, report.message));
        }
        // rmcp handles each notification on a task of its own, so their order says nothing about the gateway.
        seen.sort_by(|one, other| one.0.total_cmp(&other.0));
        let expected: Vec<_> =
            (1..=3).map(|step| (f64::from(step), Some(3.0), Some(format!("step {step}")))).collect();
        ensure!(seen == expected, "{seen:?}");
        let ServerResult::CallToolResult(result) = call.await_response().await? else {
            bail!("the answer is not the result of a call");
        };
        ensure!(text(&result)? == "done", "{result:?}");
        Ok(())
    }

    pub(crate) async fn cancel(&self) -> Result<()> {
        let before = self.count_cancelled().await?;
        let call = self.open("hang").await?;
        let mut reports = self.connection.service().reports.subscribe(call.progress_token.clone()).await;
        reports.next().await.context("no progress")?;
        call.cancel(Some("enough".to_owned())).await?;
        while self.count_cancelled().await? != before + 1 {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn count_cancelled(&self) -> Result<usize> {
        let result = self.call("cancelled", json!({})).await?;
        let ids = result.structured_content.as_ref().and_then(|content| content["cancelled"].as_array());
        Ok(ids.with_context(|| format!("no list of cancelled calls: {result:?}"))?.len())
    }

    pub(crate) async fn tool_error(&self) -> Result<()> {
        let result = self.call("fail", json!({})).await?;
        ensure!(result.is_error == Some(true), "{result:?}");
        ensure!(text(&result)? == "the tool failed", "{result:?}");
        Ok(())
    }

    pub(crate) async fn server_error(&self) -> Result<()> {
        let error = refusal(self.call("refuse", json!({})).await)?;
        ensure!(error.code.0 == 1234, "{error:?}");
        ensure!(error.message.contains("not today"), "{error:?}");
        ensure!(error.data == Some(json!({"reason": "a rule of the server"})), "{error:?}");
        Ok(())
    }

    pub(crate) async fn wrong_arguments(&self) -> Result<()> {
        let result = self.call("echo", json!({"text": 7})).await?;
        ensure!(result.is_error == Some(true), "{result:?}");
        let envelope: Value = serde_json::from_str(text(&result)?)?;
        ensure!(envelope["error"]["code"] == "INVALID_PARAMS", "{envelope}");
        ensure!(envelope["error"]["details"]["issues"][0]["path"] == "/text", "{envelope}");
        Ok(())
    }

    pub(crate) async fn unknown_tool(&self) -> Result<()> {
        let error = refusal(self.call("nothing", json!({})).await)?;
        ensure!(error.code.0 == -32602, "{error:?}");
        ensure!(error.message.contains("nothing"), "{error:?}");
        Ok(())
    }

    pub(crate) async fn change(&self) -> Result<()> {
        let modern = self
            .connection
            .peer_info()
            .is_some_and(|info| info.protocol_version >= ProtocolVersion::V_2026_07_28);
        if modern {
            let filter = SubscriptionFilter::builder().tools_list_changed().build();
            let mut subscription = self.connection.listen(filter).await?;
            self.call("grow", json!({})).await?;
            subscription.next().await?.context("the subscription ended")?;
        } else {
            let changes = &self.connection.service().changes;
            let before = changes.load(Ordering::SeqCst);
            self.call("grow", json!({})).await?;
            while changes.load(Ordering::SeqCst) == before {
                tokio::time::sleep(POLL).await;
            }
        }
        let grown = format!("{}__grown", self.upstream);
        while !self.connection.list_all_tools().await?.iter().any(|tool| tool.name == grown) {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

fn text(result: &CallToolResult) -> Result<&str> {
    let first = result.content.first().and_then(|content| content.as_text());
    Ok(&first.with_context(|| format!("no text in {result:?}"))?.text)
}

fn refusal(outcome: Result<CallToolResult, ServiceError>) -> Result<ErrorData> {
    match outcome {
        Err(ServiceError::McpError(error)) => Ok(error),
        Err(other) => bail!("expected an error from the server, got {other}"),
        Ok(result) => bail!("expected an error, got {result:?}"),
    }
}
