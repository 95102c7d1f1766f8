//! Who may call over HTTP, what each may use and how much, made from one configuration.
//!
//! The decisions are made in the crate `bridgehead-access`. This module gives them to a server, and changes them while it runs:
//! rules, limits, keys and operators take effect at once, everything else of `[auth]` at the next start.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[cfg(feature = "config-files")]
use bridgehead_config::Config;
use bridgehead_config::{AuthSettings, HttpSettings, LimitRule, ListenerAuth, PolicyRule};
use bridgehead_front::{Authenticator, LocalUser, Operators, Token};
use bridgehead_gateway::{AdminEvent, Authorizer, Gateway, Limiter, Principal, admin};
use serde_json::json;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::warn;

pub use bridgehead_access::limits::{BudgetRecord, Costs, LimitError, PrincipalLimits};
pub use bridgehead_access::policy::{Deciding, Explanation, Policy, PolicyError, Verdict};
pub use bridgehead_access::tokens::FetchError;
#[doc(inline)]
pub use bridgehead_access::tokens::{Answer as FetchAnswer, Asked as FetchRequest, Form as FetchForm};
pub use bridgehead_access::{AcceptedCredentials, FailedSignIns, Fetch, HttpFetch, Means, keys};

use crate::Clock;

/// How long a stopping server waits until the last failed sign-ins are in the record.
const RECORDING: Duration = Duration::from_secs(5);

/// What [`Access`] is made from.
#[derive(Debug, Clone, Default)]
pub struct AccessSettings {
    /// Who is admitted, and as whom.
    pub auth: AuthSettings,
    /// Who may use what; empty if everybody who is admitted may use everything.
    pub policy: Vec<PolicyRule>,
    /// How much each principal may do.
    pub limits: Vec<LimitRule>,
    /// What calls take from a budget.
    pub costs: Costs,
}

impl AccessSettings {
    /// Those of a configuration.
    #[cfg(feature = "config-files")]
    pub fn configured(config: &Config) -> Self {
        Self {
            auth: config.auth.clone(),
            policy: config.policy.clone(),
            limits: config.limits.clone(),
            costs: Costs::of(&config.servers),
        }
    }
}

/// Why access could not be set up, or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// A rule cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A limit cannot be used.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Decides who may call, what each may use and how much. Clones share it.
#[derive(Clone)]
pub struct Access(Arc<Inner>);

struct Inner {
    auth: AuthSettings,
    operators: Operators,
    policy: Arc<Policy>,
    limits: Arc<PrincipalLimits>,
    clock: Arc<dyn Clock>,
    /// Made when the first endpoint opens.
    credentials: OnceLock<Arc<AcceptedCredentials>>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

impl Access {
    /// Compiles the rules, and counts what was spent today. Budgets need `record`. Keys are read when the server starts.
    ///
    /// # Errors
    /// If a rule or a limit cannot be used.
    pub fn new(
        settings: AccessSettings,
        clock: Arc<dyn Clock>,
        record: Option<BudgetRecord>,
    ) -> Result<Self, AccessError> {
        let AccessSettings { auth, policy, limits, costs } = settings;
        Ok(Self(Arc::new(Inner {
            operators: Operators::new(auth.operators.clone(), auth.operators_read.clone()),
            auth,
            policy: Arc::new(Policy::new(policy)?),
            limits: Arc::new(PrincipalLimits::new(limits, costs, Arc::clone(&clock), record)?),
            clock,
            credentials: OnceLock::new(),
        })))
    }

    /// The rules.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    pub(crate) fn authorizer(&self) -> Arc<dyn Authorizer> {
        Arc::clone(&self.0.policy) as Arc<dyn Authorizer>
    }

    pub(crate) fn limiter(&self) -> Arc<dyn Limiter> {
        Arc::clone(&self.0.limits) as Arc<dyn Limiter>
    }

    /// Whether a caller without credentials is refused, unless a listener is open.
    pub(crate) fn asks_for_credentials(&self) -> bool {
        self.0.auth.refuses_strangers()
    }

    /// Who may use the operators' API.
    pub(crate) fn operators(&self) -> Operators {
        self.0.operators.clone()
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
                    scopes: self.0.policy.scopes(),
                    clock: Arc::clone(&self.0.clock),
                    fetch: Arc::new(HttpFetch),
                };
                let made = AcceptedCredentials::new(&self.0.auth, means).map_err(io::Error::other)?;
                self.0.credentials.get_or_init(|| made)
            }
        };
        Ok(credentials.authenticator(auth, LocalUser::new(settings)))
    }

    /// Watches keys and issuers, and puts failed sign-ins into the record. `None` if no endpoint is open.
    pub(crate) fn background(&self, gateway: &Gateway) -> Option<Background> {
        let credentials = Arc::clone(self.0.credentials.get()?);
        let record = FailureRecord { gateway: gateway.clone(), writing: TaskTracker::new() };
        let told = record.clone();
        let run = Arc::clone(&credentials).run(move |failed| told.add(failed));
        Some(Background { credentials, record, running: AbortOnDropHandle::new(tokio::spawn(run)) })
    }

    /// Applies changed rules, limits, keys and operators to a running gateway. Returns whether the rules say something else than before.
    ///
    /// # Errors
    /// If a rule or a limit cannot be used. Then nothing changes.
    pub fn apply(&self, settings: AccessSettings, gateway: &Gateway) -> Result<bool, AccessError> {
        let AccessSettings { auth, policy, limits, costs } = settings;
        // Compiled first, so that a rule that cannot be used changes nothing.
        Policy::new(policy.clone())?;
        self.0.limits.reload(limits, costs)?;
        let changed = self.0.policy.replace(policy)?;
        self.0.operators.set(auth.operators, auth.operators_read);
        if let Some(credentials) = self.0.credentials.get() {
            credentials.set_keys(auth.keys);
            credentials.set_scopes(&self.0.policy.scopes());
        }
        if changed {
            gateway.policy_changed();
        }
        Ok(changed)
    }
}

/// The background work of [`Access`], for as long as the server runs.
pub(crate) struct Background {
    credentials: Arc<AcceptedCredentials>,
    record: FailureRecord,
    running: AbortOnDropHandle<()>,
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background").finish_non_exhaustive()
    }
}

impl Background {
    /// Ends the work when no more requests are accepted. Returns once the failed sign-ins of the last minute are in the record.
    pub(crate) async fn end(self) {
        let Self { credentials, record, running } = self;
        running.abort();
        drop(running.await);
        credentials.unreported().into_iter().for_each(|failed| record.add(failed));
        record.writing.close();
        if tokio::time::timeout(RECORDING, record.writing.wait()).await.is_err() {
            warn!(limit = ?RECORDING, "failed sign-ins could not be recorded");
        }
    }
}

/// Puts failed sign-ins into the record.
#[derive(Clone)]
struct FailureRecord {
    gateway: Gateway,
    writing: TaskTracker,
}

impl FailureRecord {
    fn add(&self, failed: FailedSignIns) {
        warn!(from = failed.origin, count = failed.count, reason = failed.reason, "sign-ins failed");
        let gateway = self.gateway.clone();
        self.writing.spawn(async move {
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
    }
}
