//! Measures what it costs to supervise many servers: calls among many, memory per server, recovery after a kill, and a
//! start through the shim.
//!
//! As with the loads, each figure alternates with its reference within one run.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bridgehead_process::{Prepared, Shim, Spec, base_environment, use_shim};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

use crate::client::{check, once};
use crate::family;
use crate::isolation::{self, Isolation};
use crate::load::{Load, Round};
use crate::machine::{Process, free_address};
use crate::plan::{Form, Plan, text};
use crate::request::{Ask, Era, Template};

/// The number of servers for calls among many.
pub const MANY: usize = 200;
/// How many tools each of them has.
pub const TOOLS_EACH: usize = 100;
/// The number of servers in the memory comparison.
pub const MEMORY_SERVERS: usize = 50;
/// The number of servers that a measured start brings up.
pub const START_SERVERS: usize = 20;
/// How long a killed server may take to answer before the run fails.
const BACK_WITHIN: Duration = Duration::from_secs(120);

/// What was measured. A part that was not requested is empty.
#[derive(Debug, Default)]
pub struct Supervision {
    /// The same calls with one server and with many.
    pub among_many: Vec<(Round, Round)>,
    /// The memory that servers take in the gateway and in their shims.
    pub memory: Vec<Memory>,
    /// The recoveries of killed servers.
    pub restarts: Vec<Restart>,
    /// From the start of a gateway to a list with the tools of twenty servers.
    pub full_lists: Vec<Duration>,
    /// From the start of a program to its first byte: directly, and through the shim.
    pub starts: Vec<(Duration, Duration)>,
    /// What isolation costs.
    pub isolation: Isolation,
}

/// Memory in kilobytes for each server.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// The growth of the gateway, with one tool per server.
    pub gateway: f64,
    /// The growth of the gateway with a hundred tools per server; `None` if that was not measured.
    pub gateway_with_tools: Option<f64>,
    /// The private memory of a shim.
    pub shim_own: f64,
    /// The whole resident memory of a shim; most of it is shared with the other shims.
    pub shim_resident: f64,
}

/// One kill.
#[derive(Debug, Clone, Copy)]
pub struct Restart {
    /// From the kill to the next answer of the tool.
    pub back: Duration,
    /// From the start of the server without a gateway to its first answer.
    pub own: Duration,
}

/// The names of the parts for `--only`.
const PARTS: [&str; 8] = [
    "many upstreams",
    "upstream memory",
    "restart",
    "twenty upstreams",
    "shim",
    "isolated call",
    "start of a large gateway",
    "kill of a large tree",
];

/// Whether a part is measured.
fn wanted(only: Option<&str>, part: &str) -> bool {
    only.is_none_or(|only| part.contains(only))
}

/// Whether any part is measured.
pub(crate) fn any(only: Option<&str>) -> bool {
    PARTS.iter().any(|part| wanted(only, part))
}

impl Form {
    /// How often each short measurement is repeated.
    const fn samples(self) -> usize {
        match self {
            Self::Brief => 1,
            Self::Short => 7,
            Self::Full => 21,
        }
    }

    /// How many isolated calls are made, alternating with as many shared calls. Only a full run has enough calls to judge a
    /// percentile.
    const fn isolated_calls(self) -> usize {
        match self {
            Self::Brief => 20,
            Self::Short => 140,
            Self::Full => 2_000,
        }
    }
}

impl Supervision {
    /// Measures the parts that the plan wants.
    pub(crate) fn measure(plan: &Plan, folder: &TempDir, tell: &mut dyn FnMut(&str)) -> Result<Self> {
        let stage = Stage { plan, folder, runtime: Builder::new_current_thread().enable_all().build()? };
        let mut found = Self::default();
        let [many, memory, restart, twenty, shim, isolated, large, tree] =
            PARTS.map(|part| wanted(plan.only.as_deref(), part));
        let samples = plan.form.samples();
        if shim {
            tell("starting programs, directly and through the shim");
            found.starts = stage.starts(samples * 8)?;
        }
        if twenty {
            tell("starting gateways with twenty servers");
            found.full_lists = (0..samples).map(|_| stage.full_list()).collect::<Result<_>>()?;
        }
        if isolated {
            tell("calling servers with a process for each call");
            let shared = stage.gateway(1, 1)?;
            let alone = stage.gateway_with(1, 1, "isolation = \"call\"\n")?;
            found.isolation.calls =
                isolation::calls(shared.address, alone.address, plan.form.isolated_calls())?;
            found.isolation.per_second = Some(isolation::back_to_back(alone.address, samples * 40)?);
        }
        if large {
            tell("starting programs from a process with a gigabyte of memory");
            let _prepared = stage.prepare()?;
            let start = || stage.runtime.block_on(first_byte(&plan.echo_stdio(), true));
            start()?;
            found.isolation.starts = isolation::starts(samples * 2, start)?;
        }
        if tree {
            tell("killing trees of a hundred processes");
            let _prepared = stage.prepare()?;
            found.isolation.kills =
                (0..samples).map(|_| stage.runtime.block_on(isolation::kill())).collect::<Result<_>>()?;
        }
        if restart {
            tell("killing servers");
            found.restarts = (0..samples).map(|_| stage.restart()).collect::<Result<_>>()?;
        }
        if memory {
            tell("comparing memory");
            found.memory = (0..3).map(|_| stage.memory()).collect::<Result<_>>()?;
        }
        if many {
            tell("calling one of many servers");
            let (rounds, with_tools) = stage.among_many()?;
            found.among_many = rounds;
            found.memory.iter_mut().for_each(|memory| memory.gateway_with_tools = Some(with_tools));
        }
        Ok(found)
    }
}

struct Stage<'a> {
    plan: &'a Plan,
    folder: &'a TempDir,
    runtime: Runtime,
}

/// A gateway in front of some servers.
struct Gateway {
    process: Process,
    address: SocketAddr,
    full_list: Duration,
}

impl Stage<'_> {
    /// Starts a gateway in front of `servers` servers with `tools` tools each, and waits until all are ready.
    fn gateway(&self, servers: usize, tools: usize) -> Result<Gateway> {
        self.gateway_with(servers, tools, "")
    }

    /// Like [`gateway`](Self::gateway), with the configuration lines `more` for each server.
    fn gateway_with(&self, servers: usize, tools: usize, more: &str) -> Result<Gateway> {
        let command = serde_json::to_string(text(&self.plan.echo_stdio())?)?;
        let mut config = "audit.store = \"none\"\n[gateway]\nprefix = true\n".to_owned();
        if let Some(threads) = self.plan.threads {
            let _ = writeln!(config, "threads = {threads}");
        }
        for number in 0..servers {
            // Writing to a string cannot fail.
            let _ = write!(
                config,
                "\n[servers.s{number}]\ncommand = {command}\nargs = [\"--tools\", \"{}\"]\nenv = {{ SERVER = \"{number}\" }}\n{more}",
                tools - 1
            );
        }
        let file = self.folder.path().join(format!("servers-{servers}-{tools}.toml"));
        std::fs::write(&file, config)?;
        let address = free_address()?;
        let words = self.folder.path().join(format!("servers-{servers}-{tools}.txt"));
        let arguments =
            ["--log-level", "warn", "serve", "--config", text(&file)?, "--listen", &address.to_string()];
        let mut process = Process::start(&self.plan.gateway, &arguments, words)?;
        // Longer lists have several pages, so each server is called instead.
        let full_list = if servers * tools <= 500 {
            let list = Template::new(address, Era::Modern, Ask::List, None);
            let complete = |body: &[u8]| memchr::memmem::find_iter(body, b"__echo\"").count() == servers;
            process.answers(address, list.bytes(), complete)?
        } else {
            for number in 0..servers {
                let call =
                    Template::named(address, Era::Modern, Ask::Call, None, &format!("s{number}__echo"));
                process.answers(address, call.bytes(), |body| check(Ask::Call, 0, body).is_ok())?;
            }
            Duration::ZERO
        };
        Ok(Gateway { process, address, full_list })
    }

    fn full_list(&self) -> Result<Duration> {
        Ok(self.gateway(START_SERVERS, 1)?.full_list)
    }

    fn memory(&self) -> Result<Memory> {
        let one = self.gateway(1, 1)?.resident_kb()?;
        let many = self.gateway(MEMORY_SERVERS, 1)?;
        let gateway = (many.resident_kb()? - one) / (MEMORY_SERVERS - 1) as f64;
        // The gateway's only child is the nursery.
        let pid = many.process.pid();
        let family = family::below(pid);
        let nursery =
            family.iter().find(|seen| seen.parent == pid).context("the gateway has no children")?.pid;
        let shims: Vec<u32> =
            family.iter().filter(|seen| seen.parent == nursery).map(|seen| seen.pid).collect();
        ensure!(
            shims.len() == MEMORY_SERVERS,
            "{} processes where a shim for each server was expected",
            shims.len()
        );
        let each = |name: &str| {
            let sum: u64 = shims.iter().filter_map(|shim| family::memory_kb(*shim, name)).sum();
            sum as f64 / shims.len() as f64
        };
        Ok(Memory {
            gateway,
            gateway_with_tools: None,
            shim_own: each("RssAnon"),
            shim_resident: each("VmRSS"),
        })
    }

    fn restart(&self) -> Result<Restart> {
        let own = self.runtime.block_on(first_byte(&self.plan.echo_stdio(), false))?;
        let gateway = self.gateway(1, 1)?;
        let family = family::below(gateway.process.pid());
        let server = family.iter().find(|seen| family.iter().all(|other| other.parent != seen.pid));
        let server = server.and_then(|server| i32::try_from(server.pid).ok()).and_then(Pid::from_raw);
        let server = server.context("the gateway has no server")?;
        let call = Template::named(gateway.address, Era::Modern, Ask::Call, None, "s0__echo");
        let killed = Instant::now();
        kill_process(server, Signal::KILL)?;
        loop {
            let (body, _) = once(gateway.address, call.bytes())?;
            let back = killed.elapsed();
            if check(Ask::Call, 0, &body).is_ok() {
                return Ok(Restart { back, own });
            }
            ensure!(back < BACK_WITHIN, "no answer after the kill: {}", String::from_utf8_lossy(&body));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The rounds, and the growth of the gateway per server.
    fn among_many(&self) -> Result<(Vec<(Round, Round)>, f64)> {
        let (one, many) = (self.gateway(1, TOOLS_EACH)?, self.gateway(MANY, TOOLS_EACH)?);
        let grown = (many.resident_kb()? - one.resident_kb()?) / (MANY - 1) as f64;
        let load = |gateway: &Gateway, server: usize| Load {
            address: gateway.address,
            pid: gateway.process.pid(),
            era: Era::Modern,
            ask: Ask::Call,
            tool: format!("s{server}__echo"),
            connections: 1,
            warm_up: self.plan.form.warm_up(),
            measured: self.plan.form.measured(),
        };
        let (one, many) = (load(&one, 0), load(&many, MANY / 2));
        let mut rounds = Vec::new();
        for number in 0..self.plan.form.rounds() {
            let run = |load: &Load| self.runtime.block_on(load.run());
            rounds.push(if number % 2 == 0 {
                let first = run(&one)?;
                (first, run(&many)?)
            } else {
                let first = run(&many)?;
                (run(&one)?, first)
            });
        }
        Ok((rounds, grown))
    }

    /// Makes this process start programs through the installed shim, with a running nursery as in a gateway with servers.
    fn prepare(&self) -> Result<Prepared> {
        let shim = self.plan.gateway.with_file_name("bridgehead-shim");
        ensure!(shim.is_file(), "there is no `bridgehead-shim` beside the gateway");
        use_shim(Shim::Program(shim));
        let _inside = self.runtime.enter();
        Ok(bridgehead_process::prepare())
    }

    /// From the start of a program to its first byte, alternating between a direct start and the shim.
    fn starts(&self, pairs: usize) -> Result<Vec<(Duration, Duration)>> {
        let _prepared = self.prepare()?;
        let both = || {
            let plain = self.runtime.block_on(first_byte(&self.plan.echo_stdio(), false))?;
            let kept = self.runtime.block_on(first_byte(&self.plan.echo_stdio(), true))?;
            anyhow::Ok((plain, kept))
        };
        // The first start brings files into the page cache for the others.
        both()?;
        (0..pairs).map(|_| both()).collect()
    }
}

impl Gateway {
    /// Its resident memory shortly after it has become ready.
    fn resident_kb(&self) -> Result<f64> {
        std::thread::sleep(Duration::from_millis(50));
        Ok(self.process.memory_kb("VmRSS")? as f64)
    }
}

/// Starts the server, sends a request at once, and returns the time to the first byte of its answer.
async fn first_byte(program: &Path, kept: bool) -> Result<Duration> {
    const PING: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n";
    let mut answer = [0; 256];
    let begun = Instant::now();
    match kept {
        false => {
            #[expect(clippy::disallowed_methods, reason = "the reference for the shim")]
            let mut child = tokio::process::Command::new(program)
                .env_clear()
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            let (mut input, output) = (child.stdin.take().context("no input")?, child.stdout.take());
            input.write_all(PING).await?;
            ensure!(output.context("no output")?.read(&mut answer).await? > 0, "the server ended");
            let took = begun.elapsed();
            drop(input);
            child.wait().await?;
            Ok(took)
        }
        true => {
            let spec = Spec {
                program: text(program)?.to_owned(),
                args: Vec::new(),
                env: base_environment(&Default::default()),
                cwd: None,
                limits: bridgehead_process::Limits::default(),
                confinement: None,
            };
            let mut child = bridgehead_process::start(&spec, Box::new(|_| {})).await?;
            let (mut input, output) = (child.take_stdin().context("no input")?, child.take_stdout());
            input.write_all(PING).await?;
            ensure!(output.context("no output")?.read(&mut answer).await? > 0, "the server ended");
            let took = begun.elapsed();
            drop(input);
            child.stop(Duration::from_secs(1)).await;
            Ok(took)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chosen_by_their_names() {
        assert!(wanted(None, "restart"));
        assert!(wanted(Some("upstreams"), "many upstreams") && wanted(Some("upstreams"), "twenty upstreams"));
        assert!(!wanted(Some("tools/call"), "shim"));
        assert!(any(Some("shim")) && !any(Some("tools/call")));
    }
}
