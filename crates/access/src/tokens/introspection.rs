//! Asks an issuer about a token that only the issuer can read (RFC 7662).

use bridgehead_config::{Introspection, Secret, Url};
use serde_json::Value;

use super::claims::Claims;
use super::fetch::{Asked, Fetch, Form, check_url, encoded};
use super::metadata;

/// What the issuer says about a token; `None` if it is not good.
///
/// # Errors
/// A message, if the issuer gives no answer, so that nothing is known about the token.
pub(super) async fn introspect(
    url: Url,
    settings: Introspection,
    token: Secret,
    fetch: &dyn Fetch,
) -> Result<Option<Claims>, String> {
    check_url(&url)?;
    let fields = format!("token={}&token_type_hint=access_token", encoded(token.expose()));
    let form = Form { fields: Secret::new(fields), client: (settings.client_id, settings.client_secret) };
    let answer = fetch.fetch(Asked { url: url.clone(), form: Some(form) }).await;
    let answer = answer.map_err(|error| format!("{url}: {error}"))?;
    if answer.status == http::StatusCode::UNAUTHORIZED {
        return Err(format!("{url}: the issuer refuses the gateway's own `client_id` and `client_secret`"));
    }
    let claims: Claims = metadata::json(&answer).map_err(|error| format!("{url}: {error}"))?;
    match claims.get("active") {
        Some(Value::Bool(true)) => Ok(Some(claims)),
        Some(Value::Bool(false)) => Ok(None),
        _ => Err(format!("{url}: the answer does not say whether the token is `active`")),
    }
}
