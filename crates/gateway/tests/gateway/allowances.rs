//! How much a principal may do: the gate asks the limiter about each request before anything else happens to it.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::{AuditError, AuditSink, Enter, EnterFuture, Exit, Ticket};
use bridgehead_config::Queue;
use bridgehead_gateway::{
    Account, Allowance, Charge, Correction, GatewayError, Limited, Limiter, NativeTool, Principal,
};
use bridgehead_testkit::{Behaviour, Mock, Recorder, Tool};
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
        let Limited { method, server, name, own_name, .. } = request;
        let (server, own) = (server.unwrap_or("-"), own_name.unwrap_or("-"));
        self.seen.lock().push(format!("{principal} {method} {server} {name} {own}"));
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => Ok(Allowance::holding(place)),
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
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.limiter = Some(used);
        options.servers[0].cancel_grace = Some(Duration::from_millis(50));
    });
    fixture.settled().await;
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
    assert_eq!(running, 0);
    // A cancelled call gives back what it took when its server is done with it.
    until(|| limiter.places.available_permits() == 1).await;

    assert_eq!(fixture.call("say", json!({})).await.unwrap()["content"][0]["text"], "said");
    fixture.ask(legacy, "prompts/get", json!({"name": "plan"})).await.unwrap();
    fixture.ask(legacy, "tools/list", json!({})).await.unwrap();
    let seen = limiter.seen.lock().clone();
    let expected = [
        "tools/call m hang hang",
        "tools/call m say say",
        "tools/call m say say",
        "prompts/get m plan plan",
        "tools/list -  -",
    ];
    assert_eq!(seen, expected.map(|request| format!("{} {request}", Principal::local())));
    let validated: Vec<bool> = fixture.recorder.enters().iter().map(Enter::validated).collect();
    assert_eq!(validated, [true, false, true, true]);
    fixture.end().await;
}

/// Charges 2 for each call, and keeps how each was settled: what was taken besides, or given back.
#[derive(Default)]
struct Charges(Mutex<Vec<Option<i64>>>);

impl Account for Charges {
    fn settle(&self, marks: Option<&[u64]>, correction: Option<Correction<'_>>) {
        assert_eq!(marks, Some(&[9][..]));
        let taken = correction.map(|correction| correction.charge.cost.cast_signed() * correction.times);
        self.0.lock().push(taken);
    }
}

struct Charging(Arc<Charges>);

impl Limiter for Charging {
    fn admit(&self, _principal: &Principal, _request: Limited<'_>) -> Result<Allowance, GatewayError> {
        let charge = Charge { cost: 2, budgets: "a b".into(), day: 1 };
        Ok(Allowance::taken(Arc::clone(&self.0) as _, Some([9].into()), Some(charge)))
    }
}

/// ACC-5: what a call costs is in its enter event. A call that no server got gets it back, and its exit says so; one that
/// was refused by its server, failed, panicked or was cancelled after it was sent does not.
#[tokio::test]
async fn only_a_call_that_did_not_run_gets_back_what_it_cost() {
    let account = Arc::new(Charges::default());
    let limiter: Arc<dyn Limiter> = Arc::new(Charging(Arc::clone(&account)));
    let schema = r#"{"type":"object","properties":{"n":{"type":"integer"}}}"#;
    let mock = Mock::legacy()
        .tool("hang", Behaviour::HangUntilCancelled)
        .tool("liar", Behaviour::error(-32022, "I speak no such version"))
        .full_tool(Tool::new("say", Behaviour::Text("said".to_owned())).input_schema(schema));
    let panics =
        NativeTool::new("panics", "", json!({"type": "object"}), |_, _| async { panic!("in a tool") });
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.limiter = Some(limiter);
        options.tools.push(panics);
        let queue = Queue { name: None, concurrency: 1, max_waiting: 0 };
        options.servers[0].queue = queue;
        options.servers[0].cancel_grace = Some(Duration::ZERO);
    });
    fixture.settled().await;
    let last = || {
        let (enters, exits) = (fixture.recorder.enters(), fixture.recorder.exits());
        let about = &enters.last().unwrap().call().about;
        (
            about.cost,
            about.budgets.clone(),
            exits.last().unwrap().refunded(),
            account.0.lock().last().copied(),
        )
    };
    let spent = |refunded| (Some(2), Some(Arc::<str>::from("a b")), refunded);
    let expect = |(cost, budgets, refunded): (_, _, bool), settled: Option<i64>| {
        assert_eq!(last(), (cost, budgets, refunded, Some(settled)));
    };

    fixture.call("say", json!({})).await.unwrap();
    expect(spent(false), None);
    fixture.call("say", json!({"n": "no number"})).await.unwrap();
    expect((None, None, false), Some(-2));
    fixture.call("unknown", json!({})).await.unwrap_err();
    expect((None, None, false), Some(-2));
    fixture.call("panics", json!({})).await.unwrap();
    expect(spent(false), None);
    // A server that got the call may have run it, whatever it answers.
    let refused = fixture.call("liar", json!({})).await.unwrap_err();
    assert_eq!(refused["data"]["mayHaveRun"], false, "{refused}");
    expect(spent(false), None);
    {
        let hanging = fixture.call("hang", json!({}));
        tokio::pin!(hanging);
        tokio::select! {
            outcome = &mut hanging => panic!("it hangs: {outcome:?}"),
            () = until(|| fixture.recorder.enters().len() == 6) => {}
        }
        let refused = fixture.call("say", json!({})).await.unwrap_err();
        assert_eq!(refused["data"]["mayHaveRun"], false, "{refused}");
        expect(spent(true), Some(-2));
    }
    until(|| fixture.recorder.exits().len() == 7).await;
    expect(spent(false), None);
    fixture.recorder.fail_enter(true);
    fixture.call("say", json!({})).await.unwrap_err();
    assert_eq!(account.0.lock().last(), Some(&Some(-2)), "a call that could not be recorded did not run");
    assert_eq!(account.0.lock().len(), 8, "each is settled once");
    fixture.end_unpaired().await;
}

/// A record whose enters wait until the test lets them through.
struct SlowRecord {
    kept: Recorder,
    enters: Arc<Semaphore>,
    asked: Arc<Semaphore>,
}

impl AuditSink for SlowRecord {
    fn enter(&self, event: &Enter) -> EnterFuture {
        let (entering, enters) = (self.kept.enter(event), Arc::clone(&self.enters));
        self.asked.add_permits(1);
        Box::pin(async move {
            enters.acquire().await.unwrap().forget();
            entering.await
        })
    }

    fn exit(&self, ticket: Option<Ticket>, event: Exit) -> Result<(), AuditError> {
        self.kept.exit(ticket, event)
    }
}

/// ACC-5: a call that is cancelled while its enter is being recorded did not run; its record says that it cost nothing.
#[tokio::test]
async fn a_call_that_is_cancelled_while_it_is_recorded_costs_nothing() {
    let account = Arc::new(Charges::default());
    let limiter: Arc<dyn Limiter> = Arc::new(Charging(Arc::clone(&account)));
    let (kept, enters, asked) = (Recorder::new(), Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let record = SlowRecord { kept: kept.clone(), enters: Arc::clone(&enters), asked: Arc::clone(&asked) };
    let mock = Mock::legacy().tool("say", Behaviour::Text("said".to_owned()));
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.limiter = Some(limiter);
        options.audit = Arc::new(record);
    });
    fixture.settled().await;
    {
        let calling = fixture.call("say", json!({}));
        tokio::pin!(calling);
        tokio::select! {
            outcome = &mut calling => panic!("it is being recorded: {outcome:?}"),
            asked = asked.acquire() => asked.unwrap().forget(),
        }
    }
    assert_eq!(*account.0.lock(), [Some(-2)]);
    enters.add_permits(1);
    until(|| kept.exits().len() == 1).await;
    assert_eq!((kept.enters()[0].call().about.cost, kept.exits()[0].refunded()), (Some(2), true));
    fixture.end_unpaired().await;
}
