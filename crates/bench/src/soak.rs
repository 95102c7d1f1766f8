//! Harms the servers of a real gateway in many cycles, and checks that the gateway recovers and leaks nothing.
//!
//! In each cycle one server is harmed while calls to it are in flight. Every call in flight must get an answer, a
//! result or an error; then the server must serve again. At the end the gateway must be as large as after the first
//! cycles, and no zombie may be left. After SIGTERM or SIGKILL of the gateway no process of any server may run. Finally
//! the gateway is killed under full load, and its record must have every call that was answered.
//!
//! The caller says which servers are used and where their programs are.

mod crashes;
mod gateway;
mod isolated;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::family::{self, Seen};
pub use crashes::Crashes;
use gateway::{Gateway, call_over_lines};
pub use isolated::Isolated;
pub use report::{Findings, Row};

/// How many calls are in flight when a server is harmed.
const IN_FLIGHT: usize = 2;
/// How long a server may take to serve again.
const BACK_WITHIN: Duration = Duration::from_secs(120);
/// How long processes may take to end after the gateway or client that they served.
const GONE_WITHIN: Duration = Duration::from_secs(60);
/// Time for the work that happens right after an answer.
const SETTLE: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(2);
/// The variable that marks a server's processes, so that all of them can be found.
const MARK: &str = "BRIDGEHEAD_SOAK_MARK";

/// A server to harm.
#[derive(Debug, Clone)]
pub struct Victim {
    /// Its name in the configuration.
    pub name: String,
    /// Its program.
    pub command: String,
    /// The arguments.
    pub args: Vec<String>,
    /// The variables.
    pub env: Vec<(String, String)>,
    /// Its working directory.
    pub cwd: Option<PathBuf>,
    /// A tool that answers at once, its arguments, and a part of its answer.
    pub prompt: (String, Value, String),
    /// A tool that takes some time, and its arguments.
    pub slow: (String, Value),
    /// A tool that makes the server start a child process; `None` if the server has child processes anyway.
    pub offspring: Option<String>,
}

impl Victim {
    /// One of the scripted servers of `testkit`, of an era.
    pub fn mock(program: &str, era: &str) -> Self {
        let script = json!({"era": era, "tools": [
            {"name": "echo", "behaviour": "echo"},
            {"name": "slow", "behaviour": {"delay": {"ms": 400, "then": {"text": "done"}}}},
            {"name": "offspring", "behaviour": "grandchild"},
        ]});
        Self {
            name: era.to_owned(),
            command: program.to_owned(),
            args: Vec::new(),
            env: vec![("MOCK_SCRIPT".to_owned(), script.to_string())],
            cwd: None,
            prompt: ("echo".to_owned(), json!({"text": "still here"}), "still here".to_owned()),
            slow: ("slow".to_owned(), json!({})),
            offspring: Some("offspring".to_owned()),
        }
    }
}

/// A way to harm a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// SIGKILL to its process; its descendants must end too.
    Kill,
    /// SIGKILL to one of its child processes.
    KillOffspring,
    /// SIGTERM to its process.
    Terminate,
    /// An operator asks for a restart.
    Restart,
    /// A separate gateway in front of the server loses its client, which closes its end of the input.
    CloseInput,
}

impl Harm {
    /// All ways, in the order of cycles.
    pub const ALL: [Self; 5] =
        [Self::Kill, Self::KillOffspring, Self::Terminate, Self::Restart, Self::CloseInput];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill -9 of the server",
            Self::KillOffspring => "kill -9 of its child",
            Self::Terminate => "SIGTERM of the server",
            Self::Restart => "asked to restart",
            Self::CloseInput => "client closes stdin",
        }
    }
}

/// What to run.
#[derive(Debug)]
pub struct Soak {
    /// The gateway's program.
    pub gateway: PathBuf,
    /// The servers.
    pub victims: Vec<Victim>,
    /// How often one of them is harmed.
    pub cycles: usize,
    /// How often the gateway itself is killed under load, and its record checked.
    pub kills: usize,
    /// How many calls run in a process tree each.
    pub calls: usize,
}

/// The resources that the gateway holds.
#[derive(Debug, Clone, Copy)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Anonymous memory in kilobytes, without code that is mapped from files.
    pub own_kb: u64,
    /// Processes below the gateway: only its direct children after cycles, all of them after isolated calls.
    pub processes: usize,
}

impl Soak {
    /// Runs the soak. `tell` gets lines about the progress.
    pub fn run(&self, tell: &mut dyn FnMut(&str)) -> Result<Findings> {
        ensure!(!self.victims.is_empty() && self.cycles > 0, "there is nothing to do");
        let started = Instant::now();
        let folder = tempfile::tempdir()?;
        let mark = format!("{MARK}={}-{}", std::process::id(), folder.path().display());
        let config = gateway::write_config(folder.path(), &self.victims, &mark, "")?;
        let gateway = Gateway::start(&self.gateway, &config, folder.path())?;
        gateway.all_ready(&self.victims)?;
        // The first call of a tool compiles its schema and the metaschema, which must not count as growth.
        for victim in &self.victims {
            gateway.call(&victim.name, &(victim.prompt.0.clone(), victim.prompt.1.clone()))?;
        }
        let mut findings = Findings::new(&self.victims, self.cycles);
        // Before this cycle, caches and pools are still filling.
        let first_look = (self.victims.len() * Harm::ALL.len()).max(self.cycles / 10).min(self.cycles - 1);
        for cycle in 0..self.cycles {
            if cycle == first_look {
                findings.early = Some(self.look(&gateway)?);
            }
            let victim = &self.victims[cycle % self.victims.len()];
            let harm = Harm::ALL[cycle / self.victims.len() % Harm::ALL.len()];
            let context = || format!("cycle {}: {}, {}", cycle + 1, victim.name, harm.name());
            let done = match harm {
                Harm::CloseInput => self.close_input(victim, &config, &mark, &gateway),
                _ => Self::harm(&gateway, victim, harm, &mark),
            };
            let (back, again) = done.with_context(context)?;
            findings.add(victim, harm, back, again);
            if (cycle + 1) % 25 == 0 {
                tell(&format!("cycle {} of {}", cycle + 1, self.cycles));
            }
        }
        findings.late = Some(self.look(&gateway)?);
        findings.zombies = zombies(gateway.pid());

        tell("ending the gateway");
        let keepers = family::below(gateway.pid());
        gateway.end(Signal::TERM)?;
        findings.left_after_term = left(&mark, &keepers);
        let gateway = Gateway::start(&self.gateway, &config, folder.path())?;
        gateway.all_ready(&self.victims)?;
        let calls: Vec<_> =
            self.victims.iter().map(|victim| gateway.begin(&victim.name, &victim.slow)).collect();
        gateway.in_flight(&self.victims[0], 1)?;
        let keepers = family::below(gateway.pid());
        gateway.end(Signal::KILL)?;
        findings.left_after_kill = left(&mark, &keepers);
        // Their gateway is gone, so these calls end with an error.
        calls.into_iter().for_each(|call| drop(call.join()));

        if self.kills > 0 {
            tell("killing the gateway under load");
            let folder = tempfile::tempdir()?;
            let victims = &self.victims[..1];
            let config = gateway::write_config(folder.path(), victims, &mark, "")?;
            let crashed = crashes::run(&self.gateway, &config, folder.path(), &victims[0], self.kills, tell)?;
            findings.crashes = Some(crashed);
        }
        if self.calls > 0 {
            tell("calling with a process tree for each call");
            let folder = tempfile::tempdir()?;
            let victims = &self.victims[..1];
            let config = gateway::write_config(folder.path(), victims, &mark, "isolation = \"call\"\n")?;
            let calls = isolated::run(&self.gateway, &config, folder.path(), &victims[0], self.calls)?;
            findings.isolated = Some(calls);
        }
        findings.elapsed = started.elapsed();
        Ok(findings)
    }

    /// Harms a server of the long-lived gateway. Returns the time until it serves again, and how many calls failed until
    /// then.
    fn harm(gateway: &Gateway, victim: &Victim, harm: Harm, mark: &str) -> Result<(Duration, usize)> {
        if let Some(tool) = &victim.offspring {
            gateway.call(&victim.name, &(tool.clone(), json!({})))?;
        }
        let calls: Vec<_> = (0..IN_FLIGHT).map(|_| gateway.begin(&victim.name, &victim.slow)).collect();
        let (pid, restarts) = gateway.in_flight(victim, IN_FLIGHT)?;
        let mut tree = family::below(pid);
        tree.extend(Seen::of(pid));
        let at = Instant::now();
        match harm {
            Harm::Restart => gateway.restart(victim)?,
            Harm::Terminate => send(pid, Signal::TERM)?,
            // The youngest process: behind npx that is the server itself.
            Harm::KillOffspring => {
                let children = tree.iter().filter(|seen| seen.pid != pid);
                send(
                    children.max_by_key(|seen| (seen.born, seen.pid)).context("no child")?.pid,
                    Signal::KILL,
                )?;
            }
            Harm::Kill | Harm::CloseInput => send(pid, Signal::KILL)?,
        }
        for call in calls {
            // A result and an error both count as an answer.
            call.join()
                .map_err(|_| anyhow::anyhow!("a call in flight panicked"))?
                .context("a call in flight")?;
        }
        // A server that lost its own child may continue without it.
        let must_restart = harm != Harm::KillOffspring || victim.offspring.is_none();
        let back = gateway.serves_again(victim, must_restart.then_some(restarts), at)?;
        if must_restart {
            let left = survivors(&tree);
            ensure!(left.is_empty(), "the old tree still runs: {}", names(&left));
        }
        ensure!(!family::marked(mark).is_empty(), "no server has the mark, so survivors could not be found");
        Ok(back)
    }

    /// Runs another gateway over stdio, whose client disconnects in the middle of a call.
    fn close_input(
        &self,
        victim: &Victim,
        config: &std::path::Path,
        mark: &str,
        other: &Gateway,
    ) -> Result<(Duration, usize)> {
        let before: Vec<Seen> = family::marked(mark);
        let at = Instant::now();
        call_over_lines(&self.gateway, config, victim)?;
        let deadline = Instant::now() + GONE_WITHIN;
        loop {
            let new: Vec<Seen> =
                family::marked(mark).into_iter().filter(|seen| !before.contains(seen)).collect();
            // State and parent may change; id and start time identify the process.
            let new: Vec<Seen> = new
                .into_iter()
                .filter(|seen| !before.iter().any(|old| (old.pid, old.born) == (seen.pid, seen.born)))
                .collect();
            if new.is_empty() {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "still running after the client disconnected: {}",
                names(&new)
            );
            std::thread::sleep(POLL);
        }
        // The long-lived gateway has its own server processes, which must still work.
        other.call(&victim.name, &(victim.prompt.0.clone(), victim.prompt.1.clone()))?;
        Ok((at.elapsed(), 0))
    }

    fn look(&self, gateway: &Gateway) -> Result<Holdings> {
        gateway.all_ready(&self.victims)?;
        std::thread::sleep(SETTLE);
        let pid = gateway.pid();
        Ok(Holdings {
            descriptors: family::descriptors(pid),
            threads: family::threads(pid),
            own_kb: family::memory_kb(pid, "RssAnon").context("the kernel does not report `RssAnon`")?,
            // Only direct children: scripted servers collect offspring until they are killed themselves.
            processes: family::below(pid).iter().filter(|seen| seen.parent == pid).count(),
        })
    }
}

fn send(pid: u32, signal: Signal) -> Result<()> {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        bail!("{pid} is not a process id")
    };
    kill_process(id, signal).with_context(|| format!("process {pid} cannot be signalled"))
}

/// The processes that still run after [`GONE_WITHIN`].
fn survivors(processes: &[Seen]) -> Vec<Seen> {
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        let left: Vec<Seen> = processes.iter().filter(|seen| seen.runs()).cloned().collect();
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        std::thread::sleep(POLL);
    }
}

/// The number of zombies that the gateway or the nursery should have reaped. Zombies of a server do not count: a server
/// may neglect its own children as long as it runs.
fn zombies(gateway: u32) -> usize {
    let family = family::below(gateway);
    let keepers: Vec<u32> =
        family.iter().filter(|seen| seen.parent == gateway).map(|seen| seen.pid).collect();
    let ours = |seen: &&Seen| seen.parent == gateway || keepers.contains(&seen.parent);
    family.iter().filter(|seen| seen.state == 'Z').filter(ours).count()
}

/// The processes of servers and shims that are left after a gateway has ended.
fn left(mark: &str, keepers: &[Seen]) -> Vec<String> {
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        let mut left = family::marked(mark);
        left.extend(keepers.iter().filter(|seen| seen.runs()).cloned());
        if left.is_empty() || Instant::now() > deadline {
            return left.iter().map(Seen::command).collect();
        }
        std::thread::sleep(POLL);
    }
}

fn names(processes: &[Seen]) -> String {
    processes.iter().map(Seen::command).collect::<Vec<_>>().join("; ")
}
