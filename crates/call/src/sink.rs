//! Where events go. A sink keeps them or forwards them; it never decides about a call beyond refusing it by
//! failing `enter`.
//!
//! The two halves differ on purpose. The call waits for `enter`, so a store can make the record durable before
//! the tool runs. `exit` is not asynchronous, because it also runs from the destructor of a call that was
//! dropped or that panics, where nothing can be awaited: it queues, and the sink writes when it can.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::{Enter, Exit, Ticket};

/// The future of [`AuditSink::enter`]. It is boxed, so that the sink can be chosen at run time. It borrows nothing, so that
/// an enter completes even if its call is dropped. `None` means that nothing was recorded; the call continues anyway.
pub type EnterFuture = Pin<Box<dyn Future<Output = Result<Option<Ticket>, AuditError>> + Send>>;

/// Why an event was not recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// Events arrive faster than the sink can write them.
    #[error("the audit queue is full")]
    Full,
    /// The sink failed to write; the text names the failed step, without arguments or secrets.
    #[error("the audit record was not written: {0}")]
    Failed(String),
}

/// Keeps the events of calls.
pub trait AuditSink: Send + Sync + 'static {
    /// Records that a call is about to be made. The call waits, and does not run if this fails.
    fn enter(&self, event: &Enter) -> EnterFuture;

    /// Records that the call with this ticket ended. A call whose enter was not recorded has no ticket. Only the ticket
    /// pairs an exit with its enter: the correlation id cannot, because the client chooses it. Must not block.
    ///
    /// # Errors
    /// When the event cannot be queued. The caller logs and counts that; the client never sees it.
    fn exit(&self, ticket: Option<Ticket>, event: Exit) -> Result<(), AuditError>;

    /// Whether the sink keeps anything. If not, the gateway skips the work that only a record would show.
    fn keeps(&self) -> bool {
        true
    }

    /// The id of this process instance in the record. Its last twelve characters also name the gateway, so that
    /// either can be found from the other.
    fn instance(&self) -> Option<&str> {
        None
    }
}

/// Discards every event: the library's default. The binary configures a real sink.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopSink;

impl AuditSink for NoopSink {
    fn enter(&self, _event: &Enter) -> EnterFuture {
        Box::pin(Recorded)
    }

    fn exit(&self, _ticket: Option<Ticket>, _event: Exit) -> Result<(), AuditError> {
        Ok(())
    }

    fn keeps(&self) -> bool {
        false
    }
}

/// A future without state: boxing it allocates nothing, which an `async` block could not promise.
struct Recorded;

impl Future for Recorded {
    type Output = Result<Option<Ticket>, AuditError>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(None))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::task::Waker;

    use bytes::Bytes;

    use super::*;
    use crate::{Call, Clock, CorrelationId, Outcome, SystemClock};

    #[derive(Default)]
    struct Kept(Mutex<Vec<String>>);

    impl AuditSink for Kept {
        fn enter(&self, event: &Enter) -> EnterFuture {
            let mut kept = self.0.lock().unwrap();
            kept.push(format!("enter {}", event.correlation()));
            let ticket = Ticket::new(7, kept.len() as u64);
            Box::pin(std::future::ready(Ok(Some(ticket))))
        }

        fn exit(&self, ticket: Option<Ticket>, event: Exit) -> Result<(), AuditError> {
            let place = ticket.map(|ticket| (ticket.segment(), ticket.number()));
            self.0.lock().unwrap().push(format!("exit {} of {place:?}", event.correlation()));
            Ok(())
        }
    }

    fn finish(future: EnterFuture) -> Result<Option<Ticket>, AuditError> {
        let mut future = future;
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("the sink waits for nothing here"),
        }
    }

    fn drive(sink: &dyn AuditSink) -> CorrelationId {
        let clock = SystemClock::new();
        let call = Call {
            tool: "t".into(),
            server: None,
            principal: "p".into(),
            correlation: CorrelationId::mint(),
            era: bridgehead_wire::Era::Modern,
            transport: "memory",
            about: crate::About::default(),
        };
        let enter = Enter::new(call, Bytes::from_static(b"{}"), false, clock.now());
        let ticket = finish(sink.enter(&enter)).unwrap();
        sink.exit(ticket, Exit::new(enter.call(), enter.moment(), clock.now(), Outcome::Cancelled)).unwrap();
        enter.correlation()
    }

    /// AUD-1: a sink chosen at run time gets an enter, and then an exit with the ticket that it issued.
    #[test]
    fn a_sink_gets_its_ticket_back_with_the_exit() {
        let sink = Arc::new(Kept::default());
        let id = drive(&*sink);
        assert_eq!(*sink.0.lock().unwrap(), [format!("enter {id}"), format!("exit {id} of Some((7, 1))")]);
    }

    /// AUD-1: the no-op sink accepts everything and boxes no state.
    #[test]
    fn the_noop_sink_costs_nothing() {
        drive(&NoopSink);
        assert_eq!(size_of::<Recorded>(), 0, "a boxed value without size allocates nothing");
    }
}
