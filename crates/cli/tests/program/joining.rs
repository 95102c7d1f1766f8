//! `serve --stdio` as several clients use it: one gateway for all of them, its end by a kill, a signal or the linger, and the
//! cases in which a client is not let in.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bridgehead_testkit::client::{StdioClient, modern_params};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::common::{Place, lives, program, signal, signal_pid, until, upstream_pids};

/// A configuration whose gateway stays this long after its last client.
fn configured(place: &Place, linger_ms: u64) -> PathBuf {
    place.config(&["one"], &format!("[gateway]\nlinger_ms = {linger_ms}"))
}

fn join(place: &Place, config: &Path, variables: &[(&str, &str)]) -> StdioClient {
    place.start(&["serve", "--stdio", "--config", config.to_str().unwrap()], variables)
}

/// The running gateways, as their files describe them.
fn gateways(place: &Place) -> Vec<Value> {
    let files = std::fs::read_dir(place.path().join("bridgehead")).into_iter().flatten().flatten();
    let json = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "json"));
    json.filter_map(|file| serde_json::from_slice(&std::fs::read(file.path()).ok()?).ok()).collect()
}

/// The pid of the only gateway.
#[track_caller]
fn gateway(place: &Place) -> u32 {
    let all = gateways(place);
    assert_eq!(all.len(), 1, "{all:?}");
    u32::try_from(all[0]["pid"].as_u64().unwrap()).unwrap()
}

/// The processes of this test whose command line contains a word.
fn processes(place: &Place, word: &str) -> Vec<u32> {
    let own = format!("XDG_RUNTIME_DIR={}", place.path().display());
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let read = |pid: u32, what: &str| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let has = |text: &[u8], part: &str| text.split(|byte| *byte == 0).any(|one| one == part.as_bytes());
    pids.filter(|pid| has(&read(*pid, "cmdline"), word) && has(&read(*pid, "environ"), &own)).collect()
}

/// Waits until no process, socket or lock of a test is left.
async fn nothing_is_left(place: &Place) {
    until(|| {
        let folder = std::fs::read_dir(place.path().join("bridgehead")).map_or(0, Iterator::count);
        let left = processes(place, "--detached").len() + processes(place, "demo-server").len();
        (folder + left == 0).then_some(())
    })
    .await;
}

async fn echo(client: &mut StdioClient, modern: bool, text: &str) {
    let params = json!({"name": "echo", "arguments": {"text": text}});
    let params = if modern { modern_params(params) } else { params };
    let answer = client.request("tools/call", params).await;
    assert_eq!(answer["result"]["content"][0]["text"], text, "{answer}\n{}", client.stderr());
}

/// Starts a `sleep` of a minute; returns once it runs.
async fn started_sleep(client: &mut StdioClient, modern: bool, ms: u64) -> u64 {
    let params = json!({"name": "sleep", "arguments": {"ms": ms}, "_meta": {"progressToken": 1}});
    let params = if modern { modern_params(params) } else { params };
    let id = client.start_request("tools/call", params).await;
    while client.recv().await["method"] != "notifications/progress" {}
    id
}

/// Five clients, of both eras in turn, that start at the same moment.
async fn five(place: &Place, config: &Path) -> Vec<StdioClient> {
    let mut clients: Vec<StdioClient> = (0..5).map(|_| join(place, config, &[])).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        if number % 2 == 0 {
            let answer = client.initialize().await;
            assert_eq!(answer["result"]["serverInfo"]["name"], "bridgehead", "{answer}");
        }
        echo(client, number % 2 == 1, "hello").await;
    }
    clients
}

/// JOIN-4: five clients that start at the same moment share one gateway and one set of children, which `status`, `tools` and
/// `call` find. When the last one has left, the linger ends the gateway, and no process, socket or lock is left.
#[tokio::test]
async fn five_clients_share_one_set_of_children() {
    let place = Place::new();
    let config = configured(&place, 0);
    let mut clients = five(&place, &config).await;
    let pid = gateway(&place);
    assert_eq!((processes(&place, "--detached"), processes(&place, "demo-server").len()), (vec![pid], 1));
    let children = upstream_pids(&mut clients[0]).await;
    for client in &mut clients {
        assert_eq!(upstream_pids(client).await, children);
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap();
    assert_eq!(session, pid.to_string(), "it leads a session of its own");
    for descriptor in 0..3 {
        let file = std::fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).unwrap();
        assert_eq!(file, Path::new("/dev/null"), "descriptor {descriptor}");
    }
    let status = place.run(&["status", "--json"]).await.json();
    let joined = status["gateways"][0]["clients"].as_array().unwrap();
    assert_eq!((joined.len(), &joined[0]["since"].is_string()), (5, &true), "{status}");
    assert!(joined.iter().any(|client| client["name"].is_string()), "{joined:?}");
    let shown = place.run(&["status"]).await;
    assert!(shown.stdout.contains("5 clients joined"), "{shown:?}");
    let config = config.to_str().unwrap();
    let called = place.run(&["call", "echo", "--args", r#"{"text":"x"}"#, "--config", config]).await;
    assert_eq!((called.code, called.stdout.as_str()), (Some(0), "x\n"), "{called:?}");
    assert_eq!(processes(&place, "demo-server").len(), 1, "`call` uses the running gateway");
    let said: Vec<String> = clients.iter().map(StdioClient::stderr).collect();
    assert_eq!(said.iter().filter(|said| said.contains("started a gateway")).count(), 1, "{said:?}");
    assert_eq!(said.iter().filter(|said| said.contains("joined the running gateway")).count(), 4, "{said:?}");
    for mut client in clients {
        client.close_stdin();
        assert_eq!(client.recv_line().await, None);
        assert_eq!(client.wait().await.code(), Some(0), "{}", client.stderr());
    }
    nothing_is_left(&place).await;
    let log = std::fs::read_to_string(place.path().join("state/bridgehead/gateway.log")).unwrap();
    assert!(log.contains("a client has joined") && log.contains("stopped"), "{log}");
    assert!(log.contains("nobody is joined any more; stopping"), "{log}");
    let first = log.lines().next().unwrap();
    assert!(first.contains("starting in the background"), "{log}");
    assert!(first.contains(&format!("pid={pid} ")) && first.contains(config), "{log}");
}

/// JOIN-4: a gateway that is killed under five clients: each call in flight gets an error that can be retried, each client goes
/// on at one new gateway, and nothing is left of the old one or, in the end, of the new one.
#[tokio::test]
async fn a_killed_gateway_is_replaced() {
    let place = Place::new();
    let config = configured(&place, 0);
    let mut clients = five(&place, &config).await;
    let old = gateway(&place);
    let children = upstream_pids(&mut clients[0]).await;
    let mut calls = Vec::new();
    for (number, client) in clients.iter_mut().enumerate() {
        calls.push(started_sleep(client, number % 2 == 1, 60_000).await);
    }
    signal_pid(old, Signal::KILL);
    for (number, (client, call)) in clients.iter_mut().zip(calls).enumerate() {
        let lost = client.answer_to(call).await;
        let data = &lost["error"]["data"];
        assert_eq!(
            (&lost["error"]["code"], &data["code"], &data["retryable"], &data["mayHaveRun"]),
            (&json!(-32603), &json!("PROVIDER_CRASHED"), &json!(true), &json!(true)),
            "{lost}"
        );
        echo(client, number % 2 == 1, "again").await;
        let aside = client.take_aside();
        let changed = |message: &Value| message["method"] == "notifications/tools/list_changed";
        assert_eq!(aside.iter().any(changed), number % 2 == 0, "{aside:?}");
        assert!(aside.iter().all(|message| message.get("id").is_none()), "{aside:?}");
    }
    until(|| (processes(&place, "--detached").len() == 1).then_some(())).await;
    let new = processes(&place, "--detached")[0];
    assert_ne!(new, old);
    until(|| children.iter().all(|pid| !lives(*pid)).then_some(())).await;
    let now = upstream_pids(&mut clients[0]).await;
    for client in &mut clients {
        assert_eq!(upstream_pids(client).await, now);
    }
    drop(clients);
    until(|| (!lives(new)).then_some(())).await;
    until(|| processes(&place, "demo-server").is_empty().then_some(())).await;
    // The next command removes the files of the gateway that was killed, once they are old enough to be judged.
    let left = gateways(&place);
    assert!(left.iter().all(|one| one["pid"] == old), "{left:?}");
}

/// JOIN-4: after an update of the program its joined clients go on at a gateway of the version that they run, which uses nothing
/// of the new one.
#[tokio::test]
async fn an_updated_program_goes_on() {
    let place = Place::new();
    let config = configured(&place, 0);
    let folder = place.path().join("bin");
    std::fs::create_dir(&folder).unwrap();
    let names = ["bridgehead", "bridgehead-shim"];
    for name in names {
        std::fs::copy(program().with_file_name(name), folder.join(name)).unwrap();
    }
    let arguments = ["serve", "--stdio", "--config", config.to_str().unwrap()];
    let mut client = place.start_program(&folder.join("bridgehead"), &arguments, &[]);
    client.initialize().await;
    echo(&mut client, false, "a").await;
    let old = gateway(&place);
    let run = |name: &str| {
        let program = folder.join(name);
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter(|entry| std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program))
            .count()
    };
    assert_ne!(run("bridgehead-shim"), 0, "the shim beside the program");
    for name in names {
        let new = place.file("new", "#!/bin/sh\nexit 1\n");
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(new, folder.join(name)).unwrap();
    }
    signal_pid(old, Signal::KILL);
    until(|| (client.stderr().matches("started a gateway").count() == 2).then_some(())).await;
    echo(&mut client, false, "b").await;
    let new = processes(&place, "--detached");
    assert_eq!(new.len(), 1, "{new:?}");
    let runs = std::fs::read_link(format!("/proc/{}/exe", new[0])).unwrap();
    assert_eq!(runs.display().to_string(), format!("{} (deleted)", folder.join("bridgehead").display()));
    drop(client);
    until(|| processes(&place, "--detached").is_empty().then_some(())).await;
    until(|| processes(&place, "demo-server").is_empty().then_some(())).await;
}

/// JOIN-4: while the next gateway cannot start, joined clients stay: requests get an error that can be retried, the reason is told
/// once, and the first request after its end works.
#[tokio::test]
async fn clients_stay_while_no_gateway_can_start() {
    let place = Place::new();
    let config = configured(&place, 0);
    let text = std::fs::read_to_string(&config).unwrap();
    let mut clients = [join(&place, &config, &[]), join(&place, &config, &[])];
    for client in &mut clients {
        client.initialize().await;
        echo(client, false, "a").await;
    }
    let pid = gateway(&place);
    place.file("bridgehead.toml", "[servers.x");
    signal_pid(pid, Signal::KILL);
    until(|| clients[0].stderr().contains("unclosed table").then_some(())).await;
    let lost = clients[0].request("tools/list", json!({})).await;
    let data = &lost["error"]["data"];
    assert_eq!(
        (&data["code"], &data["retryable"]),
        (&json!("PROVIDER_UNAVAILABLE"), &json!(true)),
        "{lost}\n{}",
        clients[0].stderr()
    );
    for client in &clients {
        until(|| client.stderr().contains("tried again when the client sends something").then_some(())).await;
        assert_eq!(client.stderr().matches("unclosed table").count(), 1, "{}", client.stderr());
        assert!(lives(client.pid().unwrap()));
    }
    std::fs::write(&config, text).unwrap();
    for client in &mut clients {
        echo(client, false, "b").await;
    }
    assert_eq!(processes(&place, "--detached").len(), 1);
    drop(clients);
    until(|| processes(&place, "--detached").is_empty().then_some(())).await;
}

/// JOIN-4: a client with another environment, another text or a file of its own is not let in. It gets another gateway and is told
/// what differs, variables by name and without their values.
#[tokio::test]
async fn who_differs_is_not_let_in() {
    let place = Place::new();
    let config = place.config(&["one"], "[gateway]\nlinger_ms = 0");
    let mut text = std::fs::read_to_string(&config).unwrap();
    text.push_str("env = { KEY = \"${THE_KEY:-none}\" }\n");
    std::fs::write(&config, &text).unwrap();
    let mut clients = vec![join(&place, &config, &[("THE_KEY", "first-secret"), ("LANG", "C")])];
    echo(&mut clients[0], true, "a").await;
    let differs: [(&[(&str, &str)], &str); 3] = [
        (
            &[("THE_KEY", "second-secret"), ("LANG", "C")],
            "it has other values of THE_KEY (which the configuration names)",
        ),
        (
            &[("THE_KEY", "first-secret"), ("USER", "another")],
            "it has other values of USER (which every server gets)",
        ),
        (&[("LANG", "C"), ("BRIDGEHEAD_MODE", "readonly")], "another content or mode of the configuration"),
    ];
    for (variables, words) in differs {
        let mut client = join(&place, &config, variables);
        echo(&mut client, true, "b").await;
        let said = client.stderr();
        assert!(said.contains("starting another gateway") && said.contains(words), "{said}");
        assert!(!said.contains("secret"), "{said}");
        clients.push(client);
    }
    assert_eq!(gateways(&place).len(), 4);
    let copy = place.file("copy.toml", &text);
    let mut client = join(&place, &copy, &[("THE_KEY", "first-secret"), ("LANG", "C")]);
    echo(&mut client, true, "c").await;
    assert!(client.stderr().contains("it has another configuration file"), "{}", client.stderr());
    let said = client.stderr();
    assert!(!said.contains("values of") && !said.contains("content"), "the rest is not known: {said}");
    // Clients hide stderr, so the status of the gateway that was not joined says it too.
    let shown = place.run(&["status"]).await;
    for words in [
        "has a gateway of its own: it has other values of THE_KEY",
        "other values of USER (which every server gets)",
    ] {
        assert!(shown.stdout.contains(words) && !shown.stdout.contains("secret"), "{shown:?}");
    }
    // The same again is let in, also from another terminal and in another language, and with another PATH that leads to the same
    // programs.
    let path = format!("{}:{}", place.path().display(), std::env::var("PATH").unwrap());
    let other = [("THE_KEY", "first-secret"), ("LANG", "de_AT.UTF-8"), ("TERM", "another"), ("PATH", &path)];
    let mut same = join(&place, &config, &other);
    echo(&mut same, true, "d").await;
    assert!(same.stderr().contains("joined the running gateway"), "{}", same.stderr());
    assert_eq!(gateways(&place).len(), 5);
    drop((clients, client, same));
    nothing_is_left(&place).await;
}

/// JOIN-4: another `PATH` counts only if a server's command stands for another program in it, with links followed.
#[tokio::test]
async fn another_path_counts_if_it_leads_elsewhere() {
    let place = Place::new();
    let text =
        "[gateway]\nlinger_ms = 0\n[servers.one]\ncommand = \"the-server\"\nargs = [\"demo-server\"]\n";
    let config = place.file("bridgehead.toml", text);
    let path = |name: &str| {
        let folder = place.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("the-server");
        match name {
            "script" => {
                let text = format!("#!/bin/sh\nexec '{}' \"$@\"\n", program().display());
                std::fs::write(&file, text).unwrap();
                std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
            _ => std::os::unix::fs::symlink(program(), &file).unwrap(),
        }
        format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
    };
    let [one, other, elsewhere] = ["one", "other", "script"].map(path);
    let mut clients = Vec::new();
    for (path, gateways_then) in [(&one, 1), (&other, 1), (&elsewhere, 2)] {
        let mut client = join(&place, &config, &[("PATH", path)]);
        echo(&mut client, true, "a").await;
        assert_eq!(gateways(&place).len(), gateways_then, "{path}: {}", client.stderr());
        clients.push(client);
    }
    let shown = place.run(&["status"]).await;
    assert!(shown.stdout.contains("it has another PATH, with another program for one"), "{shown:?}");
    drop(clients);
    nothing_is_left(&place).await;
}

/// JOIN-4: a gateway of another version is not joined, and neither is one that serves only its own client.
#[tokio::test]
async fn strangers_are_not_joined() {
    let place = Place::new();
    let config = configured(&place, 0);
    let arguments = ["serve", "--stdio", "--standalone", "--config", config.to_str().unwrap()];
    let mut alone = place.start(&arguments, &[]);
    echo(&mut alone, true, "a").await;
    until(|| (gateways(&place).len() == 1).then_some(())).await;
    let mut client = join(&place, &config, &[]);
    echo(&mut client, true, "b").await;
    let said = client.stderr();
    assert!(
        said.contains("starting another gateway") && said.contains("only the client that started it"),
        "{said}"
    );
    assert_eq!(gateways(&place).len(), 2);
    alone.close_stdin();
    assert_eq!(alone.wait().await.code(), Some(0));
    drop(client);
    nothing_is_left(&place).await;

    let about = place.path().join("bridgehead/feedfeedfeed.json");
    let socket = about.with_extension("sock");
    let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let other = json!({
        "instance": "feedfeedfeed", "pid": 1, "started": "T", "version": "9.9.9", "addresses": [],
        "config": config, "socket": socket, "token": "",
    });
    std::fs::write(&about, other.to_string()).unwrap();
    let mut client = join(&place, &config, &[]);
    echo(&mut client, true, "c").await;
    let said = client.stderr();
    assert!(said.contains("(pid 1) cannot be joined: it has another version"), "{said}");
    for file in [about, socket] {
        std::fs::remove_file(file).unwrap();
    }
    drop(client);
    nothing_is_left(&place).await;
}

/// JOIN-4: a gateway that does not answer is asked once, and the client is told why it gets another one, unless a gateway of its own
/// file is nearer.
#[tokio::test]
async fn a_gateway_that_does_not_answer() {
    let place = Place::new();
    let config = configured(&place, 0);
    let about = place.path().join("bridgehead/feedfeedfeed.json");
    let socket = about.with_extension("sock");
    std::fs::create_dir(about.parent().unwrap()).unwrap();
    let listening = tokio::net::UnixListener::bind(&socket).unwrap();
    let silent = json!({
        "instance": "feedfeedfeed", "pid": 1, "started": "T", "version": env!("CARGO_PKG_VERSION"), "addresses": [],
        "config": config, "socket": socket, "token": "",
    });
    std::fs::write(&about, silent.to_string()).unwrap();
    let (asked, mut questions) = tokio::sync::mpsc::channel(10);
    let _taking = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        while let Ok((mut stream, _)) = listening.accept().await {
            let asked = asked.clone();
            tokio::spawn(async move {
                // Those who only look whether somebody listens say nothing.
                if stream.read(&mut [0; 10]).await.is_ok_and(|read| read > 0) {
                    asked.send(()).await.unwrap();
                    std::future::pending::<()>().await;
                }
            });
        }
    }));
    let copy = place.file("copy.toml", &std::fs::read_to_string(&config).unwrap());
    let mut clients = Vec::new();
    let starts = [
        (&copy, "C", "(pid 1) cannot be joined: it does not answer"),
        // The other one is farther.
        (&config, "C", "(pid 1) cannot be joined: it does not answer"),
        (&config, "D", "it has other values of USER"),
    ];
    for (file, user, words) in starts {
        let mut client = join(&place, file, &[("USER", user)]);
        echo(&mut client, true, "a").await;
        let said = client.stderr();
        assert!(said.contains("starting another gateway, because the running one"), "{said}");
        assert!(said.contains(words), "{said}");
        clients.push(client);
        questions.recv().await.unwrap();
        assert!(questions.try_recv().is_err(), "it was asked again");
    }
    for file in [about, socket] {
        std::fs::remove_file(file).unwrap();
    }
    drop(clients);
    nothing_is_left(&place).await;
}

/// JOIN-4: if others can write the folder of sockets, the client is served alone, as with `--standalone`, and told why.
#[tokio::test]
async fn a_folder_of_others_is_not_used() {
    let place = Place::new();
    let config = place.config(&["one"], "[audit]\nstore = \"none\"");
    let folder = place.path().join("bridgehead");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut client = join(&place, &config, &[]);
    echo(&mut client, true, "a").await;
    let said = client.stderr();
    assert!(said.contains("served alone") && said.contains("can be written by other users"), "{said}");
    assert_eq!(processes(&place, "--detached"), [0; 0]);
    client.close_stdin();
    assert_eq!(client.wait().await.code(), Some(0));
    let mut homeless =
        join(&place, &config, &[("XDG_RUNTIME_DIR", ""), ("XDG_STATE_HOME", ""), ("HOME", "")]);
    echo(&mut homeless, true, "b").await;
    assert!(homeless.stderr().contains("neither XDG_RUNTIME_DIR nor HOME is set"), "{}", homeless.stderr());
}

/// JOIN-4: a gateway that cannot start tells its reason to the client that started it, with the same exit code as without joining.
#[tokio::test]
async fn a_gateway_that_cannot_start() {
    let place = Place::new();
    let broken = place.file("broken.toml", "[servers.one]\ncomand = \"x\"\n");
    let unrecorded = place.config(&["one"], "[audit]\nfolder = \"/proc/none\"\n[gateway]\nlinger_ms = 0");
    for (config, words) in [(&broken, "comand"), (&unrecorded, "/proc/none")] {
        let config = config.to_str().unwrap();
        let joined = place.run(&["serve", "--stdio", "--config", config]).await;
        let alone = place.run(&["serve", "--stdio", "--standalone", "--config", config]).await;
        assert_eq!((joined.code, joined.stdout.as_str()), (alone.code, ""), "{joined:?}");
        assert_ne!(joined.code, Some(0));
        assert!(joined.stderr.contains("error: ") && joined.stderr.contains(words), "{joined:?}");
        assert!(alone.stderr.contains(words), "{alone:?}");
    }
    nothing_is_left(&place).await;
}

/// JOIN-4: what the gateway in the background has to say about the configuration is told to the client that starts it, once, for
/// people and for programs.
#[tokio::test]
async fn warnings_of_the_gateway_are_told() {
    let place = Place::new();
    let config = configured(&place, 0);
    let mut text = std::fs::read_to_string(&config).unwrap();
    text.push_str("env = { KEY = \"${file:/no/file}\" }\n");
    std::fs::write(&config, text).unwrap();
    let arguments = ["serve", "--stdio", "--config", config.to_str().unwrap()];
    let first = |said: String, what: &str| said.lines().find(|line| line.contains(what)).map(str::to_owned);
    let mut client = place.start(&arguments, &[]);
    client.initialize().await;
    let said = client.stderr();
    let alone = place.run(&[&arguments[..], &["--standalone"]].concat()).await;
    let warning = first(alone.stderr, "warning: ").expect("a warning");
    assert_eq!(said.matches(&warning).count(), 1, "{said}");
    assert!(said.contains("correct the path") && said.contains("--> "), "with place and cure: {said}");
    drop(client);
    nothing_is_left(&place).await;

    let mut client = place.start(&[&arguments[..], &["--log-format", "json"]].concat(), &[]);
    client.initialize().await;
    let said = client.stderr();
    let lines: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let told: Vec<&Value> = lines.iter().filter(|line| line["level"] == "WARN").collect();
    assert_eq!(told.len(), 1, "{said}");
    assert_eq!(format!("warning: {}", told[0]["message"].as_str().unwrap()), warning);
    assert!(told[0]["line"].is_number() && told[0].get("text").is_none(), "{said}");
    drop(client);
    nothing_is_left(&place).await;

    // What the client has said itself is not said again.
    let program = program().to_str().unwrap();
    let servers =
        json!({"mcpServers": {"one": {"command": program, "args": ["demo-server"]}}, "surplus": {}});
    let file = place.file("client.json", &servers.to_string());
    let mut client = join(&place, &file, &[]);
    client.initialize().await;
    assert_eq!(client.stderr().matches("unknown key `surplus`").count(), 1, "{}", client.stderr());
    drop(client);
    signal_pid(gateway(&place), Signal::TERM);
    nothing_is_left(&place).await;
}

/// JOIN-4: a signal ends the joiner alone and after the answers on their way; a stopped gateway is replaced when its client needs
/// one; a client that comes back within the linger finds the same gateway.
#[tokio::test]
async fn signals_and_the_linger() {
    let place = Place::new();
    let config = configured(&place, 600_000);
    let (mut one, mut other) = (join(&place, &config, &[]), join(&place, &config, &[]));
    one.initialize().await;
    echo(&mut one, false, "a").await;
    echo(&mut other, true, "a").await;
    let pid = gateway(&place);
    let call = started_sleep(&mut other, true, 300).await;
    signal(&other, Signal::TERM);
    assert_eq!(other.answer_to(call).await["result"]["content"][0]["text"], "slept for 300 ms");
    assert_eq!(other.wait().await.code(), Some(0), "{}", other.stderr());
    echo(&mut one, false, "b").await;
    one.close_stdin();
    assert_eq!(one.wait().await.code(), Some(0));

    let mut back = join(&place, &config, &[]);
    back.initialize().await;
    echo(&mut back, false, "c").await;
    assert_eq!(gateway(&place), pid, "it lingers");

    signal_pid(pid, Signal::TERM);
    until(|| (!lives(pid)).then_some(())).await;
    assert!(gateways(&place).is_empty(), "it removes its files");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(processes(&place, "--detached"), [0; 0], "nobody needs it");
    echo(&mut back, false, "d").await;
    let next = gateway(&place);
    assert_ne!(next, pid);

    // A joiner that is killed leaves nothing at its gateway.
    back.kill();
    back.wait().await;
    bridgehead_testkit::soon("a gateway without clients", async {
        loop {
            let status = place.run(&["status", "--json"]).await.json();
            if status["gateways"][0].get("clients").is_none() {
                break;
            }
        }
    })
    .await;
    signal_pid(next, Signal::TERM);
    nothing_is_left(&place).await;
}

/// JOIN-4: a gateway that serves HTTP takes clients on stdio in too, and stays when they leave. A reload changes what is joined.
#[tokio::test]
async fn a_gateway_over_http_is_joined() {
    let place = Place::new();
    let config = place.config(&["one"], "");
    let (mut served, _) = place.serve_http(&["--config", config.to_str().unwrap()], &[]).await;
    until(|| (gateways(&place).len() == 1).then_some(())).await;
    let mut client = join(&place, &config, &[]);
    echo(&mut client, true, "a").await;
    assert!(client.stderr().contains("joined the running gateway"), "{}", client.stderr());
    let reloads = |served: &StdioClient| served.stderr().matches("the configuration was reloaded").count();
    // The whole file is in effect.
    std::fs::rename(Place::new().config(&["one"], "# changed\n"), &config).unwrap();
    until(|| (reloads(&served) == 1).then_some(())).await;
    let mut same = join(&place, &config, &[]);
    echo(&mut same, true, "b").await;
    assert!(same.stderr().contains("joined the running gateway"), "{}", same.stderr());
    // One setting is not.
    std::fs::rename(
        Place::new().config(&["one"], "[gateway]\ndebug_errors = true\nlinger_ms = 0\n"),
        &config,
    )
    .unwrap();
    until(|| (reloads(&served) == 2).then_some(())).await;
    let mut other = join(&place, &config, &[]);
    echo(&mut other, true, "c").await;
    assert!(other.stderr().contains("needs a restart"), "{}", other.stderr());
    echo(&mut client, true, "d").await;
    drop((client, same, other));
    until(|| processes(&place, "--detached").is_empty().then_some(())).await;
    assert!(lives(served.pid().unwrap()), "it stays without clients");
    signal(&served, Signal::TERM);
    assert_eq!(served.wait().await.code(), Some(0));
    nothing_is_left(&place).await;
}
