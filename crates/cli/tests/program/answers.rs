//! `call`, `prompts get` and `resources read` answer what a server asks: a person on a terminal, and a script.

use bridgehead_testkit::client::Terminal;
use bridgehead_testkit::{Behaviour, Mock, SCRIPT_VARIABLE};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, Ran, program, signal};

fn form() -> Value {
    json!({"mode": "form", "message": "Who comes?", "requestedSchema": {"type": "object", "required": ["guests"], "properties": {
        "guests": {"type": "integer", "minimum": 1, "description": "how many"},
        "room": {"type": "string", "enum": ["single", "double"], "default": "single"},
        "note": {"type": "string"},
    }}})
}

/// A modern server, which asks through its results, and a legacy one, which asks during the call.
fn configured(place: &Place) -> String {
    let asks = |params: Value| {
        json!({"resultType": "input_required", "requestState": "state-1", "inputRequests": {
            "k": {"method": "elicitation/create", "params": params},
        }})
    };
    let url = json!({"mode": "url", "message": "Pay first", "url": "https://pay.example/x\u{1b}[2J"});
    let sample = json!({"resultType": "input_required", "inputRequests": {
        "s": {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}},
    }});
    let modern = Mock::modern()
        .tool("book", Behaviour::InputRequired(asks(form()).into()))
        .tool("pay", Behaviour::InputRequired(asks(url).into()))
        .tool("think", Behaviour::RawResult(sample.into()));
    let legacy = Mock::legacy().tool("book", Behaviour::ask("elicitation/create", form()));
    let mut text = String::new();
    for (name, mock) in [("modern", modern), ("legacy", legacy)] {
        let (command, _) = mock.command();
        let script = mock.env().remove(SCRIPT_VARIABLE).unwrap();
        text += &format!(
            "[servers.{name}]\ncommand = {:?}\nenv = {{ {SCRIPT_VARIABLE} = '''{script}''' }}\n",
            command.display().to_string()
        );
    }
    place.file("bridgehead.toml", &text).display().to_string()
}

/// The answer that the server got.
#[track_caller]
fn answer(stdout: &str, tool: &str) -> Value {
    let result: Value = serde_json::from_str(stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    match tool.starts_with("modern") {
        true => {
            let params: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
            assert_eq!(params["requestState"], "state-1");
            params["inputResponses"]["k"].clone()
        }
        false => result["structuredContent"]["result"].clone(),
    }
}

fn on_terminal(place: &Place, arguments: &[&str], output: &std::path::Path) -> Terminal {
    let home = place.path().to_str().unwrap();
    let variables = [("XDG_CONFIG_HOME", home), ("XDG_RUNTIME_DIR", home), ("RUST_LOG", "")];
    Terminal::start(program(), arguments, variables, 120, Some(output))
}

/// JOIN-8: a person fills in the form of a server of either era on a terminal, from a gateway of this command and from a
/// running one. What does not fit is asked for again.
#[tokio::test]
async fn a_person_answers_a_form() {
    let place = Place::new();
    let config = configured(&place);
    let output = place.path().join("out");
    let (gateway, _) = place.serve_http(&["--config", &config], &[]).await;
    for fresh in [true, false] {
        for tool in ["modern__book", "legacy__book"] {
            let mut arguments = vec!["call", tool, "--json", "--config", &config];
            arguments.extend(fresh.then_some("--fresh"));
            let mut person = on_terminal(&place, &arguments, &output);
            person.until(&format!("`{tool}` asks: Who comes?")).await;
            person.until("guests: how many (whole number, at least 1, required)").await;
            person.until("guests: ").await;
            person.type_line("none");
            person.until("`none` is not a whole number").await;
            person.until("guests: ").await;
            person.type_line("2");
            person.until("note: ").await;
            person.type_line("");
            person.until("2) double").await;
            person.until("room [single]: ").await;
            person.type_line("2");
            person.until("Send it? [y]es, [n]o, [c]ancel: ").await;
            person.type_line("y");
            assert_eq!(person.wait().await.code(), Some(0), "{}", person.shown());
            let expected = json!({"action": "accept", "content": {"guests": 2, "room": "double"}});
            assert_eq!(answer(&std::fs::read_to_string(&output).unwrap(), tool), expected, "{tool} {fresh}");
        }
    }
    signal(&gateway, Signal::TERM);
}

/// JOIN-8: a person may decline, and cancel by ending the input. Ctrl-C ends the command with its code.
#[tokio::test]
async fn a_person_refuses_a_form() {
    let place = Place::new();
    let config = configured(&place);
    let output = place.path().join("out");
    let call = |tool: &'static str| {
        ["call", tool, "--json", "--answer", "guests=1", "--answer", "room=2", "--config", &config]
    };
    let mut person = on_terminal(&place, &call("legacy__book"), &output);
    // What the command line has answered is not asked for.
    person.until("note: ").await;
    person.type_line("x");
    person.until("Send it?").await;
    person.type_line("n");
    assert_eq!(person.wait().await.code(), Some(0), "{}", person.shown());
    assert!(!person.shown().contains("guests: how many"), "{}", person.shown());
    assert_eq!(answer(&std::fs::read_to_string(&output).unwrap(), "legacy"), json!({"action": "decline"}));

    let mut person = on_terminal(&place, &call("modern__book"), &output);
    person.until("note: ").await;
    person.press(b"\x04");
    assert_eq!(person.wait().await.code(), Some(0), "{}", person.shown());
    assert_eq!(answer(&std::fs::read_to_string(&output).unwrap(), "modern"), json!({"action": "cancel"}));

    let mut person = on_terminal(&place, &call("legacy__book"), &output);
    person.until("note: ").await;
    person.press(b"\x03");
    assert_eq!(person.wait().await.code(), Some(130), "{}", person.shown());
}

/// JOIN-8: a page is shown with its host; its address cannot draw on the terminal.
#[tokio::test]
async fn a_person_agrees_to_a_page() {
    let place = Place::new();
    let config = configured(&place);
    let output = place.path().join("out");
    let mut person = on_terminal(&place, &["call", "modern__pay", "--json", "--config", &config], &output);
    person.until("`modern__pay` asks: Pay first").await;
    person.until("host: ").await;
    person.until("link: https://pay.example/x\\u001b[2J").await;
    person.until("Do you agree?").await;
    person.type_line("yes");
    assert_eq!(person.wait().await.code(), Some(0), "{}", person.shown());
    assert_eq!(answer(&std::fs::read_to_string(&output).unwrap(), "modern"), json!({"action": "accept"}));
    assert!(!person.shown().contains('\u{1b}'), "{:?}", person.shown());
}

/// JOIN-8: without a terminal, a form is declined with a note, or answered by the command line; a page is not even asked for,
/// and a model is refused in words.
#[tokio::test]
async fn a_script_answers() {
    let place = Place::new();
    let config = configured(&place);
    let call = async |tool: &str, more: &[&str]| -> Ran {
        place.run(&[&["call", tool, "--json", "--config", &config], more].concat()).await
    };
    for tool in ["modern__book", "legacy__book"] {
        let declined = call(tool, &[]).await;
        assert_eq!(answer(&declined.stdout, tool), json!({"action": "decline"}), "{declined:?}");
        assert!(
            declined.stderr.contains("answer with --answer FIELD=VALUE (fields: guests, note, room)"),
            "{declined:?}"
        );
        let file = place.file("answers.json", r#"{"room":"double"}"#);
        let answers = format!("@{}", file.display());
        let accepted = call(tool, &["--answer", "guests=3", "--answers", &answers]).await;
        let content = json!({"guests": 3, "room": "double"});
        assert_eq!(
            answer(&accepted.stdout, tool),
            json!({"action": "accept", "content": content}),
            "{accepted:?}"
        );
        let missing = call(tool, &["--answer", "room=1"]).await;
        assert_eq!(answer(&missing.stdout, tool), json!({"action": "cancel"}), "{missing:?}");
        assert!(missing.stderr.contains("add --answer guests=VALUE"), "{missing:?}");
        assert_eq!(missing.code, Some(2), "{missing:?}");
        let slip = call(tool, &["--answer", "gests=3"]).await;
        assert_eq!(answer(&slip.stdout, tool), json!({"action": "cancel"}), "{slip:?}");
        assert!(slip.stderr.contains("it has no field `gests`; did you mean `guests`?"), "{slip:?}");
        assert_eq!((accepted.code, slip.code), (Some(0), Some(2)), "{slip:?}");
        let unused =
            call(tool, &["--answer", "guests=3", "--answer", "room=2", "--answer", "nothing=x"]).await;
        assert!(unused.stderr.contains("warning: nothing asked for `nothing`"), "{unused:?}");
        assert!(!unused.stderr.contains("`guests`") && unused.code == Some(0), "{unused:?}");
    }
    for wrong in [["--answers", "[1]"], ["--answer", "guests"], ["--answers", "@/no/such/file"]] {
        let ran = call("modern__book", &wrong).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    }
    let page = call("modern__pay", &[]).await;
    assert_ne!(page.code, Some(3), "{page:?}");
    let model = call("modern__think", &[]).await;
    assert_eq!(model.code, Some(1), "{model:?}");
}
