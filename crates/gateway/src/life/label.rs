//! The label of a client in the record: its name and version as one text.
//!
//! A legacy client states them once, a modern client with every request, almost always the same. The last
//! label is kept with the text it was made from, so a request costs one comparison.

use std::sync::Arc;

use bridgehead_wire::{Object, Raw, Redactor};
use parking_lot::Mutex;

/// The maximum length of a label in characters: clients choose it, and each of their rows carries it.
const LONGEST: usize = 100;
/// A longer `clientInfo` (it may contain images) is not kept, but parsed again with each request.
const MOST_KEPT: usize = 1024;

/// The label of the client that was heard last.
#[derive(Debug, Default)]
pub(crate) struct ClientLabel(Mutex<Option<CachedLabel>>);

#[derive(Debug)]
struct CachedLabel {
    /// The `clientInfo` that the label was made from.
    info: Box<str>,
    label: Option<Arc<str>>,
}

impl ClientLabel {
    /// The label for a `clientInfo`; `None` if it has no name.
    pub(crate) fn of(&self, info: &Raw) -> Option<Arc<str>> {
        let mut heard = self.0.lock();
        if let Some(known) = heard.as_ref().filter(|known| *known.info == *info.as_str()) {
            return known.label.clone();
        }
        let label = label(info);
        let info = Some(info.as_str()).filter(|info| info.len() <= MOST_KEPT).unwrap_or_default();
        *heard = Some(CachedLabel { info: info.into(), label: label.clone() });
        label
    }

    /// The last label.
    pub(crate) fn last(&self) -> Option<Arc<str>> {
        self.0.lock().as_ref().and_then(|heard| heard.label.clone())
    }
}

fn label(info: &Raw) -> Option<Arc<str>> {
    let info = Object::parse(info).ok()?;
    let text = |name| info.get(name).and_then(|value| value.to_text()).filter(|text| !text.is_empty());
    let name = text("name")?;
    let whole = match text("version") {
        Some(version) => format!("{name} {version}"),
        None => name,
    };
    // Some clients put a token into their name.
    let whole = Redactor::default().text(&whole).into_owned();
    Some(whole.chars().take(LONGEST).collect::<String>().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GATE-3, AUD-4: the label of a client is its name and version without secrets, whatever else it states, and is cut to a
    /// maximum length.
    #[test]
    fn how_a_client_is_labelled() {
        #[track_caller]
        fn check(info: &str, expected: Option<&str>) {
            let label = ClientLabel::default();
            let info = Raw::parse(info.to_owned()).unwrap();
            assert_eq!(label.of(&info).as_deref(), expected);
            assert_eq!(label.last().as_deref(), expected);
        }
        check(r#"{"name":"editor","version":"1.2"}"#, Some("editor 1.2"));
        check(r#"{"version":"1.2","title":"The Editor","name":"editor"}"#, Some("editor 1.2"));
        check(r#"{"name":"editor"}"#, Some("editor"));
        check(r#"{"name":"editor","version":7}"#, Some("editor"));
        check(r#"{"name":"","version":"1"}"#, None);
        check(r#"{"version":"1"}"#, None);
        check("[]", None);
        check(
            r#"{"name":"ghp_0123456789abcdefABCDEF0123456789abcd","version":"token=x"}"#,
            Some("[redacted] token=[redacted]"),
        );
        let long = "ä".repeat(LONGEST + 1);
        check(&format!(r#"{{"name":"{long}","version":"1"}}"#), Some(&long[..2 * LONGEST]));
        assert_eq!(ClientLabel::default().last(), None);
    }

    /// GATE-3: the label is that of the client heard last, and is made once.
    #[test]
    fn a_label_is_made_once() {
        let label = ClientLabel::default();
        let first = label.of(&Raw::literal(r#"{"name":"a"}"#)).unwrap();
        let again = label.of(&Raw::literal(r#"{"name":"a"}"#)).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(label.of(&Raw::literal(r#"{"name":"b"}"#)).as_deref(), Some("b"));
        assert_eq!(label.last().as_deref(), Some("b"));
        let icons = Raw::string(&"x".repeat(MOST_KEPT));
        let large = Raw::parse(format!(r#"{{"name":"c","icons":{}}}"#, icons.as_str())).unwrap();
        assert_eq!((label.of(&large).as_deref(), label.last().as_deref()), (Some("c"), Some("c")));
        assert!(label.0.lock().as_ref().unwrap().info.is_empty());
    }
}
