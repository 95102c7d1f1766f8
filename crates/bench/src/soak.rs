//! Puts a real gateway through cycle after cycle of harm to its servers, and looks at what is left of it.
//!
//! In each cycle one server is harmed while calls to it are in flight. Every call in flight must get an answer, a
//! result or an error; then the server must serve again. At the end the gateway must be as large as after the first
//! cycles, no zombie may be left, and when it is ended, kindly or not, nothing of any server may run. At last it is
//! killed while it serves as many calls as it can, and its record must have every call that was answered.
//!
//! Where the servers' programs are, and which are tried, is said by whoever starts this.

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
/// How long processes may take to go after what they served has gone.
const GONE_WITHIN: Duration = Duration::from_secs(60);
/// A moment for what happens right after an answer.
const SETTLE: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(2);
/// The variable that finds a server's processes, wherever they went.
const MARK: &str = "BRIDGEHEAD_SOAK_MARK";

/// A server to be harmed.
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
    /// Where it runs.
    pub cwd: Option<PathBuf>,
    /// A tool that answers at once, its arguments, and a part of its answer.
    pub prompt: (String, Value, String),
    /// A tool that takes a moment, and its arguments.
    pub slow: (String, Value),
    /// A tool that starts a process of the server's own; without, it has some anyway.
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

/// What is done to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// SIGKILL to its process; what it has started must go with it.
    Kill,
    /// SIGKILL to a process that it has started.
    KillOffspring,
    /// SIGTERM to its process.
    Terminate,
    /// An operator asks for a restart.
    Restart,
    /// A gateway of its own in front of it loses its client, whose end of the input closes.
    CloseInput,
}

impl Harm {
    /// All of them, in the order of cycles.
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

/// What is run.
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
    /// How many calls have a process tree each.
    pub calls: usize,
}

/// What the gateway holds.
#[derive(Debug, Clone, Copy)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Memory of its own in kilobytes; code that is read from files again is none.
    pub own_kb: u64,
    /// Processes of servers, keepers included.
    pub processes: usize,
}

impl Soak {
    /// Runs it. `tell` gets a line now and then.
    pub fn run(&self, tell: &mut dyn FnMut(&str)) -> Result<Findings> {
        ensure!(!self.victims.is_empty() && self.cycles > 0, "there is nothing to do");
        let started = Instant::now();
        let folder = tempfile::tempdir()?;
        let mark = format!("{MARK}={}-{}", std::process::id(), folder.path().display());
        let config = gateway::write_config(folder.path(), &self.victims, &mark, "")?;
        let gateway = Gateway::start(&self.gateway, &config, folder.path())?;
        gateway.all_ready(&self.victims)?;
        // The first call of a tool compiles its schema, and that of schemas with it: that is no growth.
        for victim in &self.victims {
            gateway.call(&victim.name, &(victim.prompt.0.clone(), victim.prompt.1.clone()))?;
        }
        let mut findings = Findings::new(&self.victims, self.cycles);
        // Before that, caches and pools are still filling.
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
        // Their gateway is gone, so they end with an error.
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

    /// Harms a server under the long-lived gateway. Gives how long it took to serve again, and how many calls failed
    /// until then.
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
            // The youngest: behind npx it is the server itself.
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
            // A result or an error: both are answers.
            call.join()
                .map_err(|_| anyhow::anyhow!("a call in flight panicked"))?
                .context("a call in flight")?;
        }
        // Whoever lost a child of its own may go on without it.
        let must_restart = harm != Harm::KillOffspring || victim.offspring.is_none();
        let back = gateway.serves_again(victim, must_restart.then_some(restarts), at)?;
        if must_restart {
            let left = survivors(&tree);
            ensure!(left.is_empty(), "the old tree still runs: {}", names(&left));
        }
        ensure!(
            !family::marked(mark).is_empty(),
            "no server carries the mark, so survivors could not be found"
        );
        Ok(back)
    }

    /// Another gateway over stdio, whose client goes in the middle of a call.
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
            // State and parent may change; the process is the same by its id and birth.
            let new: Vec<Seen> = new
                .into_iter()
                .filter(|seen| !before.iter().any(|old| (old.pid, old.born) == (seen.pid, seen.born)))
                .collect();
            if new.is_empty() {
                break;
            }
            ensure!(Instant::now() < deadline, "still run after their client has gone: {}", names(&new));
            std::thread::sleep(POLL);
        }
        // The long-lived gateway has its own processes, which nobody has touched.
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
            own_kb: family::memory_kb(pid, "RssAnon").context("the kernel does not tell `RssAnon`")?,
            // Scripted servers collect offspring until they are killed themselves; keepers are one per server.
            processes: family::below(pid).iter().filter(|seen| seen.parent == pid).count(),
        })
    }
}

fn send(pid: u32, signal: Signal) -> Result<()> {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { bail!("{pid} is no process id") };
    kill_process(id, signal).with_context(|| format!("process {pid} cannot be signalled"))
}

/// Those that still run after their time to go.
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

/// Those who have ended and whom the gateway or a keeper should have waited for. A server may neglect its own
/// children for as long as it runs.
fn zombies(gateway: u32) -> usize {
    let family = family::below(gateway);
    let keepers: Vec<u32> =
        family.iter().filter(|seen| seen.parent == gateway).map(|seen| seen.pid).collect();
    let ours = |seen: &&Seen| seen.parent == gateway || keepers.contains(&seen.parent);
    family.iter().filter(|seen| seen.state == 'Z').filter(ours).count()
}

/// What is left of servers and keepers after a gateway has gone.
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
