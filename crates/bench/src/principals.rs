//! Measures what many principals cost a gateway with many rules and many tools: the time until a new class of principals gets its
//! first list, the time of a list that is prepared already, and the memory that each principal takes once it has called.
//!
//! Everything is seen from outside: requests over HTTP with real keys, and the memory that the kernel reports. The time of a
//! first list contains its way to the client and back, which the time of a prepared list shows alone.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bridgehead_access::keys::{Key, digest_text};
use serde_json::{Value, json};
use tokio::runtime::Builder;

use crate::client::{Connection, check};
use crate::count::{CLASSES, RULES, TOOLS, class_rules};
use crate::machine::{CpuTime, Process, free_address};
use crate::plan::{NO_AUDIT, text};
use crate::request::{Ask, Era, Template};

/// How many principals have a key.
const PRINCIPALS: usize = 10_000;
/// How often each class asks for its list again.
const AGAIN: usize = 5;

/// What was measured.
#[derive(Debug)]
pub struct Figures {
    /// The first list of each class.
    pub first: Vec<Duration>,
    /// The middle one of the later lists of each class.
    pub later: Vec<Duration>,
    /// Bytes of memory for each principal that called.
    pub bytes_each: u64,
}

impl Figures {
    /// The figures as JSON, in microseconds and bytes.
    pub fn to_json(&self) -> Value {
        let micros =
            |all: &[Duration]| all.iter().map(|time| json!(time.as_micros() as u64)).collect::<Value>();
        json!({"first": micros(&self.first), "later": micros(&self.later), "bytesEach": self.bytes_each})
    }
}

/// Measures with these programs: `bridgehead`, and `echo-stdio` beside `echo-upstream`.
pub fn run(gateway: &Path, upstream: &Path) -> Result<Figures> {
    let folder = tempfile::tempdir()?;
    let keys: Vec<Key> = (0..PRINCIPALS).map(|_| Key::generate()).collect::<std::io::Result<_>>()?;
    // JSON strings and TOML strings have the same escapes.
    let server = serde_json::to_string(&upstream.with_file_name("echo-stdio"))?;
    let mut config =
        format!("{NO_AUDIT}[servers.echo]\ncommand = {server}\nargs = [\"--tools\", \"{TOOLS}\"]\n");
    for (number, key) in keys.iter().enumerate() {
        let (group, digest) = (number % CLASSES, digest_text(&key.digest()));
        let _ = write!(config, "[[auth.keys.k{number}]]\nsha256 = \"{digest}\"\ngroups = [\"g{group}\"]\n");
    }
    config.push_str("[[policy]]\nwho = [\"*\"]\ntools = [\"echo/echo\"]\n");
    config.push_str(&class_rules(1..RULES));
    let file = folder.path().join("bridgehead.toml");
    fs::write(&file, config)?;
    let address = free_address()?;
    let listen = address.to_string();
    let arguments = ["--log-level=warn", "serve", "--config", text(&file)?, "--listen", &listen];
    let mut gateway = Process::start(gateway, &arguments, folder.path().join("gateway.txt"))?;
    let ready = Template::new(address, Era::Modern, Ask::Call, None).bearing(keys[0].expose());
    gateway
        .answers(address, ready.bytes(), |body| check(Ask::Call, 0, body).is_ok())
        .context("bridgehead")?;
    let figures =
        Builder::new_current_thread().enable_all().build()?.block_on(measure(address, &keys, &gateway))?;
    gateway.end()?;
    Ok(figures)
}

async fn measure(address: SocketAddr, keys: &[Key], gateway: &Process) -> Result<Figures> {
    let mut connection = Connection::open(address).await?;
    let (mut first, mut later) = (Vec::new(), Vec::new());
    // The call that waited for the server has prepared the first class, so the first list of that class is left out below.
    for key in keys.iter().take(CLASSES) {
        let list = Template::new(address, Era::Modern, Ask::List, None).bearing(key.expose());
        let mut timed = Vec::new();
        for _ in 0..=AGAIN {
            let began = Instant::now();
            let body = connection.exchange(list.bytes()).await?;
            timed.push(began.elapsed());
            check(Ask::List, 0, body)?;
        }
        first.push(timed.remove(0));
        timed.sort();
        later.push(timed[AGAIN / 2]);
    }
    first.remove(0);
    CpuTime::settle(gateway.pid())?;
    let before = gateway.memory_kb("VmRSS")?;
    for (number, key) in keys.iter().enumerate() {
        let id = u32::try_from(number)?;
        let mut call = Template::new(address, Era::Modern, Ask::Call, None).bearing(key.expose());
        call.stamp(id);
        check(Ask::Call, id, connection.exchange(call.bytes()).await?)?;
    }
    CpuTime::settle(gateway.pid())?;
    let grown = gateway.memory_kb("VmRSS")?.saturating_sub(before);
    ensure!(first.len() == CLASSES - 1, "a class was not measured");
    Ok(Figures { first, later, bytes_each: grown * 1024 / PRINCIPALS as u64 })
}
