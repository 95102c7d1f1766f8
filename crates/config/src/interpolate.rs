//! Fills in `${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${file:PATH}` and `${cmd:NAME}` in a value; `$${` stands for a literal
//! `${`.
//!
//! The variables come in as a map, and secrets through a function. Messages may show names, never values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Why a value could not be filled in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the variable `{}` is not set", shown(.0))]
    Unset(String),
    #[error("`${{input:{0}}}` can only be answered by an editor")]
    EditorInput(String),
    #[error("a `${{` does not begin a variable")]
    Malformed,
    /// A secret file or the command of a secret could not be used.
    #[error("{fault}")]
    Secret { fault: String, cure: String },
    #[error("there is no command `{}` in `[secrets]`", shown(name))]
    UnknownCommand { name: String, near: Option<String> },
    #[error("`${{{0}:…}}` works only in a `bridgehead.toml`")]
    OnlyInOurs(&'static str),
}

/// A reference to a secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reference {
    /// `${file:PATH}`
    File(String),
    /// `${cmd:NAME}`
    Command(String),
}

impl Reference {
    fn read(reference: &str) -> Option<Result<Self, Refusal>> {
        let read = match (reference.strip_prefix("file:"), reference.strip_prefix("cmd:")) {
            (Some(path), _) if !path.is_empty() && !path.contains("${") => Ok(Self::File(path.to_owned())),
            (_, Some(name)) if is_name(name) => Ok(Self::Command(name.to_owned())),
            (None, None) => return None,
            _ => Err(Refusal::Malformed),
        };
        Some(read)
    }

    /// What it begins with.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Command(_) => "cmd",
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::File(what) | Self::Command(what)) = self;
        write!(formatter, "${{{}:{what}}}", self.kind())
    }
}

/// A name as a message may show it. Variable names usually have one letter case. A text that mixes both cases with
/// digits is more likely a secret value between the braces, so it is not shown.
fn shown(name: &str) -> &str {
    let has = |kind: fn(&char) -> bool| name.chars().any(|character| kind(&character));
    let mixed = has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase) && has(char::is_ascii_digit);
    if mixed { "…" } else { name }
}

impl Refusal {
    pub(crate) fn cure(&self) -> String {
        match self {
            Refusal::Unset(name) => {
                let name = shown(name);
                format!("set `{name}`, or give a default: `${{{name}:-default}}`")
            }
            Refusal::Secret { cure, .. } => cure.clone(),
            Refusal::UnknownCommand { near: Some(near), .. } => format!("did you mean `${{cmd:{near}}}`?"),
            Refusal::UnknownCommand { near: None, name } => {
                let name = shown(name);
                format!("list it: `commands = {{ {name} = [\"program\", \"argument\"] }}`")
            }
            Refusal::OnlyInOurs(_) => "put the value into a variable and write `${NAME}`".to_owned(),
            Refusal::EditorInput(_) => "put the value into a variable and write `${NAME}`".to_owned(),
            Refusal::Malformed => {
                "write `${NAME}`, `${NAME:-default}`, `${env:NAME}`, `${file:PATH}` or `${cmd:NAME}`, and `$${` for a literal `${`"
                    .to_owned()
            }
        }
    }
}

/// Fills in the variables and secrets of `text`. A variable that `own` knows is taken from there. Every other one is looked up
/// in `variables`, and its name is added to `used`.
pub(crate) fn fill(
    text: &str,
    own: impl Fn(&str) -> Option<String>,
    variables: &BTreeMap<String, String>,
    secret: impl Fn(&Reference) -> Result<String, Refusal>,
    used: &mut BTreeSet<String>,
) -> Result<String, Refusal> {
    each(text, |reference| match Reference::read(reference) {
        Some(reference) => secret(&reference?),
        None => {
            let (name, default) = variable(reference)?;
            if let Some(value) = own(name) {
                return Ok(match default {
                    Some(default) if value.is_empty() => default.to_owned(),
                    _ => value,
                });
            }
            used.insert(name.to_owned());
            match (variables.get(name), default) {
                // As in a shell, `:-` also replaces an empty value.
                (Some(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
                (Some(value), _) => Ok(value.clone()),
                (None, Some(default)) => Ok(default.to_owned()),
                (None, None) => Err(Refusal::Unset(name.to_owned())),
            }
        }
    })
}

/// What a text refers to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Referred {
    /// A variable, by name.
    Variable(String),
    /// A secret.
    Secret(Reference),
}

/// Everything that a text refers to; as much as is well formed.
pub(crate) fn referred(text: &str) -> Vec<Referred> {
    let mut found = Vec::new();
    let outcome = each(text, |reference| {
        found.push(match Reference::read(reference) {
            Some(reference) => Referred::Secret(reference?),
            None => Referred::Variable(variable(reference)?.0.to_owned()),
        });
        Ok(String::new())
    });
    // Whoever fills the text in reports what is malformed.
    drop(outcome);
    found
}

/// Replaces each reference of `text`, given without its braces.
fn each(text: &str, mut replace: impl FnMut(&str) -> Result<String, Refusal>) -> Result<String, Refusal> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            filled.push_str(&rest[..at - 1]);
            filled.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        filled.push_str(&rest[..at]);
        let (reference, after) = rest[at + 2..].split_once('}').ok_or(Refusal::Malformed)?;
        filled.push_str(&replace(reference)?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// The name and the default of a reference to a variable.
fn variable(reference: &str) -> Result<(&str, Option<&str>), Refusal> {
    if let Some(id) = reference.strip_prefix("input:") {
        return Err(if is_name(id) { Refusal::EditorInput(id.to_owned()) } else { Refusal::Malformed });
    }
    let reference = reference.strip_prefix("env:").unwrap_or(reference);
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    // A `${` within a default would end at the wrong brace.
    if !is_name(name) || default.is_some_and(|default| default.contains("${")) {
        return Err(Refusal::Malformed);
    }
    Ok((name, default))
}

/// Whether the text can name a variable or a command.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(|other| other.is_ascii_alphanumeric() || other == '_' || other == '-')
        && !name.starts_with('-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn variables() -> BTreeMap<String, String> {
        [("A", "1"), ("B_2", "two"), ("EMPTY", ""), ("DOLLAR", "${A}")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    fn secret(reference: &Reference) -> Result<String, Refusal> {
        match reference {
            Reference::File(path) => Ok(format!("<{path}>")),
            Reference::Command(name) => Ok(format!("({name})")),
        }
    }

    #[track_caller]
    fn check(text: &str, expected: Result<&str, Refusal>) {
        let filled = fill(text, |_| None, &variables(), secret, &mut BTreeSet::new());
        assert_eq!(filled, expected.map(str::to_owned), "{text}");
    }

    #[test]
    fn variables_are_filled_in() {
        check("plain $A $ {A} $", Ok("plain $A $ {A} $"));
        check("${A}", Ok("1"));
        check("<${A}${B_2}>", Ok("<1two>"));
        check("${env:A}", Ok("1"));
        check("${env:NO:-x}", Ok("x"));
        check("${NO:-}", Ok(""));
        check("${NO:-http://x:1/}", Ok("http://x:1/"));
        check("${A:-x}", Ok("1"));
        check("${EMPTY}", Ok(""));
        check("${EMPTY:-x}", Ok("x"));
        check("$${A} $$${A}", Ok("${A} $${A}"));
        check("${DOLLAR}", Ok("${A}"));
    }

    /// ACC-8: secrets are filled in beside variables.
    #[test]
    fn secrets_are_filled_in() {
        check("${A} ${file:/run/a b:-c} ${cmd:vault} $${file:x}", Ok("1 </run/a b:-c> (vault) ${file:x}"));
        for text in ["${file:}", "${cmd:}", "${cmd:a b}", "${file:${A}}", "${cmd:x:-y}", "${cmd:-x}"] {
            check(text, Err(Refusal::Malformed));
        }
        assert_eq!(Reference::File("a".to_owned()).to_string(), "${file:a}");
        assert_eq!(Reference::Command("b".to_owned()).to_string(), "${cmd:b}");
    }

    #[test]
    fn what_a_text_refers_to() {
        let all = referred("${A} ${NO:-x} $${B} ${file:a} ${cmd:b} ${env:C} ${}");
        let name = |name: &str| Referred::Variable(name.to_owned());
        let secrets =
            [Reference::File("a".to_owned()), Reference::Command("b".to_owned())].map(Referred::Secret);
        let [file, command] = secrets;
        assert_eq!(all, [name("A"), name("NO"), file, command, name("C")]);
    }

    /// JOIN-3: a variable of the own file comes before one of the environment, and is no variable of the environment.
    #[test]
    fn the_own_variables_come_first() {
        let own = |name: &str| match name {
            "A" => Some("own".to_owned()),
            "NOTHING" => Some(String::new()),
            _ => None,
        };
        let mut used = BTreeSet::new();
        let text = "${A} ${env:A} ${A:-x} <${NOTHING}> ${NOTHING:-x} ${B_2}";
        let filled = fill(text, own, &variables(), secret, &mut used);
        assert_eq!(filled.as_deref(), Ok("own own own <> x two"));
        assert_eq!(used.into_iter().collect::<Vec<_>>(), ["B_2"]);
    }

    #[test]
    fn what_cannot_be_filled_in_is_refused() {
        check("x${NO}", Err(Refusal::Unset("NO".into())));
        check("${env:NO}", Err(Refusal::Unset("NO".into())));
        check("${input:key}", Err(Refusal::EditorInput("key".into())));
        for text in ["${", "${A", "${}", "${1}", "${A B}", "${NO:-${A}}", "${A%x}", "${:-x}", "${input:}"] {
            check(text, Err(Refusal::Malformed));
        }
    }

    #[test]
    fn what_looks_like_a_value_is_not_named() {
        let told = |name: &str| {
            let refusal = Refusal::Unset(name.to_owned());
            format!("{refusal}; {}", refusal.cure())
        };
        assert_eq!(
            told("NO_2"),
            "the variable `NO_2` is not set; set `NO_2`, or give a default: `${NO_2:-default}`"
        );
        assert!(told("http_proxy2").contains("`http_proxy2`"));
        assert!(!told("c2VjcmV0").contains("c2VjcmV0"));
    }

    /// SRV-6: the names of interpolated variables are recorded, whether the variables are set or not.
    #[test]
    fn names_are_recorded() {
        let mut used = BTreeSet::new();
        let text = "${A} ${env:EMPTY} ${NO:-x} $${B_2} ${file:D} ${cmd:E}";
        fill(text, |_| None, &variables(), secret, &mut used).unwrap();
        assert_eq!(used.into_iter().collect::<Vec<_>>(), ["A", "EMPTY", "NO"]);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics_and_text_without_references_is_kept(text in r"([\$\{\}:é]|A|env:|file:|cmd:|:-|x){0,30}") {
            let filled = fill(&text, |_| None, &variables(), secret, &mut BTreeSet::new());
            if !text.contains("${") {
                prop_assert_eq!(filled, Ok(text));
            }
        }
    }
}
