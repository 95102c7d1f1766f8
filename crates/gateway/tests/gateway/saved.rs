//! What a gateway offers while its servers start: their saved lists, or what is there after a while.

use std::path::PathBuf;
use std::time::Duration;

use bridgehead_config::{GatewaySettings, Launch, Mode, Secret, ServerConfig};
use bridgehead_gateway::{Gateway, Options, Principal, ServerState};
use bridgehead_testkit::{Behaviour, Mock, Tool};
use bridgehead_upstream::UpstreamState;
use bridgehead_wire::Revision;
use serde_json::{Value, json};

use crate::support::{Fixture, at, until};

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::MODERN;

/// A folder whose files switch what a server does at its next start.
struct Switches(tempfile::TempDir);

impl Switches {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn set(&self, name: &str) {
        std::fs::write(self.path(name), "").unwrap();
    }

    /// A gateway with one server `m`, whose configuration never changes: it waits while there is a file `wait`, exits if there is
    /// `broken`, and is another mock if there is `later`.
    fn start(&self, now: &Mock, later: &Mock, change: impl FnOnce(&mut Options)) -> Fixture {
        Fixture::start(&[("m", now.clone())], |options| {
            let state = self.0.path().to_str().unwrap().to_owned();
            options.environment = Some([("XDG_STATE_HOME".to_owned(), state)].into());
            let Launch::Stdio(stdio) = &mut options.servers[0].launch else { unreachable!() };
            let script = "while [ -e \"$0/wait\" ]; do sleep 0.05; done; [ -e \"$0/broken\" ] && exit 7; \
                          [ -e \"$0/later\" ] && export MOCK_SCRIPT=\"$LATER\"; exec \"$1\"";
            let program = std::mem::replace(&mut stdio.command, "/bin/sh".to_owned());
            stdio.args = vec!["-c".into(), script.into(), self.0.path().to_str().unwrap().into(), program];
            stdio.env.insert("LATER".to_owned(), Secret::new(later.script()));
            change(options);
        })
    }

    /// How many lists are saved.
    fn saved(&self) -> usize {
        self.0.path().join("bridgehead/catalog").read_dir().map_or(0, Iterator::count)
    }
}

async fn ready(gateway: &Gateway) {
    until(|| gateway.status().upstreams[0].state == ServerState::Ready).await;
}

async fn listed(fixture: &Fixture) -> Value {
    fixture.ask(MODERN, "tools/list", json!({})).await.unwrap().decode().unwrap()
}

fn initialized(gateway: &Gateway) -> Value {
    gateway.initialize(&Principal::local(), LEGACY).decode().unwrap()
}

/// A tool that echoes arguments with this member.
fn wants(name: &str, member: &str) -> Tool {
    Tool::new(name, Behaviour::Echo).input_schema(json!({"type": "object", "required": [member]}))
}

/// SRV-3: at the second start everything is offered at once and without waiting, as the server listed it before, marked and not to
/// be kept by clients. A call waits for the server, whose own list then replaces the saved one with one change.
#[tokio::test]
async fn a_starting_server_offers_what_it_listed_before() {
    let switches = Switches::new();
    let mock = Mock::legacy().tool("a", Behaviour::Text("done".to_owned())).instructions("Use it.");
    let fixture =
        switches.start(&mock, &mock, |options| options.settings.list_wait = Duration::from_secs(600));
    assert_eq!(fixture.names().await, ["a", "server_ping", "server_health"]);
    assert_eq!(listed(&fixture).await["tools"][0].get("_meta"), None);
    fixture.gateway.stop().await;
    assert_eq!(switches.saved(), 1);

    switches.set("wait");
    fixture.gateway.start();
    let early = listed(&fixture).await;
    assert_eq!((early["tools"].as_array().unwrap().len(), &early["ttlMs"]), (3, &json!(0)), "{early}");
    assert_eq!(early["tools"][0]["_meta"], json!({"bridgehead/cached": true}));
    fixture.gateway.wait_for_instructions().await;
    assert_eq!(initialized(&fixture.gateway)["instructions"], "#### MCP Server: m\n\nUse it.");
    let told: Value = fixture.ask(MODERN, "server/discover", json!({})).await.unwrap().decode().unwrap();
    assert_eq!(told["instructions"], "#### MCP Server: m\n\nUse it.");
    assert!(told["capabilities"].get("prompts").is_none(), "what it can do is known, too: {told}");
    let status = &fixture.gateway.status().upstreams[0];
    assert_eq!((status.state, status.catalog), (ServerState::Starting, Some("cached")));
    let settling = tokio::time::timeout(Duration::from_millis(20), fixture.gateway.settled());
    assert!(settling.await.is_err(), "it is still starting");
    let mut changes = fixture.gateway.catalog_changes();
    let before = *changes.borrow_and_update();
    let (called, ()) = tokio::join!(fixture.call("a", json!({})), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        std::fs::remove_file(switches.path("wait")).unwrap();
    });
    assert_eq!(called.unwrap()["content"][0]["text"], "done");
    changes.changed().await.unwrap();
    assert_eq!(*changes.borrow(), before + 1);
    let late = listed(&fixture).await;
    assert_eq!((late["tools"][0].get("_meta"), late["ttlMs"] == 0), (None, false), "{late}");
    fixture.end().await;
}

/// SRV-3: a call to a saved tool is checked by what its server lists now: by its schema, and by whether the tool still exists.
#[tokio::test]
async fn a_call_is_checked_by_what_the_server_lists_now() {
    let switches = Switches::new();
    let now = Mock::legacy().full_tool(wants("t", "old")).tool("gone", Behaviour::Echo);
    let later = Mock::legacy().full_tool(wants("t", "new")).tool("more", Behaviour::Echo);
    for lazy in [false, true] {
        let fixture = switches.start(&now, &later, |options| options.servers[0].lazy = lazy);
        fixture.gateway.settled().await;
        until(|| switches.saved() > 0 && fixture.gateway.list_tools().len() == 4).await;
        fixture.gateway.stop().await;
        switches.set("later");
        switches.set("wait");
        fixture.gateway.start();
        assert_eq!(fixture.names().await, ["t", "gone", "server_ping", "server_health"]);
        let (good, bad, gone, more, ()) = tokio::join!(
            fixture.call("t", json!({"new": 1})),
            fixture.call("t", json!({"old": 1})),
            fixture.call("gone", json!({})),
            async {
                match lazy {
                    // A name that is not saved wakes nobody.
                    true => Ok(Value::Null),
                    false => fixture.call("more", json!({})).await,
                }
            },
            async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                std::fs::remove_file(switches.path("wait")).unwrap();
            }
        );
        good.unwrap();
        let bad = bad.unwrap()["content"][0]["text"].to_string();
        assert!(bad.contains("INVALID_PARAMS") && bad.contains("new") && bad.contains("required"), "{bad}");
        assert_eq!(gone.unwrap_err()["data"]["code"], "PROVIDER_TOOL_UNKNOWN");
        more.unwrap();
        fixture.gateway.stop().await;
        std::fs::remove_file(switches.path("later")).unwrap();
        std::fs::remove_dir_all(switches.path("bridgehead")).unwrap();
        fixture.end().await;
    }
}

/// SRV-3: a call to a saved tool waits for its server no longer than a call may take, and says what it waited for.
#[tokio::test]
async fn a_call_to_a_saved_tool_has_its_own_clock() {
    let switches = Switches::new();
    let mock = Mock::legacy().tool("a", Behaviour::Echo);
    let fixture = switches.start(&mock, &mock, |options| {
        options.servers[0].request_timeout = Some(Duration::from_millis(300));
        options.settings.list_wait = Duration::ZERO;
    });
    ready(&fixture.gateway).await;
    fixture.gateway.stop().await;
    switches.set("wait");
    fixture.gateway.start();
    until(|| fixture.gateway.list_tools().len() == 3).await;
    let error = fixture.call("a", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_UNAVAILABLE", "{error}");
    assert!(error["message"].as_str().unwrap().contains("`m` is still starting"), "{error}");
    fixture.end().await;
}

/// POOL-5: a server that has failed contributes no saved tools, whether it is tried again or not. SRV-3: nor do servers in mode
/// `test`, which saves nothing.
#[tokio::test]
async fn a_failed_server_contributes_no_saved_tools() {
    let mock = Mock::legacy().tool("a", Behaviour::Echo);
    for restart in [true, false] {
        let switches = Switches::new();
        let fixture = switches.start(&mock, &mock, |options| options.servers[0].restart = restart);
        ready(&fixture.gateway).await;
        fixture.gateway.stop().await;
        switches.set("wait");
        switches.set("broken");
        fixture.gateway.start();
        assert_eq!(fixture.names().await, ["a", "server_ping", "server_health"]);
        std::fs::remove_file(switches.path("wait")).unwrap();
        until(|| fixture.gateway.list_tools().len() == 2).await;
        let error = fixture.call("a", json!({})).await;
        std::fs::remove_file(switches.path("broken")).unwrap();
        match restart {
            true => _ = error,
            false => assert!(error.unwrap_err()["message"].as_str().unwrap().contains("exit status 7")),
        }
        fixture.gateway.restart("m");
        until(|| fixture.gateway.list_tools().len() == 3).await;
        fixture.end().await;
    }
    let switches = Switches::new();
    let fixture = switches.start(&mock, &mock, |options| options.settings.mode = Mode::Test);
    ready(&fixture.gateway).await;
    fixture.gateway.stop().await;
    assert_eq!(switches.saved(), 0);
    fixture.end().await;
}

/// SRV-3: where nothing is saved, the first list waits for as long as a server is silent, and five times as long for a process that
/// lives and has not answered. A server that has answered is given the same silence again.
#[tokio::test]
async fn how_long_the_first_list_waits() {
    let wait = Duration::from_secs(20);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = at("m", &format!("http://{}/mcp", nobody.local_addr().unwrap()));
    let hangs = Mock::legacy().list_delay_ms(3_600_000);
    let switches = Switches::new();
    let set = |server: Option<ServerConfig>| {
        move |options: &mut Options| {
            options.settings.list_wait = wait;
            options.servers = server.map_or_else(|| options.servers.clone(), |server| vec![server]);
        }
    };
    for (what, waits) in [("a process", wait * 5), ("a remote server", wait), ("an answer", wait)] {
        if what == "a process" {
            switches.set("wait");
        }
        let fixture =
            switches.start(&hangs, &hangs, set((what == "a remote server").then(|| remote.clone())));
        if what == "an answer" {
            let upstream = fixture.gateway.upstreams().remove(0);
            let answered = |state| matches!(state, UpstreamState::Starting { answered: Some(_), .. });
            until(|| answered(upstream.state())).await;
        }
        if what == "a process" {
            until(|| !fixture.gateway.status().upstreams[0].pids.is_empty()).await;
        }
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        assert_eq!(fixture.names().await, ["server_ping", "server_health"]);
        let waited = began.elapsed();
        let spent = Duration::from_secs(10);
        assert!(waited < waits + spent && waited + spent > waits, "{what}: {waited:?} instead of {waits:?}");
        let began = tokio::time::Instant::now();
        assert_eq!(fixture.names().await, ["server_ping", "server_health"]);
        assert_eq!(began.elapsed(), Duration::ZERO, "no later list waits");
        let began = tokio::time::Instant::now();
        fixture.gateway.wait_for_instructions().await;
        assert!(began.elapsed() <= Duration::from_millis(251), "{:?}", began.elapsed());
        assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
        tokio::time::resume();
        drop(std::fs::remove_file(switches.path("wait")));
        fixture.end().await;
    }
}

/// SRV-3: the first client of a gateway gets the instructions of servers that start within a moment.
#[tokio::test]
async fn a_handshake_waits_for_instructions() {
    let told = async || {
        let mock = Mock::legacy().tool("a", Behaviour::Echo).instructions("Use it.");
        let fixture = Fixture::start(&[("m", mock)], |_| ());
        fixture.gateway.wait_for_instructions().await;
        let told = initialized(&fixture.gateway)["instructions"].clone();
        fixture.end().await;
        told
    };
    // On a busy machine the server may take longer.
    for _ in 0..50 {
        if told().await == "#### MCP Server: m\n\nUse it." {
            return;
        }
    }
    panic!("the instructions were partial each time");
}

/// SRV-3: a modern client that asks while servers are starting is told that everything is served, and then it is.
#[tokio::test]
async fn what_was_declared_early_is_served() {
    let switches = Switches::new();
    switches.set("wait");
    let mock = Mock::legacy().tool("a", Behaviour::Echo);
    let fixture = switches.start(&mock, &mock, |_| ());
    let told: Value = fixture.ask(MODERN, "server/discover", json!({})).await.unwrap().decode().unwrap();
    assert!(told["capabilities"]["prompts"].is_object(), "{told}");
    std::fs::remove_file(switches.path("wait")).unwrap();
    ready(&fixture.gateway).await;
    let prompts: Value = fixture.ask(MODERN, "prompts/list", json!({})).await.unwrap().decode().unwrap();
    assert_eq!(prompts["prompts"], json!([]));
    fixture.end().await;
}

/// SRV-3: a list belongs to the configuration of its server, and not to the rest of the environment that a gateway was started with.
#[tokio::test]
async fn a_saved_list_belongs_to_a_configuration() {
    let switches = Switches::new();
    let mock = Mock::legacy().tool("a", Behaviour::Echo);
    let fixture = switches.start(&mock, &mock, |_| ());
    ready(&fixture.gateway).await;
    let server = fixture.gateway.upstreams()[0].config().clone();
    fixture.gateway.stop().await;
    let offers = async |more: &[(&str, &str)], inherited: &[&str]| {
        let mut server = server.clone();
        let Launch::Stdio(stdio) = &mut server.launch else { unreachable!() };
        stdio.inherit_env = inherited.iter().map(|name| (*name).to_owned()).collect();
        let state = ("XDG_STATE_HOME", switches.0.path().to_str().unwrap());
        let environment = more.iter().chain([&state]).map(|(name, value)| ((*name).into(), (*value).into()));
        let gateway = Gateway::new(Options {
            servers: vec![server],
            environment: Some(environment.collect()),
            settings: GatewaySettings { list_wait: Duration::from_millis(20), ..GatewaySettings::default() },
            ..Options::default()
        });
        let gateway = gateway.unwrap();
        gateway.start();
        drop(crate::support::ask(&gateway, LEGACY, "tools/list", json!({}), None).await.unwrap());
        let offers = gateway.list_tools().len() == 3;
        gateway.stop().await;
        offers
    };
    switches.set("wait");
    assert!(offers(&[("LANG", "de_AT.UTF-8"), ("TERM", "xterm"), ("PATH", "/bin:/usr/bin")], &[]).await);
    assert!(offers(&[("KEY", "not named")], &[]).await);
    assert!(!offers(&[("KEY", "named")], &["KEY"]).await);
    assert!(!offers(&[("USER", "somebody-else")], &[]).await);
    std::fs::remove_file(switches.path("wait")).unwrap();
    fixture.end().await;
}
