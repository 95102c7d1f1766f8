//! Restrictions on a server's tools, and the warnings about those without effect.

use rustix::process::Signal;
use serde_json::json;

use crate::common::{Place, program, signal, until};

/// HOUR-7: `check`, the log and `status` report a pattern or a setting that matches no tool, with the name that was
/// probably meant.
#[tokio::test]
async fn a_restriction_that_does_nothing_is_told() {
    let place = Place::new();
    let text = format!(
        "[servers.demo]\ncommand = {:?}\nargs = [\"demo-server\"]\ntools_denied = [\"demo__fail\", \"slepe*\", \"add\"]\n\
         [servers.demo.tools.ecko]\nlock = true\n",
        program().display().to_string()
    );
    let file = place.file("bridgehead.toml", &text);
    let file = file.to_str().unwrap();
    let words = [
        "`tools_denied`: `demo__fail` matches none of its tools, so it has no effect; did you mean `fail`?",
        "`tools_denied`: `slepe*` matches none of its tools, so it has no effect; did you mean `sleep`?",
        "`tools.ecko` names none of its tools, so it has no effect; did you mean `echo`?",
    ];
    let checked = place.run(&["check", "--config", file]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    for words in words {
        assert!(checked.stdout.contains(&format!("finding: demo: {words}\n")), "{checked:?}");
    }
    assert!(!checked.stdout.contains("`add`"), "`add` has an effect: {checked:?}");

    let (mut gateway, _) = place.serve_http(&["--config", file], &[]).await;
    until(|| gateway.stderr().contains(words[2]).then_some(())).await;
    let logged = gateway.stderr();
    assert!(words.iter().all(|words| logged.matches(words).count() == 1), "{logged}");
    let status = place.run(&["status", "--json"]).await.json();
    assert_eq!(status["gateways"][0]["upstreams"][0]["findings"], json!(words));
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
}

/// HOUR-7: a server that the client's file disables is not started.
#[tokio::test]
async fn a_server_that_is_not_enabled_is_off() {
    let place = Place::new();
    let command = program().display().to_string();
    let server = json!({"command": command, "args": ["demo-server"], "enabled": false});
    let file = place.file("claude.json", &json!({"mcpServers": {"demo": server}}).to_string());
    let ran = place.run(&["check", "--config", file.to_str().unwrap()]).await;
    assert_eq!((ran.code, ran.said().as_str()), (Some(0), ""));
    assert!(ran.stdout.contains("demo  off  disabled in the configuration\n"), "{}", ran.stdout);
}
