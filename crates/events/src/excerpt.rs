//! Text of other parties, made safe to publish: without secrets and at most 1 KiB long.
//!
//! Results and error messages come from servers we do not control. They may have any length and may hold credentials, while
//! an event goes to every subscriber and stays in its queue. The type guarantees both steps: a field that is an [`Excerpt`]
//! is redacted and cut.

use std::fmt;

use bridgehead_wire::Redactor;
use serde::{Serialize, Serializer};

/// Text without secrets, at most [`Excerpt::LIMIT`] bytes long; `…` at the end means that there was more.
#[derive(Clone, PartialEq, Eq)]
pub struct Excerpt(Box<str>);

/// How much of a text is read. Redaction takes time linear in its input, and of an answer of several megabytes only 1 KiB is
/// shown.
const WINDOW: usize = 16 * 1024;

/// How much at the end of a cut window is never shown. The cut may split a secret, and the remaining part, which is at the
/// end, may no longer look like one.
const UNSURE: usize = 4 * 1024;

const MORE: &str = "…";

impl Excerpt {
    /// The most bytes an excerpt has.
    pub const LIMIT: usize = 1024;

    /// The beginning of `text` without its secrets.
    #[must_use]
    pub fn new(redactor: &Redactor, text: &str) -> Self {
        let window = &text[..text.floor_char_boundary(WINDOW)];
        let redacted = redactor.text(window);
        let cut = window.len() < text.len();
        let sure = if cut { redacted.len().saturating_sub(UNSURE) } else { redacted.len() };
        if sure <= Self::LIMIT && !cut {
            return Self(redacted.into());
        }
        let end = redacted.floor_char_boundary(sure.min(Self::LIMIT - MORE.len()));
        let mut shown = String::with_capacity(end + MORE.len());
        shown.push_str(&redacted[..end]);
        shown.push_str(MORE);
        Self(shown.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

impl Serialize for Excerpt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn excerpt(text: &str) -> Excerpt {
        Excerpt::new(&Redactor::default(), text)
    }

    /// BUS-1: a summary has at most 1 KiB and ends between two characters.
    #[test]
    fn long_text_is_cut_between_characters() {
        #[track_caller]
        fn check(text: &str, expected: &str) {
            let excerpt = excerpt(text);
            assert_eq!(excerpt.as_str(), expected);
            assert!(excerpt.as_str().len() <= Excerpt::LIMIT);
        }
        check("", "");
        check("7 files", "7 files");
        check(&"a".repeat(1_024), &"a".repeat(1_024));
        check(&"a".repeat(1_025), &format!("{}…", "a".repeat(1_021)));
        check(&"é".repeat(512), &"é".repeat(512));
        check(&"é".repeat(513), &format!("{}…", "é".repeat(510)));
        check(&"😀".repeat(1_000_000), &format!("{}…", "😀".repeat(255)));
    }

    /// BUS-1, AUD-4: secrets are removed before the text is cut.
    #[test]
    fn secrets_go_before_the_cut() {
        #[track_caller]
        fn check(text: &str, secret: &str) {
            let excerpt = excerpt(text);
            assert!(text.contains(secret) && !excerpt.as_str().contains(secret), "{excerpt}");
        }
        check("cannot log in: password=hunter2", "hunter2");
        check(r#"{"content":[{"type":"text","text":"{\"token\":\"hunter2\"}"}]}"#, "hunter2");
        let token = "ghp_0123456789abcdefghij";
        check(&format!("{} {token}", "a".repeat(1_010)), "ghp_");
        check(&format!("{} {token} {}", "a".repeat(1_010), "b".repeat(100_000)), "ghp_");
        // The whole window is one secret, except for the first part of the next one.
        let long = format!("password={} ", "x".repeat(WINDOW - 24));
        check(&format!("{long}ghp_0123456789abcdefghij0123456789"), "ghp_");
    }

    /// BUS-1, AUD-4: the last 4 KiB of a cut window are never shown; the text before them is.
    #[test]
    fn the_end_of_a_cut_window_is_not_shown() {
        #[track_caller]
        fn check(behind: usize, shown: bool) {
            // Redaction shortens the window, so that its end would be in the excerpt.
            let secret = format!("password={} ", "x".repeat(WINDOW - behind - 10));
            let excerpt = excerpt(&format!("{secret}{}", "y".repeat(2 * WINDOW)));
            assert_eq!(excerpt.as_str().contains('y'), shown, "{behind}: {excerpt}");
        }
        check(3_000, false);
        check(4_000, false);
        check(5_000, true);
    }

    proptest! {
        #[test]
        fn any_text_fits(part in "\\PC{0,40}", times in 0_usize..1_000) {
            let text = part.repeat(times);
            let excerpt = excerpt(&text);
            prop_assert!(excerpt.as_str().len() <= Excerpt::LIMIT);
            if text.len() <= Excerpt::LIMIT {
                prop_assert_eq!(excerpt.as_str(), Redactor::default().text(&text));
            }
        }
    }
}
