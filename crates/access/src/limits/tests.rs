//! Limits on a clock that the tests move.

use std::num::NonZeroU32;
use std::path::Path;

use bridgehead_config::{ThingPattern, Who};
use bridgehead_gateway::PrincipalKind;
use bridgehead_testkit::FakeClock;

use super::*;

/// A rule for everybody that limits nothing.
pub(super) fn rule() -> LimitRule {
    LimitRule {
        who: vec![Who::Everyone],
        tools: Vec::new(),
        rate: None,
        concurrent: None,
        budget_per_day: None,
        line: 7,
    }
}

fn rate(count: u32, seconds: u64, burst: u32) -> Option<Rate> {
    let number = |number| NonZeroU32::new(number).unwrap();
    Some(Rate { count: number(count), per: Duration::from_secs(seconds), burst: number(burst) })
}

fn tools(patterns: &[&str]) -> Vec<ThingPattern> {
    let split = |text: &&str| {
        let (server, name) = text.split_once('/').unwrap();
        ThingPattern { server: server.to_owned(), name: name.to_owned() }
    };
    patterns.iter().map(split).collect()
}

struct World {
    limits: PrincipalLimits,
    clock: FakeClock,
}

impl World {
    fn new(rules: Vec<LimitRule>) -> Self {
        let clock = FakeClock::new();
        let limits = PrincipalLimits::new(rules, Costs::default(), Arc::new(clock.clone()), None).unwrap();
        Self { limits, clock }
    }

    /// With a record in this folder; the tool `m/big` costs 5.
    fn recorded(rules: Vec<LimitRule>, folder: &Path, configuration: &str, clock: &FakeClock) -> Self {
        let mut costs = Costs::default();
        costs.set("m", "big", 5);
        costs.set("m", "free", 0);
        let configuration = configuration.to_owned();
        let record = BudgetRecord { archive: Archive::in_folder(folder), configuration };
        let limits = PrincipalLimits::new(rules, costs, Arc::new(clock.clone()), Some(record)).unwrap();
        Self { limits, clock: clock.clone() }
    }

    fn call(&self, principal: &str, tool: &str) -> Result<Allowance, GatewayError> {
        self.call_by(&key(principal), tool)
    }

    fn call_by(&self, principal: &Principal, tool: &str) -> Result<Allowance, GatewayError> {
        let request = Limited::new(&Method::ToolsCall, Some("m"), "offered").called(Some(tool));
        self.limits.admit(principal, request)
    }

    fn ask(&self, principal: &str, method: &Method) -> Result<Allowance, GatewayError> {
        self.limits.admit(&key(principal), Limited::new(method, None, ""))
    }

    /// Calls a tool that runs and ends at once.
    #[track_caller]
    fn ran(&self, principal: &str, tool: &str) {
        self.call(principal, tool).unwrap().runs(true);
    }

    #[track_caller]
    fn refused(&self, principal: &str, tool: &str, code: Code) -> GatewayError {
        let refused = self.call(principal, tool).unwrap_err();
        assert_eq!((refused.code, refused.may_have_run), (code, false), "{refused}");
        refused
    }
}

fn key(name: &str) -> Principal {
    Principal::new(&format!("key:{name}"), PrincipalKind::Key)
}

/// ACC-5 (case 27): a burst passes, then one request per interval; a refusal says when to try again; others are not
/// concerned.
#[test]
fn a_rate_admits_a_burst_and_recovers() {
    let world = World::new(vec![LimitRule { rate: rate(60, 60, 3), ..rule() }]);
    for _ in 0..3 {
        world.ran("ci", "say");
    }
    world.clock.advance(Duration::from_micros(400_500));
    let refused = world.refused("ci", "say", Code::RateLimited);
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(600)), "rounded up");
    let quota = refused.limit.as_ref().unwrap().quota.unwrap();
    assert_eq!((quota.name, quota.count, quota.window), ("rate", 60, Duration::from_secs(60)));
    assert_eq!((quota.left, quota.more_after), (0, Duration::from_micros(599_500)));
    assert!(refused.message.contains("`key:ci`") && refused.message.contains("60 in 60 s"), "{refused}");
    assert!(refused.message.contains("line 7") && refused.message.contains("600 ms"), "{refused}");
    world.ran("other", "say");
    world.clock.advance(Duration::from_millis(600));
    world.ran("ci", "say");
    world.refused("ci", "say", Code::RateLimited);
    // The wall clock does not matter.
    world.clock.set_wall("2020-01-01T00:00:00Z".parse().unwrap());
    world.refused("ci", "say", Code::RateLimited);
    world.clock.advance(Duration::from_secs(3600));
    for _ in 0..3 {
        world.ran("ci", "say");
    }
    world.refused("ci", "say", Code::RateLimited);
}

/// ACC-5: so many requests run at once; what ends, by a drop too, makes room. A request that only listens does not run.
#[test]
fn running_requests_are_bounded() {
    let world = World::new(vec![LimitRule { concurrent: NonZeroU32::new(2), ..rule() }]);
    let mut first = world.call("ci", "say").unwrap();
    let _second = world.ask("ci", &Method::PromptsGet).unwrap();
    let refused = world.refused("ci", "say", Code::RateLimited);
    let limit = refused.limit.as_ref().unwrap();
    assert_eq!((limit.retry_after, limit.quota), (Duration::from_secs(1), None));
    assert!(refused.message.contains("2 at once"), "{refused}");
    let _listening = [world.ask("ci", &Method::Listen).unwrap(), world.ask("ci", &Method::Listen).unwrap()];
    let _other = world.call("other", "say").unwrap();
    first.runs(true);
    drop(first);
    let third = world.call("ci", "say").unwrap();
    world.refused("ci", "say", Code::RateLimited);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _held = third;
        panic!("the call panics");
    }));
    assert!(panicked.is_err());
    world.call("ci", "say").unwrap().runs(true);
}

/// ACC-5: all rules must admit a request; a refusal by one gives back what the others took, whatever their order.
#[test]
fn all_rules_count_or_none() {
    let all = LimitRule { rate: rate(2, 60, 2), ..rule() };
    let slow = LimitRule {
        tools: tools(&["m/slow"]),
        concurrent: NonZeroU32::new(1),
        rate: rate(2, 60, 2),
        ..rule()
    };
    for rules in [vec![all.clone(), slow.clone()], vec![slow, all]] {
        let world = World::new(rules);
        let running = world.call("ci", "slow").unwrap();
        for _ in 0..5 {
            world.refused("ci", "slow", Code::RateLimited);
        }
        world.ran("ci", "say");
        world.refused("ci", "say", Code::RateLimited);
        drop(running);
        // The rate of all tools is used up, so this takes nothing of what `slow` may run.
        world.refused("ci", "slow", Code::RateLimited);
        world.clock.advance(Duration::from_secs(30));
        world.ran("ci", "slow");
    }
}

/// ACC-5: a rule on tools counts their calls only; one without tools counts every request that passes the gate.
#[test]
fn what_a_rule_counts() {
    let world = World::new(vec![LimitRule { tools: tools(&["m/s*"]), rate: rate(1, 60, 1), ..rule() }]);
    world.ran("ci", "say");
    world.refused("ci", "shout", Code::RateLimited);
    world.ran("ci", "other");
    assert!(world.ask("ci", &Method::ToolsList).is_ok());
    let named_so = Limited::new(&Method::PromptsGet, Some("m"), "say").called(Some("say"));
    assert!(world.limits.admit(&key("ci"), named_so).is_ok(), "a prompt is no tool");
    let unknown = Limited::new(&Method::ToolsCall, Some("m"), "say");
    assert!(world.limits.admit(&key("ci"), unknown).is_ok(), "an unknown tool has no name at a server");
    let world = World::new(vec![LimitRule { rate: rate(1, 60, 1), ..rule() }]);
    assert!(world.ask("ci", &Method::ToolsList).is_ok());
    world.refused("ci", "say", Code::RateLimited);
}

/// ACC-5: a rule counts those that it names. Another token with other groups makes no second allowance.
#[test]
fn whom_a_rule_counts() {
    let build = LimitRule { who: vec![Who::Group("build".to_owned())], rate: rate(2, 60, 2), ..rule() };
    let ops = LimitRule { who: vec![Who::Group("ops".to_owned())], concurrent: NonZeroU32::new(1), ..rule() };
    let world = World::new(vec![build, ops]);
    let of =
        |groups: &[&str]| Principal::new("corp/ada", PrincipalKind::Issuer).in_groups(groups.iter().copied());
    for _ in 0..5 {
        assert!(world.call_by(&of(&[]), "say").is_ok());
    }
    assert!(world.call_by(&of(&["build"]), "say").is_ok());
    assert!(world.call_by(&of(&["build", "ops"]), "say").is_ok());
    assert!(world.call_by(&of(&["ops", "build"]), "say").is_err());
    assert!(world.call_by(&of(&["build"]), "say").is_err());
    let _running = world.call_by(&of(&["ops"]), "say").unwrap();
    assert!(world.call_by(&of(&["ops"]), "say").is_err());
    for number in 0..20 {
        assert!(world.call_by(&of(&["build", &number.to_string()]), "say").is_err(), "{number}");
    }
}

/// ACC-5: a listen that a later rule refuses gives back only what it took: it never counted as running.
#[test]
fn a_refused_listen_gives_back_no_running_request() {
    let running = LimitRule { concurrent: NonZeroU32::new(1), ..rule() };
    let world = World::new(vec![running, LimitRule { rate: rate(2, 60, 2), ..rule() }]);
    let first = world.ask("ci", &Method::Listen).unwrap();
    let held = world.call("ci", "say").unwrap();
    for _ in 0..3 {
        world.ask("ci", &Method::Listen).unwrap_err();
    }
    world.clock.advance(Duration::from_secs(60));
    let refused = world.refused("ci", "say", Code::RateLimited);
    assert!(refused.message.contains("1 at once"), "{refused}");
    drop((first, held));
    world.ran("ci", "say");
}

/// ACC-5: a rule on keys does not count whom a proxy names by the same text; each has its own account.
#[test]
fn a_principal_is_its_kind_too() {
    let keys = LimitRule { who: vec![Who::Key("ci".to_owned())], rate: rate(1, 60, 1), ..rule() };
    let proxied = Principal::new("key:ci", PrincipalKind::Proxy);
    for key_first in [true, false] {
        let world = World::new(vec![keys.clone()]);
        let by_key = || world.ran("ci", "say");
        if key_first {
            by_key();
        }
        for _ in 0..3 {
            drop(world.call_by(&proxied, "say").unwrap());
        }
        if !key_first {
            by_key();
        }
        world.refused("ci", "say", Code::RateLimited);
        drop(world.call_by(&proxied, "say").unwrap());
    }
}

/// ACC-5: a principal whose tokens name other groups each time takes no more memory than one with a few, and what was counted
/// stays counted.
#[test]
fn sets_of_groups_are_bounded() {
    let everybody = LimitRule { rate: rate(500, 60, 500), ..rule() };
    let build = LimitRule { who: vec![Who::Group("build".to_owned())], rate: rate(1, 60, 1), ..rule() };
    let world = World::new(vec![everybody, build]);
    let ada = |group: &str| Principal::new("corp/ada", PrincipalKind::Issuer).in_groups([group, "build"]);
    drop(world.call_by(&ada("first"), "say").unwrap());
    for number in 0..100 {
        assert!(world.call_by(&ada(&number.to_string()), "say").is_err(), "{number}");
    }
    assert_eq!(world.limits.current.load().accounts.most_variants(), 8);
    assert!(world.call_by(&ada("first"), "say").is_err(), "forgotten and made again");
}

/// ACC-5: what is remembered of 10 000 principals takes at most 1 KB each, and idle ones are forgotten.
#[test]
fn ten_thousand_principals() {
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let limited = LimitRule { rate: rate(60, 60, 60), concurrent: NonZeroU32::new(4), ..rule() };
    let world = World::new(vec![limited.clone(), limited.clone(), limited]);
    let before = resident();
    for number in 0..10_000 {
        world.ran(&format!("principal-{number}"), "say");
    }
    let each = resident().saturating_sub(before) / 10_000;
    assert!(each <= 1024, "{each} bytes each");
    let accounts = || world.limits.current.load().accounts.count();
    assert_eq!(accounts(), 10_000, "none is forgotten while its rate recovers");
    world.clock.advance(Duration::from_secs(60));
    for number in 0..20_000 {
        world.ran(&format!("later-{number}"), "say");
        world.clock.advance(Duration::from_secs(1));
    }
    assert!(accounts() < 4_000, "{}", accounts());
    for number in 0..70_000 {
        world.ran(&format!("many-{number}"), "say");
    }
    assert!((57_000..=65_536).contains(&accounts()), "{}", accounts());
}

/// ACC-5: a principal is not forgotten while a request of it runs.
#[test]
fn a_running_request_is_not_forgotten() {
    let world = World::new(vec![LimitRule { concurrent: NonZeroU32::new(1), ..rule() }]);
    let running = world.call("ci", "say").unwrap();
    for number in 0..10_000 {
        world.ran(&number.to_string(), "say");
    }
    assert!(world.limits.current.load().accounts.count() < 3_000, "idle ones are");
    world.refused("ci", "say", Code::RateLimited);
    drop(running);
    world.ran("ci", "say");
}

fn budget(per_day: u64) -> LimitRule {
    LimitRule { budget_per_day: Some(per_day), ..rule() }
}

/// ACC-5 (case 28): calls cost what their tools say until the budget of the day is spent; a call that did not run costs
/// nothing; the next UTC day begins anew.
#[test]
fn a_budget_is_spent_and_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let clock = FakeClock::at("2026-03-01T22:00:00Z".parse().unwrap());
    let world = World::recorded(vec![budget(7)], folder.path(), "a", &clock);
    let mut big = world.call("ci", "big").unwrap();
    let charge = big.charge().unwrap().clone();
    assert_eq!((charge.cost, charge.day), (5, 20_513));
    let refused = world.refused("ci", "big", Code::BudgetExhausted);
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(2 * 3600)));
    let quota = refused.limit.as_ref().unwrap().quota.unwrap();
    assert_eq!((quota.name, quota.count, quota.left), ("budget", 7, 2));
    assert_eq!((quota.window.as_secs(), quota.more_after.as_secs()), (86_400, 7200));
    assert!(refused.message.contains("spent 5 of its budget of 7"), "{refused}");
    assert!(refused.message.contains("line 7") && refused.message.contains("midnight UTC"), "{refused}");
    world.ran("other", "big");
    // It fails before it is sent.
    big.runs(true);
    big.runs(false);
    drop(big);
    world.ran("ci", "big");
    world.ran("ci", "say");
    world.ran("ci", "say");
    world.refused("ci", "say", Code::BudgetExhausted);
    assert!(world.call("ci", "free").unwrap().charge().is_none(), "a tool that costs nothing");
    assert!(world.ask("ci", &Method::ToolsList).is_ok(), "only calls cost");
    // The day is that of the wall clock: back over midnight, the earlier day is as it was.
    clock.advance(Duration::from_secs(2 * 3600));
    world.ran("ci", "big");
    clock.set_wall("2026-03-01T23:59:59Z".parse().unwrap());
    world.refused("ci", "say", Code::BudgetExhausted);
    clock.set_wall("2026-03-02T00:00:01Z".parse().unwrap());
    world.refused("ci", "big", Code::BudgetExhausted);
    world.ran("ci", "say");
    // A refund of yesterday's call gives nothing back today.
    let late = world.call("ci", "say").unwrap();
    clock.set_wall("2026-03-03T00:00:00Z".parse().unwrap());
    world.ran("ci", "big");
    drop(late);
    world.ran("ci", "say");
    world.ran("ci", "say");
    world.refused("ci", "say", Code::BudgetExhausted);
    // Nor does it in the ledger that others read, and back over midnight it is left where it was.
    World::recorded(vec![budget(7)], folder.path(), "a", &clock).refused("ci", "say", Code::BudgetExhausted);
}

/// ACC-5: a request that one part of a rule refuses takes nothing of the other part, so that a client that tries again and again
/// while its requests run has its rate when they have ended.
#[test]
fn what_runs_already_costs_no_rate() {
    let both = LimitRule { rate: rate(3, 60, 3), concurrent: NonZeroU32::new(1), ..rule() };
    let world = World::new(vec![both]);
    let running = world.call("ci", "say").unwrap();
    for _ in 0..10 {
        let refused = world.refused("ci", "say", Code::RateLimited);
        assert!(refused.message.contains("1 at once"), "{refused}");
    }
    drop(running);
    world.ran("ci", "say");
    let running = world.call("ci", "say").unwrap();
    // Both refuse now, and neither counts.
    for _ in 0..10 {
        assert!(world.refused("ci", "say", Code::RateLimited).message.contains("3 in 60 s"));
    }
    drop(running);
    world.clock.advance(Duration::from_secs(20));
    world.ran("ci", "say");
    world.refused("ci", "say", Code::RateLimited);
}

/// ACC-5: a refusal for the budget gives back what other rules took, and one budget what another took.
#[test]
fn all_budgets_are_charged_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let own = LimitRule { tools: tools(&["m/big"]), ..budget(5) };
    let running = LimitRule { concurrent: NonZeroU32::new(1), rate: rate(4, 60, 4), ..rule() };
    let rules = vec![running, budget(11), own, budget(11)];
    let world = World::recorded(rules, folder.path(), "a", &FakeClock::new());
    let big = world.call("ci", "big").unwrap();
    let charge = big.charge().unwrap();
    let budgets: Vec<_> = charge.budgets.split(' ').collect();
    assert_eq!((charge.cost, budgets.len()), (5, 3));
    assert!(budgets[2].starts_with(budgets[0]) && budgets[0] != budgets[2], "two rules that count the same");
    let mut big = big;
    big.runs(true);
    drop(big);
    for _ in 0..5 {
        world.refused("ci", "big", Code::BudgetExhausted);
    }
    for _ in 0..3 {
        world.ran("ci", "say");
    }
    world.refused("ci", "say", Code::RateLimited);
}

/// ACC-5: gateways of one configuration on a machine share one budget while they run; another configuration has its own.
#[test]
fn gateways_of_one_configuration_share_a_budget() {
    let folder = tempfile::tempdir().unwrap();
    let clock = FakeClock::new();
    let open = |configuration| World::recorded(vec![budget(4)], folder.path(), configuration, &clock);
    let (one, two, other) = (open("a"), open("a"), open("b"));
    one.ran("ci", "say");
    two.ran("ci", "say");
    one.ran("ci", "say");
    let given_back = two.call("ci", "say").unwrap();
    one.refused("ci", "say", Code::BudgetExhausted);
    drop(given_back);
    one.ran("ci", "say");
    two.refused("ci", "say", Code::BudgetExhausted);
    for _ in 0..4 {
        other.ran("ci", "say");
    }
    other.refused("ci", "say", Code::BudgetExhausted);
    // One that starts later knows what was spent, also by one that has ended.
    drop(one);
    open("a").refused("ci", "say", Code::BudgetExhausted);
    two.refused("ci", "say", Code::BudgetExhausted);
    clock.advance(Duration::from_secs(3 * 86_400));
    open("a").ran("ci", "say");
    for _ in 0..3 {
        two.ran("ci", "say");
    }
    open("a").refused("ci", "say", Code::BudgetExhausted);
    let files = || {
        let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(".ledger")).count()
    };
    assert_eq!(files(), 2, "one for each configuration");
}

/// ACC-5: two gateways that charge at the same time never spend more than there is.
#[test]
fn a_race_for_the_last_of_a_budget() {
    let folder = tempfile::tempdir().unwrap();
    let clock = FakeClock::new();
    let worlds: Vec<_> =
        (0..4).map(|_| World::recorded(vec![budget(500)], folder.path(), "a", &clock)).collect();
    let ran: usize = std::thread::scope(|scope| {
        let spend = |world: &World| {
            let attempt =
                |_: &usize| world.call("ci", "say").map(|mut allowance| allowance.runs(true)).is_ok();
            (0..300).filter(attempt).count()
        };
        let threads: Vec<_> = worlds.iter().map(|world| scope.spawn(move || spend(world))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(ran <= 500, "{ran}");
    // A refused charge is given back, so whoever asks again gets what is left.
    let left = (0..4)
        .flat_map(|_| &worlds)
        .filter(|world| world.call("ci", "say").map(|mut allowance| allowance.runs(true)).is_ok());
    assert_eq!(ran + left.count(), 500);
}

/// ACC-5: without its ledger, a gateway counts for itself.
#[test]
fn a_ledger_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let clock = FakeClock::new();
    let world = World::recorded(vec![budget(2)], folder.path(), "a", &clock);
    let name = |entry: std::fs::DirEntry| entry.file_name().into_string().unwrap();
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| name(entry.unwrap())).collect();
    let ledger = names.iter().find(|name| name.ends_with("-2026-01-01.ledger")).unwrap();
    // A folder in its place cannot be opened for writing.
    std::fs::remove_file(folder.path().join(ledger)).unwrap();
    std::fs::create_dir(folder.path().join(ledger)).unwrap();
    world.ran("ci", "say");
    drop(world.call("ci", "say").unwrap());
    world.ran("ci", "say");
    world.refused("ci", "say", Code::BudgetExhausted);
    let locked = names.iter().find(|name| name.ends_with(".alive")).unwrap();
    drop(world);
    std::fs::remove_file(folder.path().join(locked)).unwrap();
    std::fs::create_dir(folder.path().join(locked)).unwrap();
    let record = BudgetRecord { archive: Archive::in_folder(folder.path()), configuration: "a".to_owned() };
    let refused =
        PrincipalLimits::new(vec![budget(2)], Costs::default(), Arc::new(clock), Some(record)).unwrap_err();
    let shown = refused.to_string();
    assert!(shown.contains(folder.path().to_str().unwrap()), "{shown}");
}

/// ACC-5, WALL-9: the files of the ledger are for their owner only, and none is opened through a link. A gateway that finds a link
/// counts for itself, and leaves alone what the link leads to.
#[test]
fn a_ledger_behind_a_link_is_not_used() {
    use std::os::unix::fs::{MetadataExt, symlink};
    let (folder, clock) = (tempfile::tempdir().unwrap(), FakeClock::new());
    let world = World::recorded(vec![budget(2)], folder.path(), "a", &clock);
    world.ran("ci", "say");
    let mut ledger = None;
    for entry in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
        assert_eq!(entry.metadata().unwrap().mode() & 0o777, 0o600, "{:?}", entry.path());
        ledger =
            ledger.or(Some(entry.path()).filter(|path| path.extension().is_some_and(|it| it == "ledger")));
    }
    let (outside, ledger) = (tempfile::NamedTempFile::new().unwrap(), ledger.unwrap());
    let tomorrow = ledger.to_str().unwrap().replace("2026-01-01", "2026-01-02");
    symlink(outside.path(), &tomorrow).unwrap();
    clock.advance(Duration::from_secs(86_400));
    world.ran("ci", "say");
    world.ran("ci", "say");
    world.refused("ci", "say", Code::BudgetExhausted);
    assert_eq!(std::fs::read(outside.path()).unwrap(), b"", "nothing was written through the link");
    let alive = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let alive = alive.into_iter().find(|path| path.extension().is_some_and(|it| it == "alive")).unwrap();
    drop(world);
    std::fs::remove_file(&alive).unwrap();
    symlink(outside.path(), &alive).unwrap();
    let record = BudgetRecord { archive: Archive::in_folder(folder.path()), configuration: "a".to_owned() };
    let again = PrincipalLimits::new(vec![budget(2)], Costs::default(), Arc::new(clock), Some(record));
    assert!(matches!(again, Err(LimitError::Ledger { .. })));
}

/// ACC-5: a line that was cut short spoils no other line of the ledger.
#[test]
fn a_ledger_with_a_broken_line() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let clock = FakeClock::new();
    let world = World::recorded(vec![budget(3)], folder.path(), "a", &clock);
    world.ran("ci", "say");
    let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let ledger =
        entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "ledger")).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(ledger).unwrap();
    file.write_all(b"\n0123456789abcdef0123456789abcdef 40").unwrap();
    world.ran("ci", "say");
    World::recorded(vec![budget(3)], folder.path(), "a", &clock).ran("ci", "say");
    world.refused("ci", "say", Code::BudgetExhausted);
}

/// ACC-5: a budget without a record and a malformed pattern are errors at the start.
#[test]
fn what_cannot_be_enforced() {
    let clock: Arc<dyn Clock> = Arc::new(FakeClock::new());
    let new = |rule| {
        PrincipalLimits::new(vec![rule], Costs::default(), Arc::clone(&clock), None).unwrap_err().to_string()
    };
    let shown = new(budget(1));
    assert!(shown.contains("line 7") && shown.contains("no record is kept"), "{shown}");
    let shown = new(LimitRule { tools: tools(&["m/[a"]), ..rule() });
    assert!(shown.contains("line 7") && shown.contains("`m/[a`"), "{shown}");
}

/// ACC-5: other rules apply from then on; the same rules go on as they are; wrong ones change nothing.
#[test]
fn rules_are_replaced() {
    let once = LimitRule { rate: rate(1, 60, 1), ..rule() };
    let world = World::new(vec![once.clone()]);
    world.ran("ci", "say");
    world.limits.reload(vec![once.clone()], Costs::default()).unwrap();
    world.refused("ci", "say", Code::RateLimited);
    assert!(world.limits.reload(vec![budget(1)], Costs::default()).is_err());
    world.refused("ci", "say", Code::RateLimited);
    world.limits.reload(vec![rule()], Costs::default()).unwrap();
    world.ran("ci", "say");
    let mut costs = Costs::default();
    costs.set("m", "say", 2);
    world.limits.reload(vec![once], costs).unwrap();
    world.ran("ci", "say");
    world.refused("ci", "say", Code::RateLimited);
    assert_eq!(format!("{:?}", world.limits), "PrincipalLimits { rules: 1, .. }");
}
