//! Asks a client something during its call, on behalf of a server.
//!
//! The front attaches a [`Questioner`] to the calls of clients that declared what they can answer, and hands
//! every response of such a client to its [`OpenQuestions`]. The gateway chooses the request ids towards a
//! client, one id space per `OpenQuestions`. A question that is dropped before its answer is cancelled at the
//! client; a question whose client is gone fails.
//!
//! A modern client cannot be asked while it waits: its questions go to its parked call
//! ([`crate::dialogue::park`]). The program that embeds the gateway is asked by a function of its own ([`Answers`]).

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_wire::{Abilities, Method, Raw, Response, RpcError, Spliced, code, notification, request};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::{debug, error};

use crate::dialogue::park::Park;
use crate::gate::TimeLimit;
use crate::panics;

/// Where messages to a client go.
pub trait Outlet: Send + Sync + 'static {
    /// Sends one whole, encoded message; returns whether it was accepted.
    fn put(&self, message: Bytes) -> bool;

    /// Resolves when nothing can be sent any more.
    fn gone(&self) -> BoxFuture<'_, ()>;
}

/// A client's answer.
pub(crate) type Answer = Result<Raw, RpcError>;

/// What the embedding program can be asked during its call, and the function that answers. Clones share it.
#[derive(Clone)]
pub struct Answers {
    abilities: Abilities,
    answer: Arc<AnswerFunction>,
}

type AnswerFunction = dyn Fn(Method, Raw) -> BoxFuture<'static, Answer> + Send + Sync;

impl Answers {
    /// Answers by a function of the method and the params of a question. It is called only for what `abilities` declare.
    /// If it panics, the server gets an error.
    pub fn new(
        abilities: Abilities,
        answer: impl Fn(Method, Raw) -> BoxFuture<'static, Result<Raw, RpcError>> + Send + Sync + 'static,
    ) -> Self {
        Self { abilities, answer: Arc::new(answer) }
    }

    /// Asks. The time that the call has stands still meanwhile.
    fn ask(
        &self,
        method: &Method,
        params: &Spliced,
        time: Option<&Arc<TimeLimit>>,
    ) -> BoxFuture<'static, Answer> {
        let (answer, method, params) = (Arc::clone(&self.answer), method.clone(), params.to_raw());
        let paused = time.map(TimeLimit::pause);
        Box::pin(async move {
            let _paused = paused;
            // The function may panic before it returns a future, so it is called inside the guarded block.
            let answering = AssertUnwindSafe(async { answer(method, params).await }).catch_unwind();
            answering.await.unwrap_or_else(|panic| {
                error!(
                    panic = panics::words(&*panic),
                    "the function that answers a server's question panicked"
                );
                Err(RpcError::new(code::INTERNAL_ERROR, "the client failed to answer"))
            })
        })
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("abilities", &self.abilities).finish_non_exhaustive()
    }
}

/// The questions to one client that wait for an answer. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct OpenQuestions(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
}

impl OpenQuestions {
    /// Takes a response of the client; returns whether a question waited for it.
    pub fn answered(&self, response: Response) -> bool {
        let id = response.id.as_ref().and_then(|id| id.as_u64());
        let waiting = id.and_then(|id| self.0.lock().waiting.remove(&id));
        let wanted = waiting.is_some_and(|waiting| waiting.send(response.outcome).is_ok());
        if !wanted {
            debug!("ignored a response: nothing was asked of this client under that id");
        }
        wanted
    }

    fn open(&self) -> (u64, oneshot::Receiver<Answer>) {
        let (sender, receiver) = oneshot::channel();
        let mut open = self.0.lock();
        open.next += 1;
        let id = open.next;
        open.waiting.insert(id, sender);
        (id, receiver)
    }
}

/// The way to a client that can be asked. Clones share it.
#[derive(Clone)]
pub struct Questioner(QuestionPath);

#[derive(Clone)]
enum QuestionPath {
    /// The client answers while its call is open.
    Open(Arc<Inner>),
    /// The client is asked through the result of its request, and answers with the next request.
    Parked(Arc<Park>),
    /// The client is this program, and answers by a function. The time that its call has is beside it.
    Function(Answers, Option<Arc<TimeLimit>>),
}

struct Inner {
    abilities: Abilities,
    questions: OpenQuestions,
    outlet: Box<dyn Outlet>,
}

impl fmt::Debug for Questioner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Questioner").field("abilities", &self.abilities()).finish_non_exhaustive()
    }
}

impl Questioner {
    /// Asks through `outlet`; the answers arrive in `questions`.
    pub fn new(abilities: Abilities, questions: OpenQuestions, outlet: impl Outlet) -> Self {
        Self(QuestionPath::Open(Arc::new(Inner { abilities, questions, outlet: Box::new(outlet) })))
    }

    /// Asks the client of a call that may be parked.
    pub(crate) const fn parked(park: Arc<Park>) -> Self {
        Self(QuestionPath::Parked(park))
    }

    /// Asks the embedding program, whose call has this much time.
    pub(crate) const fn function(answers: Answers, time: Option<Arc<TimeLimit>>) -> Self {
        Self(QuestionPath::Function(answers, time))
    }

    /// What the client can be asked.
    pub fn abilities(&self) -> Abilities {
        match &self.0 {
            QuestionPath::Open(inner) => inner.abilities,
            QuestionPath::Parked(park) => park.abilities(),
            QuestionPath::Function(answers, _) => answers.abilities,
        }
    }

    /// Sends the client a notification during its call; the client may be gone.
    pub(crate) fn tell(&self, method: &Method, params: &Spliced) {
        if let QuestionPath::Open(inner) = &self.0 {
            let mut message = BytesMut::new();
            notification(&mut message, method.as_str(), Some(params));
            inner.outlet.put(message.freeze());
        }
    }

    /// Asks, and resolves to the client's answer. The caller enforces `patience`; a parked call also uses it
    /// for its own deadline. Dropping the future withdraws the question.
    pub(crate) fn ask(
        &self,
        method: &Method,
        params: &Spliced,
        patience: Duration,
    ) -> BoxFuture<'static, Answer> {
        match &self.0 {
            QuestionPath::Open(inner) => Inner::ask(inner, method, params),
            QuestionPath::Parked(park) => park.put(method, params, patience),
            QuestionPath::Function(answers, time) => answers.ask(method, params, time.as_ref()),
        }
    }
}

impl Inner {
    fn ask(self: &Arc<Self>, method: &Method, params: &Spliced) -> BoxFuture<'static, Answer> {
        let (id, answer) = self.questions.open();
        let mut message = BytesMut::new();
        request(&mut message, id, method.as_str(), params);
        let sent = self.outlet.put(message.freeze());
        let question = Question { way: Arc::clone(self), id, open: sent };
        Box::pin(async move {
            if !sent {
                return Err(unreachable_client());
            }
            let answer = tokio::select! {
                biased;
                answer = answer => answer.ok(),
                () = question.way.outlet.gone() => None,
            };
            match answer {
                Some(answer) => {
                    question.close();
                    answer
                }
                None => Err(unreachable_client()),
            }
        })
    }
}

pub(crate) fn unreachable_client() -> RpcError {
    RpcError::new(code::INTERNAL_ERROR, "the client can no longer be asked: it does not read")
}

/// One question that was sent.
struct Question {
    way: Arc<Inner>,
    id: u64,
    /// Whether the client still has it.
    open: bool,
}

impl Question {
    /// Marks it as answered.
    fn close(mut self) {
        self.open = false;
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let inner = &self.way;
        inner.questions.0.lock().waiting.remove(&self.id);
        if self.open {
            let params = Raw::encode(&serde_json::json!({
                "requestId": self.id,
                "reason": "the call that this was asked for has ended",
            }));
            let mut message = BytesMut::new();
            notification(&mut message, Method::Cancelled.as_str(), Some(&params.into()));
            inner.outlet.put(message.freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that accepts messages, or refuses them, and never disconnects.
    struct Reader {
        read: Arc<Mutex<Vec<serde_json::Value>>>,
        reads: bool,
    }

    impl Outlet for Reader {
        fn put(&self, message: Bytes) -> bool {
            self.read.lock().push(serde_json::from_slice(&message).unwrap());
            self.reads
        }

        fn gone(&self) -> BoxFuture<'_, ()> {
            Box::pin(std::future::pending())
        }
    }

    fn questioner(reads: bool) -> (Questioner, OpenQuestions, Arc<Mutex<Vec<serde_json::Value>>>) {
        let (questions, read) = (OpenQuestions::default(), Arc::default());
        let reader = Reader { read: Arc::clone(&read), reads };
        (Questioner::new(Abilities::NONE, questions.clone(), reader), questions, read)
    }

    fn ask(questioner: &Questioner) -> BoxFuture<'static, Answer> {
        questioner.ask(&Method::RootsList, &Raw::literal("{}").into(), Duration::ZERO)
    }

    fn answer(questions: &OpenQuestions, id: &serde_json::Value) -> bool {
        let message = serde_json::json!({"jsonrpc": "2.0", "id": id, "result": {"roots": []}});
        match bridgehead_wire::Message::parse(&Bytes::from(message.to_string())) {
            Ok(bridgehead_wire::Message::Response(response)) => questions.answered(response),
            other => panic!("{other:?}"),
        }
    }

    /// ERA-1: a dropped question is cancelled at the client, by its id, and a late answer is ignored.
    #[test]
    fn a_dropped_question_is_taken_back() {
        let (questioner, questions, read) = questioner(true);
        let mut asked = ask(&questioner);
        assert!((&mut asked).now_or_never().is_none());
        drop(asked);
        let told = std::mem::take(&mut *read.lock());
        let [question, back] = &told[..] else { panic!("{told:?}") };
        assert_eq!(question["method"], "roots/list");
        assert_eq!(back["method"], "notifications/cancelled");
        assert_eq!(back["params"]["requestId"], question["id"]);
        assert!(!answer(&questions, &question["id"]), "no question waits any more");
    }

    /// ERA-1: a question that was answered, or that the client did not accept, is not cancelled, and no two
    /// have the same id.
    #[test]
    fn an_answered_question_is_not_taken_back() {
        let (questioner, questions, read) = questioner(true);
        let (first, second) = (ask(&questioner), ask(&questioner));
        let ids: Vec<_> = read.lock().iter().map(|question| question["id"].clone()).collect();
        assert!(ids.len() == 2 && ids[0] != ids[1], "{ids:?}");
        assert!(answer(&questions, &ids[1]) && answer(&questions, &ids[0]) && !answer(&questions, &ids[0]));
        for asked in [first, second] {
            assert_eq!(asked.now_or_never().unwrap().unwrap().as_str(), r#"{"roots":[]}"#);
        }
        assert_eq!(read.lock().len(), 2, "only the questions were sent");

        let (questioner, questions, read) = self::questioner(false);
        assert!(ask(&questioner).now_or_never().unwrap().is_err());
        let read = read.lock();
        assert!(read.len() == 1 && !answer(&questions, &read[0]["id"]), "{read:?}");
    }
}
