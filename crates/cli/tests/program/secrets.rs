//! Secrets from files and commands, as the program reads them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use bridgehead_testkit::not_shown;
use rustix::process::Signal;

use crate::common::{Place, program, signal, until};

/// A configuration whose server writes down the secrets that it gets, and whose command counts its runs.
fn configured(place: &Place) -> PathBuf {
    write(place, "hunter2-one");
    let folder = place.path().display();
    let text = format!(
        "[secrets]\ncommands = {{ vault = [\"sh\", \"-c\", \"echo ran >> '{folder}/count'; cat secret\"] }}\n\
         [servers.one]\ncommand = \"sh\"\n\
         args = [\"-c\", \"printf '%s %s' \\\"$BY_FILE\\\" \\\"$BY_COMMAND\\\" > '{folder}/seen'; exec '{}' demo-server\"]\n\
         env = {{ BY_FILE = \"${{file:secret}}\", BY_COMMAND = \"${{cmd:vault}}\" }}\n",
        program().display()
    );
    place.file("bridgehead.toml", &text)
}

fn write(place: &Place, secret: &str) {
    let path = place.file("secret", &format!("{secret}\n"));
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn read(place: &Place, name: &str) -> String {
    std::fs::read_to_string(place.path().join(name)).unwrap_or_default()
}

/// ACC-8: a server gets its secrets from a file and a command. SIGHUP reads both again. Verbs that start no server run no
/// command, and nothing prints a secret.
#[tokio::test]
async fn secrets_are_read_again_after_a_hangup() {
    let place = Place::new();
    let file = configured(&place);
    let config = ["--config", file.to_str().unwrap()];
    let (mut gateway, _) = place.serve_http(&config, &[]).await;
    until(|| (read(&place, "seen") == "hunter2-one hunter2-one").then_some(())).await;
    assert_eq!(read(&place, "count"), "ran\n");

    let mut told = String::new();
    for verb in [
        ["status", "--json"].as_slice(),
        &["tools", config[0], config[1]],
        &["audit", config[0], config[1], "list"],
    ] {
        let ran = place.run(verb).await;
        assert_eq!(ran.code, Some(0), "{verb:?}: {ran:?}");
        told.push_str(&ran.said());
    }
    assert_eq!(read(&place, "count"), "ran\n", "a verb that starts no server ran the command");

    write(&place, "hunter2-two");
    signal(&gateway, Signal::HUP);
    until(|| (read(&place, "seen") == "hunter2-two hunter2-two").then_some(())).await;
    assert_eq!(read(&place, "count"), "ran\nran\n");
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());

    let checked = place.run(&["check", "--json", config[0], config[1]]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    told.push_str(&checked.said());
    let alone = place.run(&["tools", config[0], config[1]]).await;
    assert_eq!(alone.code, Some(0), "{alone:?}");
    told.push_str(&alone.said());
    assert_eq!(read(&place, "count"), "ran\n".repeat(4));
    told.push_str(&gateway.stderr());
    assert!(!told.contains("hunter2"), "{told}");
}

/// ACC-8: a command that fails disables its server, with the reason, and what it printed is not shown.
#[tokio::test]
async fn a_command_that_fails() {
    let place = Place::new();
    let text = "[secrets]\ncommands = { vault = [\"sh\", \"-c\", \"echo hunter2; echo hunter2 >&2; exit 3\"] }\n\
                [servers.one]\ncommand = \"true\"\nenv = { A = \"${cmd:vault}\" }\n";
    let file = place.file("bridgehead.toml", text);
    let ran = place.run(&["check", "--config", file.to_str().unwrap()]).await;
    let said = ran.said();
    assert!(
        said.contains("the command `vault` of `[secrets]` gave no secret: it ended with exit status 3"),
        "{said}"
    );
    let shown = said.replace("echo hunter2", "");
    assert!(!shown.contains("hunter2"), "{said}");
}

/// ACC-8: a file that nobody agreed to runs no command; whoever is asked sees the command.
#[tokio::test]
async fn a_command_of_a_strangers_file_does_not_run() {
    let place = Place::new();
    let folder = place.path().join("cloned");
    std::fs::create_dir(&folder).unwrap();
    let ran = place.path().join("ran");
    let text = format!(
        "[secrets]\ncommands = {{ vault = [\"touch\", \"{}\"] }}\n\
         [servers.one]\ncommand = \"true\"\nenv = {{ A = \"${{cmd:vault}}\" }}\n",
        ran.display()
    );
    std::fs::write(folder.join("bridgehead.toml"), text).unwrap();
    let passed = place.run_in(&folder, &["tools"], &[]).await;
    assert_eq!((passed.code, ran.exists()), (Some(0), false), "{passed:?}");
    assert!(passed.stderr.contains("skipping"), "{passed:?}");
    if !std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join("script").exists())
    {
        not_shown("a_command_of_a_strangers_file_does_not_run", "the program `script`");
        return;
    }
    let shown = super::door::on_a_terminal(&place, &folder, "n\n").await;
    assert!(shown.contains("vault, for a secret: touch") && shown.contains("[y/N]"), "{shown}");
    assert!(!ran.exists(), "{shown}");
}
