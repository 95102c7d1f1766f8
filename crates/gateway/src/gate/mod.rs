//! The stages that every request passes, in one function.
//!
//! What a stage means for a tool, a prompt or a subscription is defined by that [`Subject`] (`surface/`).
//! This module defines the order of the stages, and what is the same for all subjects.

mod admin_event;
mod apart;
mod cancels;
mod lock;
mod place;
mod record;
mod subject;
mod time_limit;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bridgehead_call::{AuditSink, Clock, CorrelationId};
use bridgehead_config::ResourceUris;
use bridgehead_events::{Signals, Stage};
use bridgehead_wire::{Code, Raw, Recording};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{Instrument, debug_span};

use crate::access::{Allowance, Authorizer, Limited, Limiter};
use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::error::GatewayError;
use crate::relay::request::Outcome;
use crate::relay::trace::Trace;

pub use admin_event::{AdminEvent, admin};
pub(crate) use apart::places;
pub(crate) use cancels::{Cancels, Watched};
pub(crate) use place::{Place, Places, evicted, made_way};
pub(crate) use record::CallRecord;
pub(crate) use subject::Subject;
pub(crate) use time_limit::TimeLimit;

/// One request on its way through the gate.
pub(crate) struct Call<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) request: &'a ClientRequest,
    /// When its clocks began to run.
    pub(crate) began: Instant,
    pub(crate) correlation: CorrelationId,
    /// Its place in a trace, if spans are recorded.
    pub(crate) trace: Option<Trace>,
    pub(crate) progress: Option<ProgressSink>,
    /// The time that the embedding program gives it.
    pub(crate) time: Option<Arc<TimeLimit>>,
    /// How often servers got it, whatever they answered.
    pub(crate) sends: AtomicU32,
    /// What it holds that others wait for.
    pub(crate) places: Places,
}

impl<'a> Call<'a> {
    /// A request that arrives now.
    pub(crate) fn new(
        caller: &'a Caller,
        request: &'a ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Self {
        Self::begin(caller, request, request.correlation(), progress)
    }

    /// A request that arrives now, under this id.
    pub(crate) fn begin(
        caller: &'a Caller,
        request: &'a ClientRequest,
        correlation: CorrelationId,
        progress: Option<ProgressSink>,
    ) -> Self {
        let (began, sends, places) = (Instant::now(), AtomicU32::new(0), Places::default());
        Self { caller, request, began, correlation, trace: None, progress, time: None, sends, places }
    }

    /// Notes how often a server got the request.
    pub(crate) fn reached(&self, sends: u32) {
        self.sends.fetch_add(sends, Ordering::Relaxed);
    }

    fn sends(&self) -> u32 {
        self.sends.load(Ordering::Relaxed)
    }
}

/// What the gate needs besides the request.
pub(crate) struct Gate {
    /// Decides about calls whose arguments matter; what a principal may not use at all is not in its view.
    pub(crate) authorizer: Option<Arc<dyn Authorizer>>,
    pub(crate) limiter: Option<Arc<dyn Limiter>>,
    pub(crate) audit: Arc<dyn AuditSink>,
    /// The methods that are recorded besides those that always are.
    pub(crate) also_recorded: Vec<&'static str>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) server_info: Raw,
    /// How resources are addressed in results.
    pub(crate) uris: ResourceUris,
    /// The limits of a call that goes to no server.
    pub(crate) limits: Limits,
    /// How long a client has to answer a question of a Rust handler.
    pub(crate) question_timeout: Duration,
    /// The permits for work that would hold up a thread that serves calls.
    pub(crate) apart: Arc<Semaphore>,
    /// Whether errors may show internal details.
    pub(crate) debug_errors: bool,
    /// Lets others than the client cancel a call.
    pub(crate) cancels: Cancels,
    /// Where signals are emitted.
    pub(crate) signals: Signals,
}

/// How long a call may be silent, and how long it may take altogether.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) silent: Duration,
    pub(crate) total: Duration,
}

impl Gate {
    /// Read top to bottom: this is the order of the stages. Dropping the future at any point releases the
    /// lock, cancels the request upstream and still leaves the pair of audit events. What a server may still use
    /// then is released when its use has ended.
    pub(crate) async fn pass<S: Subject>(&self, call: &Call<'_>, subject: &S) -> Outcome {
        let mut record = CallRecord::open(self, call, subject);
        // The principal is already authenticated, and what it may not use at all is not in its view.
        let mut allowance = match subject.authorize(self, call) {
            Ok(()) => self
                .limit(call, subject)
                .map(|allowance| call.places.hold(allowance))
                .inspect_err(|_| record.refused(Stage::Limit)),
            Err(denied) => {
                record.refused(Stage::Authorize);
                Err(denied)
            }
        };
        let lock = match &allowance {
            Ok(_) => {
                let locking = pin!(lock::enter(self, call, subject, &mut record));
                call.timed(locking, subject.name()).instrument(debug_span!("lock")).await
            }
            Err(refused) => Err(refused.clone()),
        };
        let checked = match &lock {
            Ok(_) => {
                let checking = pin!(subject.check(self, call));
                let checked = call.timed(checking, subject.name()).instrument(debug_span!("validate")).await;
                checked.inspect_err(|_| record.refused(Stage::Check))
            }
            Err(refused) => Err(Outcome::Failed(refused.clone())),
        };
        let charge = allowance.as_ref().ok().and_then(Place::get).and_then(Allowance::charge);
        if let (Ok(_), Some(charge)) = (&checked, charge) {
            record.charged(charge);
        }
        let entered = pin!(record.enter(checked.is_ok())).instrument(debug_span!("audit_enter")).await;
        if let Err(error) = entered {
            if checked.is_ok() {
                record.refused(Stage::Record);
            }
            let error = GatewayError::new(Code::AuditEnterFailed, format!("the call was not made: {error}"));
            return record.exit(Outcome::Failed(error));
        }
        let outcome = match checked {
            Ok(checked) => {
                // From here on, a call that is dropped may have run.
                let _ =
                    allowance.as_mut().ok().and_then(Place::get_mut).map(|allowance| allowance.runs(true));
                let dispatched = pin!(subject.dispatch(self, call, checked, &mut record));
                let span = debug_span!("dispatch", server = subject.server().map(|server| &**server));
                call.timed(dispatched, subject.name()).instrument(span).await
            }
            Err(refused) => refused,
        };
        let granted = allowance.as_mut().ok().and_then(Place::get_mut);
        // A server may run a call and answer as if it had not. So whatever it answers, it got the call.
        match (&outcome, call.sends()) {
            (Outcome::Failed(error), 0) if !error.may_have_run => {
                let _ = granted.map(|allowance| allowance.runs(false));
                record.refunded();
            }
            (_, 2..) => {
                let again = call.sends() - 1;
                let _ = granted.map(|allowance| allowance.runs_again(again));
                record.charged_again(again);
            }
            _ => {}
        }
        debug_span!("audit_exit").in_scope(|| record.exit(outcome))
    }

    /// Asks the limiter, if there is one, whether the request may run.
    fn limit<S: Subject>(&self, call: &Call<'_>, subject: &S) -> Result<Allowance, GatewayError> {
        let Some(limiter) = &self.limiter else { return Ok(Allowance::free()) };
        let server = subject.server().map(|server| &**server);
        let request = Limited::new(&call.request.method, server, subject.name());
        limiter.admit(&call.caller.principal, request.called(subject.own_name()))
    }

    /// Whether a request leaves a pair of audit events.
    fn records(&self, request: &ClientRequest) -> bool {
        match request.method.recording() {
            Recording::Always => true,
            Recording::OnDemand => self.also_recorded.contains(&request.method.as_str()),
            Recording::Never => false,
        }
    }
}
