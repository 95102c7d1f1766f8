//! Plans the rounds: their order and their processes.
//!
//! Direct rounds and rounds through the gateway alternate, and the first one changes from round to round. Other work on
//! the machine then affects both alike, and each ratio is taken within its round.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::runtime::Builder;

use crate::client;
use crate::load::{Load, Round};
use crate::machine::{CpuTime, HostTime, Process, free_address, load_average};
use crate::record::{self, Verification};
use crate::request::{Ask, Era, Template};
use crate::supervision::{self, Supervision};

/// How many tools the long list has besides `echo`.
///
/// With `echo` and the gateway's own two it makes a thousand, which is one page.
pub const LIST_TOOLS: usize = 997;
/// The numbers of connections that are measured.
pub const CONNECTIONS: [usize; 3] = [1, 32, 64];

/// The start of a configuration for a gateway that does not record calls.
pub(crate) const NO_AUDIT: &str = "audit.store = \"none\"\n";

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Seconds: shows that everything runs and every answer is right; the figures are not reliable.
    Brief,
    /// Two minutes.
    Short,
    /// Several minutes.
    Full,
}

impl Form {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Brief => "brief",
            Self::Short => "short",
            Self::Full => "full",
        }
    }

    pub(crate) const fn rounds(self) -> usize {
        match self {
            Self::Brief => 1,
            Self::Short => 5,
            Self::Full => 11,
        }
    }

    const fn starts(self) -> usize {
        match self {
            Self::Brief => 2,
            Self::Short => 7,
            Self::Full => 21,
        }
    }

    pub(crate) const fn warm_up(self) -> Duration {
        Duration::from_millis(match self {
            Self::Brief => 50,
            Self::Short => 100,
            Self::Full => 300,
        })
    }

    pub(crate) const fn measured(self) -> Duration {
        Duration::from_millis(match self {
            Self::Brief => 150,
            Self::Short => 400,
            Self::Full => 1500,
        })
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The gateway's program.
    pub gateway: PathBuf,
    /// The program `echo-upstream`; `echo-stdio` is beside it.
    pub upstream: PathBuf,
    /// How much.
    pub form: Form,
    /// Worker threads of the gateway; `None` means its default.
    pub threads: Option<usize>,
    /// Only loads and other parts whose name contains this text.
    pub only: Option<String>,
}

/// How the gateway reaches the server behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// As a child process.
    Stdio,
    /// Over HTTP, as the load generator does directly.
    Http,
    /// As a child process of a gateway that records calls. The reference is a gateway that does not record them.
    Recorded,
    /// Like `Recorded`, with a server over HTTP.
    RecordedHttp,
}

impl Behind {
    /// Whether recording is compared with not recording, instead of the gateway with the direct path.
    pub const fn is_recorded(self) -> bool {
        matches!(self, Self::Recorded | Self::RecordedHttp)
    }
}

/// The rounds of one kind of load.
#[derive(Debug)]
pub struct Cell {
    /// How the gateway reaches the server.
    pub behind: Behind,
    /// The era of the requests.
    pub era: Era,
    /// The kind of request.
    pub ask: Ask,
    /// The number of connections.
    pub connections: usize,
    /// The rounds without the gateway.
    pub direct: Vec<Round>,
    /// The rounds through the gateway, in the same order.
    pub through: Vec<Round>,
}

impl Cell {
    pub(crate) fn new(behind: Behind, era: Era, ask: Ask, connections: usize) -> Self {
        Self { behind, era, ask, connections, direct: Vec::new(), through: Vec::new() }
    }

    /// Its name in reports.
    pub fn name(&self) -> String {
        let ask = match self.ask {
            Ask::Call => "tools/call",
            Ask::List => "tools/list",
            Ask::Greet => "greeting",
        };
        let behind = match self.behind {
            Behind::Stdio => "",
            Behind::Http => ", http",
            Behind::Recorded => ", audit",
            Behind::RecordedHttp => ", audit http",
        };
        format!("{ask}, {}, {}{behind}", self.era.name(), self.connections)
    }
}

/// Everything that was measured.
#[derive(Debug)]
pub struct Findings {
    /// How much was measured.
    pub form: Form,
    /// The number of CPUs.
    pub cores: usize,
    /// The load average of the machine before and after.
    pub load_average: [f64; 2],
    /// The share of CPU time that the host of a virtual machine took away, in percent.
    pub taken: f64,
    /// How long it took.
    pub elapsed: Duration,
    /// The loads.
    pub cells: Vec<Cell>,
    /// From the start of the gateway to its first answer.
    pub first_answer: Vec<Duration>,
    /// From the start of the gateway to a list that contains the upstream's tools.
    pub first_list: Vec<Duration>,
    /// Resident memory when everything is ready and before the first load, in kilobytes.
    pub idle_kb: Vec<u64>,
    /// The gateway's peak memory under all loads, in kilobytes.
    pub peak_kb: u64,
    /// The peak memory of the gateway with the long list, in kilobytes.
    pub peak_list_kb: u64,
    /// What it costs to supervise many servers.
    pub supervision: Supervision,
    /// How fast a record is verified.
    pub verification: Verification,
}

/// A process and its address.
struct Served {
    process: Process,
    address: SocketAddr,
}

impl Plan {
    /// Runs the plan. `tell` gets lines about the progress.
    pub fn run(&self, tell: &mut dyn FnMut(&str)) -> Result<Findings> {
        let started = Instant::now();
        let (load_before, host_before) = (load_average(), HostTime::now());
        let folder = tempfile::tempdir()?;
        let (mut first_answer, mut first_list, mut idle_kb) = (Vec::new(), Vec::new(), Vec::new());
        tell("starting and stopping the gateway");
        for _ in 0..self.form.starts() {
            let (served, answer, list) = self.gateway(&folder, 0)?;
            first_answer.push(answer);
            first_list.push(list);
            // Leaves time for the work that the gateway does right after it has become ready.
            std::thread::sleep(Duration::from_millis(50));
            idle_kb.push(served.process.memory_kb("VmRSS")?);
        }
        let direct = self.direct(&folder, 0)?;
        let direct_list = self.direct(&folder, LIST_TOOLS)?;
        let (gateway, ..) = self.gateway(&folder, 0)?;
        let (gateway_list, ..) = self.gateway(&folder, LIST_TOOLS)?;
        let over_http = format!("url = \"http://{}/mcp\"\n", direct.address);
        let (gateway_http, ..) = self.gateway_of(&folder, "http", NO_AUDIT, &over_http)?;
        let record = serde_json::to_string(text(&folder.path().join("audit"))?)?;
        let audit = format!("audit.folder = {record}\n");
        let (recording, ..) = self.gateway_of(&folder, "audit", &audit, &self.echo(0)?)?;
        let (recording_http, ..) = self.gateway_of(&folder, "audit-http", &audit, &over_http)?;
        for served in [&direct_list, &gateway_list] {
            for era in Era::ALL {
                has_all_tools(served.address, era)?;
            }
        }

        let mut cells = Vec::new();
        for era in Era::ALL {
            cells.extend(CONNECTIONS.map(|count| Cell::new(Behind::Stdio, era, Ask::Call, count)));
            cells.push(Cell::new(Behind::Stdio, era, Ask::List, 1));
            for behind in [Behind::Http, Behind::Recorded, Behind::RecordedHttp] {
                cells.extend([1, 64].map(|count| Cell::new(behind, era, Ask::Call, count)));
            }
        }
        cells.retain(|cell| self.wants(&cell.name()));
        let verify = self.wants(record::PART);
        let any = !cells.is_empty() || verify || supervision::any(self.only.as_deref());
        ensure!(any, "no load and no part has a name that contains the text of `--only`");
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let rounds = if cells.is_empty() { 0 } else { self.form.rounds() };
        for number in 0..rounds {
            tell(&format!("round {} of {}", number + 1, self.form.rounds()));
            for cell in &mut cells {
                let (plain, bridged) = match (cell.ask, cell.behind) {
                    (Ask::List, _) => (&direct_list, &gateway_list),
                    (_, Behind::Stdio) => (&direct, &gateway),
                    (_, Behind::Http) => (&direct, &gateway_http),
                    (_, Behind::Recorded) => (&gateway, &recording),
                    (_, Behind::RecordedHttp) => (&gateway_http, &recording_http),
                };
                let (plain, bridged) = (self.load(cell, plain), self.load(cell, bridged));
                let order = if number % 2 == 0 { [true, false] } else { [false, true] };
                for directly in order {
                    let (load, rounds, way) = match directly {
                        true => (&plain, &mut cell.direct, "directly"),
                        false => (&bridged, &mut cell.through, "through the gateway"),
                    };
                    let context = || {
                        format!(
                            "{:?} of {} clients on {} connections, {way}",
                            load.ask,
                            load.era.name(),
                            load.connections
                        )
                    };
                    rounds.push(runtime.block_on(load.run()).with_context(context)?);
                    CpuTime::settle(load.pid)?;
                }
            }
        }
        let (peak_kb, peak_list_kb) =
            (gateway.process.memory_kb("VmHWM")?, gateway_list.process.memory_kb("VmHWM")?);
        // Ended here, so that their background work does not disturb the next measurements.
        drop((gateway_http, recording, recording_http, direct, direct_list, gateway, gateway_list));
        let verification = match verify {
            true => Verification::measure(self, &folder, tell)?,
            false => Verification::default(),
        };
        let supervision = Supervision::measure(self, &folder, tell)?;
        Ok(Findings {
            form: self.form,
            cores: std::thread::available_parallelism()?.get(),
            load_average: [load_before, load_average()],
            taken: HostTime::now().taken_since(host_before),
            elapsed: started.elapsed(),
            cells,
            first_answer,
            first_list,
            idle_kb,
            peak_kb,
            peak_list_kb,
            supervision,
            verification,
        })
    }

    /// Whether the load or part with this name is measured.
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    fn load(&self, cell: &Cell, served: &Served) -> Load {
        Load {
            address: served.address,
            pid: served.process.pid(),
            era: cell.era,
            ask: cell.ask,
            tool: "echo".to_owned(),
            connections: cell.connections,
            warm_up: self.form.warm_up(),
            measured: self.form.measured(),
        }
    }

    fn direct(&self, folder: &TempDir, tools: usize) -> Result<Served> {
        let address = free_address()?;
        let words = folder.path().join(format!("direct-{tools}.txt"));
        let arguments = ["--http", &address.to_string(), "--tools", &tools.to_string()];
        let mut process = Process::start(&self.upstream, &arguments, words)?;
        let greeting = Template::new(address, Era::Modern, Ask::Greet, None);
        process.answers(address, greeting.bytes(), |_| true).context("echo-upstream")?;
        Ok(Served { process, address })
    }

    /// Starts a gateway in front of one echo server. Returns also the times to its first answer and to its first full list.
    fn gateway(&self, folder: &TempDir, tools: usize) -> Result<(Served, Duration, Duration)> {
        self.gateway_of(folder, &tools.to_string(), NO_AUDIT, &self.echo(tools)?)
    }

    /// The configuration lines of an echo server.
    fn echo(&self, tools: usize) -> Result<String> {
        // JSON strings and TOML strings have the same escapes.
        let command = serde_json::to_string(text(&self.echo_stdio())?)?;
        Ok(format!("command = {command}\nargs = [\"--tools\", \"{tools}\"]\n"))
    }

    /// The server on stdin and stdout.
    pub(crate) fn echo_stdio(&self) -> PathBuf {
        self.upstream.with_file_name("echo-stdio")
    }

    /// Like [`gateway`](Self::gateway), in front of the server that `lines` configure.
    fn gateway_of(
        &self,
        folder: &TempDir,
        name: &str,
        audit: &str,
        lines: &str,
    ) -> Result<(Served, Duration, Duration)> {
        let config = folder.path().join(format!("bridgehead-{name}.toml"));
        let gateway =
            self.threads.map(|threads| format!("[gateway]\nthreads = {threads}\n\n")).unwrap_or_default();
        fs::write(&config, format!("{audit}{gateway}[servers.echo]\n{lines}"))?;
        let address = free_address()?;
        let words = folder.path().join(format!("gateway-{name}.txt"));
        let arguments =
            ["--log-level", "warn", "serve", "--config", text(&config)?, "--listen", &address.to_string()];
        let mut process = Process::start(&self.gateway, &arguments, words)?;
        let greeting = Template::new(address, Era::Modern, Ask::Greet, None);
        let answered = process.answers(address, greeting.bytes(), |_| true).context("bridgehead")?;
        let list = Template::new(address, Era::Modern, Ask::List, None);
        let complete = |body: &[u8]| memchr::memmem::find(body, b"\"echo\"").is_some();
        let listed =
            process.answers(address, list.bytes(), complete).context("bridgehead's list of tools")?;
        Ok((Served { process, address }, answered, listed))
    }
}

pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path is not valid text")
}

/// Checks that a list is complete. A list that lost tools would look fast.
fn has_all_tools(address: SocketAddr, era: Era) -> Result<()> {
    let session = match era {
        Era::Modern => None,
        Era::Legacy => Some(client::open_session(address)?),
    };
    let request = Template::new(address, era, Ask::List, session.as_deref());
    let (body, _) = client::once(address, request.bytes())?;
    let answer: serde_json::Value = serde_json::from_slice(&body)?;
    let count = answer["result"]["tools"].as_array().map_or(0, Vec::len);
    ensure!(count > LIST_TOOLS, "a list of {count} tools where {} were expected", LIST_TOOLS + 1);
    if let Some(session) = session {
        client::end_session(address, &session);
    }
    Ok(())
}
