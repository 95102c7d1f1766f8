//! Confined servers that could get out by what they may write.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, program, signal};

fn server(name: &str, more: &str) -> String {
    format!(
        "[servers.{name}]\ncommand = {:?}\nargs = [\"demo-server\"]\n{more}\n",
        program().display().to_string()
    )
}

/// WALL-1: a server that may write its gateway's configuration is not started, nor one that may write what another one
/// runs which is less confined, at a start or at a reload; the others are. `check` and `doctor` say why.
#[tokio::test]
async fn a_confined_server_that_may_write_what_runs_unconfined_is_refused() {
    let place = Place::new();
    let project = place.path().canonicalize().unwrap().join("project");
    std::fs::create_dir(&project).unwrap();
    let project = project.display().to_string();
    let inside = server("inside", &format!("cwd = \"{project}\"\nprofile = \"offline-workspace\""));
    let file = place.file("project/bridgehead.toml", &(inside.clone() + &server("other", "")));
    let file = file.to_str().unwrap();
    let ran = place.run(&["check", "--json", "--config", file]).await;
    let told = ran.json();
    assert_eq!(ran.code, Some(1), "{told:#}");
    let reason = told["servers"][0]["reason"].as_str().unwrap();
    assert!(
        reason.starts_with(&format!("it may write `{project}`, and with it the configuration `")),
        "{reason}"
    );
    assert!(reason.contains("a narrower `write`"), "{reason}");
    assert_eq!(told["servers"][1]["ok"], true, "{told:#}");
    let told = place.run(&["doctor", "--json", "--config", file]).await.json();
    let gap = told["servers"][0]["gaps"][0]["gap"].as_str().unwrap();
    assert!(gap.contains("the configuration"), "{told:#}");

    // Elsewhere it is harmless, until another server runs something that lies in the project.
    let file = place.file("bridgehead.toml", &(inside.clone() + &server("other", "")));
    let (mut gateway, _) = place.serve_http(&["--config", file.to_str().unwrap()], &[]).await;
    let state = async |wanted: &dyn Fn(&Value) -> bool| {
        for _ in 0..500 {
            let ran = place.run(&["status", "--json"]).await;
            if ran.code == Some(0) && wanted(&ran.json()["gateways"][0]) {
                return ran.json()["gateways"][0].clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never so: {:?}", place.run(&["status", "--json"]).await);
    };
    let ready = |gateway: &Value, index: usize| gateway["upstreams"][index]["state"] == "ready";
    let before = state(&|gateway| ready(gateway, 0) && ready(gateway, 1)).await;
    let late = server("late", &format!("env = {{ PYTHONPATH = \"{project}/lib\" }}"));
    std::fs::write(&file, inside + &server("other", "") + &late).unwrap();
    let after = state(&|gateway| gateway["upstreams"][0]["state"] == "failed" && ready(gateway, 2)).await;
    let reason = after["upstreams"][0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("`PYTHONPATH` of server `late`") && reason.contains("less confined"),
        "{after:#}"
    );
    assert_eq!(after["upstreams"][1]["pid"], before["upstreams"][1]["pid"]);
    assert_eq!(after["upstreams"][0]["pid"], json!(null), "what ran is gone");
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
}
