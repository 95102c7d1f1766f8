//! The gateway as a service of the user.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bridgehead_testkit::client::HttpClient;
use rustix::process::Signal;
use serde_json::json;

use crate::common::{Place, Ran, program, signal, until};

/// A stand-in for `systemctl` that notes its arguments, remembers what was enabled and stopped, and fails where there is a file
/// `offline`.
const SYSTEMCTL: &str = r#"#!/bin/sh
cd "$FAKE" || exit 1
echo "$*" >> calls
[ -e offline ] && exit 1
case "$*" in
  *UnitFileState*) [ -e up ] && echo enabled || echo disabled ;;
  *ActiveState*) [ -e up ] && echo active || echo inactive ;;
  *" enable --now "*) [ -e full ] && exit 1; touch up ;;
  *" disable --now "*) rm -f up ;;
esac
exit 0
"#;

/// A user with a configuration and a stand-in for `systemctl`.
struct User {
    place: Place,
    config: PathBuf,
}

impl User {
    fn new(more: &str) -> Self {
        let place = Place::new();
        let config = place.config(&["demo"], more);
        let file = place.file("systemctl", SYSTEMCTL);
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { place, config }
    }

    fn unit(&self, name: &str) -> PathBuf {
        self.place.path().join("systemd/user").join(name)
    }

    fn units(&self) -> [PathBuf; 2] {
        ["bridgehead.service", "bridgehead.socket"].map(|name| self.unit(name))
    }

    async fn run(&self, arguments: &[&str]) -> Ran {
        let home = self.place.path().to_str().unwrap();
        let path = format!("{home}:/usr/bin:/bin");
        let all = [&["service"], arguments].concat();
        self.place.run_with(&all, &[("PATH", &path), ("FAKE", home), ("NAME", "x")], "").await
    }

    /// What `systemctl` was asked for, without questions.
    fn orders(&self) -> Vec<String> {
        let calls = self.place.path().join("calls");
        let text = std::fs::read_to_string(&calls).unwrap_or_default();
        let _ = std::fs::remove_file(calls);
        let orders = text.lines().filter(|line| !line.contains(" show "));
        orders
            .map(|line| line.trim_start_matches("--user --no-ask-password --no-pager ").to_owned())
            .collect()
    }
}

#[track_caller]
fn check(ran: &Ran, code: i32, words: &str) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    assert!(ran.stderr.contains(words) || ran.stdout.contains(words), "no `{words}`: {ran:?}");
}

/// A service is installed, shown, replaced and removed again; each step asks systemd for what it needs.
#[tokio::test]
async fn a_service_comes_and_goes() {
    let user = User::new("[http]\nlisten = \"127.0.0.1:4999\"\n");
    let config = user.config.to_str().unwrap();
    check(&user.run(&["status"]).await, 3, "installed: no");
    assert_eq!(user.run(&["status", "--json"]).await.json(), json!({"installed": false}));
    check(&user.run(&["uninstall"]).await, 0, "no service is installed");

    let shown = user.run(&["install", "--config", config, "--dry-run"]).await;
    check(&shown, 0, "ListenStream=127.0.0.1:4999");
    let told = user.run(&["install", "--config", config, "--dry-run", "--json"]).await.json();
    assert_eq!(told["files"][1]["path"], user.unit("bridgehead.socket").to_str().unwrap());
    assert!(!user.unit("bridgehead.socket").exists());
    user.orders();

    check(&user.run(&["install", "--config", config]).await, 0, "serves MCP at http://127.0.0.1:4999/mcp");
    assert_eq!(user.orders(), ["daemon-reload", "enable --now bridgehead.socket"]);
    let service = std::fs::read_to_string(user.unit("bridgehead.service")).unwrap();
    let start = format!("ExecStart=\"{}\" serve --config \"{config}\"\n", program().display());
    assert!(service.contains(&start), "{service}");
    for setting in
        ["Type=notify", "KillMode=mixed", "Delegate=cpu memory pids", "ExecReload=kill -HUP $MAINPID"]
    {
        assert!(service.contains(&format!("\n{setting}\n")), "{setting}: {service}");
    }
    check(&user.run(&["status"]).await, 0, "address: http://127.0.0.1:4999/mcp");
    let told = user.run(&["status", "--json"]).await.json();
    assert_eq!(
        (&told["enabled"], &told["socket"], &told["changed"]),
        (&json!(true), &json!("active"), &json!([]))
    );

    user.orders();
    let again = ["install", "--config", config, "--listen", "127.0.0.1:5000", "--json"];
    let told = user.run(&again).await.json();
    assert_eq!((&told["url"], &told["started"]), (&json!("http://127.0.0.1:5000/mcp"), &json!(true)));
    assert_eq!(
        user.orders(),
        ["stop bridgehead.service bridgehead.socket", "daemon-reload", "enable --now bridgehead.socket"],
        "a socket with another address cannot be opened beside the old one"
    );

    let removed = user.run(&["uninstall", "--json"]).await.json();
    assert_eq!(removed["removed"], json!(user.units()));
    assert_eq!(
        user.orders(),
        ["disable --now bridgehead.socket", "stop bridgehead.service", "daemon-reload"]
    );
    assert!(!user.units().iter().any(|file| file.exists()));
    check(&user.run(&["status"]).await, 3, "installed: no");
}

/// JOIN-6: a file that was agreed to by its content is used by the service whatever it says later, and the user is told so.
#[tokio::test]
async fn a_found_file_is_remarked_on() {
    let user = User::new("");
    let folder = user.place.path();
    let trusted = user.place.run_in(folder, &["trust", "./bridgehead.toml", "--yes"], &[]).await;
    assert_eq!(trusted.code, Some(0), "{trusted:?}");
    let install = ["service", "install", "--no-start"];
    let found = user.place.run_in(folder, &install, &[]).await;
    check(&found, 0, "/bridgehead.toml`, which the service will use whatever it says then");
    let config = user.config.to_str().unwrap();
    let named = user.place.run_in(folder, &[&install[..], &["--config", config]].concat(), &[]).await;
    check(&named, 0, "wrote ");
    assert!(!named.stderr.contains("whatever it says"), "{named:?}");
}

/// Where there is no service manager, or with `--no-start`, the files are written and the commands are told.
#[tokio::test]
async fn without_a_service_manager_the_commands_are_told() {
    let user = User::new("");
    let config = user.config.to_str().unwrap();
    let ran = user.run(&["install", "--config", config, "--no-start"]).await;
    check(&ran, 0, "run: systemctl --user enable --now bridgehead.socket\n");
    assert_eq!((user.orders().len(), ran.stderr.contains("does not work here")), (0, false));
    check(&user.run(&["status"]).await, 1, "socket: inactive");
    user.place.file("offline", "");
    check(&user.run(&["install", "--config", config]).await, 0, "`systemctl --user` does not work here");
    let told = user.run(&["status", "--json"]).await;
    assert_eq!((told.code, &told.json()["socket"]), (Some(1), &json!(null)), "nobody can tell");
    check(&user.run(&["status"]).await, 1, "socket: unknown");
    check(&user.run(&["uninstall"]).await, 0, "removed ");
    std::fs::remove_file(user.place.path().join("offline")).unwrap();
    user.place.file("full", "");
    check(&user.run(&["install", "--config", config]).await, 1, "is 127.0.0.1:4848 in use?");
}

/// Files of others stay, and files that were edited are removed by force only.
#[tokio::test]
async fn only_files_of_ours_are_touched() {
    let user = User::new("");
    let config = user.config.to_str().unwrap();
    let [service, socket] = user.units();
    check(&user.run(&["install", "--config", config]).await, 0, "wrote ");
    let edited = std::fs::read_to_string(&service).unwrap() + "# mine\n";
    std::fs::write(&service, &edited).unwrap();
    check(&user.run(&["install", "--config", config]).await, 1, "was edited since it was written");
    check(&user.run(&["uninstall"]).await, 1, "service uninstall --force");
    check(&user.run(&["status"]).await, 0, "edited since it was written: ");
    assert!(socket.exists() && std::fs::read_to_string(&service).unwrap() == edited);
    check(&user.run(&["uninstall", "--force"]).await, 0, "removed ");
    assert!(!service.exists() && !socket.exists());

    std::fs::write(&socket, "[Socket]\nListenStream=1\n").unwrap();
    check(&user.run(&["install", "--config", config]).await, 1, "was not written by this command");
    check(&user.run(&["uninstall", "--force"]).await, 0, "is not ours and stays");
    check(&user.run(&["status"]).await, 3, "installed: no");
    assert!(socket.exists() && !service.exists());
}

/// What could not work as a service is refused before anything is written; variables of the shell are named.
#[tokio::test]
async fn what_cannot_be_served_is_not_installed() {
    let user = User::new("[servers.other]\ncommand = \"x\"\nenv = { A = \"${NAME}\" }\n");
    let config = user.config.to_str().unwrap();
    check(&user.run(&["install", "--config", config, "--listen", "0.0.0.0:1"]).await, 78, "http.token_file");
    check(&user.run(&["install", "--config", config, "--listen", "127.0.0.1:0"]).await, 78, "has no port");
    check(&user.run(&["install", "--config", "/no/such/file"]).await, 78, "/no/such/file");
    assert!(!user.unit("bridgehead.socket").exists());
    let ran = user.run(&["install", "--config", config]).await;
    check(&ran, 0, "variables of your shell");
    assert!(
        ran.stderr.contains(": NAME; put them into") && ran.stderr.contains("bridgehead/service.env"),
        "{ran:?}"
    );
    let nobody = Place::new();
    let ran = nobody.run(&["service", "install"]).await;
    check(&ran, 78, "there is no configuration to serve");
}

/// systemd accepts the units.
#[tokio::test]
async fn systemd_accepts_the_units() {
    let user = User::new("");
    let config = user.place.file("a \"b\" $c 100%.toml", "");
    check(&user.run(&["install", "--config", config.to_str().unwrap(), "--no-start"]).await, 0, "wrote ");
    let analyze = Path::new("/usr/bin/systemd-analyze");
    assert!(analyze.exists(), "install the package systemd for this test");
    let units = user.units().map(|file| file.to_str().unwrap().to_owned());
    let verify = ["--user", "verify", "--man=no", &units[0], &units[1]];
    let ran = Ran::of(user.place.start_program(analyze, &verify, &[])).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
}

/// A port that was free a moment ago.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A gateway serves on a socket that a service manager passes, tells it that it is ready, and passes the socket on to no server.
#[tokio::test]
async fn a_passed_socket_is_served() {
    let user = User::new("[http]\nlisten = \"127.0.0.1:1\"\n");
    let activate = Path::new("/usr/bin/systemd-socket-activate");
    assert!(activate.exists(), "install the package systemd for this test");
    let address = free();
    let told = user.place.path().join("notify");
    let manager = UnixDatagram::bind(&told).unwrap();
    manager.set_nonblocking(true).unwrap();
    let home = user.place.path().to_str().unwrap();
    let listen = address.to_string();
    let (notify, runtime) = (format!("NOTIFY_SOCKET={}", told.display()), format!("XDG_RUNTIME_DIR={home}"));
    let (config, state) = (user.config.to_str().unwrap(), format!("XDG_STATE_HOME={home}/state"));
    let arguments = [
        "-l",
        &listen,
        "-E",
        &notify,
        "-E",
        &runtime,
        "-E",
        &state,
        program().to_str().unwrap(),
        "serve",
        "--config",
        config,
    ];
    let mut gateway = user.place.start_program(activate, &arguments, &[]);
    until(|| gateway.stderr().contains("Listening on ").then_some(())).await;
    let http = HttpClient::new(address);
    let health = http.post_modern("/mcp", "tools/call", json!({"name": "server_health"})).await.answer();
    assert_eq!(health["result"]["structuredContent"]["data"]["addresses"], json!([address]), "{health}");
    assert!(
        gateway.stderr().contains(&format!("serves MCP at http://{address}/mcp")),
        "{}",
        gateway.stderr()
    );
    let said = until(|| {
        let mut read = [0; 200];
        manager.recv(&mut read).ok().map(|length| String::from_utf8_lossy(&read[..length]).into_owned())
    })
    .await;
    assert_eq!(said, format!("READY=1\nSTATUS=serves MCP at http://{address}/mcp"));

    // systemd-socket-activate has become the gateway.
    let pid = gateway.pid().unwrap();
    let socket = std::fs::read_link(format!("/proc/{pid}/fd/3")).unwrap();
    assert!(socket.to_str().unwrap().starts_with("socket:"), "{socket:?}");
    let ready = || async {
        let health = http.post_modern("/mcp", "tools/call", json!({"name": "server_health"})).await.answer();
        health["result"]["structuredContent"]["data"]["upstreams"][0]["pid"].as_u64()
    };
    let server = loop {
        match ready().await {
            Some(pid) => break pid,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let open = std::fs::read_dir(format!("/proc/{server}/fd")).unwrap().flatten();
    let open: Vec<PathBuf> = open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    assert!(!open.is_empty() && !open.contains(&socket), "{open:?}");
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
}

/// A promise of the service manager that is not kept, or that the gateway cannot use, is an error that says what to change.
#[tokio::test]
async fn an_unusable_passed_socket_is_an_error() {
    let place = Place::new();
    let shell = Path::new("/bin/sh");
    let promise = "export LISTEN_PID=$$ LISTEN_FDS=$1; shift; exec \"$@\"";
    let serve = [program().to_str().unwrap(), "serve", "--listen", "127.0.0.1:0"];
    let run = async |count: &str, before: &str| {
        let script = format!("{before}\n{promise}");
        let arguments = [&["-c", &script, "sh", count][..], &serve].concat();
        Ran::of(place.start_program(shell, &arguments, &[])).await
    };
    check(&run("1", "exec 3>&-").await, 1, "promised a socket that cannot be used");
    check(&run("2", "exec 3</dev/null 4</dev/null").await, 1, "passed 2 sockets");
    check(&run("1", "exec 3</dev/null").await, 1, "without an address and port");
}
