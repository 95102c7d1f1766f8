//! Tests of parked calls on a paused clock; the server is a future made here.

use futures_util::FutureExt;
use serde_json::{Value, json};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn subject() -> SealedFor {
    SealedFor::of("p", "tools/call", &Object::empty())
}

fn put(park: &Arc<Park>) -> BoxFuture<'static, Answer> {
    park.put(&Method::RootsList, &Raw::literal("{}").into(), PATIENCE)
}

fn done() -> Outcome {
    Ok(Raw::literal(r#"{"done":true}"#).into())
}

/// A call that asks once and then continues as `then`.
async fn begin<F: Future<Output = Outcome> + Send + 'static>(
    parks: &Arc<Parks>,
    then: impl FnOnce(Arc<Park>) -> F + Send + 'static,
) -> Result<Value, RpcError> {
    begin_as(parks, &Principal::local(), then).await
}

async fn begin_as<F: Future<Output = Outcome> + Send + 'static>(
    parks: &Arc<Parks>,
    principal: &Principal,
    then: impl FnOnce(Arc<Park>) -> F + Send + 'static,
) -> Result<Value, RpcError> {
    let park = Arc::new(Park::new(Abilities::NONE, CorrelationId::mint(), principal, None));
    let work = {
        let park = Arc::clone(&park);
        async move {
            put(&park).await?;
            then(park).await
        }
    };
    let outcome = parks.begin(park, work.boxed(), subject, &Raw::literal("{}")).await;
    outcome.map(|result| result.to_raw().decode().unwrap())
}

/// Comes back with an answer to the first question.
async fn resume(parks: &Arc<Parks>, asked: &Value) -> Result<Value, RpcError> {
    resume_as(parks, &Principal::local(), asked).await
}

async fn resume_as(parks: &Arc<Parks>, principal: &Principal, asked: &Value) -> Result<Value, RpcError> {
    let responses = Some(Raw::literal(r#"{"q1":{"roots":[]}}"#));
    let state = asked["requestState"].as_str().unwrap();
    let outcome =
        parks.resume(state, (principal, &subject()), responses, None, &Raw::literal("{}")).await.unwrap();
    outcome.map(|result| result.to_raw().decode().unwrap())
}

#[track_caller]
fn asks(outcome: &Value, keys: &[&str]) {
    let asked: Vec<&String> = outcome["inputRequests"].as_object().unwrap().keys().collect();
    assert_eq!(asked, keys, "{outcome}");
}

/// ERA-1: a question that the server withdraws at once is not asked; the client gets the outcome, or the next
/// question.
#[tokio::test(start_paused = true)]
async fn what_is_taken_back_in_a_later_round_is_not_asked() {
    let parks = Arc::<Parks>::default();
    let asked = begin(&parks, |park| async move {
        let taken_back = put(&park);
        sleep(TOGETHER / 2).await;
        drop(taken_back);
        sleep(TOGETHER * 4).await;
        done()
    });
    let asked = asked.await.unwrap();
    asks(&asked, &["q1"]);
    assert_eq!(resume(&parks, &asked).await.unwrap(), json!({"done": true}));
    assert_eq!(parks.count(), 0);

    let asked = begin(&parks, |park| async move {
        let taken_back = put(&park);
        sleep(TOGETHER / 2).await;
        drop(taken_back);
        sleep(TOGETHER * 4).await;
        put(&park).await?;
        done()
    });
    let asked = asked.await.unwrap();
    asks(&resume(&parks, &asked).await.unwrap(), &["q3"]);
}

/// BOUND-3: a parked call is charged to its principal from when it is parked until it is over, and no more are parked than fit.
#[tokio::test(start_paused = true)]
async fn a_parked_call_is_charged_to_its_principal() {
    let (parks, eve) = (Arc::<Parks>::default(), Principal::named("eve, who parks much"));
    let held = || Budget::process().of(eve.id()).held();
    let park = || begin_as(&parks, &eve, |_| async { done() });
    let asked = park().await.unwrap();
    let one = held();
    assert!((PARKED..PARKED + 100).contains(&one), "{one}");
    let room = Budget::process().of(eve.id()).reserve(64 * 1024 * 1024 - 2 * one).unwrap();
    park().await.unwrap();
    let refused = park().await.unwrap_err();
    assert!(refused.message().contains("hold too much memory"), "{}", refused.message());
    drop(room);
    assert_eq!(resume_as(&parks, &eve, &asked).await.unwrap(), json!({"done": true}));
    // Its task ends after its client has the outcome.
    sleep(TOGETHER).await;
    assert_eq!(held(), one);
    parks.close().await;
    assert_eq!(held(), 0);
}

/// ERA-2: a call that has ended asks nothing: its client gets the outcome, even if a question was never
/// withdrawn.
#[tokio::test(start_paused = true)]
async fn a_call_that_has_ended_asks_nothing() {
    let parks = Arc::<Parks>::default();
    let asked = begin(&parks, |park| async move {
        tokio::spawn(put(&park));
        sleep(TOGETHER / 2).await;
        done()
    });
    let asked = asked.await.unwrap();
    assert_eq!(resume(&parks, &asked).await.unwrap(), json!({"done": true}));
}

/// POOL-12: a gateway that starts again parks calls again, and parks none while it is closed.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_starts_again_parks_again() {
    let parks = Arc::<Parks>::default();
    let before = begin(&parks, |_| async { done() }).await.unwrap();
    parks.close().await;
    assert_eq!(parks.count(), 0);
    assert_eq!(resume(&parks, &before).await.unwrap_err().message(), not_valid().message());
    let refused = begin(&parks, |_| async { done() }).await.unwrap_err();
    assert!(refused.message().contains("too many calls"), "{refused:?}");
    parks.reopen();
    let asked = begin(&parks, |_| async { done() }).await.unwrap();
    assert_eq!(resume(&parks, &asked).await.unwrap(), json!({"done": true}));
    // A second close waits for the remaining calls, and for nothing else.
    begin(&parks, |_| async { done() }).await.unwrap();
    parks.close().await;
    assert_eq!(parks.count(), 0);
}

/// ERA-2: the number of parked calls is bounded.
#[tokio::test(start_paused = true)]
async fn parked_calls_are_bounded() {
    let parks = Arc::<Parks>::default();
    let other = Arc::new(Park::new(Abilities::NONE, CorrelationId::mint(), &Principal::local(), None));
    let id = |number: usize| (number as u128).to_le_bytes();
    parks.table.lock().parked.extend((1..MOST).map(|number| (id(number), Arc::clone(&other))));
    begin(&parks, |_| async { done() }).await.unwrap();
    assert_eq!(parks.count(), MOST);
    assert!(begin(&parks, |_| async { done() }).await.is_err());
    parks.table.lock().parked.remove(&id(1));
    begin(&parks, |_| async { done() }).await.unwrap();
}

/// ERA-2: a client may come back within its server's patience plus the grace period; then its call is over.
#[tokio::test(start_paused = true)]
async fn a_client_has_its_time_to_come_back() {
    #[track_caller]
    fn is_over(outcome: Result<Value, RpcError>, expected: bool) {
        match outcome {
            Ok(result) => assert_eq!((result, expected), (json!({"done": true}), false)),
            Err(error) => assert_eq!((error.message(), expected), (not_valid().message(), true)),
        }
    }
    let (parks, moment) = (Arc::<Parks>::default(), Duration::from_millis(5));
    for (away, expected) in [(PATIENCE + GRACE - moment, false), (PATIENCE + GRACE + moment, true)] {
        let asked = begin(&parks, |_| async { done() }).await.unwrap();
        sleep(away).await;
        is_over(resume(&parks, &asked).await, expected);
        assert_eq!(parks.count(), 0, "{away:?}");
    }
}

/// ACC-2 (case 11): a parked call ends within a second when the credential of its absent client is revoked, and cannot be
/// resumed. A request that waits for the call meanwhile gets its outcome. Another credential of the same principal, shown by the
/// client when it came back, is the one that counts, and an expiry ends nothing.
#[tokio::test(start_paused = true)]
async fn a_revoked_credential_ends_its_parked_calls() {
    use tokio_util::sync::CancellationToken;
    let parks = Arc::<Parks>::default();
    let (first, second) = (CancellationToken::new(), CancellationToken::new());
    let by = |revoked: &CancellationToken| {
        Principal::named("ada").valid(Validity::new(Some(revoked.clone()), Some(Instant::now())))
    };
    let (principal, newer) = (by(&first), by(&second));
    let away = begin_as(&parks, &principal, |_| async { done() }).await.unwrap();
    let back = begin_as(&parks, &principal, |park| async move {
        put(&park).await?;
        done()
    });
    let back = back.await.unwrap();
    let renewed = resume_as(&parks, &newer, &back).await.unwrap();
    let waiting = begin_as(&parks, &principal, |_| async {
        sleep(PATIENCE / 2).await;
        done()
    });
    let waiting = waiting.await.unwrap();
    sleep(PATIENCE / 4).await;
    assert_eq!(parks.count(), 3, "all expired, and none ended");
    let revoking = async {
        sleep(PATIENCE / 8).await;
        first.cancel();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(parks.count(), 2);
    };
    let (waited, ()) = tokio::join!(resume_as(&parks, &principal, &waiting), revoking);
    assert_eq!(waited.unwrap(), json!({"done": true}), "a call whose client waits is a running one");
    assert_eq!(resume_as(&parks, &newer, &away).await.unwrap_err(), not_valid());
    assert_eq!(parks.count(), 1, "the one with the good credential");
    second.cancel();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(parks.count(), 0);
    assert_eq!(resume_as(&parks, &newer, &renewed).await.unwrap_err(), not_valid());
}
