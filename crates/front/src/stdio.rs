//! Serves one client over lines: stdin and stdout, or a pair of pipes inside the process.
//!
//! One loop reads and decides; every request runs as its own task; answers, progress and announcements
//! leave through one [`Outbox`]. The legacy state (the negotiated revision) belongs to the connection,
//! modern requests are self-contained, and both may be mixed on one connection.
//!
//! A client that floods is held back, not refused: no line is read while the requests in progress weigh
//! more than [`IN_PROGRESS_BYTES`] or while more than a few MiB of answers wait to be read.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bridgehead_gateway::{
    Caller, ClientRequest, ClientTransport, Feed, OpenQuestions, Outlet, Principal, ProgressSink, Questioner,
    Session,
};
use bridgehead_lines::{LineReader, Outbox};
use bridgehead_wire::held::{Account, Budget, Reservation, SMALL};
use bridgehead_wire::{
    ClientNote, Era, Id, Incoming, Line, Malformed, Message, Method, Note, Notification, Raw, Request,
    Revision, RpcError, Spliced, code, error_response, response,
};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::{AbortRegistration, BoxFuture, join_all};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use crate::Backend;
use crate::era::{self, Reading, Served};
use crate::inflight::{Entry, InFlight, until_cancelled};
use crate::panics::{self, guarded, guarded_now};

/// How long requests in progress may still be answered after the client closed its end. Below the two
/// seconds after which common clients stop waiting for a server to exit and send a signal.
pub const DRAIN_AFTER_END: Duration = Duration::from_secs(1);
/// The limit for the total weight of the requests in progress.
pub(crate) const IN_PROGRESS_BYTES: usize = 64 * 1024 * 1024;
/// The least weight of a request: its task, the block of the read buffer that it keeps alive, and the
/// answer to come. Limits their number to 1024.
const LEAST_WEIGHT: usize = 64 * 1024;
/// How many messages a batch may hold.
pub(crate) const MAX_BATCH: usize = 256;
/// How many progress notifications of one request may wait.
pub(crate) const PROGRESS_CAPACITY: usize = 64;

/// What is fixed about one line-based client.
#[derive(Debug, Clone)]
pub struct LineOptions {
    /// Who it is.
    pub principal: Principal,
    /// What kind of lines these are.
    pub transport: ClientTransport,
    /// The longest line that is accepted.
    pub max_message_bytes: usize,
}

/// Serves the client until it closes its end, cannot be written to, or `shutdown` is cancelled.
///
/// After the end of input, requests in progress have [`DRAIN_AFTER_END`] to be answered; the rest are
/// cancelled. On `shutdown` no more is read, and this returns when every request in progress is answered.
/// The caller limits that wait by dropping the future, which cancels the rest. A client that has gone is
/// a clean end too; any other failure to read or write is returned.
pub async fn serve_lines<R, W, B>(
    reader: R,
    writer: W,
    backend: B,
    options: LineOptions,
    shutdown: CancellationToken,
) -> io::Result<()>
where
    R: AsyncRead + Send,
    W: AsyncWrite + Send + 'static,
    B: Backend,
{
    serve_session(reader, writer, backend, options, Session::new(), shutdown).await
}

/// Like [`serve_lines`], for a client whose session the caller made.
pub(crate) async fn serve_session<R, W, B>(
    reader: R,
    writer: W,
    backend: B,
    options: LineOptions,
    session: Session,
    shutdown: CancellationToken,
) -> io::Result<()>
where
    R: AsyncRead + Send,
    W: AsyncWrite + Send + 'static,
    B: Backend,
{
    let outbox = Arc::new(Outbox::default());
    let mut writing = AbortOnDropHandle::new(tokio::spawn({
        let outbox = outbox.clone();
        async move { outbox.write_to(writer).await }
    }));
    let initialized = Arc::new(AtomicBool::new(false));
    let announcing = AbortOnDropHandle::new(tokio::spawn({
        let telling =
            announce(backend.feed(&options.principal, &session), initialized.clone(), outbox.clone());
        let backend = backend.clone();
        async move { drop(guarded(&backend, pin!(telling)).await) }
    }));
    let mut connection = Connection {
        backend,
        options,
        session,
        closing: CancellationToken::new(),
        outbox: outbox.clone(),
        account: Account::new(Budget::process()),
        in_flight: InFlight::default(),
        weight: Arc::new(Semaphore::new(IN_PROGRESS_BYTES)),
        tasks: JoinSet::new(),
        revision: None,
        questions: OpenQuestions::default(),
        questioner: None,
        initialized,
    };
    let ended = connection.read(reader, &shutdown).await;
    connection.closing.cancel();
    debug!(?ended, in_progress = connection.tasks.len(), "no more lines are read");
    let finish = async {
        tokio::select! {
            biased;
            // The client is gone and reads no more answers.
            () = outbox.gone() => connection.tasks.abort_all(),
            () = connection.answered() => {}
        }
        connection.answered().await;
        drop(announcing);
        outbox.close();
        (&mut writing).await
    };
    let written = match &ended {
        Ok(End::Shutdown) => finish.await,
        Ok(End::OfInput | End::ClientGone) | Err(_) => {
            match tokio::time::timeout(DRAIN_AFTER_END, finish).await {
                Ok(written) => written,
                Err(_) => {
                    connection.in_flight.cancel_all();
                    connection.tasks.shutdown().await;
                    Ok(Ok(()))
                }
            }
        }
    };
    let written = written.unwrap_or_else(|panic| {
        panics::ended(&connection.backend, panic);
        Ok(())
    });
    match (ended, written) {
        (Err(error), _) | (Ok(_), Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Why reading stopped.
#[derive(Debug)]
enum End {
    OfInput,
    ClientGone,
    Shutdown,
}

/// Sends questions through the same outbox as everything else. A client that reads nothing is not asked any more.
struct Lines(Arc<Outbox>);

impl Outlet for Lines {
    fn put(&self, message: Bytes) -> bool {
        self.0.push(|out| out.put_slice(&message)).is_ok()
    }

    fn gone(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.gone())
    }
}

/// Sends the feed to an initialized legacy client.
async fn announce(feed: Feed, initialized: Arc<AtomicBool>, outbox: Arc<Outbox>) {
    loop {
        // Waits for room first: changes that come meanwhile are merged into one notification.
        outbox.room().await;
        let message = feed.next().await;
        if initialized.load(Ordering::Acquire) {
            outbox.send(|out| out.put_slice(&message)).await;
        }
    }
}

struct Connection<B> {
    backend: B,
    options: LineOptions,
    /// The gateway's session for this connection.
    session: Session,
    /// Cancelled when no more is read: this ends the requests that would never end by themselves.
    closing: CancellationToken,
    outbox: Arc<Outbox>,
    /// Counts the memory that is held for the client.
    account: Arc<Account>,
    in_flight: InFlight,
    weight: Arc<Semaphore>,
    tasks: JoinSet<()>,
    /// What `initialize` negotiated.
    revision: Option<Revision>,
    /// Where the client's answers go.
    questions: OpenQuestions,
    /// Set for a client that can be asked something.
    questioner: Option<Questioner>,
    initialized: Arc<AtomicBool>,
}

/// What happens to one request.
enum Step {
    /// It is answered already.
    Done(Id, Result<Raw, RpcError>),
    /// The gateway answers it.
    Run(Box<Work>),
}

/// One request on its way to the gateway.
struct Work {
    entry: Entry,
    registration: AbortRegistration,
    caller: Caller,
    request: ClientRequest,
    closing: CancellationToken,
}

impl<B: Backend> Connection<B> {
    async fn read(&mut self, reader: impl AsyncRead + Send, shutdown: &CancellationToken) -> io::Result<End> {
        let reader = pin!(reader);
        let mut lines = LineReader::new(reader, self.options.max_message_bytes);
        let outbox = self.outbox.clone();
        let stopped = async {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => End::Shutdown,
                () = outbox.gone() => End::ClientGone,
            }
        };
        let mut stopped = pin!(stopped);
        let backend = self.backend.clone();
        loop {
            let line = tokio::select! {
                biased;
                end = &mut stopped => return Ok(end),
                line = lines.next() => line?,
            };
            let Some(line) = line else { return Ok(End::OfInput) };
            let taking = pin!(self.take(line));
            tokio::select! {
                biased;
                end = &mut stopped => return Ok(end),
                // A request that panicked was answered if its id was known.
                _ = guarded(&backend, taking) => {}
            }
        }
    }

    async fn take(&mut self, line: Line) {
        while let Some(ended) = self.tasks.try_join_next() {
            ended.unwrap_or_else(|error| panics::ended(&self.backend, error));
        }
        self.outbox.room().await;
        let text = match line {
            Line::Text(text) => text,
            Line::TooLong { bytes, id } => {
                let limit = self.options.max_message_bytes;
                debug!(bytes, limit, "refused a line that is too long");
                let error = too_long(bytes, limit);
                return self.outbox.send(|out| error_response(out, id.as_ref().map(Id::raw), &error)).await;
            }
        };
        match Incoming::parse(&text) {
            Ok(Incoming::Single(message)) => self.single(message, text.len()).await,
            Ok(Incoming::Batch(items)) => self.batch(items, text.len()).await,
            Err(malformed) => {
                debug!(code = malformed.code, reason = %malformed.reason, "refused a line");
                self.outbox.send(|out| malformed_response(out, &malformed)).await;
            }
        }
    }

    async fn single(&mut self, message: Message, bytes: usize) {
        if matches!(&message, Message::Request(request) if request.method == Method::Initialize) {
            // Its client sends nothing else before it has the answer.
            Box::pin(self.backend.wait_for_instructions()).await;
        }
        match message {
            Message::Request(request) => match self.step(request) {
                Step::Done(id, outcome) => {
                    let outcome = outcome.map(Spliced::from);
                    self.outbox.send(|out| response(out, &id, outcome.as_ref())).await;
                }
                Step::Run(work) => {
                    let permit = self.admit(bytes).await;
                    let (backend, outbox) = (self.backend.clone(), self.outbox.clone());
                    let account = Arc::clone(&self.account);
                    self.tasks.spawn(async move {
                        let _permit = permit;
                        if let Some((id, outcome)) = run(&backend, work, &outbox).await {
                            let (outcome, _held) = held(&account, outcome);
                            outbox.send(|out| response(out, &id, outcome.as_ref())).await;
                        }
                    });
                }
            },
            Message::Notification(told) => self.told(&told),
            Message::Response(answer) => drop(self.questions.answered(answer)),
        }
    }

    /// Answers an array of messages with one array, if the negotiated revision has batches.
    async fn batch(&mut self, items: Vec<Result<Message, Malformed>>, bytes: usize) {
        let refusal = if !self.revision.is_some_and(Revision::has_batches) {
            Some("a batch is not allowed here; send one message per line".to_owned())
        } else if items.len() > MAX_BATCH {
            Some(format!("a batch may hold at most {MAX_BATCH} messages"))
        } else {
            None
        };
        if let Some(reason) = refusal {
            debug!(messages = items.len(), reason, "refused a batch");
            let error = RpcError::new(code::INVALID_REQUEST, &reason);
            return self.outbox.send(|out| error_response(out, None, &error)).await;
        }
        let mut steps = Vec::with_capacity(items.len());
        for item in items {
            match item {
                Ok(Message::Request(request)) => steps.push(Ok(self.batched_step(request))),
                Ok(Message::Notification(told)) => self.told(&told),
                Ok(Message::Response(answer)) => drop(self.questions.answered(answer)),
                Err(malformed) => steps.push(Err(malformed)),
            }
        }
        if steps.is_empty() {
            return;
        }
        let permit = self.admit(bytes).await;
        let (backend, outbox) = (self.backend.clone(), self.outbox.clone());
        self.tasks.spawn(async move {
            let _permit = permit;
            let answers = join_all(steps.into_iter().map(|step| answer_step(&backend, step, &outbox))).await;
            if let Some(array) = batch_answer(&answers) {
                outbox.send(|out| out.put_slice(&array)).await;
            }
        });
    }

    fn batched_step(&mut self, request: Request) -> Step {
        let unbatchable =
            request.method == Method::Initialize || Reading::of(request.params.as_ref()).claims_version();
        if unbatchable {
            return Step::Done(request.id, Err(not_in_a_batch()));
        }
        self.step(request)
    }

    /// Waits until every request in progress is answered.
    async fn answered(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap_or_else(|error| panics::ended(&self.backend, error));
        }
    }

    /// Decides what to do with a request; a panic while deciding becomes its answer.
    fn step(&mut self, request: Request) -> Step {
        let (backend, id) = (self.backend.clone(), request.id.clone());
        guarded_now(&backend, || self.decide(request)).unwrap_or_else(|error| Step::Done(id, Err(error)))
    }

    /// Decides the era of a request and what to do with it.
    fn decide(&mut self, request: Request) -> Step {
        let Request { id, method, params } = request;
        let reading = Reading::of(params.as_ref());
        let outcome = match era::decide(reading.claims_version(), None, &method) {
            Served::Initialize => self.initialize(params.as_ref()).map(Err),
            Served::Modern => {
                modern(reading, method, &id).map(|request| Ok((Revision::V2026_07_28, request)))
            }
            Served::Legacy if method == Method::Ping => Ok(Err(Raw::literal("{}"))),
            Served::Legacy => self.legacy(reading, method, &id).map(Ok),
        };
        let (revision, request) = match outcome {
            Ok(Ok(run)) => run,
            Ok(Err(result)) => return Step::Done(id, Ok(result)),
            Err(error) => {
                debug!(code = error.code(), "refused a request");
                return Step::Done(id, Err(error));
            }
        };
        match self.in_flight.enter(&id) {
            Ok((entry, registration)) => {
                let caller = Caller {
                    principal: self.options.principal.clone(),
                    revision,
                    transport: self.options.transport,
                    session: self.session.clone(),
                    questioner: self.questioner.clone().filter(|_| revision.era() == Era::Legacy),
                };
                let closing = self.closing.clone();
                Step::Run(Box::new(Work { entry, registration, caller, request, closing }))
            }
            Err(error) => {
                debug!("refused a request whose id is in use");
                Step::Done(id, Err(error))
            }
        }
    }

    /// A client may initialize again; it then negotiates anew.
    fn initialize(&mut self, params: Option<&Raw>) -> Result<Raw, RpcError> {
        self.backend.admit(&self.options.principal, &Method::Initialize)?;
        let revision = era::negotiate(params)?;
        debug!(%revision, "legacy client");
        self.revision = Some(revision);
        let abilities = era::abilities(params, revision);
        self.session.declare(abilities);
        if let Some(info) = era::client_info(params) {
            self.session.introduce(&info);
        }
        self.questioner = (!abilities.is_none())
            .then(|| Questioner::new(abilities, self.questions.clone(), Lines(Arc::clone(&self.outbox))));
        self.initialized.store(false, Ordering::Release);
        Ok(self.backend.initialize(&self.options.principal, revision))
    }

    fn legacy(
        &self,
        reading: Reading,
        method: Method,
        id: &Id,
    ) -> Result<(Revision, ClientRequest), RpcError> {
        let Some(revision) = self.revision else {
            let reason = format!(
                "`{}` came before `initialize`; initialize first, or send the `_meta` of {}",
                era::shown(&method),
                Revision::V2026_07_28
            );
            return Err(RpcError::new(code::INVALID_REQUEST, &reason));
        };
        if !method.eras().has(Era::Legacy) {
            return Err(era::no_such_method(&method, Era::Legacy));
        }
        Ok((revision, reading.into_request(method, id)?))
    }

    fn told(&mut self, told: &Notification) {
        match told.method.note().and_then(Note::of_client) {
            Some(ClientNote::Initialized) if self.revision.is_some() => {
                self.initialized.store(true, Ordering::Release);
            }
            Some(ClientNote::Cancelled) => {
                let found =
                    era::cancelled_id(told.params.as_ref()).is_some_and(|id| self.in_flight.cancel(&id));
                debug!(found, "cancelled by the client");
            }
            Some(ClientNote::RootsListChanged) => self.session.roots_changed(),
            Some(ClientNote::Initialized) | None => {
                debug!(method = era::shown(&told.method), "ignored a notification");
            }
        }
    }

    /// Waits until a request of this size may begin.
    async fn admit(&self, bytes: usize) -> Option<tokio::sync::OwnedSemaphorePermit> {
        let weight = bytes.clamp(LEAST_WEIGHT, IN_PROGRESS_BYTES);
        self.weight.clone().acquire_many_owned(u32::try_from(weight).unwrap_or(u32::MAX)).await.ok()
    }
}

/// The answer to a message that is longer than `limit`.
pub fn too_long(bytes: u64, limit: usize) -> RpcError {
    let reason = format!("the message has {bytes} bytes, more than the {limit} that are accepted");
    RpcError::new(code::INVALID_REQUEST, &reason)
}

/// The checks of a modern request on lines, where no headers repeat the envelope.
fn modern(reading: Reading, method: Method, id: &Id) -> Result<ClientRequest, RpcError> {
    let meta = reading.envelope()?;
    era::check_served(meta.protocol_version.as_deref().unwrap_or_default())?;
    if !method.eras().has(Era::Modern) {
        return Err(era::no_such_method(&method, Era::Modern));
    }
    reading.into_request(method, id)
}

/// Reserves memory for an answer until the client takes it. An answer without room becomes an error that says so.
fn held(
    account: &Arc<Account>,
    outcome: Result<Spliced, RpcError>,
) -> (Result<Spliced, RpcError>, Option<Reservation>) {
    let size = outcome.as_ref().map_or(0, Spliced::len);
    match (size > SMALL).then(|| account.reserve(size)) {
        None => (outcome, None),
        Some(Ok(held)) => (outcome, Some(held)),
        Some(Err(no_room)) => {
            let reason = format!(
                "the request was served, but its answer has {size} bytes and cannot be kept: {no_room}"
            );
            (Err(RpcError::new(code::INTERNAL_ERROR, &reason)), None)
        }
    }
}

/// Runs one request and sends its progress before it returns the answer; `None` if it was cancelled.
async fn run<B: Backend>(
    backend: &B,
    work: Box<Work>,
    outbox: &Outbox,
) -> Option<(Id, Result<Spliced, RpcError>)> {
    let Work { entry, registration, caller, request, closing } = *work;
    let answer = async {
        if !caller.wants_notes(&request) {
            return backend.answer(&caller, &request, None).await;
        }
        let (sink, mut notes) = ProgressSink::channel(PROGRESS_CAPACITY);
        let mut answer = pin!(backend.answer(&caller, &request, Some(sink)));
        let listens = request.method == Method::Listen;
        loop {
            tokio::select! {
                biased;
                () = closing.cancelled(), if listens && !notes.is_closed() => notes.close(),
                Some(note) = notes.recv() => {
                    if listens {
                        // Waits for room: no notification of a listen is dropped.
                        outbox.send(|out| out.put_slice(&note)).await;
                    } else {
                        outbox.push_if_room(&note);
                    }
                }
                outcome = &mut answer => {
                    while let Ok(note) = notes.try_recv() {
                        outbox.push_if_room(&note);
                    }
                    return outcome;
                }
            }
        }
    };
    let answer = pin!(answer);
    let answer = pin!(guarded(backend, answer));
    let outcome = until_cancelled(answer, registration).await?.and_then(|outcome| outcome);
    let id = entry.id().clone();
    entry.finish().then_some((id, outcome))
}

async fn answer_step<B: Backend>(
    backend: &B,
    step: Result<Step, Malformed>,
    outbox: &Outbox,
) -> Option<BytesMut> {
    let mut out = BytesMut::new();
    match step {
        Ok(Step::Done(id, outcome)) => response(&mut out, &id, outcome.map(Spliced::from).as_ref()),
        Ok(Step::Run(work)) => {
            let (id, outcome) = run(backend, work, outbox).await?;
            response(&mut out, &id, outcome.as_ref());
        }
        Err(malformed) => malformed_response(&mut out, &malformed),
    }
    Some(out)
}

/// The answers of a batch as one array; `None` if every request was cancelled.
pub(crate) fn batch_answer(answers: &[Option<BytesMut>]) -> Option<BytesMut> {
    let mut out = BytesMut::new();
    for answer in answers.iter().flatten() {
        out.put_u8(if out.is_empty() { b'[' } else { b',' });
        out.put_slice(answer);
    }
    if out.is_empty() {
        return None;
    }
    out.put_u8(b']');
    Some(out)
}

pub(crate) fn malformed_response(out: &mut BytesMut, malformed: &Malformed) {
    error_response(out, malformed.id.as_ref().map(Id::raw), &malformed.to_error());
}

pub(crate) fn not_in_a_batch() -> RpcError {
    RpcError::new(code::INVALID_REQUEST, "this request must not be part of a batch; send it by itself")
}
