//! A remote server whose calls run in relays of their own: supervised like any other, by the gateway and by a provider.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_events::{Bus, Delivery, Detail, Subscription, Topic};
use bridgehead_testkit::client::HttpClient;
use bridgehead_testkit::{Behaviour, Carrier, Mock, Served};
use bridgehead_upstream::provider::{
    Health, Invocation, McpProvider, ProviderAdapter, ProviderConfig, ProviderError,
};
use bridgehead_upstream::relay::use_relay;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, program, signal, signal_pid};

const CARRIERS: [(Carrier, &str); 3] =
    [(Carrier::Http, "http"), (Carrier::Sse, "sse"), (Carrier::WebSocket, "websocket")];
/// A result that a decoder and encoder would change, without what a gateway adds.
const RAW: &str = r#"{ "content":[ ] ,"n":1.0e1 }"#;

fn mock() -> Mock {
    Mock::legacy()
        .tool("echo", Behaviour::Echo)
        .tool("raw", Behaviour::RawResult(RAW.into()))
        .tool("hang", Behaviour::Hang)
}

async fn called(http: &HttpClient, tool: &str) -> Value {
    let arguments = if tool == "echo" { json!({"a": 1}) } else { json!({}) };
    http.post_modern("/mcp", "tools/call", json!({"name": tool, "arguments": arguments})).await.answer()
}

/// The server as `server_health` describes it, once it is in one of these states.
async fn until_in(http: &HttpClient, states: &[&str]) -> Value {
    let mut last = Value::Null;
    for _ in 0..3_000 {
        let health = called(http, "server_health").await;
        last = health["result"]["structuredContent"]["data"]["upstreams"][0].clone();
        assert!(last.is_object(), "{health}");
        if last["state"].as_str().is_some_and(|state| states.contains(&state)) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not {states:?} within a minute: {last:#}");
}

/// POOL-5, POOL-6, BOX-1: a server behind relays is supervised like a shared one. Its loss is noticed, the reason names
/// the server and not the relay, a call waits for its return, and its tools stay.
#[tokio::test]
async fn a_gateway_supervises_what_is_behind_a_relay() {
    for (carrier, kind) in CARRIERS {
        let place = Place::new();
        let mut served = mock().serve(carrier);
        let text = format!(
            "[servers.far]\nurl = \"{}\"\ntype = \"{kind}\"\nisolation = \"call\"\nprobe_interval_ms = 1000\n",
            served.url()
        );
        let file = place.file("far.toml", &text);
        let (mut gateway, address) = place.serve_http(&["--config", file.to_str().unwrap()], &[]).await;
        let http = HttpClient::new(address);
        until_in(&http, &["ready"]).await;
        let answer = called(&http, "echo").await;
        assert_eq!(answer["result"]["structuredContent"], json!({"a": 1}), "{kind}: {answer}");

        served.kill();
        let down = until_in(&http, &["restarting", "crash-looping"]).await;
        let reason = down["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("127.0.0.1") && !reason.contains("stderr"), "{kind}: {down:#}");
        let (answer, ()) = tokio::join!(called(&http, "echo"), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            served.restart();
        });
        assert_eq!(answer["result"]["structuredContent"], json!({"a": 1}), "{kind}: {answer}");
        let back = until_in(&http, &["ready"]).await;
        assert_eq!(back["tools"], 3, "{kind}: {back:#}");

        if carrier == Carrier::Http {
            // It runs, and answers nothing.
            signal_pid(served.pid(), Signal::STOP);
            until_in(&http, &["restarting", "crash-looping"]).await;
            signal_pid(served.pid(), Signal::CONT);
            until_in(&http, &["ready"]).await;
            let answer = called(&http, "echo").await;
            assert_eq!(answer["result"]["structuredContent"], json!({"a": 1}), "{kind}: {answer}");
        }

        signal(&gateway, Signal::TERM);
        assert_eq!(gateway.wait().await.code(), Some(0), "{kind}");
        let log = gateway.stderr();
        assert!(!log.contains("relayed") && log.contains("mcp:far"), "{kind}: {log}");
    }
}

/// A provider with its defaults, and its remote server.
struct Far {
    provider: McpProvider,
    served: Served,
    config: ProviderConfig,
    told: Subscription,
}

impl Far {
    async fn start(carrier: Carrier, mock: &Mock) -> Self {
        use_relay(program().to_owned());
        let served = mock.serve(carrier);
        let kind = match carrier {
            Carrier::Http => bridgehead::config::RemoteTransport::Http,
            Carrier::Sse => bridgehead::config::RemoteTransport::Sse,
            Carrier::WebSocket => bridgehead::config::RemoteTransport::WebSocket,
        };
        let remote = bridgehead::config::Remote::new(served.url().parse().unwrap());
        let endpoint =
            bridgehead::config::Launch::Remote(bridgehead::config::Remote { transport: kind, ..remote });
        let config = ProviderConfig::new("far".parse().unwrap(), endpoint)
            .reconnect_backoff(Duration::from_millis(50));
        let bus = Bus::new(Arc::new(bridgehead::SystemClock::default()));
        let told = bus.subscribe(1_024);
        let provider = McpProvider::new(bus);
        provider.init(config.clone()).await.unwrap();
        Self { provider, served, config, told }
    }

    async fn call(&self, tool: &str) -> Result<String, ProviderError> {
        let invocation = Invocation::new(format!("far__{tool}"), json!({"a": 1}));
        let correlation = bridgehead::CorrelationId::mint();
        let executed = self.provider.execute(&invocation, correlation).await?;
        Ok(executed.result.as_str().to_owned())
    }

    async fn until(&self, health: Health) {
        for _ in 0..6_000 {
            if self.provider.health() == health {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not {health:?} within a minute");
    }

    /// The topics of what happened since the last call, and the delays of the restarts among them.
    fn told(&mut self) -> (Vec<Topic>, Vec<u64>) {
        let (mut topics, mut delays) = (Vec::new(), Vec::new());
        while let Some(delivery) = self.told.try_next() {
            let Delivery::Event(event) = delivery else { panic!("events were missed") };
            topics.push(event.topic());
            if let Detail::Restart { delay_ms, .. } = event.detail() {
                delays.push(*delay_ms);
            }
        }
        (topics, delays)
    }
}

/// PROV-2, PROV-3, POOL-4, BOX-1: a provider with its defaults calls a remote server through relays. It is degraded while
/// the server is away, healthy when it is back, and unavailable after as many failed attempts as configured. Results are
/// what the server wrote.
#[tokio::test]
async fn a_provider_supervises_what_is_behind_a_relay() {
    for (carrier, kind) in CARRIERS {
        let mut far = Far::start(carrier, &mock()).await;
        assert_eq!(far.call("raw").await.unwrap(), RAW, "{kind}");
        far.told();

        far.served.kill();
        let lost = far.call("echo").await.unwrap_err();
        assert!(lost.retryable() && !lost.message.contains("relay"), "{kind}: {lost}");
        far.until(Health::Degraded).await;
        let refused = far.call("echo").await;
        far.served.restart();
        if let Err(refused) = refused {
            assert_eq!(refused.code.as_str(), "PROVIDER_UNAVAILABLE", "{kind}: {refused}");
            assert!(refused.retryable(), "{kind}: {refused}");
        }
        far.until(Health::Healthy).await;
        assert_eq!(far.call("raw").await.unwrap(), RAW, "{kind}");
        let (topics, _) = far.told();
        for topic in [Topic::Disconnected, Topic::Reconnected] {
            assert_eq!(topics.iter().filter(|other| **other == topic).count(), 1, "{kind}: {topics:?}");
        }

        far.provider.init(far.config.clone().max_retries(3)).await.unwrap();
        far.told();
        far.served.kill();
        let _ = far.call("echo").await;
        far.until(Health::Unavailable).await;
        let (topics, delays) = far.told();
        assert_eq!(delays.len(), 3, "{kind}: {topics:?}");
        assert!(delays.windows(2).all(|two| two[1] == 2 * two[0]), "{kind}: {delays:?}");
        assert!(topics.contains(&Topic::ReconnectExhausted), "{kind}: {topics:?}");
        assert_eq!(far.provider.tools().len(), 0, "{kind}");
        far.served.restart();
        far.provider.init(far.config.clone()).await.unwrap();
        assert_eq!(far.call("raw").await.unwrap(), RAW, "{kind}");
        far.provider.terminate().await;
    }
}

/// POOL-5: after a call that timed out in its relay the server itself is probed, not the relay.
#[tokio::test]
async fn a_call_that_times_out_in_its_relay_has_its_server_probed() {
    for (carrier, kind) in CARRIERS {
        let far = Far::start(carrier, &mock()).await;
        signal_pid(far.served.pid(), Signal::STOP);
        let hang = Invocation::new("far__hang", json!({})).timeout(Duration::from_millis(200));
        let late = far.provider.execute(&hang, bridgehead::CorrelationId::mint()).await.unwrap_err();
        assert_eq!(late.code.as_str(), "PROVIDER_TIMEOUT", "{kind}: {late}");
        // The next probe on schedule is due after half a minute.
        let noticed = tokio::time::timeout(Duration::from_secs(20), far.until(Health::Degraded)).await;
        signal_pid(far.served.pid(), Signal::CONT);
        assert!(noticed.is_ok(), "{kind}: the frozen server was not noticed within 20 s");
        far.until(Health::Healthy).await;
        far.provider.terminate().await;
    }
}
