//! The names of the library: each stands for one thing, and every type in a public signature has one.
//!
//! Most of this is checked by the compiler.
#![deny(ambiguous_glob_reexports)]
#![allow(unreachable_pub, reason = "only names that are public can collide")]

/// LIB-6: a name stands for one thing, wherever in the library it is. A name that stands for two does not compile here, unless it is
/// accepted at the end.
pub mod all {
    pub use bridgehead::access::*;
    pub use bridgehead::audit::*;
    pub use bridgehead::bridge::*;
    pub use bridgehead::config::*;
    pub use bridgehead::control::*;
    pub use bridgehead::credentials::*;
    pub use bridgehead::events::*;
    pub use bridgehead::protocol::*;
    pub use bridgehead::provider::*;
    pub use bridgehead::schema::*;
    pub use bridgehead::tools::*;
    pub use bridgehead::*;

    // Modules: the keys of the configuration, and the keys of principals.
    pub use bridgehead::config::keys;
}

/// LIB-6: a program can name the types of public fields and signatures.
#[test]
fn types_in_signatures_have_names() {
    use std::sync::Arc;

    use bridgehead::{Principal, Redactor, Validity, audit, bridge, config};

    fn hides(store: audit::StoreOptions, settings: &config::AuditSettings) -> (Redactor, Arc<config::Rules>) {
        (store.redactor, Arc::clone(&settings.rules))
    }
    fn cause(error: bridge::BridgeError) -> Option<bridge::LinkError> {
        if let bridge::Cause::Link(error) = error.cause { Some(error) } else { None }
    }
    fn start(
        error: bridgehead::StartError,
    ) -> (Option<bridgehead::BindError>, Option<bridgehead::TokenError>) {
        match error {
            bridgehead::StartError::Listener(error) => (Some(error), None),
            bridgehead::StartError::Token(error) => (None, Some(error)),
            _ => (None, None),
        }
    }
    fn looked(gateway: &bridgehead::Gateway) -> (bridgehead::Status, Option<bridgehead::ServerRecord>) {
        (gateway.status(), gateway.record("git"))
    }
    fn made(options: bridgehead::GatewayOptions) -> Option<bridgehead::Gateway> {
        bridgehead::Gateway::new(options).ok()
    }
    fn revision(peer: &bridge::ServerPeer) -> bridgehead::protocol::Revision {
        peer.revision
    }
    fn needed(decision: bridgehead::Decision) -> Option<bridgehead::Scopes> {
        if let bridgehead::Decision::Scoped(scopes) = decision { Some(scopes) } else { None }
    }
    fn method<'a>(call: &bridgehead::Limited<'a>) -> &'a bridgehead::protocol::Method {
        call.method
    }
    let _ = (hides, cause, start, looked, made, revision, needed, method);
    let validity: Validity = Principal::local().validity().clone();
    let same = Principal::named("me").valid(validity);
    assert_eq!(same.name(), "me");
}
