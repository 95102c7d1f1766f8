//! Whom a rule speaks of.

use bridgehead_config::Who;
use bridgehead_gateway::{Principal, PrincipalKind};

/// Whether a rule's word for somebody means this principal.
pub(super) fn means(who: &Who, principal: &Principal) -> bool {
    let (id, kind) = (principal.as_str(), principal.kind());
    let is_local = |user: u32| {
        let own = id == "local" && user == rustix::process::geteuid().as_raw();
        kind == PrincipalKind::Local
            && (own || id.strip_prefix("local:").is_some_and(|of| of == user.to_string()))
    };
    match who {
        Who::Everyone => true,
        Who::Local => is_local(rustix::process::geteuid().as_raw()),
        Who::LocalUser(user) => is_local(*user),
        Who::Token => kind == PrincipalKind::Token,
        Who::Key(name) => kind == PrincipalKind::Key && id.strip_prefix("key:") == Some(name),
        Who::Proxy(name) => kind == PrincipalKind::Proxy && id.strip_prefix("proxy:") == Some(name),
        Who::Group(name) => principal.groups().any(|group| group == name),
        Who::Subject { issuer, subject } => {
            let own = id.split_once('/').filter(|_| kind == PrincipalKind::Issuer);
            own.is_some_and(|(of, sub)| of == issuer && (subject == "*" || sub == subject))
        }
    }
}
