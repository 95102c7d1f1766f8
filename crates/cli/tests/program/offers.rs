//! `prompts`, `resources` and `tools cost`: from the running gateway, and with only the servers that they need.

use std::path::Path;

use bridgehead_testkit::client::Terminal;
use bridgehead_testkit::{Behaviour, Mock, RpcError, SCRIPT_VARIABLE};
use rustix::process::Signal;
use serde_json::json;

use crate::common::{Place, program, signal};

/// A server with two prompts on two pages, two resources and a template.
fn library() -> Mock {
    let prompt = |name: &str| json!({"name": name, "description": format!("about {name}"), "arguments": [{"name": "of", "required": true}]});
    let said =
        json!({"messages": [{"role": "user", "content": {"type": "text", "text": "review \u{1b}[2Jit"}}]});
    let text = json!({"contents": [{"uri": "note:a", "mimeType": "text/plain", "text": "no newline"}]});
    let bytes = json!({"contents": [{"uri": "note:logo", "mimeType": "image/png", "blob": "AP8bCg=="}]});
    let parts = json!({"contents": [{"uri": "note:x", "text": "a"}, {"uri": "note:y", "text": "b"}]});
    Mock::legacy()
        .capabilities(json!({"prompts": {}, "resources": {}, "tools": {}}))
        .tool("read", Behaviour::Echo)
        .replies("prompts/list", json!({"prompts": [prompt("plan")], "nextCursor": "2"}))
        .replies_about("prompts/list", "2", Ok(json!({"prompts": [prompt("review")]}).into()))
        .replies("prompts/get", said)
        .replies(
            "resources/list",
            json!({"resources": [
                {"uri": "note:a", "name": "a", "mimeType": "text/plain"},
                {"uri": "note:logo", "name": "logo", "mimeType": "image/png"},
                {"uri": "note:parts", "name": "parts"},
            ]}),
        )
        .replies(
            "resources/templates/list",
            json!({"resourceTemplates": [{"uriTemplate": "day:{d}", "name": "day"}]}),
        )
        .replies_about("resources/read", "note:a", Ok(text.into()))
        .replies_about("resources/read", "note:logo", Ok(bytes.into()))
        .replies_about("resources/read", "note:parts", Ok(parts.into()))
        .replies_about(
            "resources/read",
            "note:aa",
            Err(RpcError { code: -32002, message: "no such note".to_owned(), data: None }),
        )
}

/// A configuration of the library, and more text.
fn configured(place: &Place, more: &str) -> String {
    let (command, _) = library().command();
    let script = library().env().remove(SCRIPT_VARIABLE).unwrap();
    let text = format!(
        "[servers.library]\ncommand = {:?}\nenv = {{ {SCRIPT_VARIABLE} = '{script}' }}\n{more}",
        command.display().to_string(),
    );
    place.file("bridgehead.toml", &text).display().to_string()
}

/// A server that creates `mark` when it starts and never answers.
fn silent(mark: &Path) -> String {
    let script = format!("touch {}; exec sleep 600", mark.display());
    format!("[servers.silent]\ncommand = \"sh\"\nargs = [\"-c\", {script:?}]\n")
}

/// JOIN-8: prompts are listed over all pages and got by name, from the running gateway and without one; only the server that
/// may offer the prompt is started for it.
#[tokio::test]
async fn prompts_are_listed_and_got() {
    let place = Place::new();
    let mark = place.path().join("started");
    let config = configured(&place, &silent(&mark));
    let get = ["prompts", "get", "library__review", "--args", r#"{"of":"x"}"#, "--config", &config];
    let fresh = place.run(&get).await;
    assert_eq!(
        (fresh.code, fresh.stdout.as_str(), fresh.said().as_str()),
        (Some(0), "user:\nreview \u{1b}[2Jit\n", "")
    );
    let wrong = place.run(&["prompts", "get", "library__revue", "--config", &config]).await;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("did you mean `library__review`?"), "{wrong:?}");
    let wrong = place.run(&["prompts", "get", "libary__review", "--config", &config]).await;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("no server is called `libary`; did you mean `library`?"), "{wrong:?}");
    let wrong = place.run(&["prompts", "get", "library__review", "--args", "[]", "--config", &config]).await;
    assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(2), ""));
    assert!(!mark.exists(), "a prompt of `library` needs no other server");

    let (gateway, _) = place.serve_http(&["--config", &config], &[]).await;
    place.is_found().await;
    let list = ["prompts", "--config", &config];
    bridgehead_testkit::soon("the prompts of the library", async {
        loop {
            // Until the library has started.
            let ran = place.run(&list).await;
            if ran.stdout.contains("library__plan") {
                let (first, second) = ran.stdout.split_once('\n').unwrap();
                assert_eq!(first, "library__plan    of  about plan");
                assert_eq!(second, "library__review  of  about review\n");
                assert!(ran.stderr.contains("server `silent` does not serve"), "{ran:?}");
                break;
            }
        }
    })
    .await;
    let listed = place.run(&["prompts", "list", "--json", "--config", &config]).await;
    assert_eq!(listed.json()["prompts"][1]["name"], "library__review");
    assert_eq!(listed.json()["failed"][0]["server"], "silent");
    let whole = place.run(&[&get[..], &["--json"]].concat()).await;
    assert_eq!(whole.json()["messages"][0]["role"], "user");
    let recorded = place.run(&["audit", "list", "--json", "--config", &config]).await;
    assert!(recorded.stdout.contains("prompts/get"), "the running gateway answered: {recorded:?}");
    let cost = place.run(&["tools", "cost", "--json", "--config", &config]).await;
    assert!(
        cost.json()["servers"].as_array().unwrap().iter().any(|one| one["server"] == "library"),
        "{cost:?}"
    );
    signal(&gateway, Signal::TERM);
}

/// JOIN-8: resources and templates are listed together; a text is read byte for byte, bytes go into a pipe or a file and never
/// to a terminal, and a wrong URI gets the right one.
#[tokio::test]
async fn resources_are_listed_and_read() {
    let place = Place::new();
    let config = configured(&place, "");
    let (gateway, address) = place.serve_http(&["--config", &config], &[]).await;
    let url = format!("http://{address}");
    let list = ["resources", "--url", &url];
    bridgehead_testkit::soon("the resources of the library", async {
        loop {
            let ran = place.run(&list).await;
            if ran.stdout.contains("note:a") {
                assert_eq!(
                    ran.stdout,
                    "note:a      text/plain  a\nnote:logo   image/png   logo\nnote:parts              parts\nday:{d}                 day\n"
                );
                break;
            }
        }
    })
    .await;
    let listed = place.run(&["resources", "list", "--json", "--url", &url]).await;
    assert_eq!(listed.json()["resourceTemplates"][0]["uriTemplate"], "day:{d}");
    let read = |uri| ["resources", "read", uri, "--url", &url];
    let output = place.path().join("out");
    let into = [&read("note:a")[..], &["--output", output.to_str().unwrap()]].concat();
    let ran = place.run(&into).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
    assert_eq!(std::fs::read(&output).unwrap(), b"no newline");
    let into = [&read("note:logo")[..], &["--output", output.to_str().unwrap()]].concat();
    assert_eq!(place.run(&into).await.code, Some(0));
    assert_eq!(std::fs::read(&output).unwrap(), [0, 255, 27, 10]);
    let parts = [&read("note:parts")[..], &["--output", output.to_str().unwrap()]].concat();
    let ran = place.run(&parts).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("has 2 parts"), "{ran:?}");
    assert_eq!(place.run(&read("note:parts")).await.stdout, "ab\n");
    let nowhere = [&read("note:a")[..], &["--output", "/no/such/folder/x"]].concat();
    let ran = place.run(&nowhere).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("cannot write `/no/such/folder/x`"), "{ran:?}");
    let json = place.run(&[&read("note:logo")[..], &["--json"]].concat()).await;
    assert_eq!(json.json()["contents"][0]["blob"], "AP8bCg==");
    let wrong = place.run(&read("note:aa")).await;
    assert!(wrong.stderr.contains("did you mean `note:a`?"), "{wrong:?}");

    let home = place.path().to_str().unwrap();
    let variables = [("XDG_CONFIG_HOME", home), ("XDG_RUNTIME_DIR", home), ("RUST_LOG", "")];
    let mut shown = Terminal::start(program(), &read("note:logo"), variables, 80, None);
    assert_eq!(shown.wait().await.code(), Some(1));
    assert!(shown.shown().contains("this is no text (image/png, 4 bytes)"), "{}", shown.shown());
    assert!(!shown.shown().contains('\u{1b}'), "{:?}", shown.shown());
    // Into a file, as by redirection, the bytes are whole.
    let mut piped = Terminal::start(program(), &read("note:logo"), variables, 80, Some(&output));
    assert_eq!(piped.wait().await.code(), Some(0), "{}", piped.shown());
    assert_eq!(std::fs::read(&output).unwrap(), [0, 255, 27, 10]);
    signal(&gateway, Signal::TERM);
}

/// JOIN-8: on a terminal a table is as wide as the terminal; in a pipe its rows are whole.
#[tokio::test]
async fn tables_fit_the_terminal() {
    let place = Place::new();
    let words = "many words in a description that is long ".repeat(8);
    let tool = json!({"tools": [{"name": "t", "description": words, "inputSchema": {"type": "object"}}]});
    let mock = Mock::legacy().capabilities(json!({"tools": {}})).replies("tools/list", tool);
    let (command, _) = mock.command();
    let script = mock.env().remove(SCRIPT_VARIABLE).unwrap();
    let text = format!(
        "[servers.a]\ncommand = {:?}\nenv = {{ {SCRIPT_VARIABLE} = '{script}' }}\n",
        command.display().to_string()
    );
    let config = place.file("bridgehead.toml", &text).display().to_string();
    let arguments = ["tools", "--config", &config];
    let piped = place.run(&arguments).await;
    assert!(piped.stdout.lines().any(|line| line.ends_with(words.trim_end())), "{piped:?}");
    let home = place.path().to_str().unwrap();
    for (columns, set, width) in [(50, None, 50), (50, Some("40"), 40)] {
        let mut variables = vec![("XDG_CONFIG_HOME", home), ("XDG_RUNTIME_DIR", home), ("RUST_LOG", "")];
        variables.extend(set.map(|set| ("COLUMNS", set)));
        let mut shown = Terminal::start(program(), &arguments, variables, columns, None);
        assert_eq!(shown.wait().await.code(), Some(0), "{}", shown.shown());
        let shown = shown.shown();
        let table: Vec<&str> = shown.lines().filter(|line| !line.starts_with("configuration: ")).collect();
        assert!(table.iter().all(|line| line.chars().count() <= width), "{shown}");
        assert!(table.iter().any(|line| line.chars().count() > width - 12), "{shown}");
        assert!(table.iter().filter(|line| line.contains("words")).count() > 1, "{shown}");
    }
}
