//! What an answer of the modern era says about the limit that refused its request, outside its body.
//!
//! The body is the same in both eras. `RateLimit` and `RateLimit-Policy` have the form of
//! draft-ietf-httpapi-ratelimit-headers.

use std::time::Duration;

use bridgehead_wire::{Code, Failure, RpcError};
use http::{HeaderName, HeaderValue, header};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");

/// The refusal that an error tells of, if a limit of the gateway refused the request.
pub(super) fn refused(error: &RpcError) -> Option<&Failure> {
    error.failure().filter(|failure| matches!(failure.code, Code::RateLimited | Code::BudgetExhausted))
}

/// The headers of a refusal.
pub(super) fn headers(failure: &Failure) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = Vec::new();
    if let Some(wait) = failure.retry_after {
        headers.push((header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait))));
    }
    if let Some(quota) = failure.quota {
        let (name, window) = (quota.name, whole_seconds(quota.window));
        let policy = format!("\"{name}\";q={};w={window}", quota.count);
        let state = format!("\"{name}\";r={};t={}", quota.left, whole_seconds(quota.more_after));
        for (header, text) in [(POLICY, policy), (STATE, state)] {
            headers.extend(HeaderValue::try_from(text).ok().map(|value| (header, value)));
        }
    }
    headers
}

/// Rounded up, and at least one, so that a client that waits this long is not refused again.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use bridgehead_wire::Quota;

    use super::*;

    /// ACC-5 (case 27): the headers of a refusal, with times rounded up.
    #[test]
    fn the_headers_of_a_refusal() {
        #[track_caller]
        fn check(wait: u64, quota: Option<Quota>, expected: &[(&str, &str)]) {
            let retry_after = Some(Duration::from_millis(wait));
            let failure = Failure { code: Code::RateLimited, retry_after, quota };
            let headers = headers(&failure);
            let headers: Vec<_> =
                headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
            assert_eq!(headers, expected);
        }
        check(0, None, &[("retry-after", "1")]);
        check(1000, None, &[("retry-after", "1")]);
        let quota = Quota {
            name: "rate",
            count: 60,
            window: Duration::from_secs(60),
            left: 12,
            more_after: Duration::from_millis(29_001),
        };
        let state = ("ratelimit", "\"rate\";r=12;t=30");
        check(1001, Some(quota), &[("retry-after", "2"), ("ratelimit-policy", "\"rate\";q=60;w=60"), state]);
    }

    /// ACC-5: only a limit of the gateway refuses; an upstream that says the same does not.
    #[test]
    fn only_limits_of_the_gateway_refuse() {
        let error = RpcError::new(-32603, "no");
        assert_eq!(refused(&error), None);
        for (code, expected) in
            [(Code::RateLimited, true), (Code::BudgetExhausted, true), (Code::ProviderTimeout, false)]
        {
            let failure = Failure { code, retry_after: None, quota: None };
            assert_eq!(refused(&error.clone().of_failure(failure)).is_some(), expected, "{code}");
        }
    }
}
