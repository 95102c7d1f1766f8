//! A call in progress behind one POST, and what happens to it when the client disconnects.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

/// What a dropped connection means for its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDisconnect {
    /// The client no longer wants it (modern).
    Cancel,
    /// It goes on until it is done, cancelled by message, or its session ends (legacy).
    Finish,
}

/// A call, polled in place. If it is dropped before its end, it is cancelled or handed to the runtime to finish.
pub(crate) struct Running<T: Send + 'static> {
    call: Option<BoxFuture<'static, T>>,
    on_disconnect: OnDisconnect,
}

impl<T: Send + 'static> Running<T> {
    pub(crate) fn new(on_disconnect: OnDisconnect, call: impl Future<Output = T> + Send + 'static) -> Self {
        Self { call: Some(Box::pin(call)), on_disconnect }
    }

    /// Continues as a separate task, so that a client that is slow to read does not hold it up. The
    /// future returns the outcome, or `None` if the call panicked; dropping it is a disconnect.
    pub(crate) fn into_task(mut self) -> BoxFuture<'static, Option<T>> {
        let Some(call) = self.call.take() else { return Box::pin(async { None }) };
        let task = tokio::spawn(call);
        match self.on_disconnect {
            OnDisconnect::Finish => Box::pin(async move { task.await.ok() }),
            OnDisconnect::Cancel => {
                let task = AbortOnDropHandle::new(task);
                Box::pin(async move { task.await.ok() })
            }
        }
    }
}

impl<T: Send + 'static> Future for Running<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(call) = &mut self.call else { return Poll::Pending };
        let outcome = call.as_mut().poll(context);
        if outcome.is_ready() {
            self.call = None;
        }
        outcome
    }
}

impl<T: Send + 'static> Drop for Running<T> {
    fn drop(&mut self) {
        if self.on_disconnect == OnDisconnect::Finish
            && let Some(call) = self.call.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(call);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    async fn dropped_in_the_middle(on_disconnect: OnDisconnect) -> Result<u8, oneshot::error::RecvError> {
        let (go, gate) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let mut running = Running::new(on_disconnect, async move {
            gate.await.unwrap();
            tell.send(7).unwrap();
        });
        assert!(futures_util::poll!(&mut running).is_pending());
        drop(running);
        let _ = go.send(());
        told.await
    }

    #[tokio::test]
    async fn a_disconnect_cancels_or_lets_finish() {
        assert_eq!(dropped_in_the_middle(OnDisconnect::Finish).await, Ok(7));
        assert!(dropped_in_the_middle(OnDisconnect::Cancel).await.is_err());
    }
}
