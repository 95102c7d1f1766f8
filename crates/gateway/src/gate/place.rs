//! What a call holds of scarce things: its lock, its place in a queue, its allowance, its lease.
//!
//! A call gives it back when it ends. But a client that hangs up cannot free what its server still uses: if the request was
//! sent and is not known to have ended, its places go to what watches for that end ([`Unfinished`]). Every other call pays one
//! load per place.

use std::sync::OnceLock;
use std::time::Duration;

use bridgehead_call::{Evicted, Permit, Resting, Seat};
use bridgehead_upstream::{Exchange, Lease, Unfinished};
use bridgehead_wire::Code;

use crate::access::Allowance;
use crate::error::GatewayError;

/// Something scarce that a call holds.
pub(crate) trait Scarce: Send + 'static {
    /// Notes that it is kept after its call was given up.
    fn linger(&mut self) {}
}

impl Scarce for Permit {
    fn linger(&mut self) {
        Self::linger(self);
    }
}

impl Scarce for Lease {
    fn linger(&mut self) {
        Self::linger(self);
    }
}

/// What is counted as running stays counted.
impl Scarce for Allowance {}

/// What the places of one call have in common.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The request of the call that was cancelled and may still run.
    unfinished: OnceLock<Unfinished>,
    /// The place in the line of the tool's lock, if it has one.
    pub(crate) lock: OnceLock<Seat>,
}

/// Something scarce, held by a call for as long as this lives, and longer if its server still uses it then.
#[derive(Debug)]
pub(crate) struct Place<'c, T: Scarce> {
    places: &'c Places,
    held: Option<T>,
}

impl Places {
    /// Holds something for the call.
    pub(crate) const fn hold<T: Scarce>(&self, held: T) -> Place<'_, T> {
        Place { places: self, held: Some(held) }
    }

    /// Cancels the request of an exchange, unless it is answered or was not sent.
    pub(crate) fn abandon(&self, exchange: &mut Exchange, grace: Duration) {
        if let Some(unfinished) = exchange.abandon(grace) {
            let _ = self.unfinished.set(unfinished);
        }
    }
}

impl<T: Scarce> Place<'_, T> {
    pub(crate) const fn get(&self) -> Option<&T> {
        self.held.as_ref()
    }

    pub(crate) const fn get_mut(&mut self) -> Option<&mut T> {
        self.held.as_mut()
    }
}

impl<T: Scarce> Drop for Place<'_, T> {
    fn drop(&mut self) {
        let Some(unfinished) = self.places.unfinished.get() else { return };
        if let Some(mut held) = self.held.take() {
            held.linger();
            unfinished.hold(held);
        }
    }
}

/// Resolves when a place that rests is called back.
pub(crate) async fn evicted(resting: &mut Option<Resting>) -> Evicted {
    match resting {
        Some(resting) => resting.evicted().await,
        None => std::future::pending().await,
    }
}

/// The error of a call that waited for its client while another principal waited for what it held.
pub(crate) fn made_way(kind: &str, name: &str) -> GatewayError {
    let message = format!(
        "{kind} `{name}` waited for its client, and made way for a call of another principal: answer its \
         questions sooner, or try again later"
    );
    GatewayError::new(Code::ProviderUnavailable, message).after_sending()
}
