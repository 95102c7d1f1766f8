//! `doctor`: what a machine can enforce, and what is configured and enforced for each server.

use bridgehead_testkit::{Behaviour, Carrier, Crash, Mock};
use serde_json::json;

use crate::common::Place;

/// BOX-1: every protection is tested, and the report shows what is configured and enforced for each server.
#[tokio::test]
async fn the_machine_and_the_servers_are_examined() {
    let place = Place::new();
    let folder = place.path().join("work");
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.display().to_string();
    let confined =
        format!("cwd = \"{folder}\"\nprofile = \"offline-readonly\"\nlimits = {{ max_memory_mb = 512 }}\n");
    let exe = env!("CARGO_BIN_EXE_bridgehead");
    let server = |name: &str, more: &str| {
        format!("[servers.{name}]\ncommand = \"{exe}\"\nargs = [\"demo-server\"]\n{more}\n")
    };
    let file = place.file("all.toml", &(server("free", "") + &server("confined", &confined)));
    let ran = place.run(&["doctor", "--json", "--config", file.to_str().unwrap()]).await;
    let told = ran.json();
    assert_eq!((ran.code, &told["ok"]), (Some(0), &json!(true)), "{told:#} {}", ran.stderr);
    let machine = told["machine"].as_array().unwrap();
    let works = |name: &str| machine.iter().find(|row| row["protection"] == name).unwrap()["works"].clone();
    for protection in ["tree", "memory", "processes", "files", "network", "sockets", "calls", "privileges"] {
        assert_eq!(works(protection), true, "{protection}: {told:#}");
    }
    let [free, confined] = &told["servers"].as_array().unwrap()[..] else { panic!("{told:#}") };
    assert_eq!(
        (&free["isolation"], &free["confinement"], &free["gaps"]),
        (&json!("shared"), &json!(null), &json!([]))
    );
    assert_eq!(confined["limits"]["memoryBytes"], json!({"most": 512 << 20, "enforced": "sampled"}));
    assert_eq!(confined["confinement"]["files"], json!({"read": [folder], "write": [], "enforced": true}));
    assert_eq!(confined["confinement"]["network"], json!({"allowed": "none", "enforced": true}));

    let ran = place.run(&["doctor", "--config", file.to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.contains("this machine, as tested:"), "{}", ran.stdout);
    assert!(ran.stdout.contains("memory 512 MB sampled"), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("files enforced (1 to read, 0 to write), network none enforced"),
        "{}",
        ran.stdout
    );
}

/// Something that cannot be enforced is a gap with its cure, and the exit code is 1.
#[tokio::test]
async fn a_gap_is_told_with_its_cure() {
    let place = Place::new();
    let exe = env!("CARGO_BIN_EXE_bridgehead");
    let text = format!(
        "[servers.a]\ncommand = \"{exe}\"\nargs = [\"demo-server\"]\nfiles = {{ read = [\"/no/such/place\"] }}\n"
    );
    let file = place.file("gap.toml", &text);
    let ran = place.run(&["doctor", "--config", file.to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(1), "{} {}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("gap: a: ") && ran.stdout.contains("`/no/such/place`"), "{}", ran.stdout);
    assert!(ran.stdout.contains("cure: a: see what works here"), "{}", ran.stdout);
    let ran = place.run(&["doctor", "--machine"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(!ran.stdout.contains("servers"), "{}", ran.stdout);
    let wrong = place.file("wrong.toml", "[servers.a]\ncomand = \"x\"\n");
    let ran = place.run(&["doctor", "--json", "--config", wrong.to_str().unwrap()]).await;
    assert_eq!((ran.code, &ran.json()["ok"]), (Some(78), &json!(false)));
}

/// BOX-1: with `isolation = "call"`, a separate process calls a remote server over any transport, and the limits apply to
/// that process. The relay is invisible in the results.
#[tokio::test]
async fn a_server_that_is_reached_can_be_isolated() {
    let mock = || {
        Mock::legacy()
            .tool("greet", Behaviour::Echo)
            .tool("leave", Behaviour::Crash(Crash::Exit { status: 3 }))
    };
    for (carrier, kind) in [(Carrier::Http, "http"), (Carrier::Sse, "sse"), (Carrier::WebSocket, "websocket")]
    {
        let place = Place::new();
        let served = mock().serve(carrier);
        let text = format!(
            "[servers.far]\nurl = \"{}\"\ntype = \"{kind}\"\nisolation = \"call\"\nlimits = {{ max_memory_mb = 200 }}\n",
            served.url()
        );
        let file = place.file("far.toml", &text);
        let file = file.to_str().unwrap();
        let ran = place.run(&["call", "greet", "--args", r#"{"a":1}"#, "--config", file]).await;
        assert_eq!((ran.code, ran.stdout.trim()), (Some(0), r#"{"a":1}"#), "{kind}: {}", ran.stderr);
        let ran = place.run(&["tools", "--json", "--config", file]).await;
        let names: Vec<String> = ran.json()["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["greet", "leave", "server_ping", "server_health"], "{kind}");
        let told = place.run(&["doctor", "--json", "--config", file]).await.json();
        let far = &told["servers"][0];
        assert_eq!(far["isolation"], "call", "{far:#}");
        assert_eq!(
            far["limits"]["memoryBytes"],
            json!({"most": 200 << 20, "enforced": "sampled"}),
            "{far:#}"
        );
    }
    let place = Place::new();
    let file =
        place.file("gone.toml", "[servers.far]\nurl = \"http://127.0.0.1:9/mcp\"\nisolation = \"call\"\n");
    let ran = place.run(&["tools", "--json", "--config", file.to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(3), "{} {}", ran.stdout, ran.stderr);
}
