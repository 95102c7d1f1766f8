//! Calls that stay open while their clients are away.
//!
//! A legacy server asks in the middle of a call and waits; a modern client is asked through the result of its
//! request and comes back with another request. In between the call is parked here: it continues as a task,
//! with everything it holds, and is never sent a second time. The client carries a sealed state that names
//! the call and the round. The state opens only for the same principal and the same request, and each round
//! is resumed once.
//!
//! What the server does meanwhile is not lost: withdrawn questions are not asked, and the outcome of the call
//! is kept for the client. If the client does not come back in time, its questions are answered with
//! "cancelled", and then its call is cancelled. So it is if the client's credential is revoked while it is away.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_wire::held::{Budget, Reservation};
use bridgehead_wire::{Abilities, Method, Object, Raw, RpcError, ServerMethod, Spliced, code, key};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::access::{Principal, Validity};
use crate::caller::ProgressSink;
use crate::dialogue::questioner::{Answer, unreachable_client};
use crate::dialogue::seal::{Seal, SealedFor};

/// How long to wait for further questions of a server, so that the client is asked all of them together.
const TOGETHER: Duration = Duration::from_millis(25);
/// The time a server has to end its call after it was told that the client did not come back.
const GRACE: Duration = Duration::from_secs(2);
/// How many calls may be parked at once.
const MOST: usize = 16_384;
/// What a parked call costs, besides its questions.
const PARKED: usize = 16 * 1024;

/// How a request ended.
pub(crate) type Outcome = Result<Spliced, RpcError>;

/// The parked calls of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Parks {
    seal: Seal,
    table: Mutex<Table>,
    tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct Table {
    parked: HashMap<[u8; 16], Arc<Park>>,
    closed: bool,
}

/// One call whose client can be asked.
#[derive(Debug)]
pub(crate) struct Park {
    id: [u8; 16],
    /// Whose account its memory is on while it is parked.
    principal: Arc<str>,
    abilities: Abilities,
    correlation: CorrelationId,
    state: Mutex<ParkState>,
    /// Wakes the request that waits for a question or the outcome.
    news: Notify,
    /// Wakes the call's task when its deadline has changed.
    moved: Notify,
}

#[derive(Debug)]
struct ParkState {
    round: u32,
    last_key: u64,
    /// How long the client has to come back: the limit of the server that asks.
    patience: Duration,
    open: Vec<Question>,
    outcome: Option<Outcome>,
    /// Where progress and log lines go; `None` while the client is away.
    way: Option<ParkWay>,
    /// How long the credential is good that the client showed last. Its expiry does not count: a client may come back with
    /// the next token.
    validity: Validity,
    /// The time by which the client must come back; `None` while one of its requests waits here.
    deadline: Option<Instant>,
    /// Whether it is too late for the client to come back.
    over: bool,
    task: Option<AbortHandle>,
    /// The memory of the call, from when it is parked.
    held: Option<Reservation>,
}

/// The way to the request that currently waits for a parked call.
#[derive(Debug, Clone)]
pub(crate) struct ParkWay {
    pub(crate) sink: ProgressSink,
    /// The progress token of the request, if it wants progress.
    pub(crate) token: Option<Raw>,
}

#[derive(Debug)]
struct Question {
    key: String,
    method: Method,
    params: Raw,
    /// Whether the client has been asked in the current round.
    shown: bool,
    answer: oneshot::Sender<Answer>,
}

impl Parks {
    /// Answers the first request of a call. `work` is the whole call, which asks its client through `park`.
    /// Until it asks something it runs here and is cancelled with the request.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        park: Arc<Park>,
        mut work: BoxFuture<'static, Outcome>,
        subject: impl Fn() -> SealedFor,
        server_info: &Raw,
    ) -> Outcome {
        loop {
            tokio::select! {
                biased;
                outcome = &mut work => return outcome,
                () = park.asks() => {}
            }
            tokio::select! {
                biased;
                outcome = &mut work => return outcome,
                () = sleep(TOGETHER) => {}
            }
            // The server may have withdrawn the question meanwhile.
            if park.is_asking() {
                break;
            }
        }
        // On the account of whoever left it here.
        let Ok(held) = Budget::process().of(&park.principal).reserve(PARKED + park.asked_bytes()) else {
            let reason =
                "your calls that wait for you to come back hold too much memory; answer some of them first";
            return Err(RpcError::new(code::INTERNAL_ERROR, reason));
        };
        {
            let mut table = self.table.lock();
            if table.closed || table.parked.len() >= MOST {
                // Dropping the work cancels the call.
                let reason = "too many calls wait for their clients to come back; try again later";
                return Err(RpcError::new(code::INTERNAL_ERROR, reason));
            }
            table.parked.insert(park.id, Arc::clone(&park));
            park.state.lock().held = Some(held);
            park.state.lock().expect_client();
            let task = self.tasks.spawn(Arc::clone(self).keep(Arc::clone(&park), work));
            park.state.lock().task = Some(task.abort_handle());
        }
        debug!(correlationId = %park.correlation, "the call is parked until its client comes back");
        self.ask(&park, &subject(), server_info)
    }

    /// Runs a parked call, and keeps its outcome as long as the client may come back.
    async fn keep(self: Arc<Self>, park: Arc<Park>, mut work: BoxFuture<'static, Outcome>) {
        let _end = End { parks: &self, park: &park };
        let outcome = tokio::select! {
            biased;
            outcome = &mut work => Some(outcome),
            () = park.abandoned() => None,
        };
        // Release everything the call held before the outcome waits for the client.
        drop(work);
        match outcome {
            Some(outcome) => {
                debug!(correlationId = %park.correlation, "a parked call has ended; its outcome is kept");
                park.state.lock().outcome = Some(outcome);
                park.news.notify_one();
                park.abandoned().await;
            }
            None => {
                debug!(correlationId = %park.correlation, "the client did not come back; its call is cancelled");
            }
        }
    }

    /// Answers a request that carries a state, by resuming the call that the state names. `None` if the
    /// gateway did not issue the state, or issued it for another request.
    pub(crate) async fn resume(
        self: &Arc<Self>,
        sealed: &str,
        (principal, subject): (&Principal, &SealedFor),
        responses: Option<Raw>,
        way: Option<ParkWay>,
        server_info: &Raw,
    ) -> Option<Outcome> {
        let content = self.seal.open(sealed, subject)?;
        let (id, round) = content.split_first_chunk::<16>()?;
        let round = u32::from_le_bytes(round.try_into().ok()?);
        let park = self.table.lock().parked.get(id).cloned();
        let Some(park) = park else { return Some(Err(not_valid())) };
        if let Err(error) = park.take_up(round, responses.as_ref(), principal, way) {
            return Some(Err(error));
        }
        let here = Here { parks: self, park: Some(&park) };
        let asked = loop {
            if let Some(outcome) = park.next().await {
                break Some(outcome);
            }
            sleep(TOGETHER).await;
            if park.is_asking() && !park.has_ended() {
                break None;
            }
        };
        here.leave();
        Some(match asked {
            Some(outcome) => {
                self.end(&park);
                outcome
            }
            None => self.ask(&park, subject, server_info),
        })
    }

    /// Ends the parked call that a state names, if the state is for this request: its principal may not continue it.
    pub(crate) fn abandon(&self, sealed: &str, subject: &SealedFor) {
        let content = self.seal.open(sealed, subject);
        let id = content.as_deref().and_then(|content| content.first_chunk::<16>());
        let park = id.and_then(|id| self.table.lock().parked.get(id).cloned());
        if let Some(park) = park {
            debug!(correlationId = %park.correlation, "a parked call is denied now; it is cancelled");
            self.end(&park);
        }
    }

    /// The result that asks the client all open questions, with a state for the round that the client answers
    /// in.
    fn ask(&self, park: &Park, subject: &SealedFor, server_info: &Raw) -> Outcome {
        let mut state = park.state.lock();
        state.round += 1;
        state.way = None;
        state.expect_client();
        let round = state.round;
        let mut requests = String::new();
        for question in &mut state.open {
            question.shown = true;
            let separator = if requests.is_empty() { "" } else { "," };
            requests += &format!(
                r#"{separator}"{}":{{"method":"{}","params":{}}}"#,
                question.key,
                question.method,
                question.params.as_str()
            );
        }
        drop(state);
        park.moved.notify_one();
        let mut content = park.id.to_vec();
        content.extend_from_slice(&round.to_le_bytes());
        let Some(sealed) = self.seal.close(&content, subject) else {
            self.end(park);
            return Err(RpcError::new(
                code::INTERNAL_ERROR,
                "the system provides no random numbers to seal a state",
            ));
        };
        let text = format!(
            r#"{{"resultType":"input_required","inputRequests":{{{requests}}},"requestState":"{sealed}","_meta":{{"{}":{},"{}":"{}"}}}}"#,
            key::SERVER_INFO,
            server_info.as_str(),
            key::CORRELATION_ID,
            park.correlation,
        );
        Raw::parse(text)
            .map(Spliced::from)
            .map_err(|_| RpcError::new(code::INTERNAL_ERROR, "the server's question is not usable"))
    }

    /// Ends a call, whatever it is doing.
    fn end(&self, park: &Park) {
        self.forget(park);
        if let Some(task) = park.state.lock().task.take() {
            task.abort();
        }
    }

    fn forget(&self, park: &Park) {
        self.table.lock().parked.remove(&park.id);
    }

    /// Ends every parked call, refuses new ones, and returns when every task has ended and left its record.
    pub(crate) async fn close(&self) {
        let parked = {
            let mut table = self.table.lock();
            table.closed = true;
            std::mem::take(&mut table.parked)
        };
        for park in parked.values() {
            self.end(park);
        }
        drop(parked);
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Accepts parked calls again.
    pub(crate) fn reopen(&self) {
        self.tasks.reopen();
        self.table.lock().closed = false;
    }

    /// The key that seals everything that clients carry for the gateway.
    pub(crate) const fn seal(&self) -> &Seal {
        &self.seal
    }

    /// How many calls are parked.
    pub(crate) fn count(&self) -> usize {
        self.table.lock().parked.len()
    }
}

/// Notifies a waiting request of the end of a parked call's task, however the task ends.
struct End<'a> {
    parks: &'a Parks,
    park: &'a Park,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.parks.forget(self.park);
        let mut state = self.park.state.lock();
        state.over = true;
        state.held = None;
        let ended = || Err(RpcError::new(code::INTERNAL_ERROR, "the call was ended by the gateway"));
        state.outcome.get_or_insert_with(ended);
        drop(state);
        self.park.news.notify_one();
    }
}

/// A request that waits at a parked call. If it is dropped before its answer, the call is cancelled with it.
struct Here<'a> {
    parks: &'a Parks,
    park: Option<&'a Park>,
}

impl Here<'_> {
    fn leave(mut self) {
        self.park = None;
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        if let Some(park) = self.park {
            debug!(correlationId = %park.correlation, "the client has gone; its parked call is cancelled");
            self.parks.end(park);
        }
    }
}

impl ParkState {
    /// Starts the time that the client has to come back.
    fn expect_client(&mut self) {
        self.deadline = Some(Instant::now() + self.patience + GRACE);
    }
}

impl Park {
    pub(crate) fn new(
        abilities: Abilities,
        correlation: CorrelationId,
        principal: &Principal,
        way: Option<ParkWay>,
    ) -> Self {
        let state = ParkState {
            validity: principal.validity().until_revoked(),
            round: 0,
            last_key: 0,
            patience: Duration::ZERO,
            open: Vec::new(),
            outcome: None,
            way,
            deadline: None,
            over: false,
            task: None,
            held: None,
        };
        Self {
            id: *uuid::Uuid::new_v4().as_bytes(),
            principal: principal.shared(),
            abilities,
            correlation,
            state: Mutex::new(state),
            news: Notify::new(),
            moved: Notify::new(),
        }
    }

    pub(crate) fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// The size of its open questions.
    fn asked_bytes(&self) -> usize {
        self.state.lock().open.iter().map(|question| question.params.as_str().len()).sum()
    }

    /// Puts a question to the client, which has `patience` to come back; it is asked with the next answer.
    /// Dropping the future withdraws the question.
    pub(crate) fn put(
        self: &Arc<Self>,
        method: &Method,
        params: &Spliced,
        patience: Duration,
    ) -> BoxFuture<'static, Answer> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        state.patience = patience;
        state.last_key += 1;
        let key = format!("q{}", state.last_key);
        state.open.push(Question {
            key: key.clone(),
            method: method.clone(),
            params: params.to_raw(),
            shown: false,
            answer: sender,
        });
        drop(state);
        self.news.notify_one();
        let open = Open { park: Arc::clone(self), key };
        Box::pin(async move {
            let answer = receiver.await;
            drop(open);
            answer.unwrap_or_else(|_| Err(unreachable_client()))
        })
    }

    /// Where progress and log lines go now.
    pub(crate) fn way(&self) -> Option<ParkWay> {
        self.state.lock().way.clone()
    }

    /// Takes a client's answers to the round that it was asked in, once.
    fn take_up(
        &self,
        round: u32,
        responses: Option<&Raw>,
        principal: &Principal,
        way: Option<ParkWay>,
    ) -> Result<(), RpcError> {
        let refused = |reason: String| RpcError::new(code::INVALID_PARAMS, &reason);
        let responses = match responses.filter(|responses| !responses.is_null()) {
            Some(responses) => Object::parse(responses)
                .map_err(|_| refused("`params.inputResponses` must be an object".to_owned()))?,
            None => Object::empty(),
        };
        let mut state = self.state.lock();
        // If a request waits here, it has resumed this round already.
        if state.round != round || state.deadline.is_none() || state.over {
            return Err(not_valid());
        }
        for question in &state.open {
            if let Some(answer) = responses.get(&question.key)
                && !answers(&question.method, &answer)
            {
                let reason = format!("`params.inputResponses.{}` does not answer its question", question.key);
                return Err(refused(reason));
            }
        }
        state.deadline = None;
        state.validity = principal.validity().until_revoked();
        state.way = way;
        for mut question in std::mem::take(&mut state.open) {
            match responses.get(&question.key) {
                // The receiver may be gone; then the answer is not needed.
                Some(answer) => drop(question.answer.send(Ok(bare(&answer)))),
                None => {
                    question.shown = false;
                    state.open.push(question);
                }
            }
        }
        drop(state);
        self.moved.notify_one();
        Ok(())
    }

    /// Whether there is a question that the client was not asked in this round.
    fn is_asking(&self) -> bool {
        self.state.lock().open.iter().any(|question| !question.shown)
    }

    fn has_ended(&self) -> bool {
        self.state.lock().outcome.is_some()
    }

    async fn asks(&self) {
        while !self.is_asking() {
            self.news.notified().await;
        }
    }

    /// The outcome of the call; `None` if the client has to be asked first.
    async fn next(&self) -> Option<Outcome> {
        loop {
            {
                let mut state = self.state.lock();
                if let Some(outcome) = state.outcome.take() {
                    return Some(outcome);
                }
                if state.open.iter().any(|question| !question.shown) {
                    return None;
                }
            }
            self.news.notified().await;
        }
    }

    /// Resolves when the client may no longer come back.
    async fn abandoned(&self) {
        loop {
            let (deadline, validity) = {
                let state = self.state.lock();
                (state.deadline, state.validity.clone())
            };
            let over = async {
                match deadline {
                    Some(deadline) => drop(timeout_at(deadline, validity.ended()).await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.moved.notified() => {}
                () = over => {
                    let mut state = self.state.lock();
                    // The client may have come back at the last moment.
                    let revoked = state.validity.has_ended();
                    if state.deadline.is_some_and(|deadline| revoked || deadline <= Instant::now()) {
                        state.over = true;
                        return;
                    }
                }
            }
        }
    }
}

/// A question that waits for its answer. Dropping it withdraws the question.
struct Open {
    park: Arc<Park>,
    key: String,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.park.state.lock().open.retain(|question| question.key != self.key);
    }
}

/// Whether a result has the members that an answer to this kind of question needs.
pub(crate) fn answers(method: &Method, result: &Raw) -> bool {
    let Ok(result) = Object::parse(result) else { return false };
    match method.of_server() {
        Some(ServerMethod::Elicit) => result.get("action").and_then(|action| action.to_text()).is_some(),
        Some(ServerMethod::CreateMessage) => result.get("content").is_some(),
        Some(ServerMethod::RootsList) => {
            result.get("roots").is_some_and(|roots| roots.as_str().starts_with('['))
        }
        None => false,
    }
}

/// An answer without the members that a legacy server does not know.
fn bare(answer: &Raw) -> Raw {
    match Object::parse(answer) {
        Ok(object) if object.get("resultType").is_some() => {
            let mut edit = object.edit();
            edit.remove("resultType");
            edit.finish().to_raw()
        }
        // Detached from the request that brought it: that request is large and ends soon.
        _ => answer.detached(),
    }
}

/// The one error for every unusable state, whatever is wrong with it.
pub(crate) fn not_valid() -> RpcError {
    RpcError::new(code::INVALID_PARAMS, "invalid or expired requestState")
}

#[cfg(test)]
mod tests;
