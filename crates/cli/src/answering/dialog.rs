//! Puts a server's question to a person, line by line.
//!
//! The person can always decline (no) or cancel; the end of input cancels. Nothing is sent before the person has seen all
//! fields and agreed. Texts of the server are shown with control characters escaped.

use serde_json::{Map, Value, json};

use super::super::output::one_line;
use super::form::{Field, Kind, shown};

/// How long a text of a server may be.
const LONGEST: usize = 1000;

/// A person who reads and types.
pub(super) trait Person {
    /// Shows a message.
    fn say(&mut self, text: &str);

    /// Shows a prompt and waits for a line; `None` at the end of input.
    fn reply(&mut self, prompt: &str) -> Option<String>;
}

/// Asks for the fields of a form. Fields in `known` are not asked for.
pub(super) fn form(
    person: &mut dyn Person,
    asked: &str,
    fields: &[Field],
    known: Map<String, Value>,
) -> Value {
    person.say(asked);
    let mut content = known;
    for field in fields {
        if content.contains_key(&field.name) {
            continue;
        }
        match value(person, field) {
            Some(Some(value)) => drop(content.insert(field.name.clone(), value)),
            Some(None) => {}
            None => return json!({"action": "cancel"}),
        }
    }
    if !fields.is_empty() {
        person.say("This is sent:");
        for field in fields {
            let value = content.get(&field.name).map_or_else(|| "(left out)".to_owned(), shown);
            person.say(&format!("  {}: {}", line(&field.name), line(&value)));
        }
    }
    agreed(person, "Send it?", &json!({"action": "accept", "content": content}))
}

/// Asks whether a page may be opened. The person opens it: the address is the server's.
pub(super) fn page(person: &mut dyn Person, asked: &str, url: &str) -> Value {
    person.say(asked);
    let uri = url.parse::<hyper::Uri>().ok();
    let host =
        uri.as_ref().and_then(|uri| uri.host()).unwrap_or("unknown; this is not the address of a page");
    person.say(&format!("  host: {}", line(host)));
    person.say(&format!("  link: {}", one_line(url, usize::MAX)));
    let is_https = uri.as_ref().is_some_and(|uri| uri.scheme_str() == Some("https"));
    if !is_https || url.contains('@') || host.contains("xn--") {
        person.say("warning: look at this address twice: it is not plainly an https address of the host that it shows");
    }
    agreed(person, "Open it in your browser if you trust it. Do you agree?", &json!({"action": "accept"}))
}

/// The value of a field; `Some(None)` if it is left out, `None` if there is no more input.
fn value(person: &mut dyn Person, field: &Field) -> Option<Option<Value>> {
    let about = if field.about.is_empty() { String::new() } else { format!(": {}", line(&field.about)) };
    person.say(&format!("{}{about} ({})", line(&field.name), line(&field.wants())));
    if let Kind::Choice(choices) | Kind::Choices(choices) = &field.kind {
        for (at, choice) in choices.iter().enumerate() {
            let value = shown(&choice.value);
            let title =
                if choice.title == value { String::new() } else { format!(" ({})", line(&choice.title)) };
            person.say(&format!("  {}) {}{title}", at + 1, line(&value)));
        }
    }
    let default = field.default.as_ref().map(|default| format!(" [{}]", line(&shown(default))));
    loop {
        let typed =
            person.reply(&format!("{}{}: ", line(&field.name), default.as_deref().unwrap_or_default()))?;
        if typed.trim().is_empty() {
            match (&field.default, field.required) {
                (Some(default), _) => return Some(Some(default.clone())),
                (None, false) => return Some(None),
                (None, true) => person.say("error: this field is required; Ctrl-D cancels"),
            }
            continue;
        }
        match field.read(&typed) {
            Ok(value) => return Some(Some(value)),
            Err(reason) => person.say(&format!("error: {}", line(&reason))),
        }
    }
}

/// The answer if the person agrees, or that the person does not.
fn agreed(person: &mut dyn Person, question: &str, accepted: &Value) -> Value {
    loop {
        let typed = person.reply(&format!("{question} [y]es, [n]o, [c]ancel: "));
        match typed.as_deref().map(|typed| typed.trim().to_ascii_lowercase()).as_deref() {
            Some("y" | "yes") => return accepted.clone(),
            Some("n" | "no") => return json!({"action": "decline"}),
            Some("c" | "cancel") | None => return json!({"action": "cancel"}),
            Some(_) => person.say("error: type y, n or c"),
        }
    }
}

fn line(text: &str) -> String {
    one_line(text, LONGEST)
}

#[cfg(test)]
mod tests {
    use bridgehead_wire::Raw;

    use super::super::form::fields;
    use super::*;

    /// Types these lines, and keeps what it is shown.
    struct Script {
        typed: Vec<&'static str>,
        seen: String,
    }

    impl Script {
        fn new(typed: &[&'static str]) -> Self {
            Self { typed: typed.to_vec(), seen: String::new() }
        }
    }

    impl Person for Script {
        fn say(&mut self, text: &str) {
            self.seen += &format!("{text}\n");
        }

        fn reply(&mut self, prompt: &str) -> Option<String> {
            let typed = (!self.typed.is_empty()).then(|| self.typed.remove(0));
            self.seen += &format!("{prompt}{}\n", typed.unwrap_or("^D"));
            typed.map(str::to_owned)
        }
    }

    fn asked() -> Vec<Field> {
        fields(Some(&Raw::encode(&json!({
            "properties": {
                "age": {"type": "integer", "minimum": 0},
                "name": {"type": "string", "default": "Ada"},
                "room": {"type": "string", "enum": ["s", "d"], "enumNames": ["single", "d"]},
            },
            "required": ["age", "name"],
        }))))
    }

    /// JOIN-8: a form is asked for field by field, with type, choices and default; what does not fit is asked for again.
    #[test]
    fn a_form_is_filled_in() {
        let mut person = Script::new(&["", "x", "7", "", "9", "1", "maybe", "Y"]);
        let answer = form(&mut person, "who?", &asked(), Map::new());
        assert_eq!(answer, json!({"action": "accept", "content": {"age": 7, "name": "Ada", "room": "s"}}));
        insta::assert_snapshot!(person.seen, @r"
        who?
        age (whole number, at least 0, required)
        age: 
        error: this field is required; Ctrl-D cancels
        age: x
        error: `x` is not a whole number
        age: 7
        name (text, required)
        name [Ada]: 
        room (one of the list, optional)
          1) s (single)
          2) d
        room: 9
        error: `9` is none of the choices
        room: 1
        This is sent:
          age: 7
          name: Ada
          room: s
        Send it? [y]es, [n]o, [c]ancel: maybe
        error: type y, n or c
        Send it? [y]es, [n]o, [c]ancel: Y
        ");
    }

    /// JOIN-8: a person can leave an optional field out, decline and cancel; known fields are not asked for.
    #[test]
    fn a_person_may_refuse() {
        let mut person = Script::new(&["7", "", "", "n"]);
        assert_eq!(form(&mut person, "", &asked(), Map::new()), json!({"action": "decline"}));
        assert!(person.seen.contains("  room: (left out)\n"), "{}", person.seen);
        for typed in [&["7"][..], &["7", "", "", "c"], &["7", "", ""]] {
            assert_eq!(form(&mut Script::new(typed), "", &asked(), Map::new()), json!({"action": "cancel"}));
        }
        let known = Map::from_iter([("age".to_owned(), json!(1)), ("name".to_owned(), json!("B"))]);
        let answer = form(&mut Script::new(&["", "y"]), "", &asked(), known);
        assert_eq!(answer, json!({"action": "accept", "content": {"age": 1, "name": "B"}}));
        let answer = form(&mut Script::new(&["yes"]), "", &[], Map::new());
        assert_eq!(answer, json!({"action": "accept", "content": {}}));
    }

    /// JOIN-8: a page is shown with its host, and with a warning if the address may mislead.
    #[test]
    fn a_page_is_shown() {
        for (url, host, warns) in [
            ("https://pay.example/x?y=1", "pay.example", false),
            ("http://pay.example/", "pay.example", true),
            ("https://bank.example@evil.example/", "evil.example", true),
            ("https://xn--bnk-6na.example/", "xn--bnk-6na.example", true),
            ("https://bänk.example/", "unknown; this is not the address of a page", true),
            ("nowhere", "nowhere", true),
        ] {
            let mut person = Script::new(&["y"]);
            assert_eq!(page(&mut person, "pay", url), json!({"action": "accept"}));
            assert!(person.seen.contains(&format!("  host: {host}\n  link: {url}\n")), "{}", person.seen);
            assert_eq!(person.seen.contains("warning: "), warns, "{}", person.seen);
        }
        assert_eq!(page(&mut Script::new(&["n"]), "", "https://a"), json!({"action": "decline"}));
        assert_eq!(page(&mut Script::new(&[]), "", "https://a"), json!({"action": "cancel"}));
    }
}
