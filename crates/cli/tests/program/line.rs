//! The command line as a whole: verbs name their configuration where it matters, suggest the nearest name, and end with a code of the one
//! table.

use bridgehead_testkit::client::Terminal;
use rustix::process::Signal;

use crate::common::{Place, program, signal};

/// JOIN-8: a verb that starts servers says on stderr which configuration it uses, or that there is none; one that only asks or
/// reads says it if nobody named the file and it is not the user's own.
#[tokio::test]
async fn a_configuration_is_named_where_it_matters() {
    let place = Place::new();
    let config = place.config(&["demo"], "");
    let config = config.to_str().unwrap();
    let verbs: &[&[&str]] = &[
        &["tools"],
        &["tools", "cost"],
        &["call", "echo", "--args", r#"{"text":"x"}"#],
        &["prompts"],
        &["resources"],
        &["check"],
        &["doctor"],
    ];
    for verb in [&["audit", "list"][..], &["key", "list"], &["explain", "demo/echo"]] {
        let ran = place.run(&[verb, &["--config", config][..]].concat()).await;
        assert!(!ran.stderr.contains("configuration: "), "{verb:?}: {ran:?}");
        let ran = place.run_with(verb, &[("BRIDGEHEAD_CONFIG", config)], "").await;
        assert!(ran.stderr.contains(&format!("configuration: {config}\n")), "{verb:?}: {ran:?}");
    }
    for verb in verbs {
        let ran = place.run(&[verb, &["--config", config][..]].concat()).await;
        assert!(ran.stderr.contains(&format!("configuration: {config}\n")), "{verb:?}: {ran:?}");
        let empty = Place::new();
        let ran = empty.run_in(empty.path(), verb, &[]).await;
        assert!(ran.stderr.contains("configuration: none found\n"), "{verb:?}: {ran:?}");
    }
    let (gateway, _) = place.serve_http(&["--config", config], &[]).await;
    assert!(gateway.stderr().contains(&format!("configuration: {config}\n")), "{}", gateway.stderr());
    place.is_found().await;
    let shown = place.run(&["status"]).await;
    assert!(shown.stdout.contains(&format!("  configuration {config}\n")), "{shown:?}");
    let call = ["call", "echo", "--args", r#"{"text":"x"}"#, "--config", config];
    for verb in [&["logs", "demo"][..], &call] {
        let ran = place.run(verb).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{verb:?}: {ran:?}");
    }
    signal(&gateway, Signal::TERM);
}

/// JOIN-8: a name that is nearly right gets the right one: verbs, options, tools, servers, topics and keys.
#[tokio::test]
async fn every_name_is_suggested() {
    let place = Place::new();
    let config = place.config(&["demo", "other"], "");
    let config = config.to_str().unwrap();
    let made = place.run(&["key", "new", "build", "--config", config]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let (gateway, _) = place.serve_http(&["--config", config], &[]).await;
    place.is_found().await;
    let table: &[(&[&str], &str)] = &[
        (&["tols"], "tools"),
        (&["tools", "shwo", "x"], "show"),
        (&["tools", "--jsn"], "--json"),
        (&["logs", "a b"], "nothing is called `a b`"),
        (&["logs", "demo&tail=1"], "nothing is called `demo&tail=1`"),
        (&["events", "--server", "a&b"], "nothing is called `a&b`"),
        (&["call", "demo__echo", r#"{"text":"x"}"#], r#"bridgehead call demo__echo --args '{"text":"x"}'"#),
        (&["call", "demo__ecko", "--config", config], "did you mean `demo__echo`?"),
        (&["call", "dmeo__echo", "--fresh", "--config", config], "did you mean `demo`?"),
        (&["tools", "show", "demo__ecko", "--config", config], "did you mean `demo__echo`?"),
        (&["explain", "dmeo/echo", "--config", config], "did you mean `demo`?"),
        (&["explain", "PROVIDER_TIMOUT", "--config", config], "did you mean `PROVIDER_TIMEOUT`?"),
        (&["logs", "dmeo"], "did you mean `demo`?"),
        (&["restart", "dmeo"], "did you mean `demo`?"),
        (&["events", "--server", "dmeo"], "did you mean `demo`?"),
        (&["key", "revoke", "biuld", "--config", config], "did you mean `build`?"),
    ];
    for (arguments, words) in table {
        let ran = place.run(arguments).await;
        assert!(ran.stderr.contains(words), "{arguments:?}: {ran:?}");
        assert!(matches!(ran.code, Some(1 | 2)), "{arguments:?}: {ran:?}");
    }
    signal(&gateway, Signal::TERM);
}

/// JOIN-8: verbs end with the codes of the table.
#[tokio::test]
async fn verbs_end_with_the_codes_of_the_table() {
    let place = Place::new();
    let config = place.config(&["demo"], "");
    let config = config.to_str().unwrap();
    let broken = place.file("broken.toml", "[servers]\nx = 1\n");
    let broken = broken.to_str().unwrap();
    let nowhere = ["--url", "http://127.0.0.1:1"];
    let table: &[(i32, &[&str])] = &[
        (0, &["tools", "--config", config]),
        (0, &["prompts", "--config", config]),
        (0, &["resources", "--config", config]),
        (0, &["explain", "exit-codes"]),
        (1, &["call", "fail", "--config", config]),
        (2, &["call", "nope", "--config", config]),
        (2, &["tools", "show", "nope", "--config", config]),
        (2, &["prompts", "get", "nope", "--config", config]),
        (2, &["resources", "read", "nope:x", "--config", config]),
        (2, &["tools", "--nope"]),
        (3, &["status"]),
        (3, &["events"]),
        (3, &["tools", nowhere[0], nowhere[1]]),
        (3, &["prompts", nowhere[0], nowhere[1]]),
        (3, &["resources", "read", "a:b", nowhere[0], nowhere[1]]),
        (78, &["tools", "--config", broken]),
        (78, &["prompts", "--config", broken]),
        (78, &["resources", "--config", broken]),
        (78, &["check", "--config", broken]),
    ];
    for (code, arguments) in table {
        let ran = place.run(arguments).await;
        assert_eq!(ran.code, Some(*code), "{arguments:?}: {ran:?}");
    }
    let told = place.run(&["explain", "exit-codes"]).await.stdout;
    for code in [0, 1, 2, 3, 75, 78, 130, 143] {
        assert!(told.lines().any(|line| line.starts_with(&format!("{code} "))), "{code}: {told}");
    }
    // Ctrl-C on a terminal.
    let home = place.path().to_str().unwrap();
    let variables = [("XDG_CONFIG_HOME", home), ("XDG_RUNTIME_DIR", home), ("RUST_LOG", "")];
    let sleep = ["call", "sleep", "--args", r#"{"ms":600000}"#, "--config", config];
    let mut person = Terminal::start(program(), &sleep, variables, 80, None);
    person.until("progress 0").await;
    person.press(b"\x03");
    assert_eq!(person.wait().await.code(), Some(130), "{}", person.shown());
}
