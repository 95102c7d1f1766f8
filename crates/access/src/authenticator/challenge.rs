//! What a refused client is told: the challenges (RFC 6750) and the protected-resource metadata (RFC 9728).
//!
//! Every address comes from `public_url`. Nothing comes from the request, because a proxy or a stranger writes that.

use bridgehead_config::AuthSettings;
use bytes::Bytes;
use http::HeaderValue;
use serde_json::json;

/// A scope that belongs into no challenge: whether a client wants to act while its user is away is its own matter.
const OFFLINE: &str = "offline_access";
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// The prepared texts of one gateway.
#[derive(Debug)]
pub(super) struct Challenges {
    basis: Basis,
    /// All scopes that some request needs.
    scopes: Vec<String>,
    /// To a request without credentials. It has no `error` (RFC 6750 §3.1).
    pub(super) missing: HeaderValue,
    /// To a request with wrong ones.
    pub(super) invalid: HeaderValue,
    /// `resource_metadata="…"`, where clients can sign in.
    resource: Option<String>,
    pub(super) metadata: Option<Bytes>,
}

/// What does not change while the gateway runs.
#[derive(Debug, Clone)]
struct Basis {
    public_url: Option<String>,
    /// The identifiers of the issuers.
    issuers: Vec<String>,
    /// The scopes that the issuers require.
    required: Vec<String>,
}

impl Challenges {
    /// `scopes` are those that rules use.
    pub(super) fn new(settings: &AuthSettings, scopes: &[String]) -> Self {
        let issuers = &settings.issuers;
        let basis = Basis {
            public_url: settings.public_url.clone(),
            issuers: issuers.iter().map(|issuer| issuer.issuer.clone()).collect(),
            required: issuers.iter().flat_map(|issuer| issuer.required_scopes.clone()).collect(),
        };
        Self::of(basis, scopes)
    }

    /// The same with other scopes that rules use.
    pub(super) fn with(&self, scopes: &[String]) -> Self {
        Self::of(self.basis.clone(), scopes)
    }

    fn of(basis: Basis, scopes: &[String]) -> Self {
        let mut all: Vec<String> = Vec::new();
        for scope in basis.required.iter().chain(scopes) {
            if is_scope(scope) && scope != OFFLINE && !all.contains(scope) {
                all.push(scope.clone());
            }
        }
        let public_url = basis.public_url.as_deref().filter(|_| !basis.issuers.is_empty());
        let resource = public_url.and_then(metadata_url).map(|url| format!("resource_metadata=\"{url}\""));
        let scope = (!all.is_empty() && resource.is_some()).then(|| format!("scope=\"{}\"", all.join(" ")));
        let invalid = Some("error=\"invalid_token\"".to_owned());
        let metadata = public_url.map(|public_url| {
            let mut document = json!({
                "resource": public_url, "authorization_servers": basis.issuers,
                "bearer_methods_supported": ["header"],
            });
            if !all.is_empty() {
                document["scopes_supported"] = json!(all);
            }
            Bytes::from(document.to_string())
        });
        Self {
            missing: bearer([None, resource.clone(), scope.clone()]),
            invalid: bearer([invalid, resource.clone(), scope]),
            resource,
            metadata,
            scopes: all,
            basis,
        }
    }

    /// To a request whose credential lacks some of the scopes that every request needs. A client may get a token with exactly
    /// what it is told, so those that the credential has and that some request here needs are named, too.
    pub(super) fn lacking(&self, required: &str, held: &str) -> HeaderValue {
        let required: Vec<&str> = required.split_ascii_whitespace().collect();
        let kept = held
            .split_ascii_whitespace()
            .filter(|scope| !required.contains(scope) && self.scopes.iter().any(|known| known == scope));
        let all: Vec<&str> = required.iter().copied().chain(kept).collect();
        self.insufficient(&all.join(" "))
    }

    /// To a request whose credential lacks scopes; `scopes` lists all that it needs.
    pub(super) fn insufficient(&self, scopes: &str) -> HeaderValue {
        let scopes: Vec<&str> = scopes.split_ascii_whitespace().filter(|scope| is_scope(scope)).collect();
        let scope = (!scopes.is_empty()).then(|| format!("scope=\"{}\"", scopes.join(" ")));
        bearer([Some("error=\"insufficient_scope\"".to_owned()), self.resource.clone(), scope])
    }
}

fn bearer(parts: [Option<String>; 3]) -> HeaderValue {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let text = if parts.is_empty() { "Bearer".to_owned() } else { format!("Bearer {}", parts.join(", ")) };
    // All parts are visible ASCII: addresses and scopes are checked.
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("Bearer"))
}

/// Whether a text is a scope (RFC 6749 §3.3). Others could end the quoted string of a challenge.
fn is_scope(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}

/// The address of the metadata: the well-known part is put between host and path (RFC 9728 §3.1).
fn metadata_url(public_url: &str) -> Option<String> {
    let (scheme, rest) = public_url.split_once("://")?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = path.trim_end_matches('/');
    let url = format!("{scheme}://{host}{WELL_KNOWN}{path}");
    is_scope(&url).then_some(url)
}

#[cfg(test)]
mod tests {
    use bridgehead_config::Issuer;

    use super::*;

    fn challenges(public_url: Option<&str>, issuers: bool, scopes: &[&str]) -> Challenges {
        let mut settings = AuthSettings::default();
        settings.public_url = public_url.map(str::to_owned);
        if issuers {
            let mut issuer = Issuer::new("corp", "https://id.example/realms/a");
            issuer.required_scopes = vec!["use".to_owned()];
            settings.issuers.push(issuer);
        }
        let scopes: Vec<String> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        Challenges::new(&settings, &scopes)
    }

    /// ACC-2 (case 1): the first challenge names the metadata and all scopes and has no `error`; a wrong token adds it.
    #[test]
    fn challenges_name_metadata_and_all_scopes() {
        let found = challenges(
            Some("https://gate.example/mcp"),
            true,
            &["b", "offline_access", "use", "b", "x\"y", "x\\y"],
        );
        let rest = "resource_metadata=\"https://gate.example/.well-known/oauth-protected-resource/mcp\", scope=\"use b\"";
        assert_eq!(found.missing, format!("Bearer {rest}"));
        assert_eq!(found.invalid, format!("Bearer error=\"invalid_token\", {rest}"));
        assert_eq!(
            found.insufficient("a \"b c"),
            "Bearer error=\"insufficient_scope\", \
             resource_metadata=\"https://gate.example/.well-known/oauth-protected-resource/mcp\", scope=\"a c\""
        );
        let metadata: serde_json::Value = serde_json::from_slice(found.metadata.as_deref().unwrap()).unwrap();
        let expected = json!({
            "resource": "https://gate.example/mcp", "authorization_servers": ["https://id.example/realms/a"],
            "bearer_methods_supported": ["header"], "scopes_supported": ["use", "b"],
        });
        assert_eq!(metadata, expected);
        let bare = challenges(Some("https://gate.example"), true, &[]);
        let url = "https://gate.example/.well-known/oauth-protected-resource";
        assert_eq!(bare.missing, format!("Bearer resource_metadata=\"{url}\", scope=\"use\""));
    }

    /// ACC-2 (case 16): who lacks a scope that every request needs is told to keep what is of use here, and nothing else.
    #[test]
    fn all_scopes_in_one_challenge() {
        let found = challenges(None, true, &["write", "admin"]);
        #[track_caller]
        fn check(found: &Challenges, held: &str, expected: &str) {
            let told = format!("Bearer error=\"insufficient_scope\", scope=\"{expected}\"");
            assert_eq!(found.lacking("use see", held), told);
        }
        check(&found, "", "use see");
        check(&found, "write", "use see write");
        check(&found, "openid write use offline_access", "use see write");
        check(&found.with(&["openid".to_owned()]), "openid write use", "use see openid");
    }

    /// ACC-2 (case 1): with keys only, there is nowhere to sign in, so the challenge is plain and there is no metadata.
    #[test]
    fn with_keys_only_the_challenge_is_plain() {
        for (public_url, issuers) in [(None, false), (Some("https://gate.example/mcp"), false), (None, true)]
        {
            let found = challenges(public_url, issuers, &["a"]);
            assert_eq!((found.missing, found.metadata), (HeaderValue::from_static("Bearer"), None));
            assert_eq!(found.invalid, "Bearer error=\"invalid_token\"");
        }
    }
}
