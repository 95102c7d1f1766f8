//! What a call holds after its client has gone, and when a call makes way for others.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{Interactive, Queue, ServerConfig};
use bridgehead_gateway::{
    Allowance, Gateway, GatewayError, Limited, Limiter, NativeTool, Principal, ToolContext,
};
use bridgehead_testkit::{Behaviour, Mock};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::questions::{Client, EVERYTHING};
use crate::support::{Fixture, TRANSPORTS, everywhere, until};

/// Longer than any test may take: what is released before, was released by its server.
const NEVER: Duration = Duration::from_secs(3_600);

fn queue(gateway: &Gateway, at: usize) -> (u64, u64, u64) {
    let queue = &gateway.health()["upstreams"][at]["queue"];
    let count = |key: &str| queue[key].as_u64().unwrap();
    (count("running"), count("waiting"), count("held"))
}

fn of(principal: &str) -> Client {
    Client::new("{}").of_principal(principal)
}

fn lock(server: &mut ServerConfig, tool: &str) {
    server.tools.entry(tool.to_owned()).or_default().lock = Some(true);
}

/// Lets one request run at a time.
struct OneAtOnce(Arc<Semaphore>);

impl Limiter for OneAtOnce {
    fn admit(&self, principal: &Principal, _request: Limited<'_>) -> Result<Allowance, GatewayError> {
        let place = (principal.as_str() == "eve").then(|| Arc::clone(&self.0).try_acquire_owned().ok());
        Ok(place.flatten().map_or(Allowance::free(), Allowance::holding))
    }
}

/// PIPE-2: a client that hangs up frees neither the lock, nor the place in the queue, nor what a limit counts, while its server
/// still works on the call; the answer to the cancelled request frees them all.
#[tokio::test]
async fn the_answer_of_a_cancelled_call_frees_its_places() {
    let limiter = Arc::new(Semaphore::new(1));
    let used: Arc<dyn Limiter> = Arc::new(OneAtOnce(Arc::clone(&limiter)));
    let mock = Mock::legacy().tool("slow", Behaviour::Echo.after(700)).tool("other", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        let server = &mut options.servers[0];
        server.queue = Queue { concurrency: 2, ..Queue::default() };
        server.cancel_grace = Some(NEVER);
        lock(server, "slow");
        options.limiter = Some(used);
    });
    let gateway = &fixture.gateway;
    gateway.settled().await;
    let gone = of("eve").call(gateway, "slow");
    until(|| queue(gateway, 0) == (1, 0, 0)).await;
    gone.abort();
    until(|| queue(gateway, 0) == (1, 0, 1)).await;
    assert_eq!(limiter.available_permits(), 0, "what the limit counts");
    let waiting = of("ada").call(gateway, "slow");
    until(|| fixture.recorder.enters().len() == 1).await;
    assert!(of("ada").call(gateway, "other").await.unwrap().is_ok(), "what is not locked goes on");
    assert_eq!(queue(gateway, 0), (1, 0, 1), "the call waits for the lock");
    assert!(waiting.await.unwrap().is_ok());
    assert_eq!((queue(gateway, 0), limiter.available_permits()), ((0, 0, 0), 1));
    fixture.end().await;
}

/// PIPE-2: on every transport, the places of a cancelled call are held for `cancel_grace_ms` if its server says nothing; a closed
/// response is no end. A server that ends has ended its calls.
#[tokio::test]
async fn a_server_that_says_nothing_holds_them_for_the_grace() {
    let mock = || Mock::legacy().tool("hang", Behaviour::HangUntilCancelled).tool("fast", Behaviour::Echo);
    let (fixture, served) = everywhere(mock, |server| {
        server.queue = Queue { concurrency: 1, ..Queue::default() };
        server.cancel_grace =
            Some(if server.name.as_ref() == "ws" { Duration::from_millis(100) } else { NEVER });
    })
    .await;
    let gateway = &fixture.gateway;
    for (at, name) in TRANSPORTS.iter().enumerate() {
        let gone = of("eve").call(gateway, &format!("{name}__hang"));
        until(|| queue(gateway, at).0 == 1).await;
        // Over HTTP the request leaves when its answer is first waited for.
        until(|| gateway.upstreams()[at].in_flight() == 1).await;
        gone.abort();
        let _ = gone.await;
        if *name != "ws" {
            assert_eq!(queue(gateway, at), (1, 0, 1), "{name}");
        }
        assert_eq!(gateway.upstreams()[at].in_flight(), 0, "{name}: nobody waits for it");
    }
    until(|| queue(gateway, 3) == (0, 0, 0)).await;
    let waiting = of("ada").call(gateway, "stdio__fast");
    until(|| queue(gateway, 0) == (1, 1, 1)).await;
    assert!(gateway.upstreams()[0].restart());
    assert!(waiting.await.unwrap().is_ok(), "the process has ended, and the call with it");
    drop(served);
    fixture.end().await;
}

/// PIPE-2: many calls that hang up do not run more often at once than the queue allows, and a free place goes first to who has
/// not hung up.
#[tokio::test]
async fn hanging_up_runs_nothing_more_at_once() {
    let mock = Mock::legacy().tool("hang", Behaviour::HangUntilCancelled).tool("fast", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0].queue = Queue { concurrency: 2, ..Queue::default() };
        options.servers[0].cancel_grace = Some(Duration::from_secs(2));
    });
    let gateway = &fixture.gateway;
    gateway.settled().await;
    let eve = of("eve");
    for _ in 0..6 {
        let gone = eve.call(gateway, "hang");
        until(|| fixture.recorder.enters().len() > fixture.recorder.exits().len()).await;
        until(|| queue(gateway, 0).0 == 2 || gateway.upstreams()[0].in_flight() == 1).await;
        gone.abort();
        let _ = gone.await;
        until(|| fixture.recorder.enters().len() == fixture.recorder.exits().len()).await;
        assert!(queue(gateway, 0).0 <= 2);
    }
    assert_eq!(queue(gateway, 0), (2, 0, 2), "the first two hold what there is");
    let again = eve.call(gateway, "fast");
    until(|| queue(gateway, 0).1 == 1).await;
    assert!(of("ada").call(gateway, "fast").await.unwrap().is_ok());
    assert!(again.await.unwrap().is_ok());
    fixture.end().await;
}

fn asking() -> Mock {
    let form = json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {}}});
    Mock::legacy().tool("form", Behaviour::ask("elicitation/create", form)).tool("fast", Behaviour::Echo)
}

#[track_caller]
fn made_way(error: &Value) {
    let data = &error["data"];
    assert_eq!(
        (&data["code"], &data["retryable"], &data["mayHaveRun"]),
        (&json!("PROVIDER_UNAVAILABLE"), &json!(true), &json!(true)),
        "{error}"
    );
    assert!(error["message"].as_str().unwrap().contains("made way"), "{error}");
}

/// WIRE-5: a caller that answers no questions does not keep all leases: when another principal waits, its newest call makes way
/// at once, is cancelled at its server and may be tried again. Its own further calls do not evict.
#[tokio::test]
async fn who_holds_all_leases_makes_way() {
    let fixture = Fixture::start(&[("m", asking())], |options| {
        options.servers[0].interactive = Interactive::Exclusive;
        options.servers[0].max_leases = 3;
    });
    let gateway = &fixture.gateway;
    gateway.settled().await;
    let mut clients: Vec<Client> = (0..3).map(|_| Client::new(EVERYTHING).of_principal("eve")).collect();
    let mut calls = Vec::new();
    for client in &mut clients {
        calls.push(client.call(gateway, "form"));
        assert_eq!(client.next().await["method"], "elicitation/create");
    }
    let more = Client::new(EVERYTHING).of_principal("eve");
    let more = more.call(gateway, "fast");
    until(|| fixture.recorder.enters().len() == 4).await;
    assert!(calls.iter().all(|call| !call.is_finished()), "nobody else waits");
    more.abort();
    let _ = more.await;
    let ada = Client::new(EVERYTHING).of_principal("ada");
    assert!(ada.call(gateway, "fast").await.unwrap().is_ok());
    made_way(&calls.pop().unwrap().await.unwrap().unwrap_err());
    assert!(calls.iter().all(|call| !call.is_finished()), "two of three are left");
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    fixture.end().await;
}

/// WIRE-5: a locked tool whose call waits for its client makes way for a call of another principal after a while, whether it
/// runs on a server or in this process.
#[tokio::test]
async fn who_holds_a_lock_makes_way() {
    let native =
        NativeTool::new("own", "", json!({"type": "object"}), |_: Value, cx: ToolContext| async move {
            let form = json!({"type": "object", "properties": {}});
            let _ = cx.elicit_form("who?", form).await;
            Ok(json!("done"))
        });
    let fixture = Fixture::start(&[("m", asking())], |options| {
        lock(&mut options.servers[0], "form");
        options.tools = vec![native];
    });
    let gateway = &fixture.gateway;
    gateway.settled().await;
    for tool in ["form", "own"] {
        let [mut eve, mut ada] = ["eve", "ada"].map(|name| Client::new(EVERYTHING).of_principal(name));
        let held = eve.call(gateway, tool);
        assert_eq!(eve.next().await["method"], "elicitation/create");
        let next = ada.call(gateway, tool);
        let asked = ada.next().await;
        assert_eq!(asked["method"], "elicitation/create");
        made_way(&held.await.unwrap().unwrap_err());
        ada.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
        assert!(next.await.unwrap().is_ok());
    }
    fixture.end().await;
}
