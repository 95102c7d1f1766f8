//! What a server may ask a client during the client's own call.

use crate::{Method, Object, Raw, Revision, ServerMethod};

/// What a client declared that it can answer. Small enough to go along with every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Abilities(u8);

const SAMPLING: u8 = 1;
const FORM: u8 = 2;
const URL: u8 = 4;
const ROOTS: u8 = 8;
const SAMPLING_TOOLS: u8 = 16;
const SAMPLING_CONTEXT: u8 = 32;
/// Not an ability: the caller also wants the questions that the client cannot answer.
const ANSWERS_ALL: u8 = 128;

impl Abilities {
    /// A client that is never asked anything.
    pub const NONE: Self = Self(0);

    /// Everything that a client can be asked.
    pub const ALL: Self = Self(SAMPLING | FORM | URL | ROOTS);

    /// What the capabilities of a client declare. Elicitation that names no mode is by form.
    pub fn declared(capabilities: &Raw) -> Self {
        let Ok(object) = Object::parse(capabilities) else { return Self::NONE };
        let member = |name: &str| object.get(name).and_then(|raw| Object::parse(&raw).ok());
        let mut found = 0;
        if let Some(more) = member("sampling") {
            found |= SAMPLING;
            for (name, bit) in [("tools", SAMPLING_TOOLS), ("context", SAMPLING_CONTEXT)] {
                if more.get(name).is_some() {
                    found |= bit;
                }
            }
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

    /// The part that a client of `revision` can be asked; the rest did not exist yet.
    #[must_use]
    pub fn as_of(self, revision: Revision) -> Self {
        let mut kept = self.0;
        if revision < Revision::V2025_11_25 {
            kept &= !(URL | SAMPLING_TOOLS);
        }
        if revision < Revision::V2025_06_18 {
            kept &= !FORM;
        }
        Self(kept)
    }

    /// The same, for a caller that also wants the questions it cannot answer: such a question ends its call.
    #[must_use]
    pub const fn hearing_all(self) -> Self {
        Self(self.0 | ANSWERS_ALL)
    }

    /// The same, for a client for which the gateway answers requests for roots.
    #[must_use]
    pub const fn with_roots(self) -> Self {
        Self(self.0 | ROOTS)
    }

    /// Whether the caller also wants the questions that it cannot answer.
    pub const fn hears_all(self) -> bool {
        self.0 & ANSWERS_ALL != 0
    }

    /// The capabilities that declare these abilities.
    pub fn capabilities(self) -> Raw {
        if !self.answers_any() {
            return Raw::literal("{}");
        }
        let has = |bit: u8| self.0 & bit != 0;
        let list = |members: &[(bool, &str)]| {
            let declared: Vec<String> =
                members.iter().filter(|(has, _)| *has).map(|(_, name)| format!(r#""{name}":{{}}"#)).collect();
            format!("{{{}}}", declared.join(","))
        };
        let mut declared = Vec::new();
        if has(SAMPLING) {
            let more = list(&[(has(SAMPLING_TOOLS), "tools"), (has(SAMPLING_CONTEXT), "context")]);
            declared.push(format!(r#""sampling":{more}"#));
        }
        if has(FORM | URL) {
            let modes = list(&[(has(FORM), "form"), (has(URL), "url")]);
            declared.push(format!(r#""elicitation":{modes}"#));
        }
        if has(ROOTS) {
            declared.push(r#""roots":{}"#.to_owned());
        }
        Raw::parse(format!("{{{}}}", declared.join(","))).unwrap_or(Raw::literal("{}"))
    }

    /// The capability that this question needs; `None` for a method that no client can be asked.
    pub fn needed(method: &Method, params: Option<&Raw>) -> Option<Raw> {
        method.of_server().map(|question| match question {
            ServerMethod::CreateMessage => Raw::literal(r#"{"sampling":{}}"#),
            ServerMethod::RootsList => Raw::literal(r#"{"roots":{}}"#),
            ServerMethod::Elicit if mode(params).as_deref() == Some("url") => {
                Raw::literal(r#"{"elicitation":{"url":{}}}"#)
            }
            ServerMethod::Elicit => Raw::literal(r#"{"elicitation":{}}"#),
        })
    }

    /// Whether nothing can be asked, and no question is wanted that cannot be answered.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether the client can be asked anything.
    pub const fn answers_any(self) -> bool {
        self.0 & (SAMPLING | FORM | URL | ROOTS) != 0
    }

    /// Whether the client answers such requests at all, whatever their parameters.
    pub const fn knows(self, method: &Method) -> bool {
        let wanted = match method.of_server() {
            Some(ServerMethod::CreateMessage) => SAMPLING,
            Some(ServerMethod::Elicit) => FORM | URL,
            Some(ServerMethod::RootsList) => ROOTS,
            None => 0,
        };
        self.0 & wanted != 0
    }

    /// Whether the client answers this request.
    pub fn covers(self, method: &Method, params: Option<&Raw>) -> bool {
        if *method != Method::Elicit {
            return self.knows(method);
        }
        match mode(params).as_deref() {
            None | Some("form") => self.0 & FORM != 0,
            Some("url") => self.0 & URL != 0,
            Some(_) => false,
        }
    }

    /// As a number; [`Abilities::from_bits`] is the inverse.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The abilities that [`Abilities::bits`] encoded.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

/// The mode in which a user is to be asked.
fn mode(params: Option<&Raw>) -> Option<String> {
    params.and_then(|params| Object::parse(params).ok())?.get("mode")?.to_text()
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

    /// ERA-4: a client is not asked what its revision does not have.
    #[test]
    fn what_a_revision_can_be_asked() {
        #[track_caller]
        fn check(revision: Revision, expected: &str) {
            let all =
                r#"{"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}},"roots":{}}"#;
            let abilities = Abilities::declared(&Raw::literal(all)).as_of(revision);
            assert_eq!(abilities.capabilities().as_str(), expected);
            assert_eq!(
                Abilities::declared(&abilities.capabilities()),
                abilities,
                "it reads back as it was written"
            );
        }
        let all = r#"{"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}},"roots":{}}"#;
        check(Revision::MODERN, all);
        check(Revision::V2025_11_25, all);
        check(Revision::V2025_06_18, r#"{"sampling":{"context":{}},"elicitation":{"form":{}},"roots":{}}"#);
        check(Revision::V2025_03_26, r#"{"sampling":{"context":{}},"roots":{}}"#);
        check(Revision::V2024_11_05, r#"{"sampling":{"context":{}},"roots":{}}"#);
        assert_eq!(Abilities::NONE.capabilities().as_str(), "{}");
        let hearing = Abilities::NONE.hearing_all();
        assert!(!hearing.is_none() && !hearing.answers_any() && hearing.hears_all());
        assert!(Abilities::ALL.answers_any() && !Abilities::ALL.hears_all());
    }

    #[test]
    fn what_a_question_needs() {
        #[track_caller]
        fn check(method: &Method, params: &'static str, expected: Option<&str>) {
            let needed = Abilities::needed(method, Some(&Raw::literal(params)));
            assert_eq!(needed.as_ref().map(Raw::as_str), expected);
        }
        check(&Method::CreateMessage, "{}", Some(r#"{"sampling":{}}"#));
        check(&Method::RootsList, "{}", Some(r#"{"roots":{}}"#));
        check(&Method::Elicit, "{}", Some(r#"{"elicitation":{}}"#));
        check(&Method::Elicit, r#"{"mode":"url"}"#, Some(r#"{"elicitation":{"url":{}}}"#));
        check(&Method::Ping, "{}", None);
    }
}
