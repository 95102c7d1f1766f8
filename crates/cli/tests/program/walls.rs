//! Confined servers that could break out through files they may write.

use std::time::Duration;

use bridgehead_testkit::not_shown;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Place, program, signal};

fn server(name: &str, more: &str) -> String {
    format!(
        "[servers.{name}]\ncommand = {:?}\nargs = [\"demo-server\"]\n{more}\n",
        program().display().to_string()
    )
}

/// WALL-1: a confined server that may write its gateway's configuration, or code that a less confined server runs, is not
/// started, neither at a start nor at a reload. The other servers are. `check` and `doctor` say why.
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

    // With the configuration elsewhere it is harmless, until another server runs something in the project.
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
        panic!("the expected status never came: {:?}", place.run(&["status", "--json"]).await);
    };
    let ready = |gateway: &Value, index: usize| gateway["upstreams"][index]["state"] == "ready";
    let before = state(&|gateway| ready(gateway, 0) && ready(gateway, 1)).await;
    let late = server("late", &format!("env = {{ PYTHONPATH = \"{project}/lib\" }}"));
    std::fs::write(&file, inside + &server("other", "") + &late).unwrap();
    // The old process stops once the new configuration is in effect.
    let refused = |gateway: &Value| {
        let inside = &gateway["upstreams"][0];
        inside["state"] == "failed" && inside["pid"].is_null()
    };
    let after = state(&|gateway| refused(gateway) && ready(gateway, 2)).await;
    let reason = after["upstreams"][0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("`PYTHONPATH` of server `late`") && reason.contains("less confined"),
        "{after:#}"
    );
    assert_eq!(after["upstreams"][1]["pid"], before["upstreams"][1]["pid"]);
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
}

/// HOUR-6: for a confined server that does not start, the reason says how it is confined and, based on its stderr, which key
/// it probably needs; `check` and `status` show it.
#[tokio::test]
async fn a_confined_server_that_fails_names_its_profile_and_what_it_misses() {
    let place = Place::new();
    let root = place.path().canonicalize().unwrap();
    for folder in ["work", "cache"] {
        std::fs::create_dir(root.join(folder)).unwrap();
    }
    let cache = root.join("cache/packages");
    let text = format!(
        "[servers.a]\ncommand = \"sh\"\nargs = [\"-c\", \"mkdir {} || exit 1\"]\ncwd = \"{}\"\nprofile = \"workspace\"\n",
        cache.display(),
        root.join("work").display()
    );
    let file = place.file("bridgehead.toml", &text);
    let ran = place.run(&["check", "--json", "--config", file.to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(1), "{} {}", ran.stdout, ran.stderr);
    let told = ran.json();
    let reason = told["servers"][0]["reason"].as_str().unwrap();
    let expected = format!(
        "it is confined by `profile = \"workspace\"` and probably misses `{}` in its `files.write`",
        cache.display()
    );
    assert!(reason.contains(&expected), "{reason}");
    // With that key the folder is created, and the server ends for another reason.
    let given = format!("{text}files = {{ write = [\"{}\"] }}\n", root.join("cache").display());
    let file = place.file("bridgehead.toml", &given);
    place.run(&["check", "--json", "--config", file.to_str().unwrap()]).await;
    assert!(cache.is_dir());
}

/// HOUR-6: the recipe for `npx` works: with its own folder as `cwd` and `HOME`, it installs and runs a package under
/// `workspace`; once that is installed, it also runs without the network.
#[tokio::test]
async fn a_server_by_npx_runs_confined_in_a_folder_of_its_own() {
    if !["node", "npx"].iter().all(|name| std::path::Path::new("/usr/bin").join(name).is_file()) {
        not_shown("a_server_by_npx_runs_confined_in_a_folder_of_its_own", "node and npx in /usr/bin");
        return;
    }
    let place = Place::new();
    let own = place.path().canonicalize().unwrap().join("own");
    std::fs::create_dir_all(own.join("package")).unwrap();
    place.file(
        "own/package/package.json",
        r#"{"name": "tiny-server", "version": "1.0.0", "bin": {"tiny-server": "server.js"}}"#,
    );
    let script = format!(
        "#!/usr/bin/env node\nrequire('child_process').spawn({:?}, ['demo-server'], {{stdio: 'inherit'}})",
        program().display().to_string()
    );
    let script = place.file("own/package/server.js", &script);
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let own = own.display();
    let beside = program().parent().unwrap().display();
    for profile in ["workspace", "offline-workspace"] {
        let text = format!(
            "[servers.tiny]\ncommand = \"npx\"\n\
             args = [\"--offline\", \"-y\", \"--package\", \"{own}/package\", \"tiny-server\"]\n\
             cwd = \"{own}\"\nenv = {{ HOME = \"{own}\", npm_config_cache = \"{own}/.npm\" }}\n\
             profile = \"{profile}\"\nfiles = {{ read = [\"{beside}\"] }}\n"
        );
        let file = place.file("bridgehead.toml", &text);
        let ran = place.run(&["check", "--json", "--config", file.to_str().unwrap()]).await;
        assert_eq!(ran.code, Some(0), "{profile}: {} {}", ran.stdout, ran.stderr);
    }
    assert!(place.path().join("own/.npm").is_dir(), "its cache is its own");
}
