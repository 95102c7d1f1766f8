//! Finds what an issuer says of itself: where its keys are, and where tokens are introspected.
//!
//! The document is looked for where RFC 8414 and OpenID Connect put it. It counts only if it names the issuer that was asked for.

use bridgehead_config::Url;
use bytes::Bytes;
use serde::Deserialize;

use super::fetch::{Answer, Asked, Fetch, checked_url};

/// What an issuer says of itself.
#[derive(Debug, Clone)]
pub(super) struct Metadata {
    pub(super) jwks: Option<Url>,
    pub(super) introspection: Option<Url>,
    /// The document as the issuer wrote it.
    pub(super) document: Bytes,
}

#[derive(Deserialize)]
struct Document {
    issuer: String,
    jwks_uri: Option<String>,
    introspection_endpoint: Option<String>,
}

/// Asks an issuer for its metadata.
///
/// # Errors
/// A message that says for each place what is wrong with it.
pub(super) async fn discover(issuer: &str, fetch: &dyn Fetch) -> Result<Metadata, String> {
    let url = checked_url(issuer)?;
    let mut problems = Vec::new();
    for place in places(&url) {
        let found = match url.join(&place) {
            Ok(url) => fetch.fetch(Asked::get(url)).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match found.and_then(|answer| read(&answer, issuer)) {
            Ok(metadata) => return Ok(metadata),
            Err(problem) => problems.push(format!("{place}: {problem}")),
        }
    }
    Err(format!("its metadata cannot be found ({})", problems.join("; ")))
}

/// The paths of the document. A path of the issuer is put behind the well-known part, or before it as older servers do.
fn places(issuer: &Url) -> Vec<String> {
    const OAUTH: &str = "/.well-known/oauth-authorization-server";
    const OPENID: &str = "/.well-known/openid-configuration";
    match issuer.target().trim_end_matches('/') {
        "" => vec![OAUTH.to_owned(), OPENID.to_owned()],
        path => vec![format!("{OAUTH}{path}"), format!("{OPENID}{path}"), format!("{path}{OPENID}")],
    }
}

fn read(answer: &Answer, issuer: &str) -> Result<Metadata, String> {
    let document: Document = json(answer)?;
    if !is_same_issuer(&document.issuer, issuer) {
        return Err("it is the document of another issuer".to_owned());
    }
    let address = |text: Option<String>| text.as_deref().map(checked_url).transpose();
    Ok(Metadata {
        jwks: address(document.jwks_uri).map_err(|error| format!("`jwks_uri`: {error}"))?,
        introspection: address(document.introspection_endpoint)
            .map_err(|error| format!("`introspection_endpoint`: {error}"))?,
        document: answer.body.clone(),
    })
}

/// Equal byte for byte, except for a slash after a bare host, which some servers add.
fn is_same_issuer(told: &str, asked: &str) -> bool {
    let bare = |text: &str| text.trim_end_matches('/').matches('/').count() == 2;
    told == asked || (bare(told) && told.trim_end_matches('/') == asked.trim_end_matches('/'))
}

/// The JSON of a good answer.
///
/// # Errors
/// A message that says what came instead.
pub(super) fn json<T: serde::de::DeserializeOwned>(answer: &Answer) -> Result<T, String> {
    if !answer.status.is_success() {
        let redirected = if answer.status.is_redirection() { "; redirects are not followed" } else { "" };
        return Err(format!("status {}{redirected}", answer.status.as_u16()));
    }
    let media = answer.headers.get(http::header::CONTENT_TYPE).and_then(|media| media.to_str().ok());
    let is_html = media.is_some_and(|media| media.trim_start().to_ascii_lowercase().starts_with("text/html"));
    if is_html || answer.body.trim_ascii_start().starts_with(b"<") {
        return Err("an HTML page instead of JSON; is the address right, and is a sign-in page in between?"
            .to_owned());
    }
    serde_json::from_slice(&answer.body).map_err(|error| format!("not the expected JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_of_metadata() {
        #[track_caller]
        fn check(issuer: &str, expected: &[&str]) {
            assert_eq!(places(&issuer.parse().unwrap()), expected);
        }
        let bare = ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"];
        check("https://id.example", &bare);
        check("https://id.example/", &bare);
        let realm = [
            "/.well-known/oauth-authorization-server/realms/a",
            "/.well-known/openid-configuration/realms/a",
            "/realms/a/.well-known/openid-configuration",
        ];
        check("https://id.example/realms/a", &realm);
        check("https://id.example/realms/a/", &realm);
    }

    #[test]
    fn issuers_are_compared_byte_for_byte() {
        #[track_caller]
        fn check(told: &str, asked: &str, same: bool) {
            assert_eq!(is_same_issuer(told, asked), same, "{told} {asked}");
        }
        check("https://id.example", "https://id.example", true);
        check("https://id.example/", "https://id.example", true);
        check("https://id.example", "https://id.example/", true);
        check("https://id.example/a/", "https://id.example/a", false);
        check("https://id.example/a", "https://id.example/a", true);
        check("https://ID.example", "https://id.example", false);
        check("https://other.example", "https://id.example", false);
    }
}
