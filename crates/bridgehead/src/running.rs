//! A running server, and how it ends: by itself, by a signal, or by [`Running::stop`].
//!
//! Shutdown always has the same order: the fronts accept no more requests and answer those in progress for at most
//! [`DRAIN`], then the upstreams stop. When a method here returns, the transports are closed and no upstream is left,
//! except after [`Ending::Forced`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bridgehead_gateway::Gateway;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::instrument::WithSubscriber;
use tracing::{Dispatch, error, info, warn};

#[cfg(feature = "access")]
use crate::access::Background;
use crate::control::Serving;
use crate::handlers::{Signals, StopSignal};

/// How long a stopping server waits for requests in progress.
pub const DRAIN: Duration = Duration::from_secs(10);

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The client of a one-client transport closed its end.
    ClientGone,
    /// A signal asked for shutdown, and requests in progress were drained.
    Signal(StopSignal),
    /// A second signal asked for immediate shutdown; nothing was drained.
    Forced(StopSignal),
}

/// A failure that ended a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A transport can no longer be read or written.
    #[error("a transport failed: {0}")]
    Transport(io::Error),
    /// The code that serves clients panicked outside of tool handlers and audit sinks; the panic's place is in the log.
    #[error("the gateway panicked; its log says where")]
    Panicked,
}

/// A started server. Dropping it, also within a cancelled [`Running::wait`], closes the transports and ends the upstreams, and
/// waits for neither; [`Running::stop`] answers requests in progress first, and returns when all are gone.
#[derive(Debug)]
#[must_use]
pub struct Running {
    pub(crate) gateway: Gateway,
    pub(crate) fronts: JoinSet<io::Result<&'static str>>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) signals: Option<Signals>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) listeners: Vec<String>,
    /// Serves operators until shutdown.
    pub(crate) control: Option<Serving>,
    /// Watches keys and issuers until the end.
    #[cfg(feature = "access")]
    pub(crate) background: Option<Background>,
    pub(crate) connected: Arc<AtomicBool>,
    pub(crate) logger: Option<Dispatch>,
}

impl Running {
    /// The addresses it listens on, with the actual port if the settings say port 0. That of `http.listen` comes first.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where clients reach it over HTTP: a URL for each address, `unix:PATH` for each socket.
    pub fn listeners(&self) -> &[String] {
        &self.listeners
    }

    /// Waits until operators and clients can connect to the control socket, if one is wanted.
    ///
    /// # Errors
    /// The first call returns why there is no control socket, if it could not be created.
    pub async fn control_opened(&mut self) -> io::Result<()> {
        match &mut self.control {
            Some(control) => control.opened().await,
            None => Ok(()),
        }
    }

    /// Closes the transports and returns once they are closed and the upstreams are gone.
    pub async fn stop(mut self) {
        match self.logger.take() {
            Some(logger) => self.close().with_subscriber(logger).await,
            None => self.close().await,
        }
    }

    /// Waits until a transport ends by itself or a signal comes, and then closes everything. With process-wide handling a
    /// panic ends it too: the state after a panic is unknown, and a process manager can restart the program.
    ///
    /// The end of one transport ends the server: a gateway that a client started as its child must not outlive that client,
    /// even if it also serves HTTP.
    pub async fn wait(mut self) -> Result<Ending, RunError> {
        match self.logger.take() {
            Some(logger) => self.wait_here().with_subscriber(logger).await,
            None => self.wait_here().await,
        }
    }

    async fn wait_here(mut self) -> Result<Ending, RunError> {
        let mut signals = self.signals.take();
        let handled = signals.is_some();
        let mut first = None;
        let ended = tokio::select! {
            // Checks for a panic before the fronts, because a front that panicked reports it first.
            biased;
            signal = next(&mut signals) => {
                first = Some(signal);
                Ok("a signal came")
            }
            () = self.gateway.panicked(), if handled => Err(RunError::Panicked),
            Some(front) = self.fronts.join_next() => outcome(front),
        };
        match (first, &ended) {
            (Some(signal), _) => info!(?signal, "stopping; a second signal ends at once"),
            (None, Ok(why)) => info!("{why}; stopping"),
            (None, Err(error)) => error!(%error, "stopping"),
        }
        let closing = self.close();
        tokio::pin!(closing);
        loop {
            tokio::select! {
                () = &mut closing => break,
                signal = next(&mut signals) => {
                    if first.is_some() {
                        warn!(?signal, "ending at once");
                        return Ok(Ending::Forced(signal));
                    }
                    first = Some(signal);
                }
            }
        }
        ended.map(|_| first.map_or(Ending::ClientGone, Ending::Signal))
    }

    async fn close(mut self) {
        self.shutdown.cancel();
        let control = self.control.take();
        let drained = async {
            while self.fronts.join_next().await.is_some() {}
            futures_util::future::OptionFuture::from(control.map(Serving::ended)).await;
        };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            warn!(limit = ?DRAIN, "requests in progress are cut off");
            self.fronts.shutdown().await;
        }
        self.connected.store(false, Ordering::Release);
        #[cfg(feature = "access")]
        if let Some(background) = self.background.take() {
            background.end().await;
        }
        self.gateway.stop().await;
        info!("stopped");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
        self.connected.store(false, Ordering::Release);
        self.gateway.leave();
    }
}

async fn next(signals: &mut Option<Signals>) -> StopSignal {
    let Some(signals) = signals else { return std::future::pending().await };
    signals.next().await
}

fn outcome(front: Result<io::Result<&'static str>, JoinError>) -> Result<&'static str, RunError> {
    match front {
        Ok(Ok(why)) => Ok(why),
        Ok(Err(error)) => Err(RunError::Transport(error)),
        Err(_) => Err(RunError::Panicked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_transport_is_told_apart_from_its_end() {
        assert!(matches!(outcome(Ok(Ok("gone"))), Ok("gone")));
        let broken = outcome(Ok(Err(io::ErrorKind::ConnectionReset.into())));
        assert!(
            matches!(broken, Err(RunError::Transport(error)) if error.kind() == io::ErrorKind::ConnectionReset)
        );
    }
}
