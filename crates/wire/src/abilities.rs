//! What a client can be asked by a server while it waits for an answer of its own.

use crate::{Method, Object, Raw};

/// What a client declared that it can answer. Small enough to go along with every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Abilities(u8);

const SAMPLING: u8 = 1;
const FORM: u8 = 2;
const URL: u8 = 4;
const ROOTS: u8 = 8;

impl Abilities {
    /// None: a client that is never asked anything.
    pub const NONE: Self = Self(0);

    /// What the capabilities of a client declare. Elicitation that names no mode is by form.
    pub fn declared(capabilities: &Raw) -> Self {
        let Ok(object) = Object::parse(capabilities) else { return Self::NONE };
        let member = |name: &str| object.get(name).and_then(|raw| Object::parse(&raw).ok());
        let mut found = 0;
        if member("sampling").is_some() {
            found |= SAMPLING;
        }
        if member("roots").is_some() {
            found |= ROOTS;
        }
        if let Some(modes) = member("elicitation") {
            let url = modes.get("url").is_some();
            if modes.get("form").is_some() || !url {
                found |= FORM;
            }
            if url {
                found |= URL;
            }
        }
        Self(found)
    }

    /// Whether there is nothing to ask.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether the client answers such requests at all, whatever is in them.
    pub const fn knows(self, method: &Method) -> bool {
        let wanted = match method {
            Method::CreateMessage => SAMPLING,
            Method::Elicit => FORM | URL,
            Method::RootsList => ROOTS,
            _ => 0,
        };
        self.0 & wanted != 0
    }

    /// Whether the client answers this request.
    pub fn covers(self, method: &Method, params: Option<&Raw>) -> bool {
        if *method != Method::Elicit {
            return self.knows(method);
        }
        let mode = params
            .and_then(|params| Object::parse(params).ok())
            .and_then(|params| params.get("mode"))
            .and_then(|mode| mode.to_text());
        match mode.as_deref() {
            None | Some("form") => self.0 & FORM != 0,
            Some("url") => self.0 & URL != 0,
            Some(_) => false,
        }
    }

    /// As a number, and back by [`Abilities::from_bits`].
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// What [`Abilities::bits`] gave.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_can_be_asked() {
        #[track_caller]
        fn check(capabilities: &'static str, answers: [bool; 4]) {
            let abilities = Abilities::declared(&Raw::literal(capabilities));
            let covers = |method, params| abilities.covers(&method, Some(&Raw::literal(params)));
            assert_eq!(
                [
                    covers(Method::CreateMessage, "{}"),
                    covers(Method::Elicit, r#"{"message":"?"}"#),
                    covers(Method::Elicit, r#"{"mode":"url"}"#),
                    covers(Method::RootsList, "{}"),
                ],
                answers,
                "{capabilities}"
            );
            assert_eq!(covers(Method::Elicit, r#"{"mode":"form"}"#), answers[1]);
            assert!(!covers(Method::Elicit, r#"{"mode":"voice"}"#) && !covers(Method::Ping, "{}"));
            assert_eq!(abilities.is_none(), !answers.contains(&true));
            assert_eq!(abilities.knows(&Method::Elicit), answers[1] || answers[2]);
            assert_eq!(Abilities::from_bits(abilities.bits()), abilities);
        }
        check("{}", [false; 4]);
        check("7", [false; 4]);
        check(r#"{"sampling":null,"roots":true,"elicitation":"form"}"#, [false; 4]);
        check(r#"{"sampling":{"tools":{}}}"#, [true, false, false, false]);
        check(r#"{"elicitation":{}}"#, [false, true, false, false]);
        check(r#"{"elicitation":{"url":{}}}"#, [false, false, true, false]);
        check(
            r#"{"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true}}"#,
            [false, true, true, true],
        );
    }
}
