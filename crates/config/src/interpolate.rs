//! Fills in `${VAR}`, `${VAR:-default}` and `${env:VAR}` in a value; `$${` stands for a literal `${`.
//!
//! The variables come in as a map. Messages may show names, never values.

use std::collections::{BTreeMap, BTreeSet};

/// Why a value could not be filled in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the variable `{}` is not set", shown(.0))]
    Unset(String),
    #[error("`${{input:{0}}}` can only be answered by an editor")]
    EditorInput(String),
    #[error("a `${{` does not begin a variable")]
    Malformed,
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
            Refusal::EditorInput(_) => "put the value into a variable and write `${NAME}`".to_owned(),
            Refusal::Malformed => {
                "write `${NAME}`, `${NAME:-default}` or `${env:NAME}`, and `$${` for a literal `${`"
                    .to_owned()
            }
        }
    }
}

/// Fills in the variables of `text`, and adds each name it looked up to `used`.
pub(crate) fn fill(
    text: &str,
    variables: &BTreeMap<String, String>,
    used: &mut BTreeSet<String>,
) -> Result<String, Refusal> {
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
        filled.push_str(&look_up(reference, variables, used)?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

fn look_up(
    reference: &str,
    variables: &BTreeMap<String, String>,
    used: &mut BTreeSet<String>,
) -> Result<String, Refusal> {
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
    used.insert(name.to_owned());
    match (variables.get(name), default) {
        // As in a shell, `:-` also replaces an empty value.
        (Some(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
        (Some(value), _) => Ok(value.clone()),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(Refusal::Unset(name.to_owned())),
    }
}

fn is_name(name: &str) -> bool {
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

    #[track_caller]
    fn check(text: &str, expected: Result<&str, Refusal>) {
        let filled = fill(text, &variables(), &mut BTreeSet::new());
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
        fill("${A} ${env:EMPTY} ${NO:-x} $${B_2}", &variables(), &mut used).unwrap();
        assert_eq!(used.into_iter().collect::<Vec<_>>(), ["A", "EMPTY", "NO"]);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics_and_text_without_references_is_kept(text in r"([\$\{\}:é]|A|env:|:-|x){0,30}") {
            let filled = fill(&text, &variables(), &mut BTreeSet::new());
            if !text.contains("${") {
                prop_assert_eq!(filled, Ok(text));
            }
        }
    }
}
