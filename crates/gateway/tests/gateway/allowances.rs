//! How much a principal may do: the gate asks the limiter about each request before anything else happens to it.

use std::sync::Arc;

use bridgehead_gateway::{Allowance, GatewayError, Limited, Limiter, Principal};
use bridgehead_testkit::{Behaviour, Mock};
use bridgehead_wire::{Code, Revision};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::{Fixture, until};

/// Lets one request run at a time.
struct OneAtOnce {
    places: Arc<Semaphore>,
    seen: Mutex<Vec<String>>,
}

impl Limiter for OneAtOnce {
    fn admit(&self, principal: &Principal, request: Limited<'_>) -> Result<Allowance, GatewayError> {
        let Limited { method, server, name } = request;
        self.seen.lock().push(format!("{principal} {method} {} {name}", server.unwrap_or("-")));
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => Ok(Some(Box::new(place))),
            Err(_) => {
                Err(GatewayError::new(Code::ProviderUnavailable, "that is one too many; wait a second"))
            }
        }
    }
}

/// GATE-1, GATE-3: the gate asks the limiter about every request, with who asks for what. A request over the limit is
/// refused before it runs and recorded like any other refusal. A request gives back what it took when it ends.
#[tokio::test]
async fn a_request_takes_from_what_its_principal_may_do() {
    let limiter = Arc::new(OneAtOnce { places: Arc::new(Semaphore::new(1)), seen: Mutex::default() });
    let mock = Mock::legacy()
        .capabilities(r#"{"tools":{},"prompts":{}}"#)
        .tool("hang", Behaviour::HangUntilCancelled)
        .tool("say", Behaviour::Text("said".to_owned()))
        .replies("prompts/list", r#"{"prompts":[{"name":"plan"}]}"#)
        .replies("prompts/get", r#"{"messages":[]}"#);
    let used: Arc<dyn Limiter> = Arc::clone(&limiter) as _;
    let fixture = Fixture::start(&[("m", mock)], |options| options.limiter = Some(used));
    fixture.gateway.settled().await;
    let legacy = Revision::V2025_11_25;

    let running = {
        let hanging = fixture.call("hang", json!({}));
        tokio::pin!(hanging);
        tokio::select! {
            outcome = &mut hanging => panic!("it hangs: {outcome:?}"),
            () = until(|| fixture.recorder.enters().len() == 1) => {}
        }
        let refused = fixture.call("say", json!({})).await.unwrap_err();
        assert_eq!(refused["data"]["code"], "PROVIDER_UNAVAILABLE");
        assert_eq!(refused["message"], "that is one too many; wait a second");
        limiter.places.available_permits()
    };
    assert_eq!(
        (running, limiter.places.available_permits()),
        (0, 1),
        "a cancelled call gives back what it took"
    );

    assert_eq!(fixture.call("say", json!({})).await.unwrap()["content"][0]["text"], "said");
    fixture.ask(legacy, "prompts/get", json!({"name": "plan"})).await.unwrap();
    fixture.ask(legacy, "tools/list", json!({})).await.unwrap();
    let seen = limiter.seen.lock().clone();
    let expected =
        ["tools/call m hang", "tools/call m say", "tools/call m say", "prompts/get m plan", "tools/list - "];
    assert_eq!(seen, expected.map(|request| format!("{} {request}", Principal::local())));
    let validated: Vec<bool> =
        fixture.recorder.enters().iter().map(bridgehead_call::Enter::validated).collect();
    assert_eq!(validated, [true, false, true, true]);
    fixture.end().await;
}
