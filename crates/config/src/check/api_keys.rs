//! Reads API keys: `[[auth.keys.NAME]]` of a configuration, and `[[NAME]]` of a keys file. Both have the same keys and the
//! same diagnostics.
//!
//! A text that should be a digest may be the key itself, so no message repeats it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

use super::{is_id, refuse_name, scopes};
use crate::access::{ApiKey, KeyRows, RevokedKey};
use crate::keys::KeyTable;
use crate::section::{Findings, Section, rows_of};
use crate::tree::{Entry, Span};

/// Reads the keys of a table of named lists of tables. A row with `revoked` is never a key, whatever else it has.
pub(super) fn read(named: &[Entry], findings: &mut Findings) -> KeyRows {
    let mut rows = KeyRows::default();
    let mut names = BTreeMap::new();
    for entry in named {
        if !is_id(&entry.key) {
            refuse_name("a key", &entry.key, &entry.key_span, findings);
        }
        for (entries, heading) in rows_of(&entry.node) {
            let section = Section::read(KeyTable::ApiKey, entries, findings);
            if section.mentions("revoked") {
                let groups = groups(&section, findings);
                if let Some(at) = moment("revoked", &section, findings) {
                    rows.revoked.push(RevokedKey { name: entry.key.clone(), groups, at });
                }
                continue;
            }
            let Some((sha256, span)) = digest(&entry.key, &section, heading, findings) else { continue };
            if let Some(other) = names.insert(sha256, entry.key.as_str()) {
                let message = format!("key `{}` has the same `sha256` as a key of `{other}`", entry.key);
                findings.mistake(findings.diagnostic(message, span).help("keep one of them"));
            }
            rows.keys.push(ApiKey {
                name: entry.key.clone(),
                sha256,
                groups: groups(&section, findings),
                scopes: scopes("scopes", section.list("scopes"), findings),
                expires: moment("expires", &section, findings),
            });
        }
    }
    rows
}

fn digest<'t>(
    name: &str,
    section: &Section<'t>,
    heading: &'t Span,
    findings: &mut Findings,
) -> Option<([u8; 32], &'t Span)> {
    let Some((text, span)) = section.text("sha256") else {
        if !section.mentions("sha256") {
            let message = format!("key `{name}` has no `sha256`");
            let help = format!("`bridgehead key new {name}` makes a key and stores its digest");
            findings.mistake(findings.diagnostic(message, heading).help(help));
        }
        return None;
    };
    let digest = from_hex(text.strip_prefix("sha256:").unwrap_or(text));
    if digest.is_none() {
        let message = format!("the `sha256` of key `{name}` is not a SHA-256 in hexadecimal");
        let help = match text.starts_with("bhk_") {
            true => format!(
                "it is a key itself, which belongs nowhere in a file: revoke it, and make another with `bridgehead key new {name}`"
            ),
            false => "write the 64 digits that `sha256sum` prints for the key".to_owned(),
        };
        findings.mistake(findings.diagnostic(message, span).help(help));
    }
    digest.map(|digest| (digest, span))
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn groups(section: &Section<'_>, findings: &mut Findings) -> Vec<String> {
    let mut groups = Vec::new();
    for (group, span) in section.list("groups") {
        if group.is_empty() || group.trim() != group || group.contains(|next: char| next.is_control()) {
            let help = "write it without spaces around it, and without `group:`";
            findings.mistake(
                findings.diagnostic("an entry of `groups` is not the name of a group", span).help(help),
            );
        } else if let Some(bare) = group.strip_prefix("group:") {
            let message = "an entry of `groups` begins with `group:`";
            findings.mistake(findings.diagnostic(message, span).help(format!("write `{bare}` alone")));
        } else {
            groups.push(group.to_owned());
        }
    }
    groups
}

fn moment(key: &str, section: &Section<'_>, findings: &mut Findings) -> Option<Timestamp> {
    let (text, span) = section.time(key)?;
    let found = time(text);
    if found.is_none() {
        let help =
            "write a time with its offset, such as `2027-01-31T18:00:00Z`, or a date, such as `2027-01-31`";
        let message = format!("`{key}` is not a time or a date");
        findings.mistake(findings.diagnostic(message, span).help(help));
    }
    found
}

/// A time with its offset, or the first moment of a day in UTC.
fn time(text: &str) -> Option<Timestamp> {
    if text.len() > "2027-01-31".len() {
        return text.parse().ok();
    }
    let day: Date = text.parse().ok()?;
    TimeZone::UTC.to_timestamp(day.to_datetime(Time::midnight())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        #[track_caller]
        fn check(text: &str, expected: Option<&str>) {
            assert_eq!(time(text).map(|time| time.to_string()).as_deref(), expected, "{text}");
        }
        check("2027-01-31T18:00:00Z", Some("2027-01-31T18:00:00Z"));
        check("2027-01-31T18:00:00+02:00", Some("2027-01-31T16:00:00Z"));
        check("2027-01-31 18:00:00Z", Some("2027-01-31T18:00:00Z"));
        check("2027-01-31", Some("2027-01-31T00:00:00Z"));
        check("2027-01-31T18:00:00", None);
        check("2027-02-31", None);
        check("90d", None);
        check("", None);
    }

    #[test]
    fn digests() {
        assert_eq!(from_hex(&"0f".repeat(32)), Some([15; 32]));
        assert_eq!(from_hex(&"FF".repeat(32)), Some([255; 32]));
        assert_eq!(from_hex(&"0f".repeat(31)), None);
        assert_eq!(from_hex(&"0f".repeat(33)), None);
        assert_eq!(from_hex(&format!("{}+f", "0f".repeat(31))), None);
        assert_eq!(from_hex(&format!("{}é", "0f".repeat(31))), None);
    }
}
