//! Who may call what, and how much.
//!
//! The gateway and the front ask through three traits, and this crate implements them from the checked configuration: an
//! authenticator names the principal of a request, the authorizer decides what that principal may use, and the limiter
//! decides how much. Nothing here knows how a request travels.
//!
//! # Credentials
//!
//! [`AcceptedCredentials`] holds everything by which a caller can show who it is: [keys], tokens of issuers ([`tokens`]), the endpoint's
//! token, a trusted proxy's header, the local user. One value serves all listeners, and each listener gets its own authenticator:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use bridgehead_access::{AcceptedCredentials, HttpFetch, Means};
//! # use bridgehead_call::SystemClock;
//! # use bridgehead_config::{AuthSettings, HttpSettings};
//! # use bridgehead_front::LocalUser;
//! # async fn start(auth: AuthSettings, http: HttpSettings) -> Result<(), Box<dyn std::error::Error>> {
//! let means = Means {
//!     token: None,
//!     scopes: vec!["repo:write".to_owned()],
//!     clock: Arc::new(SystemClock::new()),
//!     fetch: Arc::new(HttpFetch),
//! };
//! let credentials = AcceptedCredentials::new(&auth, means)?;
//! let authenticator = credentials.authenticator(None, LocalUser::new(&http));
//! // Ends with the server: watches the keys file and refreshes the keys of issuers.
//! let background = tokio::spawn(credentials.run(|failed| tracing::warn!(?failed, "sign-ins failed")));
//! # drop((authenticator, background));
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! [`limits::PrincipalLimits::new`] makes the limiter from the rules of the configuration, what tools cost, a clock, and the record that
//! budgets are counted from; [`limits::PrincipalLimits::reload`] replaces the rules. It goes into the `limiter` of the gateway's `Options`.

mod authenticator;
pub mod keys;
pub mod limits;
pub mod policy;
pub mod tokens;

pub use authenticator::{AcceptedCredentials, FailedSignIns, Means};
pub use tokens::{Fetch, HttpFetch};
