//! What a configuration says about a server holds for calls from this program too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bridgehead::access::{Access, AccessSettings, BudgetRecord};
use bridgehead::config::{
    Environment, GatewaySettings, Isolation, Launch, Limits, Mode, ServerConfig, ToolFilter, load_text,
};
use bridgehead::tools::StartToolsError;
use bridgehead::{
    Action, Allowance, Authorizer, Code, Config, Decision, GatewayError, Limited, Limiter, Outcome,
    Principal, Registry, Thing,
};
use bridgehead_testkit::{Behaviour, LeakCheck, Mock, Recorder, Tool};
use parking_lot::Mutex;
use serde_json::json;

use crate::support::{World, native, options, server, structured, until};

fn pids() -> Mock {
    Mock::legacy().tool("pid", Behaviour::ProcessId)
}

/// LIB-1, CAT-4, SRV-5: what the configuration filters or the mode hides is neither listed nor called.
#[tokio::test]
async fn filters_and_modes_hold() {
    let mock = Mock::legacy()
        .full_tool(Tool::new("read", Behaviour::Echo).annotations(r#"{"readOnlyHint":true}"#))
        .tool("write", Behaviour::Echo)
        .tool("secret_read", Behaviour::Echo);
    let filtered = |server: &mut ServerConfig| server.filter = ToolFilter::new(["*"], ["secret*"]).unwrap();
    let settings = GatewaySettings { mode: Mode::Readonly, ..GatewaySettings::default() };
    let world = World::with(&[("one", mock)], filtered, |options| options.settings(settings)).await;
    let names: Vec<_> = world.tools.list().into_iter().map(|tool| tool.name.to_string()).collect();
    assert_eq!(names, ["one__read"], "settings alone do not take the prefix away");
    for (tool, words) in
        [("one__secret_read", "no server offers"), ("one__write", "not available in mode `readonly`")]
    {
        let refused = world.tools.call(tool, json!({})).await.unwrap_err();
        assert_eq!(refused.code(), Code::ProviderToolUnknown, "{refused}");
        assert!(refused.message().contains(words), "{refused}");
    }
    assert!(world.tools.call("one__read", json!({})).await.is_ok());
    world.end().await;
}

/// LIB-1, POOL-7: a full queue refuses at once; the place is free again after the call.
#[tokio::test]
async fn a_full_queue_refuses() {
    let mock = Mock::legacy().tool("hangs", Behaviour::HangUntilCancelled).tool("echo", Behaviour::Echo);
    let narrow = |server: &mut ServerConfig| {
        (server.queue.concurrency, server.queue.max_waiting) = (1, 0);
        server.cancel_grace = Some(Duration::ZERO);
    };
    let world = World::with(&[("one", mock)], narrow, |options| options).await;
    let holder = tokio::spawn(world.tools.call("one__hangs", json!({})));
    until(|| world.recorder.enters().len() == 1).await;
    let refused = world.tools.call("one__echo", json!({})).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.retryable(), refused.may_have_run()),
        (Code::ProviderUnavailable, true, false)
    );
    holder.abort();
    assert!(holder.await.unwrap_err().is_cancelled());
    assert!(world.tools.call("one__echo", json!({})).await.is_ok());
    world.end().await;
}

/// LIB-1, PIPE-2: calls of a locked tool take turns, of a server and of this program.
#[tokio::test]
async fn locked_tools_take_turns() {
    let mock = Mock::legacy().tool("slow", Behaviour::Echo.after(50));
    let locked = |server: &mut ServerConfig| {
        server.tools.entry("slow".to_owned()).or_default().lock = Some(true);
    };
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&most);
    let own = native("own", move |_| {
        let (running, most) = (Arc::clone(&running), Arc::clone(&counted));
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            json!(0)
        }
    });
    let world = World::with(&[("one", mock)], locked, |options| options.register(own)).await;
    for tool in ["one__slow", "own"] {
        let calls = (0..4).map(|_| world.tools.call(tool, json!({})));
        for ended in futures_util::future::join_all(calls).await {
            assert!(ended.is_ok(), "{ended:?}");
        }
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
    // With turns, every call ends before the next one enters.
    let kinds: Vec<_> = world
        .recorder
        .events()
        .iter()
        .map(|event| matches!(event, bridgehead_testkit::Event::Enter(_)))
        .collect();
    assert_eq!(kinds, [true, false].repeat(8));
    world.end().await;
}

/// LIB-1, POOL-1: by default equal servers of one registry are one process. `isolation = "session"` gives these tools one of
/// their own, and `isolation = "call"` gives each call its own.
#[tokio::test]
async fn isolation_holds() {
    let shared = World::start(&[("one", pids())]).await;
    assert_eq!(shared.pid("one__pid").await, shared.pid("one__pid").await);
    shared.end().await;

    let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
    let registry = Registry::new();
    for (isolation, own, each) in
        [(Isolation::Shared, false, false), (Isolation::Session, true, false), (Isolation::Call, true, true)]
    {
        let mut server = server("one", &pids(), &leaks);
        server.isolation = isolation;
        let start = async || {
            options(&recorder).registry(registry.clone()).server(server.clone()).start().await.unwrap()
        };
        let (first, second) = (start().await, start().await);
        let pid = async |tools: &bridgehead::tools::Tools| {
            structured(&tools.call("one__pid", json!({})).await.unwrap())["pid"].as_u64().unwrap()
        };
        let (one, again, other) = (pid(&first).await, pid(&first).await, pid(&second).await);
        assert_eq!((one != again, one != other), (each, own), "{isolation:?}");
        first.close().await;
        second.close().await;
        assert!(registry.is_empty());
    }
    leaks.assert_clean().await;
    recorder.assert_paired();
}

/// LIB-5: tools of two registries share nothing; tools of one registry share a server until the last of them is closed.
#[tokio::test]
async fn two_registries_share_nothing() {
    let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
    let (one, two) = (Registry::new(), Registry::new());
    let start = async |registry: &Registry| {
        let options = options(&recorder).registry(registry.clone()).server(server("one", &pids(), &leaks));
        let tools = options.start().await.unwrap();
        let pid = structured(&tools.call("one__pid", json!({})).await.unwrap())["pid"].clone();
        (tools, pid)
    };
    let ((first, a), (second, b), (apart, c)) = (start(&one).await, start(&one).await, start(&two).await);
    assert!(a == b && a != c, "{a} {b} {c}");
    first.close().await;
    assert_eq!(structured(&second.call("one__pid", json!({})).await.unwrap())["pid"], a, "it is still used");
    assert_eq!(first.call("one__pid", json!({})).await.unwrap_err().code(), Code::ProviderUnavailable);
    two.clean_up().await;
    assert_eq!(apart.call("one__pid", json!({})).await.unwrap_err().code(), Code::ProviderUnavailable);
    assert!(second.call("one__pid", json!({})).await.is_ok(), "the other registry is not touched");
    for tools in [second, apart] {
        tools.close().await;
    }
    assert!(one.is_empty() && two.is_empty());
    leaks.assert_clean().await;
    recorder.assert_paired();
}

/// LIB-1, POOL-3: a server that crashed comes back, and a call that its server provably did not run is repeated.
#[tokio::test]
async fn a_crashed_server_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let once = Behaviour::CrashOnce { marker: folder.path().join("crashed") };
    let idempotent = Tool::new("once", once).annotations(r#"{"idempotentHint":true}"#);
    let mock = pids().full_tool(idempotent).tool("dies", Behaviour::Crash(bridgehead_testkit::Crash::Abort));
    let world = World::start(&[("one", mock)]).await;
    let before = world.pid("one__pid").await;
    assert_eq!(world.tools.call("one__dies", json!({})).await.unwrap_err().code(), Code::ProviderCrashed);
    let after = world.pid("one__pid").await;
    assert_ne!(before, after);
    assert_eq!(world.call("one__once").await, json!({}), "sent again to the next process");
    assert_ne!(world.pid("one__pid").await, after);
    world.end().await;
}

/// LIB-1, BOX-1: limits of the configuration end a call.
#[tokio::test]
async fn limits_hold() {
    let mock = Mock::legacy().tool("hangs", Behaviour::Hang).tool("large", Behaviour::Flood { megabytes: 2 });
    let limited = |server: &mut ServerConfig| {
        server.limits = Limits { output: Some(1 << 20), ..Limits::default() };
        let hangs = server.tools.entry("hangs".to_owned()).or_default();
        hangs.limits.execution = Some(Duration::from_millis(100));
    };
    let world = World::with(&[("one", mock)], limited, |options| options).await;
    let late = world.tools.call("one__hangs", json!({})).await.unwrap_err();
    assert_eq!(late.code(), Code::ProviderTimeout, "{late}");
    let large = world.tools.call("one__large", json!({})).await.unwrap_err();
    assert!(large.code() == Code::ProviderInvalidOutput, "{large}");
    world.end().await;
}

/// LIB-1: a server is found by its bare name and gets the variables of the process that it needs, unless a map is given.
#[tokio::test]
async fn programs_are_found_by_name() {
    let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
    let mock = Mock::new().tool("env", Behaviour::Environment { values: vec!["PATH".to_owned()] });
    let mut named = server("one", &mock, &leaks);
    let Launch::Stdio(stdio) = &mut named.launch else { panic!("a program") };
    let program = std::mem::replace(&mut stdio.command, "sh".to_owned());
    stdio.args = vec!["-c".to_owned(), format!("exec '{program}'")];
    let builder =
        || bridgehead::tools::Tools::builder().audit(Arc::new(recorder.clone())).server(named.clone());
    let tools = builder().start().await.unwrap();
    let told = structured(&tools.call("one__env", json!({})).await.unwrap());
    assert_eq!(told["values"]["PATH"], std::env::var("PATH").unwrap());
    assert!(!told["names"].as_array().unwrap().contains(&json!("CARGO_MANIFEST_DIR")), "{told}");
    tools.close().await;
    let tools = builder().environment([].into()).start().await.unwrap();
    let reason = tools.health()[0].reason.clone().unwrap();
    assert!(reason.contains("PATH is not set"), "{reason}");
    tools.close().await;
    leaks.assert_clean().await;
}

/// Denies writing, and remembers who was asked for.
struct Reading(Mutex<Vec<String>>);

impl Authorizer for Reading {
    fn class(&self, _principal: &Principal) -> Arc<str> {
        "all".into()
    }

    fn decide(&self, principal: &Principal, _action: Action, thing: Thing<'_>) -> Decision {
        self.0.lock().push(principal.to_string());
        match thing.name {
            "write" => Decision::Deny,
            "some" => Decision::ByArguments,
            _ => Decision::Allow,
        }
    }

    fn allows_call(&self, _principal: &Principal, _tool: Thing<'_>, arguments: &bridgehead::Raw) -> bool {
        arguments.as_str().contains("good")
    }
}

/// Admits a number of calls, then panics.
struct Few(AtomicUsize);

impl Limiter for Few {
    fn admit(&self, principal: &Principal, request: Limited<'_>) -> Result<Allowance, GatewayError> {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            0..2 => Ok(Allowance::free()),
            2 => {
                let message = format!("{principal}: no more {}", request.name);
                Err(GatewayError::new(Code::RateLimited, message).over_limit(Duration::from_secs(7), None))
            }
            _ => panic!("the limiter panics"),
        }
    }
}

/// LIB-1: the authorizer and the limiter decide about the embedder's principal; what it may not use does not exist for it.
/// LIB-5: a panic of such a part fails its call, and no other.
#[tokio::test]
async fn the_principal_is_authorized_and_limited() {
    let authorizer = Arc::new(Reading(Mutex::default()));
    let tool = |name| native(name, |_| async { json!(0) });
    let world = World::with(
        &[],
        |_| (),
        |options| {
            let options = options.register(tool("read")).register(tool("write")).register(tool("some"));
            let limiter = Arc::new(Few(AtomicUsize::new(0)));
            options
                .principal(Principal::named("ada"))
                .authorizer(Arc::clone(&authorizer) as _)
                .limiter(limiter)
        },
    )
    .await;
    let names: Vec<_> = world.tools.list().into_iter().map(|tool| tool.name.to_string()).collect();
    assert_eq!(names, ["read", "some"]);
    assert!(authorizer.0.lock().iter().all(|principal| principal == "ada"));
    let code = async |tool: &str, arguments| {
        let ended = world.tools.call(tool, arguments).await;
        ended.map(|_| ()).map_err(|error| (error.code(), error.message().to_owned(), error.retry_after()))
    };
    assert_eq!(code("some", json!({"is": "good"})).await, Ok(()));
    assert_eq!(code("some", json!({"is": "bad"})).await.unwrap_err().0, Code::InvalidParams);
    assert_eq!(code("write", json!({})).await.unwrap_err().0, Code::ProviderToolUnknown);
    assert_eq!(
        code("read", json!({})).await.unwrap_err(),
        (Code::RateLimited, "ada: no more read".to_owned(), Some(Duration::from_secs(7)))
    );
    let panicked = code("read", json!({})).await.unwrap_err();
    assert!(panicked.0 == Code::HandlerError && panicked.1.contains("panicked"), "{panicked:?}");
    assert!(world.tools.list().len() == 2, "the tools go on");
    until(|| world.recorder.exits().len() == 5).await;
    let last = world.recorder.exits().pop().unwrap();
    assert!(matches!(last.outcome(), Outcome::Error { code, .. } if code == "HANDLER_ERROR"), "{last:?}");
    world.end().await;
}

/// A configuration with the server `one`, which plays a mock, and these rules.
fn ruled(rules: &str, mock: &Mock, leaks: &LeakCheck) -> Config {
    let text = format!("[servers.one]\ncommand = \"replaced\"\n{rules}");
    let environment = Environment::read(std::collections::BTreeMap::new()).unwrap();
    let file = std::path::Path::new("bridgehead.toml");
    let mut config = load_text(file, text.into_bytes(), &environment, std::path::Path::new("/")).unwrap();
    config.servers[0].launch = server("one", mock, leaks).launch;
    config
}

/// LIB-1, ACC-3, ACC-5: rules and limits of a configuration hold for the principal of this program; what it may not use does not
/// exist for it, and what a program passes itself replaces them.
#[tokio::test]
async fn rules_and_limits_of_a_configuration_hold() {
    let mock = Mock::legacy().tool("read", Behaviour::Echo).tool("write", Behaviour::Echo);
    let rules = "[[policy]]\nwho = [\"local\"]\ntools = [\"one/read\"]\n\
                 [[limits.rules]]\nwho = [\"*\"]\ntools = [\"one/*\"]\nrate = \"2/h\"\nburst = 2\n";
    let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
    let config = ruled(rules, &mock, &leaks);
    let names = |tools: &bridgehead::tools::Tools| -> Vec<String> {
        tools.list().into_iter().map(|tool| tool.name.to_string()).collect()
    };
    let tools = options(&recorder).configured(&config).start().await.unwrap();
    assert_eq!(names(&tools), ["read"]);
    let denied = tools.call("write", json!({})).await.unwrap_err();
    assert_eq!(denied.code(), Code::ProviderToolUnknown, "{denied}");
    for _ in 0..2 {
        tools.call("read", json!({})).await.unwrap();
    }
    let limited = tools.call("read", json!({})).await.unwrap_err();
    assert_eq!(limited.code(), Code::RateLimited, "{limited}");
    tools.close().await;

    let other = options(&recorder).configured(&config).principal(Principal::named("stranger"));
    let other = other.start().await.unwrap();
    assert_eq!(names(&other), [""; 0], "a rule allows something, and nothing to this principal");
    other.close().await;

    let own = options(&recorder).configured(&config).authorizer(Arc::new(Reading(Mutex::default())));
    let own = own.limiter(Arc::new(Few(AtomicUsize::new(0)))).start().await.unwrap();
    assert_eq!(names(&own), ["read"], "the program's own authorizer, which denies `write`, decides alone");
    own.close().await;
    leaks.assert_clean().await;
    recorder.assert_paired();
}

/// LIB-1, ACC-5: a budget is counted from a record, so without one the start fails and says what to pass; with one it holds.
#[tokio::test]
async fn a_budget_needs_a_record() {
    let mock = Mock::legacy().tool("read", Behaviour::Echo);
    let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
    let config = ruled("[[limits.rules]]\nwho = [\"*\"]\nbudget_per_day = 1\n", &mock, &leaks);
    let refused = options(&recorder).configured(&config).start().await.unwrap_err();
    assert!(matches!(refused, StartToolsError::BudgetWithoutRecord { line: 3 }), "{refused}");
    let words = refused.to_string();
    assert!(words.contains("line 3") && words.contains("ToolsOptions::access"), "{words}");

    let folder = tempfile::tempdir().unwrap();
    let record = BudgetRecord {
        archive: bridgehead::audit::Archive::in_folder(folder.path()),
        configuration: "bridgehead.toml".to_owned(),
    };
    let clock = Arc::new(bridgehead::SystemClock::default());
    let access = Access::new(AccessSettings::configured(&config), clock, Some(record)).unwrap();
    let tools = options(&recorder).configured(&config).access(&access).start().await.unwrap();
    tools.call("read", json!({})).await.unwrap();
    let spent = tools.call("read", json!({})).await.unwrap_err();
    assert_eq!(spent.code(), Code::BudgetExhausted, "{spent}");
    tools.close().await;
    // The rules hold the file in which gateways share what was spent.
    drop((tools, access));
    leaks.assert_clean().await;
}

/// LIB-1, ACC-3: the rules of several configurations hold together.
#[tokio::test]
async fn a_second_configuration_adds_to_the_first() {
    let mock = Mock::legacy().tool("read", Behaviour::Echo).tool("write", Behaviour::Echo);
    let rules = "[[policy]]\nwho = [\"*\"]\ntools = [\"*/*\"]\ndeny_tools = [\"one/write\"]\n";
    let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
    let first = ruled(rules, &mock, &leaks);
    let limited = "[[limits.rules]]\nwho = [\"*\"]\nrate = \"1/h\"\nburst = 1\n";
    let mut second = ruled(limited, &mock, &leaks);
    second.servers[0].name = "two".parse().unwrap();
    let tools = options(&recorder).configured(&first).configured(&second).start().await.unwrap();
    let names: Vec<String> = tools.list().into_iter().map(|tool| tool.name.to_string()).collect();
    assert_eq!(names, ["one__read", "two__read", "two__write"]);
    tools.call("one__read", json!({})).await.unwrap();
    let limited = tools.call("two__read", json!({})).await.unwrap_err();
    assert_eq!(limited.code(), Code::RateLimited, "{limited}");
    tools.close().await;
    leaks.assert_clean().await;
}

/// LIB-1, AUD-4: what `audit.redact` of a configuration describes is hidden in the whole process.
#[tokio::test]
async fn redaction_of_a_configuration_holds() {
    let (leaks, recorder) = (LeakCheck::start(), Recorder::new());
    let config = ruled("[audit]\nredact = [\"hunter[0-9]+\"]\n", &Mock::legacy(), &leaks);
    drop(options(&recorder).configured(&config));
    let shown = bridgehead_wire::Redactor::default().text("it is hunter2").into_owned();
    assert!(!shown.contains("hunter2"), "{shown}");
}
