//! Explains HTTP statuses that are not answers: each text names the cure and never a secret.

use std::time::{Duration, SystemTime};

use bridgehead_config::Url;
use http::{HeaderMap, StatusCode, header};

use crate::link::LinkError;

/// The longest wait that a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Explains why the server at `url` gave no answer; `follows` says whether redirects were followed.
pub(crate) fn explain(url: &Url, status: StatusCode, headers: &HeaderMap, follows: bool) -> String {
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
            if redirect(url, status, headers).is_some() {
                if follows {
                    return format!(
                        "{url} redirects again and again ({code}): write the last address as `url`"
                    );
                }
                return format!(
                    "{url} redirects to another path ({code}), which is not followed: write that address as `url`, or \
                     `follow_redirects = true`"
                );
            }
            let to = location(url, headers).map_or_else(|| "another address".to_owned(), |to| to.to_string());
            format!(
                "{url} redirects to {to} ({code}), which is not followed: write that address as `url` if you trust it"
            )
        }
        500..=599 => {
            format!("{url} has a fault of its own ({status}): check that server, and try again later")
        }
        _ => format!("{url} refused the request ({status}): check `url`, `type` and `headers`"),
    }
}

/// The address to send the same request to instead: only another path of the same server.
pub(crate) fn redirect(url: &Url, status: StatusCode, headers: &HeaderMap) -> Option<Url> {
    // The other codes change the method of the request.
    let kept = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    location(url, headers).filter(|to| kept && to.same_origin(url))
}

fn location(url: &Url, headers: &HeaderMap) -> Option<Url> {
    url.join(headers.get(header::LOCATION)?.to_str().ok()?.trim()).ok()
}

/// How long the server asks us to wait, if it turned the request away for lack of capacity.
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

/// A refusal as the end of a request: its status says whether the request may be accepted later.
pub(crate) fn refused(status: StatusCode, reason: String) -> LinkError {
    let transient = matches!(status.as_u16(), 429 | 502 | 503 | 504);
    let denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    LinkError::Refused { reason: reason.into(), transient, denied }
}

/// Whether the request cannot have run.
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
        let shown = explain(&url, StatusCode::from_u16(status).unwrap(), &headers(list), false);
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
        check(307, &[("location", "/hunter2")], "redirects to another path (307), which is not followed");
        check(308, &[("location", "https://evil/hunter2")], "redirects to https://evil/… (308)");
    }

    /// LINK-2: a redirect is followed only if it keeps the request unchanged and stays at the same server.
    #[test]
    fn redirects() {
        let url: Url = "https://h/s/mcp?k".parse().unwrap();
        #[track_caller]
        fn check(url: &Url, status: u16, location: &str, expected: Option<&str>) {
            let status = StatusCode::from_u16(status).unwrap();
            let to = redirect(url, status, &headers(&[("location", location)]));
            assert_eq!(to.map(|to| to.expose()).as_deref(), expected, "{status} {location}");
        }
        check(&url, 307, "/other", Some("https://h/other"));
        check(&url, 308, "other?k", Some("https://h/s/other?k"));
        check(&url, 308, "https://H:443/other", Some("https://H:443/other"));
        check(&url, 301, "/other", None);
        check(&url, 302, "/other", None);
        check(&url, 303, "/other", None);
        check(&url, 307, "https://h:8443/other", None);
        check(&url, 307, "http://h/other", None);
        check(&url, 307, "https://h.evil/other", None);
        check(&url, 307, "//evil/other", None);
        check(&url, 307, "https://me:x@h/other", None);
        check(&url, 307, "a b", None);
        assert_eq!(redirect(&url, StatusCode::TEMPORARY_REDIRECT, &HeaderMap::new()), None);
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
