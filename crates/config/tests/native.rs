//! How a `bridgehead.toml` is read.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed assumption is a failed test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bridgehead_config::{
    AuditPayloads, AuditStore, Config, ConfigError, Environment, EraChoice, HealthProbe, Interactive,
    Isolation, Launch, Limits, LocalUsers, Mode, Network, Output, Prefix, Queue, RemoteTransport,
    ResourceUris, Retry, ServerConfig, Source, Stdio, TokenSource, load,
};

fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment::read(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
        .unwrap()
}

fn load_in(folder: &Path, text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    std::fs::write(folder.join("bridgehead.toml"), text).unwrap();
    load(Some("bridgehead.toml".as_ref()), &environment(variables), folder)
}

#[track_caller]
fn config_with(text: &str, variables: &[(&str, &str)]) -> Config {
    let folder = tempfile::tempdir().unwrap();
    load_in(folder.path(), text, variables).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn config(text: &str) -> Config {
    config_with(text, &[])
}

#[track_caller]
fn stdio(server: &ServerConfig) -> &Stdio {
    match &server.launch {
        Launch::Stdio(stdio) => stdio,
        Launch::Unusable { reason } => panic!("{}: {reason}", server.name),
        Launch::Remote(remote) => panic!("{}: {remote:?}", server.name),
    }
}

#[track_caller]
fn reason(server: &ServerConfig) -> &str {
    match &server.launch {
        Launch::Unusable { reason } => reason,
        Launch::Stdio(stdio) => panic!("{}: {stdio:?}", server.name),
        Launch::Remote(remote) => panic!("{}: {remote:?}", server.name),
    }
}

/// HOUR-1: `roots` are folders by path, relative to the file's own folder, or anything by URI.
#[test]
fn roots_of_a_server() {
    let text = "[servers.a]\ncommand = \"x\"\nroots = [\"~/my code\", \"/srv\", \"s3://bucket/x\"]\n[servers.b]\ncommand = \"x\"\n";
    let read = config_with(text, &[("HOME", "/home/me")]);
    let roots = read.servers[0].roots.as_ref().unwrap().as_str();
    assert_eq!(
        roots,
        r#"{"roots":[{"uri":"file:///home/me/my%20code"},{"uri":"file:///srv"},{"uri":"s3://bucket/x"}]}"#
    );
    assert_eq!(read.servers[1].roots, None);
}

/// HOUR-5: a native file names the additional variables of a server, by their exact names.
#[test]
fn variables_to_pass_on() {
    let read = config("[servers.a]\ncommand = \"x\"\ninherit_env = [\"HTTPS_PROXY\", \"MY_TOKEN\"]\n");
    assert_eq!(stdio(&read.servers[0]).inherit_env, ["HTTPS_PROXY", "MY_TOKEN"]);
    let folder = tempfile::tempdir().unwrap();
    let text = "[servers.a]\ncommand = \"x\"\ninherit_env = [\"AWS_*\"]\n";
    let error = load_in(folder.path(), text, &[]).unwrap_err().to_string();
    assert!(error.contains("not the name of a variable"), "{error}");
}

/// PIPE-9: an empty file means all defaults.
#[test]
fn an_empty_file_is_all_defaults() {
    let config = config("");
    assert_eq!(config.source, Source::Toml("bridgehead.toml".into()));
    assert_eq!(config.gateway.mode, Mode::Full);
    assert_eq!(config.gateway.prefix, Prefix::Auto);
    assert_eq!(config.gateway.max_name_length, 64);
    assert_eq!(config.gateway.request_timeout, Duration::from_millis(300_000));
    assert_eq!(config.gateway.max_total, Duration::from_millis(3_600_000));
    assert_eq!(config.gateway.startup_timeout, Duration::from_millis(30_000));
    assert_eq!(config.gateway.list_wait, Duration::from_millis(5_000));
    assert_eq!(config.gateway.threads, None);
    assert!(!config.gateway.debug_errors);
    assert_eq!(config.gateway.max_message_bytes, 16 << 20);
    assert_eq!(config.http.listen.to_string(), "127.0.0.1:4848");
    assert_eq!(config.http.token, TokenSource::None);
    assert_eq!(config.http.max_sessions, 1024);
    assert_eq!(config.http.session_idle, Duration::from_secs(1800));
    assert_eq!(config.http.max_body_bytes, 16 << 20);
    assert_eq!(config.http.keep_alive, Duration::from_secs(15));
    assert_eq!((config.gateway.held_bytes, config.gateway.held_per_peer_bytes), (512 << 20, 64 << 20));
    assert_eq!(config.http.head_within, Duration::from_secs(10));
    assert_eq!(config.http.body_within, Duration::from_secs(60));
    assert!(config.servers.is_empty() && config.warnings.is_empty());
}

/// PIPE-9, HOUR-2, ERA-3: the defaults of a server that only has a `command`.
#[test]
fn a_server_has_these_defaults() {
    let read = config("[servers.a]\ncommand = 'x'\n");
    let server = &read.servers[0];
    let ms = |duration: Duration| duration.as_millis();
    assert_eq!((ms(server.clocks().silent), ms(server.clocks().total)), (300_000, 3_600_000));
    assert_eq!((ms(server.start_timeout), ms(server.clocks().question)), (180_000, 600_000));
    assert_eq!((ms(server.probe_interval), ms(server.stable_after)), (30_000, 60_000));
    assert_eq!((server.max_leases, server.idle_timeout, server.lazy), (8, None, false));
    assert_eq!((server.restart, server.jitter, server.prefix), (true, true, None));
    assert_eq!(
        (server.isolation, server.era, server.output),
        (Isolation::Shared, EraChoice::Auto, Output::Off)
    );
    assert_eq!((server.retry, server.interactive), (Retry::Safe, Interactive::Auto));
    assert_eq!((server.health_probe, &server.queue), (HealthProbe::Ping, &Queue::default()));
    assert_eq!((&server.limits, &server.confinement, &server.roots), (&Limits::default(), &None, &None));
    assert!(server.tools.is_empty() && server.require.is_empty() && server.filter.admits("anything"));
    // The `[gateway]` section sets the defaults of every server.
    let read = config(
        "[gateway]\nrequest_timeout_ms = 5\nmax_total_ms = 6\nquestion_timeout_ms = 7\n[servers.a]\ncommand = 'x'\n",
    );
    let server = &read.servers[0];
    let clocks = server.clocks();
    let told = [clocks.silent, clocks.total, clocks.question].map(ms);
    assert_eq!(told, [5, 6, 7]);
}

/// AUD-2, AUD-3, AUD-6: what is recorded, and for how long, by default and with every key set. Paths are relative to the
/// file's folder.
#[test]
fn what_is_recorded() {
    let usual = config("").audit;
    assert_eq!((usual.store, usual.payloads), (AuditStore::Sqlite, AuditPayloads::Redacted));
    assert!(!usual.continue_on_failure);
    assert_eq!((usual.folder, usual.checkpoint_file, usual.signing_key_file), (None, None, None));
    let day = Duration::from_secs(24 * 60 * 60);
    assert_eq!((usual.segment_bytes, usual.keep_for, usual.keep_bytes), (64 << 20, day * 90, 1 << 30));

    let folder = tempfile::tempdir().unwrap();
    let text = "[audit]\nstore = 'none'\nfolder = 'a'\npayloads = 'digest'\non_failure = 'continue'\n\
                checkpoint_file = 'b'\nsigning_key_file = '/c'\nsegment_mb = 2\nkeep_days = 3\n\
                keep_mb = 4\n";
    let read = load_in(folder.path(), text, &[]).unwrap().audit;
    assert_eq!((read.store, read.payloads), (AuditStore::None, AuditPayloads::Digest));
    assert!(read.continue_on_failure);
    assert_eq!(read.folder, Some(folder.path().join("a")));
    assert_eq!(read.checkpoint_file, Some(folder.path().join("b")));
    assert_eq!(read.signing_key_file, Some("/c".into()));
    assert_eq!((read.segment_bytes, read.keep_for, read.keep_bytes), (2 << 20, day * 3, 4 << 20));
    assert_eq!(config("[audit]\npayloads = 'none'").audit.payloads, AuditPayloads::None);
}

/// POOL-7: servers and tools name their queues; a server that names none has its own.
#[test]
fn queues() {
    let config = config(
        "[queues.slow]\nconcurrency = 2\nmax_waiting = 0\n[queues.wide]\n[servers.a]\ncommand = 'x'\nqueue = 'slow'\n\
         [servers.a.tools.t]\nqueue = 'wide'\n[servers.b]\ncommand = 'x'",
    );
    let slow = Queue { name: Some("slow".into()), concurrency: 2, max_waiting: 0 };
    let [a, b] = &config.servers[..] else { panic!("{:?}", config.servers) };
    assert_eq!(a.queue, slow);
    assert_eq!(a.tools["t"].queue, Some(Queue { name: Some("wide".into()), ..Queue::default() }));
    assert_eq!(b.queue, Queue { name: None, concurrency: 64, max_waiting: 1024 });
}

#[test]
fn every_supported_key_is_read_in_both_spellings() {
    let snake = r#"
[gateway]
mode = "ReadOnly"
prefix = true
max_name_length = 32
request_timeout_ms = 1
max_total_ms = 2
startup_timeout_ms = 3
list_wait_ms = 0
threads = 4
debug_errors = true
max_message_mb = 5
[http]
listen = "[::1]:80"
allowed_hosts = ["a.example"]
allowed_origins = ["https://a.example"]
max_sessions = 6
session_idle_ms = 7
max_body_mb = 8
keep_alive_ms = 9
[limits]
head_ms = 13
body_ms = 14
held_mb = 15
held_per_peer_mb = 16
[audit]
store = "none"
[servers.s]
type = "stdio"
command = "x"
prefix = false
request_timeout_ms = 10
max_total_ms = 11
isolation = "Session"
idle_timeout_ms = 12
lazy = true
[servers.s.tools."odd tool"]
lock = true
"#;
    let camel: String = snake
        .lines()
        .map(|line| {
            let (key, rest) = line.split_once(" = ").unwrap_or((line, ""));
            let mut raise = false;
            let camel: String = key
                .chars()
                .filter_map(|character| {
                    if character == '_' {
                        raise = true;
                        return None;
                    }
                    Some(if std::mem::take(&mut raise) { character.to_ascii_uppercase() } else { character })
                })
                .collect();
            if rest.is_empty() { format!("{camel}\n") } else { format!("{camel} = {rest}\n") }
        })
        .collect();
    assert!(camel.contains("maxNameLength"), "{camel}");
    let folder = tempfile::tempdir().unwrap();
    let read = load_in(folder.path(), snake, &[]).unwrap();
    let other = load_in(folder.path(), &camel, &[]).unwrap();
    assert_eq!(format!("{read:?}"), format!("{other:?}"));
    let (gateway, http) = (&read.gateway, &read.http);
    assert_eq!((gateway.mode, gateway.prefix, gateway.max_name_length), (Mode::Readonly, Prefix::Always, 32));
    assert_eq!(gateway.request_timeout, Duration::from_millis(1));
    assert_eq!(gateway.max_total, Duration::from_millis(2));
    assert_eq!(gateway.startup_timeout, Duration::from_millis(3));
    assert_eq!(gateway.list_wait, Duration::ZERO);
    assert_eq!(gateway.threads.map(usize::from), Some(4));
    assert!(gateway.debug_errors);
    assert_eq!(gateway.max_message_bytes, 5 << 20);
    assert_eq!(http.listen.to_string(), "[::1]:80");
    assert_eq!(http.allowed_hosts, ["a.example"]);
    assert_eq!(http.allowed_origins, ["https://a.example"]);
    assert_eq!((http.max_sessions, http.max_body_bytes), (6, 8 << 20));
    assert_eq!((http.session_idle, http.keep_alive), (Duration::from_millis(7), Duration::from_millis(9)));
    assert_eq!((gateway.held_bytes, gateway.held_per_peer_bytes), (15 << 20, 16 << 20));
    assert_eq!((http.head_within, http.body_within), (Duration::from_millis(13), Duration::from_millis(14)));
    let server = &read.servers[0];
    assert_eq!(server.prefix, Some(false));
    assert_eq!(server.clocks().silent, Duration::from_millis(10));
    assert_eq!(server.clocks().total, Duration::from_millis(11));
    assert_eq!(server.tools["odd tool"].lock, Some(true));
}

/// CAT-3: the prefix is `"auto"`, `true` or `false`, and a server may have its own.
#[test]
fn prefix_has_three_values() {
    for (text, expected) in [("\"auto\"", Prefix::Auto), ("true", Prefix::Always), ("false", Prefix::Never)] {
        assert_eq!(config(&format!("[gateway]\nprefix = {text}")).gateway.prefix, expected);
    }
}

/// SRV-5 and SRV-6: the environment wins over the file.
#[test]
fn the_environment_wins_over_the_file() {
    let text = "[gateway]\nmode = \"full\"\nstartup_timeout_ms = 1";
    let read = config_with(text, &[("BRIDGEHEAD_MODE", "TEST"), ("BRIDGEHEAD_STARTUP_TIMEOUT_MS", "2")]);
    assert_eq!(read.gateway.mode, Mode::Test);
    assert_eq!(read.gateway.startup_timeout, Duration::from_millis(2));
}

#[test]
fn servers_keep_the_order_of_the_file_and_disabled_ones_are_left_out() {
    let text = r#"
[servers.zebra]
command = "z"
[servers.off]
command = "${NOT_SET}"
disabled = true
[servers.ant]
command = "a"
"#;
    let read = config(text);
    let names: Vec<_> = read.servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["zebra", "ant"]);
    assert_eq!(read.disabled.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["off"]);
    assert!(read.warnings.is_empty());
}

/// SRV-6: variables are filled in where the file names them, and an unset one fails only its server.
#[test]
fn an_unset_variable_costs_its_server_only() {
    let text = r#"
[servers.good]
command = "${CMD}"
args = ["--home=${HOME}", "$${HOME}", "${NO:-d}"]
env = { KEY = "${env:SECRET}" }
cwd = "${HOME}/x"
[servers.bad]
command = "x"
args = ["${NOT_SET}"]
"#;
    let read = config_with(text, &[("CMD", "run"), ("HOME", "/h"), ("SECRET", "hunter2")]);
    let good = stdio(&read.servers[0]);
    assert_eq!(good.command, "run");
    assert_eq!(good.args, ["--home=/h", "${HOME}", "d"]);
    assert_eq!(good.env["KEY"].expose(), "hunter2");
    assert_eq!(good.cwd.as_deref(), Some("/h/x".as_ref()));
    assert_eq!(reason(&read.servers[1]), "`args`: the variable `NOT_SET` is not set");
    assert_eq!(read.warnings.len(), 1);
    let names: Vec<_> = read.interpolated.iter().map(String::as_str).collect();
    assert_eq!(names, ["CMD", "HOME", "NO", "NOT_SET", "SECRET"]);
    assert!(!format!("{read:?}").contains("hunter2"));
}

#[test]
fn a_malformed_reference_refuses_our_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let error = load_in(folder.path(), "[servers.a]\ncommand = \"${\"", &[]).unwrap_err();
    assert!(error.to_string().contains("a `${` does not begin a variable"), "{error}");
}

#[test]
fn env_wins_over_env_file_and_paths_start_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    std::fs::write(folder.path().join("sub/.env"), "A=file\nB='both words'\n").unwrap();
    std::fs::write(folder.path().join("sub/broken.env"), "A=1\nhunter2\n").unwrap();
    let text = r#"
[servers.a]
command = "x"
cwd = "work"
env_file = ".env"
env = { A = "env" }
[servers.b]
command = "x"
env_file = "missing.env"
[servers.c]
command = "x"
env_file = "broken.env"
[servers.d]
command = "x"
cwd = "~/work"
"#;
    std::fs::write(folder.path().join("sub/b.toml"), text).unwrap();
    let read = load(Some("sub/b.toml".as_ref()), &environment(&[("HOME", "/h")]), folder.path()).unwrap();
    let a = stdio(&read.servers[0]);
    assert_eq!((a.env["A"].expose(), a.env["B"].expose()), ("env", "both words"));
    assert_eq!(a.cwd, Some(folder.path().join("sub/work")));
    assert!(reason(&read.servers[1]).starts_with("`env_file` cannot be read"));
    assert_eq!(reason(&read.servers[2]), "`env_file`: line 2 is not `NAME=value`");
    assert_eq!(stdio(&read.servers[3]).cwd.as_deref(), Some("/h/work".as_ref()));
    assert_eq!(read.warnings.len(), 2);
}

#[test]
fn a_server_timeout_starts_from_the_gateways() {
    let text = "[gateway]\nrequest_timeout_ms = 1000\n[servers.a]\ncommand = \"x\"\nmax_total_ms = 1000";
    let server = &config(text).servers[0];
    assert_eq!(server.clocks().silent, Duration::from_secs(1));
    assert_eq!(server.clocks().total, Duration::from_secs(1));
    let folder = tempfile::tempdir().unwrap();
    let error =
        load_in(folder.path(), &text.replace("max_total_ms = 1000", "max_total_ms = 999"), &[]).unwrap_err();
    assert!(error.to_string().contains("`request_timeout_ms` is longer than `max_total_ms`"), "{error}");
}

#[test]
fn the_token_comes_from_one_place() {
    #[track_caller]
    fn check(http: &str, variables: &[(&str, &str)], expected: Result<TokenSource, &str>) {
        let folder = tempfile::tempdir().unwrap();
        match (load_in(folder.path(), &format!("[http]\n{http}"), variables), expected) {
            (Ok(config), Ok(expected)) => assert_eq!(config.http.token, expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (found, _) => panic!("{http}: {found:?}"),
        }
    }
    let variable =
        |name: &str, value: &str| TokenSource::Env { name: name.into(), value: value.to_owned().into() };
    check("", &[], Ok(TokenSource::None));
    check("", &[("BRIDGEHEAD_HTTP_TOKEN", "t")], Ok(variable("BRIDGEHEAD_HTTP_TOKEN", "t")));
    check("token_env = 'T'", &[("T", "t"), ("BRIDGEHEAD_HTTP_TOKEN", "u")], Ok(variable("T", "t")));
    check("token_file = '/t'", &[("BRIDGEHEAD_HTTP_TOKEN", "u")], Ok(TokenSource::File("/t".into())));
    check("token_file = '~/t'", &[("HOME", "/h")], Ok(TokenSource::File("/h/t".into())));
    check("token_file = ''", &[], Err("`token_file` is empty"));
    check("token_env = 'T'", &[], Err("the variable `T` is not set"));
    check("token_env = 'T'", &[("T", "a b")], Err("the variable `T` does not hold a bearer token"));
    check("token_env = 'T'\ntoken_file = 't'", &[("T", "t")], Err("both `token_file` and `token_env`"));
}

#[test]
fn addresses_need_a_port() {
    assert_eq!(config("http.listen = 'localhost:1'").http.listen.to_string(), "127.0.0.1:1");
    assert_eq!(config("http.listen = '0.0.0.0:1'").http.listen.to_string(), "0.0.0.0:1");
    let folder = tempfile::tempdir().unwrap();
    for bad in ["", "127.0.0.1", ":80", "example.com:80", "localhost:99999"] {
        assert!(load_in(folder.path(), &format!("http.listen = '{bad}'"), &[]).is_err(), "{bad}");
    }
}

/// The environment of the process is a map, so two gateways in one process may differ.
#[test]
fn without_a_file_the_demo_gets_the_environment() {
    let variables = BTreeMap::from([
        ("BRIDGEHEAD_MODE".to_owned(), "minimal".to_owned()),
        ("BRIDGEHEAD_HTTP_TOKEN".to_owned(), "t".to_owned()),
    ]);
    let config = load(None, &Environment::read(variables).unwrap(), "/".as_ref()).unwrap();
    assert_eq!((config.source, config.gateway.mode), (Source::Demo, Mode::Minimal));
    assert!(matches!(config.http.token, TokenSource::Env { .. }));
    assert!(config.servers.is_empty());
}

/// POOL-1: `isolation` is the one key, `shared = false` another way to write it, and a contradiction an error.
#[test]
fn who_shares_a_server() {
    #[track_caller]
    fn check(keys: &str, expected: Isolation) {
        let read = config(&format!("[servers.a]\ncommand = \"x\"\n{keys}"));
        assert_eq!(read.servers[0].isolation, expected, "{keys}");
    }
    check("", Isolation::Shared);
    check("isolation = \"shared\"", Isolation::Shared);
    check("isolation = \"session\"", Isolation::Session);
    check("shared = true", Isolation::Shared);
    check("shared = false", Isolation::Session);
    check("shared = false\nisolation = \"session\"", Isolation::Session);
    let server = &config("[servers.a]\ncommand = \"x\"\nidle_timeout_ms = 7\nlazy = true").servers[0];
    assert_eq!((server.idle_timeout, server.lazy), (Some(Duration::from_millis(7)), true));
    let server = &config("[servers.a]\ncommand = \"x\"\nidle_timeout_ms = 0").servers[0];
    assert_eq!((server.idle_timeout, server.lazy), (None, false));
}

/// POOL-5: health is probed with `ping`, unless the file chooses the tool list.
#[test]
fn what_a_server_is_probed_with() {
    for (keys, expected) in [
        ("", HealthProbe::Ping),
        ("health_probe = \"ping\"", HealthProbe::Ping),
        ("health_probe = \"list_tools\"", HealthProbe::ListTools),
        ("healthProbe = \"listTools\"", HealthProbe::ListTools),
        ("health_probe = \"LIST_TOOLS\"", HealthProbe::ListTools),
    ] {
        let read = config(&format!("[servers.a]\ncommand = \"x\"\n{keys}"));
        assert_eq!(read.servers[0].health_probe, expected, "{keys}");
    }
}

/// HOUR-7: a word in another case is the same word, and never silently the default.
#[test]
fn words_are_read_in_any_case() {
    let read = config(
        "[gateway]\nresource_uris = 'Rewrite'\n[servers.a]\ncommand = 'x'\ntype = 'STDIO'\nretry = 'Never'\n\
         output = 'Enforce'\ninteractive = 'Exclusive'\nera = 'Legacy'\nisolation = 'Session'\nnetwork = 'None'\n\
         [servers.b]\nurl = 'https://mcp.example.com'\ntype = 'Sse'\n[servers.c]\nurl = 'https://mcp.example.com/c'\n\
         type = 'STREAMABLE-HTTP'\n",
    );
    assert_eq!(read.gateway.resource_uris, ResourceUris::Rewrite);
    let [a, b, c] = &read.servers[..] else { panic!("{:?}", read.servers) };
    assert_eq!((a.retry, a.output, a.interactive), (Retry::Never, Output::Enforce, Interactive::Exclusive));
    assert_eq!((a.era, a.isolation), (EraChoice::Legacy, Isolation::Session));
    assert_eq!(a.confinement.as_ref().map(|walls| walls.network), Some(Network::None));
    assert!(matches!(&a.launch, Launch::Stdio(_)), "{:?}", a.launch);
    for (server, expected) in [(b, RemoteTransport::Sse), (c, RemoteTransport::Http)] {
        assert!(
            matches!(&server.launch, Launch::Remote(remote) if remote.transport == expected),
            "{server:?}"
        );
    }
}

/// LINK-5: every spelling of a remote server's `type`; without `type` the address decides.
#[test]
fn types_of_remote_servers() {
    #[track_caller]
    fn check(lines: &str, expected: RemoteTransport) {
        let config = config(&format!("[servers.a]\n{lines}"));
        match &config.servers[0].launch {
            Launch::Remote(remote) => assert_eq!(remote.transport, expected, "{lines}"),
            other => panic!("{lines}: {other:?}"),
        }
    }
    for name in ["http", "streamable-http", "streamableHttp", "streamable_http"] {
        check(&format!("type = \"{name}\"\nurl = \"http://h/mcp\""), RemoteTransport::Http);
    }
    check("type = \"sse\"\nurl = \"https://h/sse\"", RemoteTransport::Sse);
    check("type = \"websocket\"\nurl = \"ws://h/\"", RemoteTransport::WebSocket);
    check("type = \"ws\"\nurl = \"wss://h/\"", RemoteTransport::WebSocket);
    check("url = \"wss://h/\"", RemoteTransport::WebSocket);
    check("url = \"http://h:1/mcp\"", RemoteTransport::Probe);
}

/// LINK-2: headers take variables like `env`, and neither headers nor the address show their values.
#[test]
fn headers_of_remote_servers() {
    let text = "[servers.a]\nera = \"legacy\"\nurl = \"https://h/${KEY}\"\n\
                headers = { Authorization = \"Bearer ${KEY}\", \"X-Team\" = \"5\" }";
    let config = config_with(text, &[("KEY", "hunter2")]);
    let server = &config.servers[0];
    let Launch::Remote(remote) = &server.launch else { panic!("{server:?}") };
    assert_eq!(remote.headers["Authorization"].expose(), "Bearer hunter2");
    assert_eq!(remote.headers["X-Team"].expose(), "5");
    assert_eq!(remote.url.target(), "/hunter2");
    assert_eq!(server.era, EraChoice::Legacy);
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(config.interpolated.contains("KEY"));
}

/// LINK-2: a proxy takes variables, and its credentials are never shown. Without the keys there is no proxy and no redirect
/// is followed, even if the environment names a proxy.
#[test]
fn proxies_and_redirects_of_remote_servers() {
    let text = "[servers.a]\nurl = \"https://h/\"\nproxy = \"http://me:${KEY}@proxy:3128\"\nfollow_redirects = true\n\
                [servers.b]\nurl = \"https://h/\"";
    let config = config_with(text, &[("KEY", "hunter2"), ("HTTPS_PROXY", "http://other:1")]);
    let remote = |at: usize| match &config.servers[at].launch {
        Launch::Remote(remote) => remote,
        other => panic!("{other:?}"),
    };
    let proxy = remote(0).proxy.as_ref().unwrap();
    assert_eq!((proxy.host(), proxy.port()), ("proxy", 3128));
    assert_eq!(proxy.credentials().unwrap().expose(), "me:hunter2");
    assert!(remote(0).follow_redirects);
    assert_eq!((&remote(1).proxy, remote(1).follow_redirects), (&None, false));
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(config.interpolated.contains("KEY"));
}

/// ENV-9: each server configures what happens to results that do not match their schema; by default nothing.
#[test]
fn output_has_three_values() {
    #[track_caller]
    fn check(keys: &str, expected: Output) {
        let read = config(&format!("[servers.a]\ncommand = \"x\"\n{keys}\n"));
        assert_eq!(read.servers[0].output, expected, "{keys}");
    }
    check("", Output::Off);
    check("output = \"off\"", Output::Off);
    check("output = \"report\"", Output::Report);
    check("output = \"enforce\"", Output::Enforce);
}

/// WALL-6: `local_users` is the gateway's own user by default; a list may mix names and numbers.
#[test]
fn local_users_are_a_word_or_a_list() {
    #[track_caller]
    fn check(written: &str, expected: &LocalUsers) {
        assert_eq!(config(&format!("[http]\nlocal_users = {written}\n")).http.local_users, *expected);
    }
    assert_eq!(config("").http.local_users, LocalUsers::Same);
    check("\"same\"", &LocalUsers::Same);
    check("\"Any\"", &LocalUsers::Any);
    check("[\"root\", 1000, \"1001\"]", &LocalUsers::These(vec![0, 1000, 1001]));
    check("[]", &LocalUsers::These(Vec::new()));
    let folder = tempfile::tempdir().unwrap();
    for written in ["\"nobody-knows\"", "[\"nobody-knows\"]", "[-1]", "[true]", "7"] {
        let text = format!("[http]\nlocal_users = {written}\n");
        let error = load_in(folder.path(), &text, &[]).unwrap_err().to_string();
        assert!(error.contains("`local_users`"), "{error}");
    }
    assert_eq!(config_with("", &[("SUDO_UID", "1000")]).http.sudo_uid, Some(1000));
}

/// Every word of a key with fixed words has its own effect, and none falls back to the default.
#[test]
fn words_of_a_server_mean_what_they_say() {
    #[track_caller]
    fn check(keys: &str, holds: impl Fn(&ServerConfig) -> bool) {
        let config = config(&format!("[servers.a]\ncommand = \"x\"\n{keys}"));
        assert!(holds(&config.servers[0]), "{keys}: {:?}", config.servers[0]);
    }
    check("", |server| server.retry == Retry::Safe);
    check("retry = \"safe\"", |server| server.retry == Retry::Safe);
    check("retry = \"always\"", |server| server.retry == Retry::Always);
    check("retry = \"never\"", |server| server.retry == Retry::Never);
    check("", |server| server.era == EraChoice::Auto);
    check("era = \"modern\"", |server| server.era == EraChoice::Modern);
    check("era = \"legacy\"", |server| server.era == EraChoice::Legacy);
    check("", |server| server.interactive == Interactive::Auto);
    check("interactive = \"exclusive\"", |server| server.interactive == Interactive::Exclusive);
    check("interactive = \"shared\"", |server| server.interactive == Interactive::Shared);
}

/// BOX-1: limits are read in the units in their names.
#[test]
fn limits_have_the_units_of_their_names() {
    let text = "[servers.a]\ncommand = \"x\"\n[servers.a.limits]\nmax_memory_mb = 3\nmax_execution_ms = 4\n\
                max_processes = 5\nmax_open_files = 64\nmax_file_mb = 7\nmax_output_mb = 8\nmax_log_kb = 9\n";
    let limits = &config(text).servers[0].limits;
    assert_eq!(limits.memory, Some(3 << 20));
    assert_eq!(limits.execution, Some(Duration::from_millis(4)));
    assert_eq!(limits.processes, Some(5));
    assert_eq!(limits.open_files, Some(64));
    assert_eq!(limits.file_size, Some(7 << 20));
    assert_eq!(limits.output, Some(8 << 20));
    assert_eq!(limits.log, Some(9 << 10));
}

/// `enabled` is another way to write `disabled`; a contradiction is refused.
#[test]
fn enabled_and_disabled_may_agree_but_not_contradict() {
    let folder = tempfile::tempdir().unwrap();
    let load = |keys: &str| {
        load_in(folder.path(), &format!("[servers.a]\ncommand = \"x\"\n{keys}"), &[])
            .map(|config| config.disabled.len())
            .map_err(|error| error.to_string())
    };
    assert_eq!(load("disabled = true\nenabled = false"), Ok(1));
    assert_eq!(load("disabled = false\nenabled = true"), Ok(0));
    assert_eq!(load("enabled = false"), Ok(1));
    for keys in ["disabled = true\nenabled = true", "disabled = false\nenabled = false"] {
        let error = load(keys).unwrap_err();
        assert!(error.contains("`enabled` contradicts `disabled`"), "{keys}: {error}");
    }
}

/// A host or an origin that no request can have is refused.
#[test]
fn hosts_and_origins_that_match_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let load = |text: &str| {
        load_in(folder.path(), &format!("[http]\n{text}"), &[]).map_err(|error| error.to_string())
    };
    for host in ["*", "gateway.example", "gateway.example:4848", "[::1]:4848"] {
        let config = load(&format!("allowed_hosts = [\"{host}\"]")).unwrap();
        assert_eq!(config.http.allowed_hosts, [host]);
    }
    for host in ["", "a b", "a/b", "u@a", "a?b", "a#b", "ä"] {
        let error = load(&format!("allowed_hosts = [\"{host}\"]")).unwrap_err();
        assert!(error.contains("an entry of `allowed_hosts` cannot match anything"), "{host}: {error}");
    }
    for origin in ["https://a.example", "http://localhost:3000"] {
        assert_eq!(
            load(&format!("allowed_origins = [\"{origin}\"]")).unwrap().http.allowed_origins,
            [origin]
        );
    }
    for origin in ["a.example", "://a", "https://", "https://a/b"] {
        let error = load(&format!("allowed_origins = [\"{origin}\"]")).unwrap_err();
        assert!(error.contains("an entry of `allowed_origins` cannot match anything"), "{origin}: {error}");
    }
}

/// The name of a file decides its format; the first character decides only if the name does not.
#[test]
fn the_name_of_a_file_says_how_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let load = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        load(Some(name.as_ref()), &environment(&[]), folder.path())
    };
    let json = "{\"mcpServers\": {\"a\": {\"command\": \"x\"}}}";
    for name in ["a.json", "a.jsonc", "a.conf", "a"] {
        assert_eq!(load(name, json).unwrap().servers.len(), 1, "{name}");
    }
    assert_eq!(load("commented", &format!("// mine\n{json}")).unwrap().servers.len(), 1);
    assert_eq!(load("b.conf", "[servers.a]\ncommand = \"x\"\n").unwrap().servers.len(), 1);
    let error = load("a.toml", json).unwrap_err().to_string();
    assert!(error.contains("a.toml:1:1"), "{error}");
    assert!(load("b.json", "[servers.a]\ncommand = \"x\"\n").is_err());
}
