//! Answers what a server asks during a request: a person at the terminal does, or `--answer` and `--answers` in a script.
//!
//! A modern server, and every server behind a gateway, asks through the result of the request, and gets the answers with the
//! next one. What nobody here can answer is not declared. Without a terminal and without answers, forms are declined.

mod dialog;
mod form;

use std::collections::BTreeSet;
use std::io::{self, BufRead, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError};

use bridgehead_wire::{Method, Object, Raw};
use clap::Args;
use serde_json::{Map, Value, json};

use self::dialog::Person;
use super::exit::Exit;
use super::meant::meant;
use super::output::{self, one_line};

/// Answers on the command line.
#[derive(Debug, Args)]
pub(crate) struct Answers {
    /// Answer a form that the server asks for: one field; may be repeated
    #[arg(long, value_name = "FIELD=VALUE", value_parser = pair)]
    answer: Vec<(String, String)>,
    /// Answer forms that the server asks for: a JSON object, or @FILE
    #[arg(long, value_name = "JSON")]
    answers: Option<String>,
}

fn pair(given: &str) -> Result<(String, String), String> {
    match given.split_once('=') {
        Some((field, value)) if !field.is_empty() => Ok((field.to_owned(), value.to_owned())),
        _ => Err("write FIELD=VALUE, such as name=Ada".to_owned()),
    }
}

/// Who answers.
#[derive(Debug, Clone)]
pub(crate) struct Answering {
    /// Answers as a person would type them.
    typed: Vec<(String, String)>,
    /// Answers as JSON.
    given: Map<String, Value>,
    /// Whether there is a person at a terminal.
    asks: bool,
    /// Who asks, for messages: the tool, prompt or resource.
    subject: String,
    /// What became of the answers of the command line.
    fate: Arc<Mutex<Fate>>,
}

/// What became of the answers of the command line.
#[derive(Debug, Default)]
struct Fate {
    /// Whether a form was cancelled because they do not fit it.
    cancelled: bool,
    /// The fields that some form asked for.
    used: BTreeSet<String>,
}

impl Answering {
    /// Reads the answers of the command line.
    pub(crate) fn new(answers: &Answers, subject: &str) -> Result<Self, String> {
        let given = match &answers.answers {
            None => Map::new(),
            Some(text) => match super::request::read_json(text, "--answers")?.decode() {
                Ok(given) => given,
                Err(_) => {
                    return Err("--answers must be a JSON object, such as '{\"name\":\"Ada\"}'".to_owned());
                }
            },
        };
        let asks = io::stdin().is_terminal() && io::stderr().is_terminal();
        let (typed, subject) = (answers.answer.clone(), one_line(subject, 200));
        Ok(Self { typed, given, asks, subject, fate: Arc::default() })
    }

    /// The exit code of a request that would end with `exit`: its command line is wrong if its answers do not fit. Names the
    /// answers that nothing asked for.
    pub(crate) fn judge(&self, exit: Exit) -> Exit {
        let fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
        for name in self.names().filter(|name| !fate.used.contains(*name)) {
            output::talk(&format!(
                "warning: nothing asked for `{}`; its answer was not used",
                one_line(name, 200)
            ));
        }
        if fate.cancelled { Exit::Usage } else { exit }
    }

    /// The names of the fields that the command line has answers for.
    fn names(&self) -> impl Iterator<Item = &str> {
        let typed: BTreeSet<&str> = self.typed.iter().map(|(name, _)| name.as_str()).collect();
        let given = self.given.keys().map(String::as_str);
        typed.into_iter().chain(given).collect::<BTreeSet<&str>>().into_iter()
    }

    /// Cancels a form because the answers of the command line do not fit it.
    fn cancel(&self, person: &mut dyn Person, reason: &str) -> Value {
        self.fate.lock().unwrap_or_else(PoisonError::into_inner).cancelled = true;
        person.say(&format!("error: {reason}"));
        json!({"action": "cancel"})
    }

    /// The capabilities that this client declares: forms can always be answered, if only by declining; a page needs a person.
    pub(crate) fn capabilities(&self) -> Value {
        match self.asks {
            true => json!({"elicitation": {"form": {}, "url": {}}}),
            false => json!({"elicitation": {"form": {}}}),
        }
    }

    /// The answers to all questions of a round, by their keys.
    pub(crate) async fn answer(&self, requests: &Raw) -> Result<Raw, String> {
        let requests =
            Object::parse(requests).map_err(|_| "the server's questions are malformed".to_owned())?;
        let mut questions = Vec::new();
        for (key, request) in requests.members() {
            questions.push((key, Question::read(&request)?));
        }
        let answering = self.clone();
        let (told, answers) = tokio::sync::oneshot::channel();
        // A thread of its own, because a person takes long, and because a thread that waits for a line cannot be stopped: it
        // must not keep the program from ending at Ctrl-C.
        std::thread::spawn(move || {
            let all = questions.iter().map(|(key, asked)| (key.clone(), answering.one(asked, &mut Console)));
            let _ = told.send(all.collect::<Map<String, Value>>());
        });
        match answers.await {
            Ok(answers) => Ok(Raw::encode(&answers)),
            Err(_) => Err("the question could not be asked".to_owned()),
        }
    }

    fn one(&self, question: &Question, person: &mut dyn Person) -> Value {
        let asked = format!("{} asks: {}", self.subject, question.message);
        let (schema, url) = match &question.kind {
            Kind::Form(schema) => (schema.as_ref(), None),
            Kind::Page(url) => (None, Some(url)),
        };
        if let Some(url) = url {
            if self.asks {
                return dialog::page(person, &asked, url);
            }
            person.say(&format!(
                "note: {asked}\nit wants a page to be opened, which needs a terminal; declined: {url}"
            ));
            return json!({"action": "decline"});
        }
        let fields = form::fields(schema);
        let known = match self.known(&fields) {
            Ok(known) => known,
            Err(reason) => {
                return self.cancel(person, &format!("{asked}\n{reason}; cancelled"));
            }
        };
        if self.asks {
            return dialog::form(person, &asked, &fields, known);
        }
        if self.typed.is_empty() && self.given.is_empty() {
            let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
            person.say(&format!(
                "note: {asked}\ndeclined, because there is no terminal to ask at; answer with --answer FIELD=VALUE (fields: {})",
                one_line(&names.join(", "), 500)
            ));
            return json!({"action": "decline"});
        }
        if let (true, Some(name)) = (known.is_empty() && !fields.is_empty(), self.names().next()) {
            // Nothing that was given is meant for this form, so nobody agreed to it.
            let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
            let all = format!("its fields are {}", one_line(&names.join(", "), 500));
            let (name, near) = (one_line(name, 200), meant(name, names.iter().copied(), &all));
            return self
                .cancel(person, &format!("{asked}\ncancelled, because it has no field `{name}`; {near}"));
        }
        self.without_person(&asked, &fields, known, person)
    }

    /// The answer of a script: what it gave, and the defaults of the rest.
    fn without_person(
        &self,
        asked: &str,
        fields: &[form::Field],
        mut content: Map<String, Value>,
        person: &mut dyn Person,
    ) -> Value {
        for field in fields.iter().filter(|field| field.required) {
            match (content.contains_key(&field.name), &field.default) {
                (true, _) => {}
                (false, Some(default)) => drop(content.insert(field.name.clone(), default.clone())),
                (false, None) => {
                    let name = one_line(&field.name, 200);
                    let wants = one_line(&field.wants(), 500);
                    let cure = format!("cancelled; add --answer {name}=VALUE");
                    return self.cancel(person, &format!("{asked}\nit requires `{name}` ({wants}); {cure}"));
                }
            }
        }
        json!({"action": "accept", "content": content})
    }

    /// The fields of this form that the command line has answers for.
    fn known(&self, fields: &[form::Field]) -> Result<Map<String, Value>, String> {
        let mut known = Map::new();
        self.fate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .used
            .extend(fields.iter().map(|field| field.name.clone()));
        for field in fields {
            let name = &field.name;
            let wrong = |reason: String| {
                format!("the answer for `{}` does not fit: {}", one_line(name, 200), one_line(&reason, 500))
            };
            if let Some((_, typed)) = self.typed.iter().rev().find(|(field, _)| field == name) {
                known.insert(name.clone(), field.read(typed).map_err(wrong)?);
            } else if let Some(value) = self.given.get(name) {
                field.check(value).map_err(wrong)?;
                known.insert(name.clone(), value.clone());
            }
        }
        Ok(known)
    }
}

/// A question of a server.
#[derive(Debug)]
struct Question {
    message: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Form(Option<Raw>),
    Page(String),
}

impl Question {
    /// Reads one of the requests of a result. Only what was declared may be asked.
    fn read(request: &Raw) -> Result<Self, String> {
        let malformed = || "a question of the server is malformed".to_owned();
        let request = Object::parse(request).map_err(|_| malformed())?;
        let method = request.get("method").and_then(|method| method.to_text()).ok_or_else(malformed)?;
        if method == Method::CreateMessage.as_str() {
            return Err("the server asks for a model (sampling), and the command line has none; \
                        use a client that has a model"
                .to_owned());
        }
        if method != Method::Elicit.as_str() {
            let method = one_line(&method, 100);
            return Err(format!("the server asks for `{method}`, which the command line does not answer"));
        }
        let params =
            request.get("params").and_then(|params| Object::parse(&params).ok()).ok_or_else(malformed)?;
        let text = |name: &str| params.get(name).and_then(|raw| raw.to_text());
        let kind = match text("mode").as_deref() {
            Some("url") => Kind::Page(text("url").unwrap_or_default()),
            None | Some("form") => Kind::Form(params.get("requestedSchema")),
            Some(other) => {
                let mode = one_line(other, 100);
                return Err(format!(
                    "the server asks in the mode `{mode}`, which the command line does not know"
                ));
            }
        };
        Ok(Self { message: text("message").unwrap_or_default(), kind })
    }
}

/// The person at the terminal.
struct Console;

impl Person for Console {
    fn say(&mut self, text: &str) {
        output::talk(text);
    }

    fn reply(&mut self, prompt: &str) -> Option<String> {
        output::prompt(prompt);
        let mut line = String::new();
        match io::stdin().lock().read_line(&mut line) {
            Ok(1..) => Some(line),
            Ok(0) | Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody is there to type.
    #[derive(Default)]
    struct Nobody(String);

    impl Person for Nobody {
        fn say(&mut self, text: &str) {
            self.0 += text;
        }

        fn reply(&mut self, _prompt: &str) -> Option<String> {
            None
        }
    }

    fn asked() -> Raw {
        Raw::encode(
            &json!({"method": "elicitation/create", "params": {"message": "who?", "requestedSchema": {
                "type": "object", "required": ["name", "age"],
                "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 3}, "x": {"type": "boolean"}},
            }}}),
        )
    }

    #[track_caller]
    fn check(typed: &[(&str, &str)], given: &Value, expected: &Value, words: &str) {
        let typed = typed.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect();
        let given = given.as_object().unwrap().clone();
        let answering =
            Answering { typed, given, asks: false, subject: "`t`".to_owned(), fate: Arc::default() };
        let mut nobody = Nobody::default();
        assert_eq!(&answering.one(&Question::read(&asked()).unwrap(), &mut nobody), expected);
        assert!(nobody.0.contains(words), "{}", nobody.0);
        assert!(words.is_empty() == nobody.0.is_empty(), "{}", nobody.0);
        let cancelled = expected["action"] == "cancel";
        assert_eq!(answering.judge(Exit::Success), if cancelled { Exit::Usage } else { Exit::Success });
    }

    /// JOIN-8: a script answers by the command line; what it does not answer is declined, and a wrong or missing field is named.
    #[test]
    fn answers_of_a_script() {
        let (decline, cancel) = (json!({"action": "decline"}), json!({"action": "cancel"}));
        check(
            &[],
            &json!({}),
            &decline,
            "no terminal to ask at; answer with --answer FIELD=VALUE (fields: age, name, x)",
        );
        let accept = |content: Value| json!({"action": "accept", "content": content});
        check(
            &[("name", "Ada"), ("x", "yes")],
            &json!({"age": 7}),
            &accept(json!({"name": "Ada", "age": 7, "x": true})),
            "",
        );
        check(
            &[("name", "Ada")],
            &json!({"name": "B", "other": 1}),
            &accept(json!({"name": "Ada", "age": 3})),
            "",
        );
        check(&[("name", "A"), ("name", "B")], &json!({}), &accept(json!({"name": "B", "age": 3})), "");
        check(
            &[("age", "1")],
            &json!({}),
            &cancel,
            "it requires `name` (text, required); cancelled; add --answer name=VALUE",
        );
        check(
            &[("age", "x")],
            &json!({}),
            &cancel,
            "the answer for `age` does not fit: `x` is not a whole number",
        );
        check(&[], &json!({"name": 7}), &cancel, "the answer for `name` does not fit");
        // A slip is no consent.
        check(
            &[("namex", "A")],
            &json!({}),
            &cancel,
            "cancelled, because it has no field `namex`; did you mean `name`?",
        );
        check(
            &[],
            &json!({"elsewhere": 7}),
            &cancel,
            "cancelled, because it has no field `elsewhere`; its fields are age, name, x",
        );
    }

    /// JOIN-8: only questions that the client declared are asked; a model and an unknown mode are refused in words, and a page
    /// needs a terminal.
    #[test]
    fn questions_that_nobody_answers() {
        let read = |method: &str, params: Value| {
            Question::read(&Raw::encode(&json!({"method": method, "params": params})))
                .map(|asked| asked.message)
        };
        assert!(read("sampling/createMessage", json!({})).unwrap_err().contains("the command line has none"));
        assert!(read("roots/list", json!({})).unwrap_err().contains("`roots/list`, which the command line"));
        assert!(read("elicitation/create", json!({"mode": "new"})).unwrap_err().contains("the mode `new`"));
        assert_eq!(read("elicitation/create", json!({"mode": "form", "message": "m"})).unwrap(), "m");
        assert!(Question::read(&Raw::literal("{}")).is_err());
        let mut answering = Answering {
            typed: vec![],
            given: Map::new(),
            asks: false,
            subject: "t".to_owned(),
            fate: Arc::default(),
        };
        let page = Question { message: "pay".to_owned(), kind: Kind::Page("https://a".to_owned()) };
        let mut nobody = Nobody::default();
        assert_eq!(answering.one(&page, &mut nobody), json!({"action": "decline"}));
        assert!(nobody.0.contains("needs a terminal; declined: https://a"), "{}", nobody.0);
        assert_eq!(answering.capabilities(), json!({"elicitation": {"form": {}}}));
        answering.asks = true;
        assert_eq!(answering.capabilities(), json!({"elicitation": {"form": {}, "url": {}}}));
    }

    #[test]
    fn pairs() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(pair("a="), Ok(("a".to_owned(), String::new())));
        assert!(pair("=b").is_err() && pair("a").is_err());
    }
}
