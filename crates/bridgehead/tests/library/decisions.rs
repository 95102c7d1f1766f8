//! What an embedding program decides itself: who may use what, how much, and with which credentials.

use std::collections::BTreeMap;
use std::sync::Arc;

use bridgehead::access::{Access, AccessSettings};
use bridgehead::config::{
    GatewaySettings, Issuer, Launch, ListenAddress, Listener, ListenerAuth, PolicyRule, Remote, Secret,
    ServerConfig, ThingPattern, TokenSource, Who,
};
use bridgehead::credentials::{ConfiguredHeaders, CredentialSource};
use bridgehead::{
    Action, Allowance, Authenticating, Authenticator, Authorizer, Code, Config, Decision, GatewayError,
    HttpSettings, Limited, Limiter, NativeTool, Peer as Connected, Principal, Refusal, Server, StartError,
    Thing, Transport,
};
use bridgehead_testkit::Recorder;
use bridgehead_testkit::client::{HttpClient, modern_headers, modern_params};
use bridgehead_testkit::peer::{Peer, reply};
use futures_util::future::{Either, ready};
use http::{HeaderMap, StatusCode};
use serde_json::json;

use crate::common::MemoryClient;

/// Hides the tool of this name.
struct Hides(&'static str);

impl Authorizer for Hides {
    fn class(&self, _principal: &Principal) -> Arc<str> {
        "all".into()
    }

    fn decide(&self, _principal: &Principal, _action: Action, thing: Thing<'_>) -> Decision {
        if thing.name == self.0 { Decision::Deny } else { Decision::Allow }
    }
}

/// Lets nobody call the tool of this name.
struct Stops(&'static str);

impl Limiter for Stops {
    fn admit(&self, _principal: &Principal, request: Limited<'_>) -> Result<Allowance, GatewayError> {
        match request.name == self.0 {
            true => Err(GatewayError::new(Code::ProviderUnavailable, "not today")),
            false => Ok(Allowance::free()),
        }
    }
}

fn tool(name: &str) -> NativeTool {
    NativeTool::new(name, "", json!({"type": "object"}), |_, _| async { Ok(json!("done")) })
}

/// GATE-3, GATE-4, GATE-7: the server uses the embedder's authorizer, limiter, recorded methods and credentials.
#[tokio::test]
async fn an_embedder_decides() {
    let peer = Peer::start(|_| reply("401 Unauthorized", &[], "")).await;
    let remote = Remote::new(peer.url("/mcp").parse().unwrap());
    let upstream =
        ServerConfig::new("far".parse().unwrap(), Launch::Remote(remote), &GatewaySettings::default());
    let signed_in = CredentialSource::new(|remote| {
        let mut remote = remote.clone();
        remote.headers.insert("Authorization".to_owned(), Secret::new("Bearer hunter2"));
        Some(Arc::new(ConfiguredHeaders::of(&remote)))
    });
    let recorder = Recorder::new();
    let (client, theirs) = tokio::io::duplex(64 * 1024);
    let mut client = MemoryClient::new(client);
    let server = Server::builder()
        .transport(Transport::Memory(theirs))
        .upstream(upstream)
        .register(tool("open"))
        .register(tool("hidden"))
        .register(tool("stopped"))
        .audit(Arc::new(recorder.clone()))
        .also_recorded(vec!["tools/list"])
        .authorizer(Arc::new(Hides("hidden")))
        .limiter(Arc::new(Stops("stopped")))
        .credentials(signed_in)
        .process_handlers(false)
        .build()
        .unwrap();
    let running = server.start().await.unwrap();
    assert_ne!(client.call("open").await["isError"], json!(true));
    let params = json!({"name": "stopped", "arguments": {}});
    let stopped = client.request("tools/call", params).await["error"].clone();
    assert_eq!(
        (&stopped["data"]["code"], &stopped["message"]),
        (&json!("PROVIDER_UNAVAILABLE"), &json!("not today"))
    );
    let list = client.request("tools/list", json!({})).await["result"]["tools"].clone();
    let offered = |name: &str| list.as_array().unwrap().iter().any(|tool| tool["name"] == name);
    assert!(offered("open") && offered("stopped") && !offered("hidden"), "{list}");
    peer.until("the remote server was asked", |peer| !peer.asked().is_empty()).await;
    assert!(peer.asked().iter().all(|asked| asked.header("authorization") == "Bearer hunter2"));
    running.stop().await;
    let methods: Vec<_> = recorder.enters().iter().map(|enter| enter.call().method()).collect();
    assert_eq!(methods, ["tools/call", "tools/call", "tools/list"]);
}

/// Admits whoever names itself.
struct ByName;

impl Authenticator for ByName {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, _peer: Connected) -> Authenticating<'a> {
        let name = headers.get("x-name").and_then(|name| name.to_str().ok());
        let refusal = || Refusal::new(StatusCode::UNAUTHORIZED, "say your name");
        Either::Left(ready(name.map(Principal::named).ok_or_else(refusal)))
    }

    fn asks_for_secret(&self) -> bool {
        false
    }
}

/// ACC-1: an embedder signs clients in by its own authenticator. One that asks for no secret does not serve other machines, and
/// one that cannot be made prevents the start.
#[tokio::test]
async fn an_embedder_signs_clients_in() {
    let recorder = Recorder::new();
    let options = |listen: &str| {
        let http = HttpSettings { listen: listen.parse().unwrap(), ..HttpSettings::default() };
        let options = Server::builder().transport(Transport::http(http)).register(tool("open"));
        options.audit(Arc::new(recorder.clone())).process_handlers(false)
    };
    let server = options("127.0.0.1:0").sign_in(|_, _, _| Ok(Box::new(ByName))).build().unwrap();
    let running = server.start().await.unwrap();
    let client = HttpClient::new(running.addresses()[0]);
    let params = modern_params(json!({"name": "open", "arguments": {}}));
    let mut headers = modern_headers("tools/call", &params);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let post = async |headers: Vec<(&'static str, String)>| {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        client.post("/mcp", &headers, body.clone()).await.status
    };
    assert_eq!(post(headers.clone()).await, 401);
    headers.push(("x-name", "ada".to_owned()));
    assert_eq!(post(headers).await, 200);
    assert_eq!(recorder.enters()[0].principal(), "ada");
    running.stop().await;

    let open = options("0.0.0.0:0").sign_in(|_, _, _| Ok(Box::new(ByName)));
    assert!(format!("{open:?}").contains("SignIn"));
    let refused = open.build().unwrap().start().await.unwrap_err();
    assert!(
        matches!(refused, StartError::Token(_)) && refused.to_string().contains("0.0.0.0:0"),
        "{refused}"
    );
    let broken = options("127.0.0.1:0").sign_in(|_, _, _| Err(std::io::Error::other("no keys")));
    let refused = broken.build().unwrap().start().await.unwrap_err();
    assert_eq!(refused.to_string(), "nobody could sign in: no keys");
}

/// ACC-6: a server listens on a Unix socket besides, and says where; a listener that cannot be opened, and a token that cannot be
/// read, prevent the start.
#[tokio::test]
async fn listeners_are_opened_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let serving = |path: std::path::PathBuf, token: TokenSource| {
        let listener = Listener {
            name: "local".to_owned(),
            listen: ListenAddress::Unix(path),
            auth: Some(ListenerAuth::Open),
            tls: None,
        };
        let listen = "127.0.0.1:0".parse().unwrap();
        let http = HttpSettings { listen, token, listeners: vec![listener], ..HttpSettings::default() };
        Server::builder().transport(Transport::http(http)).process_handlers(false).build().unwrap()
    };
    let socket = folder.path().join("mcp.sock");
    let running = serving(socket.clone(), TokenSource::None).start().await.unwrap();
    let named = format!("unix:{}", socket.display());
    assert!(running.listeners().contains(&named), "{:?}", running.listeners());
    assert_eq!(running.addresses().len(), 1);
    assert!(socket.exists());
    running.stop().await;
    assert!(!socket.exists());

    let nowhere = folder.path().join("missing/mcp.sock");
    let refused = serving(nowhere, TokenSource::None).start().await.unwrap_err();
    assert!(
        matches!(refused, StartError::Listener(_)) && refused.to_string().contains("missing"),
        "{refused}"
    );
    let token = TokenSource::File(folder.path().join("missing/token"));
    let refused = serving(socket, token).start().await.unwrap_err();
    assert!(
        matches!(refused, StartError::Token(_)) && refused.to_string().contains("missing/token"),
        "{refused}"
    );
}

/// LIB-1, ACC-3: a server does not start with a configuration whose rules, limits or credentials nothing would apply, and says
/// which; with `access`, or with the program's own parts, it does.
#[tokio::test]
async fn rules_that_nothing_applies_prevent_the_start() {
    let loaded = |text: &str| {
        let environment = bridgehead::config::Environment::read(BTreeMap::new()).unwrap();
        let file = std::path::Path::new("bridgehead.toml");
        bridgehead::config::load_text(file, text.as_bytes().to_vec(), &environment, std::path::Path::new("/"))
            .unwrap()
    };
    let options = |config: &Config| {
        let http = HttpSettings { listen: "127.0.0.1:0".parse().unwrap(), ..config.http.clone() };
        Server::builder().configured(config).transport(Transport::http(http)).process_handlers(false)
    };
    for (part, text) in [
        ("[[policy]]", "[[policy]]\nwho = [\"*\"]\ntools = [\"*/*\"]\n"),
        ("[[limits.rules]]", "[[limits.rules]]\nwho = [\"*\"]\nrate = \"2/h\"\n"),
        ("[auth]", "[auth]\npublic_url = \"https://mcp.example.com/mcp\"\n"),
        ("[auth]", "[auth.proxy]\nproxies = [\"10.0.0.7\"]\n"),
    ] {
        let config = loaded(text);
        let refused = options(&config).build().unwrap().start().await.unwrap_err();
        assert!(matches!(refused, StartError::WithoutEffect(named) if named == part), "{part}: {refused}");
        assert!(refused.to_string().contains("ServerOptions::access"), "{refused}");
        let clock = Arc::new(bridgehead::SystemClock::default());
        let access = Access::new(AccessSettings::configured(&config), clock, None).unwrap();
        let running = options(&config).access(access).build().unwrap().start().await.unwrap();
        running.stop().await;
    }
    let plain = options(&loaded("")).build().unwrap().start().await.unwrap();
    plain.stop().await;
    let (_client, memory) = tokio::io::duplex(1024);
    let signed_out = loaded("[auth]\npublic_url = \"https://mcp.example.com/mcp\"\n");
    let unreachable = Server::builder().configured(&signed_out).transport(Transport::Memory(memory));
    let running = unreachable.process_handlers(false).build().unwrap().start().await.unwrap();
    running.stop().await;
}

/// ACC-9: the failed sign-ins of the last minute are in the record when a server has stopped.
#[tokio::test]
async fn the_last_failed_sign_ins_are_recorded() {
    let recorder = Recorder::new();
    let mut settings = AccessSettings::default();
    settings.auth.public_url = Some("https://mcp.example.com/mcp".to_owned());
    let access = Access::new(settings, Arc::new(bridgehead::SystemClock::default()), None).unwrap();
    let http = HttpSettings { listen: "127.0.0.1:0".parse().unwrap(), ..HttpSettings::default() };
    let options = Server::builder().transport(Transport::http(http)).access(access);
    let server = options.audit(Arc::new(recorder.clone())).process_handlers(false).build().unwrap();
    let running = server.start().await.unwrap();
    let client = HttpClient::new(running.addresses()[0]);
    for _ in 0..2 {
        let refused = client.post("/mcp", &[("authorization", "Bearer wrong")], "{}".to_owned()).await;
        assert_eq!(refused.status, 401);
    }
    assert!(recorder.enters().is_empty(), "its minute has only begun");
    running.stop().await;
    let enters = recorder.enters();
    let told: Vec<_> = enters.iter().map(|enter| (enter.call().method(), enter.call().subject())).collect();
    assert_eq!(told, [("auth/failed", "127.0.0.1")]);
    recorder.assert_paired();
}

/// ACC-2 (case 1), ACC-7: a reload changes the scopes that clients are asked for.
#[tokio::test]
async fn a_reload_changes_what_clients_are_asked_for() {
    let rules = |scope: &str| {
        let pattern = ThingPattern { server: "*".to_owned(), name: "*".to_owned() };
        let mut settings = AccessSettings::default();
        settings.auth.public_url = Some("https://mcp.example.com/mcp".to_owned());
        settings.auth.issuers.push(Issuer::new("corp", "http://127.0.0.1:9"));
        settings.policy.push(PolicyRule {
            who: vec![Who::Everyone],
            tools: vec![pattern.clone()],
            prompts: Vec::new(),
            resources: Vec::new(),
            deny_tools: Vec::new(),
            deny_prompts: Vec::new(),
            deny_resources: Vec::new(),
            scopes: vec![(pattern, vec![scope.to_owned()])],
            read_only: false,
            line: 1,
        });
        settings
    };
    let clock = Arc::new(bridgehead::SystemClock::default());
    let access = Access::new(rules("one"), clock, None).unwrap();
    let http = HttpSettings { listen: "127.0.0.1:0".parse().unwrap(), ..HttpSettings::default() };
    let options = Server::builder().transport(Transport::http(http)).access(access.clone());
    let server = options.process_handlers(false).build().unwrap();
    let running = server.start().await.unwrap();
    let client = HttpClient::new(running.addresses()[0]);
    for scope in ["one", "two"] {
        if scope == "two" {
            assert!(access.apply(rules(scope), server.gateway()).unwrap());
        }
        let metadata = client.get("/.well-known/oauth-protected-resource", &[]).await;
        assert_eq!(metadata.json()["scopes_supported"], json!([scope]));
    }
    running.stop().await;
}

/// ACC-7: a reload withdraws operators, and names new ones, without a restart.
#[tokio::test]
async fn a_reload_changes_the_operators() {
    let listed = |all: Vec<Who>, read: Vec<Who>| {
        let mut settings = AccessSettings::default();
        (settings.auth.operators, settings.auth.operators_read) = (all, read);
        settings
    };
    let clock = Arc::new(bridgehead::SystemClock::default());
    let access = Access::new(listed(vec![Who::Local], Vec::new()), clock, None).unwrap();
    let http = HttpSettings { listen: "127.0.0.1:0".parse().unwrap(), ..HttpSettings::default() };
    let options = Server::builder().transport(Transport::http(http)).access(access.clone());
    let server = options.process_handlers(false).build().unwrap();
    let running = server.start().await.unwrap();
    let client = HttpClient::new(running.addresses()[0]);
    let status = async || client.get("/api/v1/status", &[]).await.status;
    assert_eq!(status().await, 200);
    assert!(!access.apply(listed(Vec::new(), Vec::new()), server.gateway()).unwrap());
    assert_eq!(status().await, 403);
    assert!(!access.apply(listed(Vec::new(), vec![Who::Local]), server.gateway()).unwrap());
    assert_eq!(status().await, 200);
    running.stop().await;
}

/// JOIN-5: a server serves on a socket that listens already, whatever its settings say; without a control socket there is nothing to
/// wait for.
#[tokio::test]
async fn a_socket_that_listens_already_is_served() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    // Nobody could listen on this address: it belongs to the socket.
    let http = HttpSettings { listen: address, ..HttpSettings::default() };
    let options = Server::builder().transport(Transport::http(http)).process_handlers(false);
    let server = options.listening(socket).build().unwrap();
    let mut running = server.start().await.unwrap();
    assert_eq!(running.addresses(), [address]);
    running.control_opened().await.unwrap();
    assert_eq!(HttpClient::new(address).get("/healthz", &[]).await.status, 200);
    running.stop().await;
    let joined = Transport::Joined { linger: std::time::Duration::ZERO };
    assert_eq!(format!("{joined:?}"), "Joined");
}
