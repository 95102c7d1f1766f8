//! Counts how many instructions one relayed call takes in the gateway, with callgrind.
//!
//! A time on a shared machine is off by a tenth; a count is off by a few thousandths. Each figure is the difference of two
//! runs that differ only in their number of calls, so starting and stopping cancel out. The gateway serves on one thread
//! and gets its calls one after the other, on one connection. Deferred work, such as moving recorded rows into the
//! database, is part of the figure, because the gateway does it before it ends.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Builder;

use crate::client::{Connection, check, end_session, open_session};
use crate::machine::{Process, free_address};
use crate::plan::{NO_AUDIT, text};
use crate::request::{Ask, Era, Template};

/// How many calls the two runs of a figure make.
const CALLS: [u32; 2] = [200, 1200];

/// What to count.
#[derive(Debug, Clone)]
pub struct Count {
    /// The gateway's program.
    pub gateway: PathBuf,
    /// The program `echo-upstream`; `echo-stdio` is beside it.
    pub upstream: PathBuf,
    /// Only the calls whose name contains this text.
    pub only: Option<String>,
}

/// The instructions of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// The kind of call: era, transport of the server, whether it is recorded.
    pub name: String,
    /// Counted in the gateway's process.
    pub instructions: u64,
}

/// All figures as JSON.
pub fn to_json(figures: &[Figure]) -> Value {
    figures.iter().map(|figure| (figure.name.clone(), json!(figure.instructions))).collect()
}

/// One kind of call.
#[derive(Debug, Clone, Copy)]
struct Kind {
    era: Era,
    http: bool,
    recorded: bool,
    /// Whether rules decide who may call what: [`RULES`] of them, over [`TOOLS`] tools, for [`PRINCIPALS`] keys.
    ruled: bool,
}

/// How many rules a gateway with rules has.
pub(crate) const RULES: usize = 1_000;
/// How many tools its server has besides `echo`.
pub(crate) const TOOLS: usize = 20_000;
/// How many principals are configured. A call does not depend on their number, and under callgrind each takes time to read.
const PRINCIPALS: usize = 1_000;
/// In how many groups they are, and so how many classes there are.
pub(crate) const CLASSES: usize = 8;

impl Kind {
    fn all() -> impl Iterator<Item = Self> {
        let plain = |era| {
            [(false, false), (false, true), (true, false), (true, true)].map(|(http, recorded)| Self {
                era,
                http,
                recorded,
                ruled: false,
            })
        };
        let ruled = |era| Self { era, http: false, recorded: false, ruled: true };
        Era::ALL.into_iter().flat_map(plain).chain(Era::ALL.into_iter().map(ruled))
    }

    fn name(self) -> String {
        let transport = if self.http { "http" } else { "stdio" };
        let audit = if self.recorded { ", audit" } else { "" };
        let rules = if self.ruled { ", rules" } else { "" };
        format!("tools/call, {}, {transport}{audit}{rules}", self.era.name())
    }
}

impl Count {
    /// Counts everything. `tell` gets lines about the progress.
    pub fn run(&self, tell: &mut dyn FnMut(&str)) -> Result<Vec<Figure>> {
        let wanted = |kind: &Kind| self.only.as_ref().is_none_or(|only| kind.name().contains(only.as_str()));
        let kinds: Vec<Kind> = Kind::all().filter(wanted).collect();
        ensure!(!kinds.is_empty(), "no call has a name that contains the text of `--only`");
        let mut figures = Vec::new();
        for kind in kinds {
            tell(&kind.name());
            let [short, long] = CALLS.map(|calls| self.instructions(kind, calls));
            let difference = long?.checked_sub(short?).context("more calls took fewer instructions")?;
            let instructions = difference / u64::from(CALLS[1] - CALLS[0]);
            figures.push(Figure { name: kind.name(), instructions });
        }
        Ok(figures)
    }

    /// The instructions of a whole gateway run that relays this many calls.
    fn instructions(&self, kind: Kind, calls: u32) -> Result<u64> {
        let folder = tempfile::tempdir()?;
        let behind = match kind.http {
            true => Some(self.echo_http(&folder)?),
            false => None,
        };
        let (counts, address) = (folder.path().join("counts"), free_address()?);
        let config = self.configuration(kind, &folder, behind.as_ref().map(|(_, address)| *address))?;
        let counts_to = format!("--callgrind-out-file={}", text(&counts)?);
        let listen = address.to_string();
        let arguments = [
            "--tool=callgrind",
            &counts_to,
            text(&self.gateway)?,
            "--log-level=warn",
            "serve",
            "--config",
            text(&config)?,
            "--listen",
            &listen,
        ];
        let words = folder.path().join("gateway.txt");
        let mut gateway = Process::start(Path::new("valgrind"), &arguments, words)?;
        // Once the list contains the tool, the server behind the gateway is ready.
        let list = Template::new(address, Era::Modern, Ask::List, None);
        gateway
            .answers(address, list.bytes(), |body| memchr::memmem::find(body, b"\"echo\"").is_some())
            .context("bridgehead under valgrind")?;
        call(address, kind.era, calls)?;
        gateway.end()?;
        total(&fs::read_to_string(&counts).context("callgrind wrote no counts")?)
    }

    fn configuration(&self, kind: Kind, folder: &TempDir, http: Option<SocketAddr>) -> Result<PathBuf> {
        // JSON strings and TOML strings have the same escapes.
        let audit = match kind.recorded {
            true => format!("audit.folder = {}\n", serde_json::to_string(&folder.path().join("audit"))?),
            false => NO_AUDIT.to_owned(),
        };
        let server = match http {
            Some(address) => format!("url = \"http://{address}/mcp\"\n"),
            None => {
                format!("command = {}\n", serde_json::to_string(&self.upstream.with_file_name("echo-stdio"))?)
            }
        };
        let (server, rules) = match kind.ruled {
            true => (format!("{server}args = [\"--tools\", \"{TOOLS}\"]\n"), rules()),
            false => (server, String::new()),
        };
        let file = folder.path().join("bridgehead.toml");
        fs::write(&file, format!("{audit}[gateway]\nthreads = 1\n\n[servers.echo]\n{server}\n{rules}"))?;
        Ok(file)
    }

    fn echo_http(&self, folder: &TempDir) -> Result<(Process, SocketAddr)> {
        let address = free_address()?;
        let words = folder.path().join("echo.txt");
        let mut process = Process::start(&self.upstream, &["--http", &address.to_string()], words)?;
        let greeting = Template::new(address, Era::Modern, Ask::Greet, None);
        process.answers(address, greeting.bytes(), |_| true).context("echo-upstream")?;
        Ok((process, address))
    }
}

/// The keys and the rules of a gateway with rules. The calls are made by the local user, whom one of them allows everything.
fn rules() -> String {
    let mut text = String::from("[auth]\nlocal = true\n");
    for number in 0..PRINCIPALS {
        let group = number % CLASSES;
        let _ =
            write!(text, "[[auth.keys.k{number}]]\nsha256 = \"{number:064x}\"\ngroups = [\"g{group}\"]\n");
    }
    text.push_str("[[policy]]\nwho = [\"local\"]\ntools = [\"*/*\"]\n");
    text.push_str(&class_rules(1..RULES));
    text
}

/// Rules with these numbers, each for one of the classes.
pub(crate) fn class_rules(numbers: std::ops::Range<usize>) -> String {
    let mut text = String::new();
    for number in numbers {
        let group = number % CLASSES;
        let _ = write!(
            text,
            "[[policy]]\nwho = [\"group:g{group}\"]\ntools = [\"echo/*_{number:04}\", \"echo/search_*\"]\ndeny_tools = [\"echo/delete_*\"]\n"
        );
    }
    text
}

/// Makes the calls, one after the other.
fn call(address: SocketAddr, era: Era, calls: u32) -> Result<()> {
    let session = match era {
        Era::Modern => None,
        Era::Legacy => Some(open_session(address)?),
    };
    let mut template = Template::new(address, era, Ask::Call, session.as_deref());
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut connection = Connection::open(address).await?;
        for id in 0..calls {
            template.stamp(id);
            check(Ask::Call, id, connection.exchange(template.bytes()).await?)?;
        }
        anyhow::Ok(())
    })?;
    if let Some(session) = session {
        end_session(address, &session);
    }
    Ok(())
}

/// The total that callgrind writes at the end of its file.
fn total(counts: &str) -> Result<u64> {
    let line = counts.lines().find_map(|line| line.strip_prefix("totals:").or(line.strip_prefix("summary:")));
    let first = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    first.context("callgrind's file has no total")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_call_has_its_name() {
        let names: Vec<String> = Kind::all().map(Kind::name).collect();
        assert_eq!(names.len(), 10);
        assert_eq!(names.first().map(String::as_str), Some("tools/call, modern, stdio"));
        assert!(names.contains(&"tools/call, legacy, http, audit".to_owned()));
        assert_eq!(names.last().map(String::as_str), Some("tools/call, legacy, stdio, rules"));
        assert_eq!(
            (rules().matches("[[policy]]").count(), rules().matches("sha256").count()),
            (RULES, PRINCIPALS)
        );
    }

    #[test]
    fn the_sum_is_found_in_callgrinds_file() {
        assert_eq!(total("events: Ir\nfn=(1)\n1 20\ntotals: 4200\n").unwrap(), 4200);
        assert_eq!(total("events: Ir\nsummary: 17\n").unwrap(), 17);
        total("events: Ir\n").unwrap_err();
    }
}
