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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use http::{HeaderMap, StatusCode};

    use super::super::fetch::{Answer, FetchError};
    use super::*;

    /// Answers every request with a status and an empty object.
    struct Always(StatusCode);

    impl Fetch for Always {
        fn fetch(&self, _asked: Asked) -> BoxFuture<'static, Result<Answer, FetchError>> {
            let answer = Answer { status: self.0, headers: HeaderMap::new(), body: "{}".into() };
            Box::pin(std::future::ready(Ok(answer)))
        }
    }

    /// ACC-2 (case 8): the gateway's secret and the token leave encrypted only; a wrong secret is told as such.
    #[test]
    fn problems_are_told() {
        #[track_caller]
        fn check(url: &str, status: u16, told: &str) {
            let settings = Introspection {
                url: None,
                client_id: "gateway".to_owned(),
                client_secret: Secret::new("hunter2"),
            };
            let fetch = Always(StatusCode::from_u16(status).unwrap());
            let asking = introspect(url.parse().unwrap(), settings, Secret::new("s3cret"), &fetch);
            let problem = asking.now_or_never().unwrap().unwrap_err();
            assert!(problem.contains(told), "{problem}");
            assert!(!problem.contains("hunter2") && !problem.contains("s3cret"), "{problem}");
        }
        check("http://id.example/introspect", 200, "is not an https address");
        check("https://id.example/introspect", 401, "refuses the gateway's own `client_id`");
        check("https://id.example/introspect", 404, "status 404");
        check("https://id.example/introspect", 200, "does not say whether the token is `active`");
    }
}
