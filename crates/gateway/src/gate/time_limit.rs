//! The time that the embedding program gives one call, whatever the call waits for.
//!
//! A stage of the gate that waits is raced with the limit. If the limit wins, the stage is dropped, which cancels the call
//! upstream, and the error is the outcome of the call: it is recorded like any other. The server that kept the call waiting is
//! probed or restarted, as after a time-out of the configuration. The limit stands still while the program itself is asked
//! something. A call without a limit pays one comparison per poll of a stage.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bridgehead_upstream::Upstream;
use bridgehead_wire::Code;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::Call;
use crate::error::GatewayError;
use crate::relay::request::{Outcome, overdue};

/// A year: a longer limit is cut to this.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The time of one call.
#[derive(Debug)]
pub(crate) struct TimeLimit {
    limit: Duration,
    clock: Mutex<Clock>,
    sent: Mutex<Sent>,
}

/// How far the call has come.
#[derive(Debug)]
enum Sent {
    /// The tool has not begun to run.
    Nowhere,
    /// A Rust tool may run.
    Here,
    /// The tool may run on this server.
    To(Upstream),
}

#[derive(Debug)]
struct Clock {
    ends: Instant,
    /// How many questions are open, and since when the clock stands still for them.
    questions: usize,
    paused: Instant,
    /// Made when a stage first waits.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// The clock stands still while this lives.
#[derive(Debug)]
pub(crate) struct PausedTime(Arc<TimeLimit>);

impl TimeLimit {
    /// A limit that runs from now on.
    pub(crate) fn new(limit: Duration) -> Self {
        let now = Instant::now();
        let clock = Clock { ends: now + limit.min(LONGEST), questions: 0, paused: now, sleep: None };
        Self { limit, clock: Mutex::new(clock), sent: Mutex::new(Sent::Nowhere) }
    }

    /// Whether the time is over.
    pub(crate) fn is_spent(&self) -> bool {
        let clock = self.clock.lock();
        clock.questions == 0 && Instant::now() >= clock.ends
    }

    /// Stops the clock for a question to the program.
    pub(crate) fn pause(self: &Arc<Self>) -> PausedTime {
        let mut clock = self.clock.lock();
        if clock.questions == 0 {
            clock.paused = Instant::now();
        }
        clock.questions += 1;
        drop(clock);
        PausedTime(Arc::clone(self))
    }

    /// Notes that a Rust tool may run from now on.
    pub(crate) fn begun(&self) {
        *self.sent.lock() = Sent::Here;
    }

    /// Notes that the tool may run from now on, on this server or on this process of it.
    pub(crate) fn sent_to(&self, upstream: &Upstream) {
        *self.sent.lock() = Sent::To(upstream.clone());
    }

    /// Ends a call of this tool whose time is over: the server that works on it is looked after. Returns the error.
    fn give_up(&self, tool: &str) -> GatewayError {
        if let Sent::To(upstream) = &*self.sent.lock() {
            overdue(upstream);
        }
        self.error(tool)
    }

    /// The error of a call of this tool whose time is over.
    pub(crate) fn error(&self, tool: &str) -> GatewayError {
        let (sent, limit) = (!matches!(*self.sent.lock(), Sent::Nowhere), self.limit.as_millis());
        let what = if sent { "did not answer" } else { "was not called" };
        let message = format!(
            "tool `{tool}` {what} within {limit} ms, the `timeout` of the call (tool failed: timeout)"
        );
        let error = GatewayError::new(Code::ProviderTimeout, message);
        if sent { error.after_sending() } else { error }
    }

    /// The error of a call whose time ended before its tool was known.
    pub(crate) fn ended_with(&self, tool: &str, unknown: &GatewayError) -> GatewayError {
        let late = self.error(tool);
        GatewayError {
            message: format!("{}: {}", late.message, unknown.message),
            server: unknown.server.clone(),
            ..late
        }
    }

    /// What the future resolves to, or `None` if the time is over first.
    pub(crate) async fn within<T>(&self, mut waiting: impl Future<Output = T> + Unpin) -> Option<T> {
        poll_fn(|context| match Pin::new(&mut waiting).poll(context).map(Some) {
            Poll::Pending if self.poll_spent(context) => Poll::Ready(None),
            polled => polled,
        })
        .await
    }

    /// Whether the time is over; if not, the task is woken when it is. While a question is open, its answer wakes the task.
    fn poll_spent(&self, context: &mut Context<'_>) -> bool {
        let mut clock = self.clock.lock();
        if clock.questions > 0 {
            return false;
        }
        let ends = clock.ends;
        let sleep = clock.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(ends)));
        if sleep.deadline() != ends {
            sleep.as_mut().reset(ends);
        }
        sleep.as_mut().poll(context).is_ready()
    }
}

impl Drop for PausedTime {
    fn drop(&mut self) {
        let mut clock = self.0.clock.lock();
        clock.questions -= 1;
        if clock.questions == 0 {
            let stood = clock.paused.elapsed();
            clock.ends += stood;
        }
    }
}

/// What a stage ends with if the time of its call is over.
pub(crate) trait Late {
    /// The stage's own form of the error.
    fn late(error: GatewayError) -> Self;
}

impl<T, E: From<GatewayError>> Late for Result<T, E> {
    fn late(error: GatewayError) -> Self {
        Err(error.into())
    }
}

impl Late for Outcome {
    fn late(error: GatewayError) -> Self {
        error.into()
    }
}

/// A stage, raced with the time of its call.
pub(crate) struct Timed<'a, S> {
    stage: Pin<&'a mut S>,
    time: Option<&'a TimeLimit>,
    tool: &'a str,
    begun: bool,
}

impl Call<'_> {
    /// Races a stage with the time of the call.
    pub(super) fn timed<'a, S>(&'a self, stage: Pin<&'a mut S>, tool: &'a str) -> Timed<'a, S> {
        Timed { stage, time: self.time.as_deref(), tool, begun: false }
    }
}

impl<S: Future<Output: Late>> Future for Timed<'_, S> {
    type Output = S::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<S::Output> {
        let Some(time) = self.time else { return self.stage.as_mut().poll(context) };
        let begins = !std::mem::replace(&mut self.begun, true);
        // A stage does not begin after the time is over, but an answer that is there counts.
        if !(begins && time.is_spent()) {
            let outcome = self.stage.as_mut().poll(context);
            if outcome.is_ready() || !time.poll_spent(context) {
                return outcome;
            }
        }
        Poll::Ready(S::Output::late(time.give_up(self.tool)))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    /// A stage that ends when it is told to.
    async fn stage(end: &tokio::sync::Notify) -> Result<&'static str, GatewayError> {
        end.notified().await;
        Ok("done")
    }

    fn timed<'a, S>(stage: Pin<&'a mut S>, time: &'a TimeLimit) -> Timed<'a, S> {
        Timed { stage, time: Some(time), tool: "t", begun: false }
    }

    /// LIB-1: a stage ends with the time of its call and not before; an answer that is there then still counts, and a stage
    /// that would begin later does not.
    #[tokio::test(start_paused = true)]
    async fn a_stage_ends_with_the_time() {
        let (limit, end) = (Duration::from_secs(5), tokio::sync::Notify::new());
        let time = TimeLimit::new(limit);
        let mut running = pin!(stage(&end));
        let mut racing = timed(running.as_mut(), &time);
        assert!(poll!(&mut racing).is_pending());
        tokio::time::advance(limit - Duration::from_millis(1)).await;
        assert!(poll!(&mut racing).is_pending() && !time.is_spent());
        let began = Instant::now();
        let late = (&mut racing).await.unwrap_err();
        assert_eq!(
            (began.elapsed().as_millis(), late.code),
            (1, Code::ProviderTimeout),
            "it wakes the task by itself"
        );
        assert!(late.message.contains("was not called within 5000 ms, the `timeout`") && !late.may_have_run);

        end.notify_one();
        assert_eq!(poll!(&mut racing), Poll::Ready(Ok("done")));
        end.notify_one();
        let mut later = pin!(stage(&end));
        time.begun();
        let late = timed(later.as_mut(), &time).await.unwrap_err();
        assert!(late.message.contains("did not answer within") && late.may_have_run, "{late}");
        assert_eq!(TimeLimit::new(Duration::ZERO).within(Box::pin(std::future::pending::<()>())).await, None);
    }

    /// LIB-1, PIPE-9: the time stands still while any question is open, and goes on after the last answer.
    #[tokio::test(start_paused = true)]
    async fn questions_stop_the_clock() {
        let (limit, end) = (Duration::from_secs(5), tokio::sync::Notify::new());
        let time = Arc::new(TimeLimit::new(limit));
        let mut running = pin!(stage(&end));
        let mut racing = timed(running.as_mut(), &time);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(poll!(&mut racing).is_pending());
        let (first, second) = (time.pause(), time.pause());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(poll!(&mut racing).is_pending() && !time.is_spent());
        drop(first);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(poll!(&mut racing).is_pending());
        drop(second);
        tokio::time::advance(Duration::from_millis(2_999)).await;
        assert!(poll!(&mut racing).is_pending() && !time.is_spent());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(time.is_spent() && racing.await.is_err());
    }
}
