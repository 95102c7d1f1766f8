//! What a token says, and whether that is good here. The signature, or the issuer's answer, is checked elsewhere.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::Issuer;
use bridgehead_gateway::{Principal, PrincipalKind, Validity};
use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::cache::Holders;

/// How far the clocks of the issuer and the gateway may differ.
const LEEWAY: i64 = 30;
/// The longest subject (OpenID Connect allows 255 characters).
const LONGEST_SUBJECT: usize = 255;
const LONGEST_DISPLAY_NAME: usize = 200;

/// The claims of a token.
pub(super) type Claims = Map<String, Value>;

/// Where claims come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A signed token.
    Jwt,
    /// The issuer's answer about a token. It may leave out who it is.
    Introspection,
}

/// Until when a token with good claims is good, with the leeway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Until(pub(super) Timestamp);

/// Checks issuer, audience, subject and times.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn check(
    claims: &Claims,
    issuer: &Issuer,
    public_url: Option<&str>,
    now: Timestamp,
    source: Source,
) -> Result<Until, &'static str> {
    match (claims.get("iss"), source) {
        (Some(Value::String(told)), _) if *told == issuer.issuer => {}
        (None, Source::Introspection) => {}
        _ => return Err("the token names another issuer"),
    }
    let accepted = |audience: &Value| {
        audience.as_str().is_some_and(|audience| {
            Some(audience) == public_url || issuer.audiences.iter().any(|known| known == audience)
        })
    };
    match claims.get("aud") {
        Some(Value::Array(all)) if all.iter().any(accepted) => {}
        Some(one) if accepted(one) => {}
        Some(_) => return Err("the token is for another audience"),
        None => return Err("the token names no audience"),
    }
    let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
    if subject.is_empty() || subject.len() > LONGEST_SUBJECT || subject.contains(char::is_control) {
        return Err("the token names no usable subject");
    }
    if claims.contains_key("nonce") || claims.contains_key("at_hash") {
        return Err("this is an id token; send an access token");
    }
    let until = claims.get("exp").and_then(seconds).and_then(|exp| exp.checked_add(LEEWAY));
    let until = until.and_then(|until| Timestamp::from_second(until).ok());
    let until = until.ok_or("the token has no usable expiry")?;
    if until <= now {
        return Err("the token has expired");
    }
    match claims.get("nbf").map(seconds) {
        None => {}
        Some(Some(from)) if from.saturating_sub(LEEWAY) <= now.as_second() => {}
        Some(Some(_)) => return Err("the token is not valid yet"),
        Some(None) => return Err("the token has no usable `nbf`"),
    }
    Ok(Until(until))
}

/// A time in a claim: a number, never a string.
fn seconds(claim: &Value) -> Option<i64> {
    let whole = claim.as_i64();
    // A fraction of a second is dropped; a number that is no time fails here.
    whole.or_else(|| claim.as_f64().filter(|number| number.abs() < 1e15).map(|number| number as i64))
}

/// Which of the issuer's required scopes are missing.
pub(super) fn lacks_scope(scopes: &[String], issuer: &Issuer) -> bool {
    issuer.required_scopes.iter().any(|required| !scopes.contains(required))
}

/// The scopes of a token, with those that they include.
pub(super) fn scopes(claims: &Claims, issuer: &Issuer) -> Vec<String> {
    let mut scopes: Vec<String> = Vec::new();
    let mut open: Vec<String> = ["scope", "scp"]
        .iter()
        .filter_map(|name| claims.get(*name))
        .flat_map(|claim| {
            words(claim).flat_map(str::split_ascii_whitespace).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    open.reverse();
    while let Some(scope) = open.pop() {
        if scopes.contains(&scope) {
            continue;
        }
        let included = issuer.scope_includes.iter().filter(|(wide, _)| *wide == scope);
        open.extend(included.flat_map(|(_, narrow)| narrow.iter().cloned()));
        scopes.push(scope);
    }
    scopes
}

/// The holder of a token with good claims.
pub(super) fn principal(
    claims: &Claims,
    issuer: &Issuer,
    scopes: &[String],
    until: Until,
    now: Timestamp,
    holders: &Holders,
) -> Principal {
    let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
    let left = Duration::try_from(until.0.duration_since(now)).unwrap_or_default();
    // An instant that cannot be written is centuries away.
    let expires = Instant::now().checked_add(left);
    let groups = issuer.groups_claim.as_deref().and_then(|name| claim(claims, name));
    let mut principal = Principal::new(&format!("{}/{subject}", issuer.name), PrincipalKind::Issuer)
        .in_groups(groups.into_iter().flat_map(words))
        .with_scopes(scopes.iter().map(String::as_str))
        .requiring(issuer.required_scopes.iter().map(String::as_str))
        .valid(Validity::new(Some(holders.revoked.clone()), expires).counted(Arc::clone(&holders.kept)));
    let display = ["preferred_username", "name"].iter().find_map(|name| claims.get(*name)?.as_str());
    if let Some(name) = display.filter(|name| {
        !name.is_empty() && name.len() <= LONGEST_DISPLAY_NAME && !name.contains(char::is_control)
    }) {
        principal = principal.called(name);
    }
    if let Some(client) = ["client_id", "azp"].iter().find_map(|name| claims.get(*name)?.as_str()) {
        principal = principal.with_claim("client_id", client);
    }
    principal
}

/// A claim by its name or, if there is none of that name, by its path: `realm_access.roles`.
fn claim<'a>(claims: &'a Claims, name: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(name) {
        return Some(value);
    }
    let (first, rest) = name.split_once('.')?;
    rest.split('.').try_fold(claims.get(first)?, |value, part| value.get(part))
}

/// The text of a claim, or the texts in its list.
fn words(claim: &Value) -> impl Iterator<Item = &str> {
    let list = claim.as_array().map(Vec::as_slice).unwrap_or_default();
    claim.as_str().into_iter().chain(list.iter().filter_map(Value::as_str))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_000_000;

    fn issuer() -> Issuer {
        let mut issuer = Issuer::new("corp", "https://id.example");
        issuer.audiences.push("api".to_owned());
        issuer
    }

    fn good() -> Value {
        json!({"iss": "https://id.example", "aud": "api", "sub": "ada", "exp": NOW + 60})
    }

    fn checked(changed: &Value, source: Source) -> Result<Until, &'static str> {
        let mut claims = good();
        for (name, value) in changed.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let mut claims = claims.as_object().unwrap().clone();
        claims.retain(|_, value| !value.is_null());
        let now = Timestamp::from_second(NOW).unwrap();
        check(&claims, &issuer(), Some("https://gate.example/mcp"), now, source)
    }

    /// ACC-2 (case 4): times, issuer, audience and subject, each with the values next to its bound.
    #[test]
    fn what_a_token_must_say() {
        #[track_caller]
        fn check(changed: &Value, expected: Result<(), &str>) {
            let found = checked(changed, Source::Jwt).map(|_| ());
            match expected {
                Ok(()) => assert_eq!(found, Ok(()), "{changed}"),
                Err(part) => assert!(found.is_err_and(|error| error.contains(part)), "{changed}: {found:?}"),
            }
        }
        check(&json!({}), Ok(()));
        check(&json!({"exp": NOW - 29}), Ok(()));
        check(&json!({"exp": NOW - 30}), Err("expired"));
        check(&json!({"exp": NOW as f64 + 0.5}), Ok(()));
        check(&json!({"exp": (NOW + 60).to_string()}), Err("no usable expiry"));
        check(&json!({"exp": null}), Err("no usable expiry"));
        check(&json!({"exp": i64::MAX}), Err("no usable expiry"));
        check(&json!({"exp": 1e300}), Err("no usable expiry"));
        check(&json!({"nbf": NOW + 30}), Ok(()));
        check(&json!({"nbf": NOW + 31}), Err("not valid yet"));
        check(&json!({"nbf": "0"}), Err("`nbf`"));
        check(&json!({"iss": "https://id.example/"}), Err("another issuer"));
        check(&json!({"iss": ["https://id.example"]}), Err("another issuer"));
        check(&json!({"iss": null}), Err("another issuer"));
        check(&json!({"aud": "https://gate.example/mcp"}), Ok(()));
        check(&json!({"aud": ["x", "api"]}), Ok(()));
        check(&json!({"aud": ["x"]}), Err("another audience"));
        check(&json!({"aud": []}), Err("another audience"));
        check(&json!({"aud": "https://gate.example/mcp/"}), Err("another audience"));
        check(&json!({"aud": null}), Err("no audience"));
        check(&json!({"sub": null}), Err("no usable subject"));
        check(&json!({"sub": ""}), Err("no usable subject"));
        check(&json!({"sub": 7}), Err("no usable subject"));
        check(&json!({"sub": "a\nb"}), Err("no usable subject"));
        check(&json!({"sub": "s".repeat(255)}), Ok(()));
        check(&json!({"sub": "s".repeat(256)}), Err("no usable subject"));
        check(&json!({"nonce": "n"}), Err("id token"));
        check(&json!({"at_hash": "h"}), Err("id token"));
    }

    /// ACC-2 (case 8): an issuer's answer about a token gets the same checks, but need not repeat who answers.
    #[test]
    fn what_an_issuer_must_say() {
        assert!(checked(&json!({"iss": null}), Source::Introspection).is_ok());
        assert!(checked(&json!({"iss": "https://other.example"}), Source::Introspection).is_err());
        assert!(checked(&json!({"aud": null}), Source::Introspection).is_err());
        assert!(checked(&json!({"exp": null}), Source::Introspection).is_err());
    }

    /// ACC-1: the holder of a token is `ISSUER/SUB`, with its groups and its scopes.
    #[test]
    fn the_holder_of_a_token() {
        let mut issuer = issuer();
        issuer.groups_claim = Some("realm_access.roles".to_owned());
        issuer.required_scopes = vec!["read".to_owned()];
        issuer.scope_includes = vec![
            ("admin".to_owned(), vec!["write".to_owned()]),
            ("write".to_owned(), vec!["read".to_owned(), "admin".to_owned()]),
        ];
        let claims = json!({
            "sub": "ada", "realm_access": {"roles": ["build", 7, "ops"]}, "scope": "x admin", "scp": ["y"],
            "azp": "cli", "preferred_username": "Ada"
        });
        let claims = claims.as_object().unwrap();
        let scopes = scopes(claims, &issuer);
        let mut sorted = scopes.clone();
        sorted.sort();
        assert_eq!(sorted, ["admin", "read", "write", "x", "y"]);
        assert!(!lacks_scope(&scopes, &issuer) && lacks_scope(&["write".to_owned()], &issuer));
        let (now, until) = (Timestamp::UNIX_EPOCH, Until(Timestamp::from_second(60).unwrap()));
        let found = principal(claims, &issuer, &scopes, until, now, &Holders::default());
        assert_eq!((found.as_str(), found.name(), found.kind()), ("corp/ada", "Ada", PrincipalKind::Issuer));
        assert_eq!(found.groups().collect::<Vec<_>>(), ["build", "ops"]);
        assert_eq!(found.claim("client_id"), Some("cli"));
        for odd in ["", "a\nb", &"n".repeat(201)] {
            let mut claims = claims.clone();
            claims.insert("preferred_username".to_owned(), json!(odd));
            let found = principal(&claims, &issuer, &scopes, until, now, &Holders::default());
            assert_eq!(found.name(), "corp/ada", "{odd:?}");
        }
        assert!(found.scopes().eq(scopes.iter().map(String::as_str)));
    }

    /// ACC-2: what the holder of a token keeps open ends when the token expires.
    #[tokio::test(start_paused = true)]
    async fn a_token_ends() {
        let claims = good();
        let (now, until) = (Timestamp::UNIX_EPOCH, Until(Timestamp::from_second(60).unwrap()));
        let began = Instant::now();
        let holder = principal(claims.as_object().unwrap(), &issuer(), &[], until, now, &Holders::default());
        holder.validity().ended().await;
        assert_eq!(began.elapsed(), Duration::from_secs(60));
    }
}
