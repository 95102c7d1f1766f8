//! An audit sink that keeps every event in order, and can be set to fail.
//!
//! Refused events are kept too: a test wants to see that they were attempted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bridgehead_call::{AuditError, AuditSink, CorrelationId, Enter, EnterFuture, Exit, Ticket};
use parking_lot::Mutex;

/// One event as the sink got it.
#[derive(Debug, Clone)]
pub enum Event {
    /// A call was about to be made.
    Enter(Enter),
    /// A call ended.
    Exit(Exit),
}

/// A sink that keeps everything. Clones share the events.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Each event with the ticket it was given (enter) or brought (exit).
    events: Mutex<Vec<(Event, Option<Ticket>)>>,
    fail_enter: AtomicBool,
    fail_exit: AtomicBool,
}

impl Event {
    /// The id of the call.
    pub fn correlation(&self) -> CorrelationId {
        match self {
            Self::Enter(enter) => enter.correlation(),
            Self::Exit(exit) => exit.correlation(),
        }
    }
}

impl Recorder {
    /// A sink that accepts everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes `enter` fail from now on, or succeed again.
    pub fn fail_enter(&self, fail: bool) {
        self.0.fail_enter.store(fail, Ordering::SeqCst);
    }

    /// Makes `exit` fail from now on, or succeed again.
    pub fn fail_exit(&self, fail: bool) {
        self.0.fail_exit.store(fail, Ordering::SeqCst);
    }

    /// All events so far, in order.
    pub fn events(&self) -> Vec<Event> {
        self.0.events.lock().iter().map(|(event, _)| event.clone()).collect()
    }

    /// All enters so far, in order.
    pub fn enters(&self) -> Vec<Enter> {
        let pick = |event| match event {
            Event::Enter(enter) => Some(enter),
            Event::Exit(_) => None,
        };
        self.events().into_iter().filter_map(pick).collect()
    }

    /// All exits so far, in order.
    pub fn exits(&self) -> Vec<Exit> {
        let pick = |event| match event {
            Event::Exit(exit) => Some(exit),
            Event::Enter(_) => None,
        };
        self.events().into_iter().filter_map(pick).collect()
    }

    /// Asserts that every enter has exactly one exit, after it and with its ticket, and that every exit has its enter.
    /// Calls whose enter was refused have no ticket and are matched by their ids.
    #[track_caller]
    pub fn assert_paired(&self) {
        let mut open = Vec::new();
        for (event, ticket) in self.0.events.lock().clone() {
            let place = (ticket, event.correlation());
            match event {
                Event::Enter(_) => open.push(place),
                Event::Exit(_) => match open.iter().position(|known| *known == place) {
                    Some(at) => drop(open.remove(at)),
                    None => panic!("an event out of place: {event:?}, {ticket:?}"),
                },
            }
        }
        assert!(open.is_empty(), "calls that entered and never ended: {open:?}");
    }
}

impl AuditSink for Recorder {
    fn enter(&self, event: &Enter) -> EnterFuture {
        let outcome = outcome(&self.0.fail_enter);
        let mut events = self.0.events.lock();
        let ticket = outcome.is_ok().then(|| Ticket::new(1, events.len() as u64));
        events.push((Event::Enter(event.clone()), ticket));
        Box::pin(std::future::ready(outcome.map(|()| ticket)))
    }

    fn exit(&self, ticket: Option<Ticket>, event: Exit) -> Result<(), AuditError> {
        self.0.events.lock().push((Event::Exit(event), ticket));
        outcome(&self.0.fail_exit)
    }
}

fn outcome(fail: &AtomicBool) -> Result<(), AuditError> {
    if fail.load(Ordering::SeqCst) {
        Err(AuditError::Failed("the test asked for it".to_owned()))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_call::{Call, Clock, Outcome};
    use bytes::Bytes;

    use super::*;
    use crate::FakeClock;

    fn enter(clock: &FakeClock) -> Enter {
        let call = Call {
            tool: "add".into(),
            server: None,
            principal: "ada".into(),
            correlation: CorrelationId::mint(),
            era: bridgehead_call::Era::Modern,
            transport: "memory",
            about: bridgehead_call::About::default(),
        };
        Enter::new(call, Bytes::from_static(b"{}"), true, clock.now())
    }

    fn exit(enter: &Enter, clock: &FakeClock) -> Exit {
        Exit::new(enter.call(), enter.moment(), clock.now(), Outcome::Cancelled)
    }

    #[tokio::test]
    async fn keeps_events_in_order_also_those_it_refuses() {
        let (clock, recorder) = (FakeClock::new(), Recorder::new());
        let first = enter(&clock);
        let ticket = recorder.enter(&first).await.unwrap();
        clock.advance(std::time::Duration::from_millis(3));
        recorder.exit(ticket, exit(&first, &clock)).unwrap();
        recorder.assert_paired();

        recorder.fail_enter(true);
        recorder.fail_exit(true);
        let second = enter(&clock);
        recorder.enter(&second).await.unwrap_err();
        recorder.exit(None, exit(&second, &clock)).unwrap_err();
        recorder.assert_paired();

        let ids: Vec<_> = recorder.events().iter().map(Event::correlation).collect();
        let (first, second) = (first.correlation(), second.correlation());
        assert_eq!(ids, [first, first, second, second]);
        assert_eq!(recorder.exits()[0].duration_ms(), 3);
        assert_eq!(recorder.enters().len(), 2);
    }

    #[tokio::test]
    #[should_panic(expected = "never ended")]
    async fn an_enter_without_exit_is_not_paired() {
        let recorder = Recorder::new();
        recorder.enter(&enter(&FakeClock::new())).await.unwrap();
        recorder.assert_paired();
    }

    #[test]
    #[should_panic(expected = "out of place")]
    fn an_exit_without_enter_is_not_paired() {
        let (clock, recorder) = (FakeClock::new(), Recorder::new());
        recorder.exit(None, exit(&enter(&clock), &clock)).unwrap();
        recorder.assert_paired();
    }
}
