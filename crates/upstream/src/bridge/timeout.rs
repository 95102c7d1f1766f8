//! How long a handshake or an attempt may take, and which setting decides it.

use std::collections::BTreeMap;
use std::time::Duration;

/// The variable that sets the timeout, in milliseconds.
pub const TIMEOUT_VARIABLE: &str = "BRIDGEHEAD_MCP_TIMEOUT";
/// The timeout if no setting gives one.
pub const DEFAULT_TIMEOUT_MS: u64 = 30_000;

/// An invalid timeout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place} is `{value}`, which is not a timeout; write whole milliseconds, 1 or more, such as 30000")]
pub struct InvalidTimeout {
    /// The variable, or the option.
    pub place: &'static str,
    /// Its value.
    pub value: String,
}

/// The explicit option, else the variable in `environment`, else the default.
pub fn resolve_timeout_ms(
    environment: &BTreeMap<String, String>,
    explicit: Option<u64>,
) -> Result<u64, InvalidTimeout> {
    let (place, value, number) = match (explicit, environment.get(TIMEOUT_VARIABLE)) {
        (Some(number), _) => ("the option `timeout_ms`", number.to_string(), Some(number)),
        (None, Some(text)) => {
            // `parse` alone would accept a sign.
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            (TIMEOUT_VARIABLE, text.clone(), text.parse().ok().filter(|_| digits))
        }
        (None, None) => return Ok(DEFAULT_TIMEOUT_MS),
    };
    number.filter(|number| *number > 0).ok_or(InvalidTimeout { place, value })
}

pub(super) fn resolve(
    environment: &BTreeMap<String, String>,
    explicit: Option<u64>,
) -> Result<Duration, InvalidTimeout> {
    resolve_timeout_ms(environment, explicit).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(variable: Option<&str>, explicit: Option<u64>, expected: Result<u64, &str>) {
        let environment = variable.map(|value| (TIMEOUT_VARIABLE.to_owned(), value.to_owned()));
        let outcome = resolve_timeout_ms(&environment.into_iter().collect(), explicit);
        match expected {
            Ok(expected) => assert_eq!(outcome, Ok(expected)),
            Err(part) => {
                let said = outcome.unwrap_err().to_string();
                assert!(said.contains(part) && said.contains("1 or more"), "{said}");
            }
        }
    }

    /// BRG-2: the option, then the variable, then 30 000 ms; the error names any value that is not a positive
    /// integer.
    #[test]
    fn who_says_how_long() {
        check(None, None, Ok(30_000));
        check(Some("1500"), None, Ok(1_500));
        check(Some("1500"), Some(7), Ok(7));
        check(Some("nonsense"), Some(7), Ok(7));
        for wrong in ["", "0", "-5", "+5", "1.5", "2s", " 5", "99999999999999999999"] {
            check(Some(wrong), None, Err(&format!("BRIDGEHEAD_MCP_TIMEOUT is `{wrong}`")));
        }
        check(None, Some(0), Err("the option `timeout_ms` is `0`"));
    }
}
