//! Who may call over HTTP, what each may use and how much, made from one configuration.
//!
//! The decisions are made in the crate `bridgehead-access`. This module gives them to a server, and changes them while it runs:
//! rules, limits and keys take effect at once, everything else of `[auth]` at the next start.

use std::io;
use std::sync::{Arc, OnceLock};

#[cfg(feature = "config-files")]
use bridgehead_config::Config;
use bridgehead_config::{AuthSettings, HttpSettings, ListenerAuth};
use bridgehead_front::{Authenticator, LocalUser, Operators, Token};
use bridgehead_gateway::{AdminEvent, Gateway, Principal, admin};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

pub use bridgehead_access::{Credentials, Fetch, HttpFetch, Means, keys};

use crate::Clock;

/// What [`Access`] is made from.
#[derive(Debug, Clone, Default)]
pub struct AccessSettings {
    /// Who is admitted, and as whom.
    pub auth: AuthSettings,
}

impl AccessSettings {
    /// Those of a configuration.
    #[cfg(feature = "config-files")]
    pub fn configured(config: &Config) -> Self {
        Self { auth: config.auth.clone() }
    }
}

/// Decides who may call, what each may use and how much. Clones share it.
#[derive(Clone)]
pub struct Access(Arc<Inner>);

struct Inner {
    auth: AuthSettings,
    clock: Arc<dyn Clock>,
    /// Made when the first endpoint opens.
    credentials: OnceLock<Arc<Credentials>>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

impl Access {
    /// Takes the settings; nothing is read before the server starts.
    pub fn new(settings: AccessSettings, clock: Arc<dyn Clock>) -> Self {
        let AccessSettings { auth } = settings;
        Self(Arc::new(Inner { auth, clock, credentials: OnceLock::new() }))
    }

    /// Whether a caller without credentials is refused, unless a listener is open.
    pub(crate) fn asks_for_credentials(&self) -> bool {
        self.0.auth.refuses_strangers()
    }

    /// Who may use the operators' API.
    pub(crate) fn operators(&self) -> Operators {
        Operators { all: self.0.auth.operators.clone(), read: self.0.auth.operators_read.clone() }
    }

    /// The authenticator of a listener.
    pub(crate) fn authenticator(
        &self,
        settings: &HttpSettings,
        auth: Option<ListenerAuth>,
        token: Option<Token>,
    ) -> io::Result<Box<dyn Authenticator>> {
        let credentials = match self.0.credentials.get() {
            Some(credentials) => credentials,
            None => {
                let means = Means {
                    token,
                    scopes: Vec::new(),
                    clock: Arc::clone(&self.0.clock),
                    fetch: Arc::new(HttpFetch),
                };
                let made = Credentials::new(&self.0.auth, means).map_err(io::Error::other)?;
                self.0.credentials.get_or_init(|| made)
            }
        };
        Ok(credentials.authenticator(auth, LocalUser::new(settings)))
    }

    /// Watches keys and issuers, and puts failed sign-ins into the record. `None` if no endpoint is open.
    pub(crate) fn background(&self, gateway: &Gateway) -> Option<AbortOnDropHandle<()>> {
        let credentials = Arc::clone(self.0.credentials.get()?);
        let gateway = gateway.clone();
        let run = credentials.run(move |failed| {
            warn!(from = failed.origin, count = failed.count, reason = failed.reason, "sign-ins failed");
            let gateway = gateway.clone();
            tokio::spawn(async move {
                let event = AdminEvent {
                    principal: &Principal::local(),
                    transport: "http",
                    method: admin::SIGN_IN_FAILED,
                    subject: &failed.origin,
                    arguments: &json!({"count": failed.count, "reason": failed.reason}),
                };
                // A record that fails is signalled there.
                drop(gateway.record_event(event, || Err(failed.reason.clone())).await);
            });
        });
        Some(AbortOnDropHandle::new(tokio::spawn(run)))
    }

    /// Applies changed keys to a running server.
    pub fn apply(&self, settings: AccessSettings) {
        if let Some(credentials) = self.0.credentials.get() {
            credentials.set_keys(settings.auth.keys);
        }
    }
}
