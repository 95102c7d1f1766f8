//! What an HTTP status that is no answer means, in words that name the cure and never a secret.

use std::time::{Duration, SystemTime};

use bridgehead_config::Url;
use http::{HeaderMap, StatusCode, header};

/// The longest time that a server may ask us to wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Says why the server at `url` gave no answer.
pub(crate) fn explain(url: &Url, status: StatusCode, headers: &HeaderMap) -> String {
    let code = status.as_u16();
    match code {
        401 if headers.contains_key(header::WWW_AUTHENTICATE) => format!(
            "{url} wants a sign-in (401 with a challenge), which is not supported yet: pass a token instead, \
             `headers = {{ Authorization = \"Bearer ${{TOKEN}}\" }}`"
        ),
        401 => format!("{url} wants credentials (401): pass them under `headers`, such as `Authorization`"),
        403 => format!("{url} forbids it (403): check the credentials under `headers`"),
        404 => format!("{url} has nothing at this path (404): check the `url`"),
        405 => format!("{url} does not take messages at this path (405): check the `url` and the `type`"),
        409 => format!("{url} is in conflict with another client (409): give it a moment, or end the other"),
        413 => format!("{url} does not take a request of this size (413)"),
        429 => match pause(status, headers) {
            Some(pause) => {
                format!("{url} gets too many requests (429): it asks to wait {} s", pause.as_secs())
            }
            None => format!("{url} gets too many requests (429): call less often"),
        },
        300..=399 => {
            let to = headers
                .get(header::LOCATION)
                .and_then(|value| value.to_str().ok())
                .and_then(|value| url.join(value).ok())
                .map_or_else(|| "another address".to_owned(), |to| to.to_string());
            format!(
                "{url} redirects to {to} ({code}), which is not followed: write that address as `url` if you trust it"
            )
        }
        500..=599 => format!("{url} has a fault of its own ({status}): look there, it is asked again"),
        _ => format!("{url} refused the request ({status}): check `url`, `type` and `headers`"),
    }
}

/// How long the server asks us to wait, if the request was turned away for want of capacity.
pub(crate) fn pause(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).unwrap_or_default(),
    };
    (pause <= LONGEST_PAUSE).then_some(pause)
}

/// Whether the server cannot have run the request.
pub(crate) fn never_ran(status: StatusCode, headers: &HeaderMap) -> bool {
    status.is_client_error() || status.is_redirection() || pause(status, headers).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| ((*name).try_into().unwrap(), value.parse().unwrap())).collect()
    }

    #[track_caller]
    fn check(status: u16, list: &[(&'static str, &str)], expected: &str) {
        let url: Url = "https://h/s/hunter2".parse().unwrap();
        let shown = explain(&url, StatusCode::from_u16(status).unwrap(), &headers(list));
        assert!(shown.contains(expected) && shown.starts_with("https://h/… "), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    /// LINK-6: a server that needs OAuth is reported as such, with the way to pass a header instead.
    #[test]
    fn every_refusal_names_its_cure() {
        check(
            401,
            &[("www-authenticate", "Bearer x")],
            "sign-in (401 with a challenge), which is not supported yet",
        );
        check(401, &[("www-authenticate", "Bearer x")], "Authorization = \"Bearer ${TOKEN}\"");
        check(401, &[], "pass them under `headers`");
        check(403, &[], "check the credentials");
        check(404, &[], "check the `url`");
        check(405, &[], "check the `url` and the `type`");
        check(409, &[], "another client");
        check(413, &[], "of this size");
        check(418, &[], "check `url`, `type` and `headers`");
        check(429, &[("retry-after", "7")], "wait 7 s");
        check(429, &[], "call less often");
        check(500, &[], "fault of its own");
        check(302, &[("location", "https://evil/?hunter2")], "redirects to https://evil/… (302)");
        check(302, &[], "redirects to another address");
    }

    /// BRG-6: a `Retry-After` is honoured, in both its forms, up to a minute.
    #[test]
    fn pauses() {
        let of = |status: u16, value: &str| {
            pause(StatusCode::from_u16(status).unwrap(), &headers(&[("retry-after", value)]))
        };
        assert_eq!(of(429, "2"), Some(Duration::from_secs(2)));
        assert_eq!(of(503, "0"), Some(Duration::ZERO));
        assert_eq!(of(503, "Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(of(429, "3600"), None);
        assert_eq!(of(429, "soon"), None);
        assert_eq!(of(500, "1"), None);
    }
}
