//! What a client calls itself: its name and version as one text, for the record.
//!
//! A legacy client says it once, a modern one with every request, nearly always the same. So the last is remembered with
//! what it was made from, and a request costs a comparison.

use std::sync::Arc;

use bridgehead_wire::{Object, Raw};
use parking_lot::Mutex;

/// A label is cut after so many characters: clients choose it, and every row of theirs carries it.
const LONGEST: usize = 100;
/// A longer `clientInfo` (it may have pictures in it) is not kept, and read again with each request.
const MOST_KEPT: usize = 1024;

/// The label of the client that was heard last.
#[derive(Debug, Default)]
pub(crate) struct ClientLabel(Mutex<Option<Heard>>);

#[derive(Debug)]
struct Heard {
    /// The `clientInfo` that the label was made from.
    info: Box<str>,
    label: Option<Arc<str>>,
}

impl ClientLabel {
    /// The label that a `clientInfo` makes; none where it names nothing.
    pub(crate) fn of(&self, info: &Raw) -> Option<Arc<str>> {
        let mut heard = self.0.lock();
        if let Some(known) = heard.as_ref().filter(|known| *known.info == *info.as_str()) {
            return known.label.clone();
        }
        let label = label(info);
        let info = Some(info.as_str()).filter(|info| info.len() <= MOST_KEPT).unwrap_or_default();
        *heard = Some(Heard { info: info.into(), label: label.clone() });
        label
    }

    /// The label of the last.
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
    Some(whole.chars().take(LONGEST).collect::<String>().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GATE-3: a client is labelled by its name and version, whatever else it says, and never at any length.
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
        let long = "ä".repeat(LONGEST + 1);
        check(&format!(r#"{{"name":"{long}","version":"1"}}"#), Some(&long[..2 * LONGEST]));
        assert_eq!(ClientLabel::default().last(), None);
    }

    /// GATE-3: the label is that of the client which was heard last, and made once.
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
