//! The defaults of a server, and that each key sets what it names.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed assumption is a failed test")]

use std::time::Duration;

use bridgehead_config::{
    Config, Environment, EraChoice, GatewaySettings, HealthProbe, Isolation, Launch, Limits, Output, Queue,
    Retry, ServerConfig, Stdio, load,
};

#[track_caller]
fn config(text: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bridgehead.toml"), text).unwrap();
    let environment = Environment::read(Default::default()).unwrap();
    load(Some("bridgehead.toml".as_ref()), &environment, folder.path())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The one server of a file.
#[track_caller]
fn server(keys: &str) -> ServerConfig {
    config(&format!("[servers.a]\ncommand = \"x\"\n{keys}")).servers.remove(0)
}

const fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// POOL-1, POOL-2, POOL-3, POOL-5, POOL-7, BRG-6, ENV-9, BOX-1: the defaults of a server, in a file and in a program: shared
/// and never asleep; 180 000 ms for a start, 60 000 ms of health to count as stable, 30 000 ms between probes by `ping`;
/// 64 calls at once; safe retries; results not checked; nothing limited.
#[test]
fn defaults_of_a_server() {
    let launch = Launch::Stdio(Stdio::new("x", [""; 0]));
    let embedded = ServerConfig::new("a".parse().unwrap(), launch, &GatewaySettings::default());
    for server in [server(""), embedded] {
        assert_eq!((server.isolation, server.idle_timeout, server.lazy), (Isolation::Shared, None, false));
        assert_eq!((server.restart, server.jitter), (true, true));
        assert_eq!(server.start_timeout, milliseconds(180_000));
        assert_eq!(server.stable_after, milliseconds(60_000));
        assert_eq!((server.probe_interval, server.health_probe), (milliseconds(30_000), HealthProbe::Ping));
        assert_eq!(server.queue, Queue { name: None, concurrency: 64, max_waiting: 1024 });
        assert_eq!((server.retry, server.output), (Retry::Safe, Output::Off));
        assert_eq!((server.era, server.max_leases), (EraChoice::Auto, 8));
        assert_eq!(server.clocks().silent, milliseconds(300_000));
        assert_eq!(server.clocks().total, milliseconds(3_600_000));
        let none = Limits {
            memory: None,
            execution: None,
            processes: None,
            open_files: None,
            file_size: None,
            output: None,
            log: None,
        };
        assert_eq!(server.limits, none);
        assert!(server.tools.is_empty() && server.require.is_empty() && server.confinement.is_none());
    }
}

/// POOL-8: eight servers are launched at the same time, unless the file sets another number.
#[test]
fn how_many_are_launched_at_once() {
    assert_eq!(config("").gateway.init_concurrency, 8);
    assert_eq!(GatewaySettings::default().init_concurrency, 8);
    assert_eq!(config("[gateway]\ninit_concurrency = 3").gateway.init_concurrency, 3);
}

/// POOL-2, POOL-3, POOL-5, BRG-6: each key sets what it names, and nothing else.
#[test]
fn what_is_said_of_a_server_holds() {
    #[track_caller]
    fn check(keys: &str, set: impl FnOnce(&mut ServerConfig)) {
        let mut expected = server("");
        set(&mut expected);
        assert_eq!(format!("{:?}", server(keys)), format!("{expected:?}"), "{keys}");
    }
    check("restart = false", |server| server.restart = false);
    check("jitter = false", |server| server.jitter = false);
    check("start_timeout_ms = 7", |server| server.start_timeout = milliseconds(7));
    check("stable_after_ms = 8", |server| server.stable_after = milliseconds(8));
    check("probe_interval_ms = 9", |server| server.probe_interval = milliseconds(9));
    check("health_probe = \"list_tools\"", |server| server.health_probe = HealthProbe::ListTools);
    check("retry = \"always\"", |server| server.retry = Retry::Always);
    check("retry = \"never\"", |server| server.retry = Retry::Never);
    check("retry = \"safe\"", |_| ());
    check("max_leases = 3", |server| server.max_leases = 3);
}

/// The default limits of a call in its own process.
const OF_A_CALL: Limits = Limits {
    memory: Some(256 << 20),
    execution: Some(milliseconds(30_000)),
    processes: Some(64),
    open_files: Some(256),
    file_size: Some(64 << 20),
    output: Some(16 << 20),
    log: Some(64 << 10),
};

/// BOX-1: a call in its own process gets 256 MB and 30 000 ms, unless the file sets limits for the server or the tool.
/// Servers that share a process can have the same limits, and have none by default.
#[test]
fn what_calls_may_use() {
    assert_eq!(Limits::OF_A_CALL, OF_A_CALL);
    assert_eq!(server("isolation = \"call\"").limits, OF_A_CALL);
    for isolation in ["shared", "session"] {
        assert_eq!(server(&format!("isolation = \"{isolation}\"")).limits, Limits::default(), "{isolation}");
    }
    let keys = "max_memory_mb = 1\nmax_execution_ms = 2\nmax_processes = 3\nmax_open_files = 40\nmax_file_mb = 5\n\
                max_output_mb = 6\nmax_log_kb = 7";
    let all = Limits {
        memory: Some(1 << 20),
        execution: Some(milliseconds(2)),
        processes: Some(3),
        open_files: Some(40),
        file_size: Some(5 << 20),
        output: Some(6 << 20),
        log: Some(7 << 10),
    };
    for isolation in ["shared", "session", "call"] {
        let written = server(&format!("isolation = \"{isolation}\"\n[servers.a.limits]\n{keys}"));
        assert_eq!(written.limits, all, "{isolation}");
    }
    let some = server("isolation = \"call\"\n[servers.a.limits]\nmax_memory_mb = 9");
    assert_eq!(some.limits, Limits { memory: Some(9 << 20), ..OF_A_CALL }, "the others stay as they are");

    let of_tools = server(&format!(
        "isolation = \"call\"\n[servers.a.tools.t.limits]\n{keys}\n[servers.a.tools.u.limits]\nmax_execution_ms = 8"
    ));
    assert_eq!((of_tools.limits, of_tools.tools["t"].limits), (OF_A_CALL, all));
    let brief = Limits { execution: Some(milliseconds(8)), ..Limits::default() };
    assert_eq!(of_tools.tools["u"].limits, brief);
    assert_eq!(brief.or(OF_A_CALL), Limits { execution: Some(milliseconds(8)), ..OF_A_CALL });
    assert_eq!(all.or(OF_A_CALL), all);
    assert_eq!(Limits::default().or(all), all);
}
