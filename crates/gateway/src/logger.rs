//! Where the gateway tells of its own failures: to the embedder's logger, if there is one.

use tracing::{Dispatch, dispatcher};

/// The embedder's logger; without one, lines go to the subscriber of whoever asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Logger(pub(crate) Option<Dispatch>);

impl Logger {
    /// Runs `log`, whose lines go to the logger.
    pub(crate) fn tell(&self, log: impl FnOnce()) {
        match &self.0 {
            Some(logger) => dispatcher::with_default(logger, log),
            None => log(),
        }
    }
}
