//! The steps of a supervisor, one by one: what it reads from a server, when it lists it, and when it gives it up.

use bridgehead_config::{GatewaySettings, Remote};
use bridgehead_events::{Delivery, Topic};
use bridgehead_wire::Revision;
use serde_json::json;

use super::*;
use crate::link::negotiate::NegotiateError;
use crate::server::Upstream;
use crate::testing;

/// The supervisor of a server that it does not run, and its state.
fn supervisor(server: ServerConfig) -> (Supervisor, watch::Receiver<UpstreamState>) {
    let core = testing::core(ServerConfig { launch: testing::unusable().launch, ..server.clone() });
    let (state, states) = watch::channel(UpstreamState::Stopped);
    (Supervisor::new(core, Arc::new(server), state, testing::surroundings()), states)
}

/// CAT-2: the tools of a server that is down stay in the lists for 30 s, and not a moment longer.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_down_is_listed_for_a_while() {
    let (supervisor, states) = supervisor(testing::unusable());
    let since = Instant::now();
    for (after, listed) in [(0, true), (29_999, true), (30_000, false), (30_001, false)] {
        tokio::time::advance(since + Duration::from_millis(after) - Instant::now()).await;
        supervisor.down(since, 3, ("it broke", true), None);
        let UpstreamState::Restarting(outage) = states.borrow().clone() else { panic!("it is down") };
        assert_eq!(outage.listed, listed, "after {after} ms");
        assert_eq!((outage.attempts, outage.reason.as_str(), outage.lasting), (3, "it broke", true));
    }
}

/// CAT-2: when that time is over, the tools of a server that is down leave the lists; work in progress continues. A
/// server that is not down, or not listed, does not change.
#[tokio::test(start_paused = true)]
async fn tools_leave_the_lists_in_time() {
    let (supervisor, states) = supervisor(testing::unusable());
    let listed = || match &*states.borrow() {
        UpstreamState::Restarting(outage) => Some(outage.listed),
        _ => None,
    };
    supervisor.down(Instant::now(), 1, ("it broke", false), Some(&Arc::default()));
    let until = Instant::now() + Duration::from_secs(5);
    let took = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    supervisor.unlisting(until, took(4)).await;
    assert_eq!(listed(), Some(true), "the server came back in time");
    let work = async {
        took(2).await;
        let seen = listed();
        took(1).await;
        seen
    };
    assert_eq!(supervisor.unlisting(until, work).await, Some(false));
    let UpstreamState::Restarting(outage) = states.borrow().clone() else { panic!("it is down") };
    assert!(outage.last.is_some() && outage.reason == "it broke" && outage.attempts == 1);
    supervisor.become_state(UpstreamState::Stopped);
    supervisor.unlisting(until, took(1)).await;
    assert_eq!(listed(), None);
}

/// GATE-6: the signal for each change of state; an unchanged state gives none.
#[tokio::test(start_paused = true)]
async fn which_change_of_state_it_is() {
    #[track_caller]
    fn check(before: &UpstreamState, now: &UpstreamState, expected: Option<StateChange<'_>>) {
        assert_eq!(change(before, now, false), expected, "{before:?} to {now:?}");
    }
    let (link, _far) = testing::link();
    let ready = UpstreamState::Ready(Arc::new(Ready {
        link,
        peer: testing::peer(Revision::V2025_11_25, "{}"),
        tools: Arc::default(),
        transport: "stdio",
        pid: None,
        restarts: 0,
        since: Instant::now(),
    }));
    let starting = UpstreamState::starting(None);
    let asleep = UpstreamState::Asleep(Arc::default());
    let down = |listed| {
        let (since, reason) = (Instant::now(), "it broke".to_owned());
        let outage = Outage { since, attempts: 1, reason, last: None, listed, lasting: false };
        UpstreamState::Restarting(Arc::new(outage))
    };
    let failure = Failure { stage: FailureStage::Crashed, reason: "it broke".to_owned() };
    let failed = UpstreamState::Failed(Arc::new(failure));
    check(&starting, &starting, None);
    check(&starting, &ready, Some(StateChange::Ready));
    check(&ready, &ready, None);
    check(&ready, &asleep, Some(StateChange::Asleep));
    check(&asleep, &starting, Some(StateChange::Woken));
    check(&ready, &down(true), Some(StateChange::Down));
    check(&starting, &down(false), Some(StateChange::Down));
    check(&down(true), &down(true), None);
    check(&down(true), &down(false), Some(StateChange::Unlisted));
    check(&down(false), &down(false), None);
    check(&down(false), &ready, Some(StateChange::Ready));
    check(&down(true), &failed, Some(StateChange::Failed("it broke")));
    assert_eq!(change(&starting, &failed, true), Some(StateChange::Spent("it broke")));
    check(&failed, &starting, Some(StateChange::StartedAnew));
    check(&failed, &UpstreamState::Stopped, Some(StateChange::Stopped));
}

/// SRV-3: a server that changes its lists all the time does not make the disk busy.
#[tokio::test(start_paused = true)]
async fn how_often_a_list_is_saved() {
    let mut saves = Saves { used_until: Instant::now() };
    let mut in_a_row = || (0..100).take_while(|_| saves.may_save()).count();
    assert_eq!((in_a_row(), in_a_row()), (10, 0));
    tokio::time::advance(Duration::from_secs(25)).await;
    assert_eq!(in_a_row(), 2);
    tokio::time::advance(Duration::from_secs(1_000)).await;
    assert_eq!(in_a_row(), 10);
}

/// HOUR-6: which failures confinement may have caused, which will repeat, and whether a program ran.
#[test]
fn what_a_failed_start_says() {
    #[track_caller]
    fn check(error: &ConnectError, [sandbox, ran, walls, lasting]: [bool; 4]) {
        let refusal = Refusal::from(error);
        let found = [refusal.sandbox, refusal.ran, refusal.walls, refusal.lasting];
        assert_eq!(found, [sandbox, ran, walls, lasting], "{error}");
        assert_eq!(refusal.reason, error.to_string());
    }
    let program = || "p".to_owned();
    check(&SpawnError::NotFound { program: program() }.into(), [false, false, false, true]);
    check(&SpawnError::NotExecutable { path: "/p".into() }.into(), [false, false, true, true]);
    let limits = SpawnError::Limits { program: program(), reason: "x".to_owned() };
    check(&limits.into(), [true, false, true, true]);
    let ended = LinkError::Closed("it ended".into());
    check(&NegotiateError::Link(ended).into(), [false, true, true, false]);
    for (status, lasting) in [(401, true), (403, true), (404, false), (429, false), (503, false)] {
        let status = http::StatusCode::from_u16(status).unwrap();
        let turned_away = crate::transport::http::refused(status, "x".to_owned());
        check(&NegotiateError::Link(turned_away).into(), [false, true, true, lasting]);
    }
    let refused = NegotiateError::NotModern { code: -32000, message: "no".to_owned() };
    check(&refused.into(), [false, true, true, true]);
    check(&ConnectError::Unusable("x".to_owned()), [false, true, true, true]);
}

/// A process is prepared only if one is about to be started.
#[tokio::test]
async fn what_starts_now() {
    #[track_caller]
    fn check(server: ServerConfig, expected: bool) {
        assert_eq!(supervisor(server).0.starts_now(), expected);
    }
    let far = Launch::Remote(Remote::new("http://127.0.0.1:9/".parse().unwrap()));
    check(testing::missing(), true);
    check(ServerConfig { lazy: true, ..testing::missing() }, false);
    check(ServerConfig::new("far".parse().unwrap(), far, &GatewaySettings::default()), false);
}

/// POOL-4: after as many failed attempts of one outage as the policy allows a server is given up, which is reported
/// once.
#[tokio::test(start_paused = true)]
async fn a_server_is_given_up_after_its_attempts() {
    let around = testing::surroundings();
    let policy = RestartPolicy { attempts: Some(3), ..around.policy };
    let mut told = around.signals.bus().subscribe(64);
    let upstream = Upstream::start(testing::missing(), Surroundings { policy, ..around });
    let mut states = upstream.watch();
    let given_up = states.wait_for(|state| matches!(state, UpstreamState::Failed(_)));
    let given_up = tokio::time::timeout(Duration::from_secs(3_600), given_up).await.expect("it is given up");
    let UpstreamState::Failed(failure) = given_up.unwrap().clone() else { unreachable!() };
    assert_eq!(failure.stage, FailureStage::Init);
    let events: Vec<_> = std::iter::from_fn(|| told.try_next())
        .map(|delivery| match delivery {
            Delivery::Event(event) => event,
            Delivery::Missed(count) => panic!("{count} events were missed"),
        })
        .collect();
    let count = |topic: Topic| events.iter().filter(|told| told.topic() == topic).count();
    let counts = [Topic::InitStarted, Topic::Restart, Topic::ReconnectExhausted].map(count);
    assert_eq!(counts, [4, 3, 1], "{events:?}");
    let restarts = events.iter().filter(|told| told.topic() == Topic::Restart);
    let attempts: Vec<_> = restarts.map(|told| json!(**told)["attempt"].clone()).collect();
    assert_eq!(attempts, [1, 2, 3]);
}

/// Without a time it waits forever; with one, exactly until then.
#[tokio::test(start_paused = true)]
async fn sleeping_until_a_time_or_for_ever() {
    let began = Instant::now();
    sleep_until(Some(began + Duration::from_millis(700))).await;
    assert_eq!(began.elapsed(), Duration::from_millis(700));
    let ever = tokio::time::timeout(Duration::from_secs(100_000), sleep_until(None)).await;
    assert!(ever.is_err());
}

/// ERA-1: tasks are offered by a modern server that declares them; tasks of the legacy era are different.
#[tokio::test(start_paused = true)]
async fn tasks_are_those_of_the_modern_era() {
    const TASKS: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
    for (revision, capabilities, expected) in [
        (Revision::MODERN, TASKS, true),
        (Revision::MODERN, "{}", false),
        (Revision::V2025_11_25, TASKS, false),
        (Revision::V2025_11_25, "{}", false),
    ] {
        let (supervisor, _states) = supervisor(testing::unusable());
        let (link, mut far) = testing::link();
        let peer = testing::peer(revision, capabilities);
        let before = Listing::default();
        let (listing, ()) = tokio::join!(
            supervisor.list(&link, &peer, Lists::ALL, &before),
            far.answer("tools/list", json!({"tools": [{"name": "a"}]}))
        );
        assert_eq!(listing.unwrap().features.tasks, expected, "{revision} {capabilities}");
    }
}

/// CAT-1: a server's capabilities and instructions are read with every list; lists that are not asked for stay as
/// they were.
#[tokio::test(start_paused = true)]
async fn a_listing_is_read_in_part() {
    let (supervisor, _states) = supervisor(testing::unusable());
    let (link, mut far) = testing::link();
    let mut peer = testing::peer(Revision::MODERN, r#"{"experimental":{"x":1.0},"prompts":{}}"#);
    peer.instructions = Some("say".to_owned());
    let items: Items = vec![Arc::new(ItemList::Prompts.read(r#"{"name":"old"}"#).unwrap())].into();
    let before = Listing { prompts: items, cached: true, ..Listing::default() };
    let tools = json!({"tools": [{"name": "a"}]});
    let (listing, ()) =
        tokio::join!(supervisor.list(&link, &peer, Lists::TOOLS, &before), far.answer("tools/list", tools));
    let listing = listing.unwrap();
    assert!(!listing.cached && listing.features.prompts);
    assert_eq!(listing.experimental.as_ref().map(Raw::as_str), Some(r#"{"x":1.0}"#));
    assert_eq!(listing.instructions.as_deref(), Some("say"));
    assert_eq!((listing.tools.len(), listing.prompts[0].name.as_str()), (1, "old"));
    let prompts = json!({"prompts": [{"name": "new"}]});
    let (again, ()) = tokio::join!(
        supervisor.list(&link, &peer, Lists::PROMPTS, &listing),
        far.answer("prompts/list", prompts)
    );
    let again = again.unwrap();
    assert_eq!((again.tools.len(), again.prompts[0].name.as_str()), (1, "new"));
    let odd = testing::peer(Revision::MODERN, r#"{"experimental":5}"#);
    let unread = supervisor.list(&link, &odd, Lists::NONE, &again).await.unwrap();
    assert!(unread.experimental.is_none() && unread.instructions.is_none());
}

/// CAT-2: a changed list is read again and replaces the old one; its problems are recorded. A list that cannot be
/// read leaves the old one.
#[tokio::test(start_paused = true)]
async fn a_changed_list_takes_the_place_of_the_old_one() {
    let (supervisor, states) = supervisor(testing::unusable());
    let (link, mut far) = testing::link();
    let mut last = Some(Arc::new(Ready {
        link: link.clone(),
        peer: testing::peer(Revision::V2025_11_25, "{}"),
        tools: Arc::default(),
        transport: "stdio",
        pid: Some(7),
        restarts: 2,
        since: Instant::now(),
    }));
    let cause = CorrelationId::mint();
    let two = json!({"tools": [{"name": "a"}, {"name": "b"}, {"name": "a"}]});
    for (answer, expected) in [(two, ["a", "b"]), (json!({"tools": 5}), ["a", "b"])] {
        tokio::join!(
            supervisor.refresh(&link, &mut last, Lists::TOOLS, cause),
            far.answer("tools/list", answer)
        );
        let UpstreamState::Ready(ready) = states.borrow().clone() else { panic!("it serves") };
        let names: Vec<&str> = ready.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, expected);
        assert_eq!((ready.pid, ready.restarts), (Some(7), 2));
        assert!(Arc::ptr_eq(&ready, last.as_ref().unwrap()));
        let twice = "tool `a` appears twice in the server's list; the first is used";
        assert_eq!(supervisor.record.facts().findings, [twice]);
    }
}
