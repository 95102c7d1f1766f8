//! A server as a child process: started, connected to a link, and negotiated with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{self as config, Isolation, ServerConfig, Stdio};
use bridgehead_process::{Child, Confinement, Exit, Files, Limits, SpawnError, Spec};
use bridgehead_wire::{LineRedactor, Redactor};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::link::negotiate::{NegotiateError, Offer, Opening, Peer, negotiate_until};
use crate::link::{DrivenLink, Link, LinkError};
use crate::server::crash::{Crash, Fault};
use crate::server::given;
use crate::server::record::{Counted, LineSource, ServerRecord};
use crate::transport::relay::{self, LossKind};
use crate::transport::{ConnectError, opening};

/// How long a server has to end after its stdin was closed, before it is killed.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// How long a process may take to exit after its output has ended.
const EXIT_GRACE: Duration = Duration::from_millis(500);
/// How long one launch may block others; a program on a disk that hangs takes longer.
const LONGEST_TURN: Duration = Duration::from_secs(2);
/// The exit of a process that is killed for a breached limit.
const KILLED: Exit = Exit { code: None, signal: Some(9) };
/// How many characters of the end of stderr an error quotes.
const STDERR_SHOWN: usize = 600;

/// A running server process and the link to it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) link: DrivenLink,
    child: Child,
    /// `None` once the reader was seen to end.
    reader: Option<AbortOnDropHandle<()>>,
    writer: AbortOnDropHandle<()>,
    /// Whether it only relays, and the server is elsewhere.
    is_relay: bool,
    /// Whether it ended as a relay whose server can never be reached.
    lasting: bool,
    /// Counts as one of the server's processes while this lives.
    counted: Counted,
}

/// Everything needed to launch a server.
#[derive(Clone, Copy)]
pub(super) struct Launch<'a> {
    pub(super) server: &'a ServerConfig,
    pub(super) stdio: &'a Stdio,
    pub(super) environment: &'a BTreeMap<String, String>,
    pub(super) limit: usize,
    pub(super) record: &'a ServerRecord,
    /// Limits how many are launched at the same time.
    pub(super) turns: &'a Semaphore,
}

impl Launch<'_> {
    /// Launches the server when it gets a turn. The turn ends when the process exists, or takes too long to start.
    async fn run(&self) -> Result<Process, ConnectError> {
        let stopping = |_| ConnectError::Unusable("the gateway is stopping".to_owned());
        let turn = self.turns.acquire().await.map_err(stopping)?;
        let mut launching = std::pin::pin!(Process::start(self));
        if let Ok(launched) = tokio::time::timeout(LONGEST_TURN, &mut launching).await {
            return Ok(launched?);
        }
        drop(turn);
        Ok(launching.await?)
    }
}

/// Starts the server and negotiates; a server that ends on the probe is started again without it.
pub(super) async fn connect(launch: &Launch<'_>, offer: Offer) -> Result<(Process, Peer), ConnectError> {
    let process = launch.run().await?;
    match process.negotiate(opening(launch.server.era), offer).await {
        // The relay has tried everything, and says why it failed.
        Err((NegotiateError::EndedOnProbe(reason) | NegotiateError::Link(reason), process))
            if process.is_relay =>
        {
            let lasting = process.lasting;
            process.stop().await;
            return Err(match lasting {
                true => ConnectError::Unusable(reason.to_string()),
                false => NegotiateError::Link(reason).into(),
            });
        }
        Err((NegotiateError::EndedOnProbe(reason), process)) => {
            debug!(server = %format_args!("mcp:{}", launch.server.name), %reason, "the server ended on the probe; retrying without it");
            process.stop().await;
        }
        Err((error, process)) => {
            process.stop().await;
            return Err(error.into());
        }
        Ok(found) => return Ok(found),
    }
    match launch.run().await?.negotiate(Opening::Initialize, offer).await {
        Ok(found) => Ok(found),
        Err((error, process)) => {
            process.stop().await;
            Err(error.into())
        }
    }
}

fn tree_size(child: &Child) -> u32 {
    u32::try_from(child.tree().len()).unwrap_or(u32::MAX)
}

/// How much processor time a process of a call may use: more than it could use on all processors within its time.
/// It ends only a process that the clock does not end.
fn cpu_seconds(execution: Duration) -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let seconds = execution.as_secs().saturating_add(2).saturating_mul(processors as u64);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

impl Process {
    async fn start(launch: &Launch<'_>) -> Result<Self, SpawnError> {
        let Launch { server, stdio, environment, limit, record, turns: _ } = *launch;
        let env = given::environment(stdio, environment);
        let config::Limits { memory, processes, open_files, file_size, log, output: _, execution } =
            server.limits;
        let cpu_seconds = (server.isolation == Isolation::Call).then(|| execution.map(cpu_seconds)).flatten();
        let required = |requirement| server.require.contains(&requirement);
        let limits = Limits {
            memory,
            hard_memory: required(config::Requirement::MemoryHard),
            processes,
            hard_processes: required(config::Requirement::ProcessesHard),
            open_files,
            file_size,
            cpu_seconds,
            log,
        };
        let confinement = server.confinement.as_ref().map(|asked| Confinement {
            files: asked
                .files
                .as_ref()
                .map(|files| Files { read: files.read.clone(), write: files.write.clone() }),
            network: asked.network == config::Network::Full,
            signals: required(config::Requirement::Signals),
            degrade: asked.on_missing == config::OnMissing::Degrade,
        });
        let spec = Spec {
            program: stdio.command.clone(),
            args: stdio.args.clone(),
            env,
            cwd: stdio.cwd.clone(),
            limits,
            confinement,
        };
        let name: Arc<str> = Arc::from(server.name.as_ref());
        let log = {
            let (name, record) = (Arc::clone(&name), record.clone());
            // A private key spans lines.
            let redactor = Mutex::new(LineRedactor::default());
            move |line: &str| {
                let line = redactor.lock().line(line);
                debug!(server = %format_args!("mcp:{name}"), stderr = %line, "server wrote");
                record.line(LineSource::Stderr, &line);
            }
        };
        let mut child = bridgehead_process::start(&spec, Box::new(log)).await?;
        let counted = record.began(child.view());
        let kept = child.effective().confined.unwrap_or_default();
        for missing in spec.confinement.iter().flat_map(|asked| kept.missing(asked)) {
            warn!(server = %format_args!("mcp:{name}"), missing, "is not confined as asked (`on_missing = \"degrade\"`)");
            record
                .line(LineSource::Gateway, &format!("is not confined as asked: this system lacks {missing}"));
        }
        for gap in spec.confinement.iter().flat_map(|asked| kept.gaps(asked)) {
            debug!(server = %format_args!("mcp:{name}"), gap, "is confined as asked, but this system leaves a gap");
        }
        let pipes = child.take_stdout().zip(child.take_stdin());
        let (stdout, stdin) = pipes.ok_or_else(|| SpawnError::Other {
            program: spec.program.clone(),
            source: std::io::Error::other("the new process has no pipes"),
        })?;
        let (link, read, write) = Link::over(&name, stdout, stdin, limit);
        link.answer_roots(server.roots.as_ref());
        let is_relay = relay::is_relay(stdio);
        if is_relay {
            link.be_of_relay();
        }
        if let Some(output) = server.limits.output {
            link.limit_noise(output as u64);
        }
        link.on_noise({
            let record = record.clone();
            let redactor = Mutex::new(LineRedactor::default());
            move |line| record.noisy(&redactor.lock().line(line))
        });
        debug!(server = %format_args!("mcp:{name}"), pid = child.pid(), "started");
        let (reader, writer) = (tokio::spawn(read), tokio::spawn(write));
        Ok(Self {
            link: DrivenLink(link),
            child,
            reader: Some(AbortOnDropHandle::new(reader)),
            writer: AbortOnDropHandle::new(writer),
            is_relay,
            lasting: false,
            counted,
        })
    }

    async fn negotiate(
        mut self,
        opening: Opening,
        offer: Offer,
    ) -> Result<(Self, Peer), (NegotiateError, Self)> {
        let link = self.link.clone();
        match negotiate_until(self.ended(), &link, opening, offer).await {
            Ok(peer) => Ok((self, peer)),
            Err(error) => Err((error, self)),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Resolves when the server's output has ended; every open request has then failed with the reason.
    pub(crate) async fn ended(&mut self) {
        if let Some(reader) = &mut self.reader {
            tokio::select! {
                biased;
                // A panic of the reader ends the link like any other end.
                _ = reader => {}
                () = self.link.given_up() => {}
                // Its output may stay open: whoever was to end its processes is gone.
                () = self.child.abandoned() => {}
            }
            self.reader = None;
        }
        if let Some(fault) = self.link.fault() {
            return self.end_for(fault);
        }
        let (exit, killed) = match tokio::time::timeout(EXIT_GRACE, self.child.wait()).await {
            Ok(exit) => (exit, self.child.killed()),
            // The process tree exceeds a limit and is being killed; on a busy machine a large tree takes a while to
            // end.
            Err(_) if self.child.breach().is_some() => (KILLED, tree_size(&self.child)),
            Err(_) => return self.end_for(&Fault::Closed),
        };
        let breach = self.child.breach();
        if self.is_relay
            && breach.is_none()
            && let Some(kind) = exit.code.and_then(LossKind::of)
        {
            self.lasting = kind == LossKind::Lasting;
            let reason = self.tail().lines().last().unwrap_or("its relay ended").into();
            return self.link.end(match kind {
                LossKind::Denied => LinkError::Refused { reason, transient: false, denied: true },
                LossKind::Passing | LossKind::Lasting => LinkError::Closed(reason),
            });
        }
        let crash = Crash::new(exit, breach, self.tail(), killed);
        self.link.end(LinkError::Crashed(Arc::new(crash)));
    }

    /// Fails all open requests with the reason why the server is ended, and the current size of its tree. The owner
    /// of the process ends it; this does not wait for that.
    fn end_for(&self, fault: &Fault) {
        let crash = Crash::of(fault, self.tail(), tree_size(&self.child));
        self.link.end(LinkError::Crashed(Arc::new(crash)));
    }

    /// The end of its stderr, as errors quote it.
    fn tail(&self) -> String {
        let tail = self.child.stderr_tail();
        let tail = Redactor::default().end_of_text(tail.trim());
        let skip = tail.char_indices().rev().nth(STDERR_SHOWN - 1).map_or(0, |(at, _)| at);
        tail[skip..].to_owned()
    }

    /// Fails all open requests, because the server is ended for not answering another one.
    pub(crate) fn hangs(&self) {
        self.end_for(&Fault::Hangs);
    }

    /// Kills the server and its whole tree at once.
    pub(crate) async fn kill(self) -> Exit {
        let Self { link, child, reader, writer, is_relay: _, lasting: _, counted } = self;
        let exit = child.kill().await;
        counted.exited(&exit.to_string());
        drop((reader, writer));
        link.end(LinkError::Closed("the server was stopped".into()));
        exit
    }

    /// Ends the server: closes stdin, then asks the process group to end, then kills it. Nothing of it is left
    /// afterwards.
    pub(crate) async fn stop(self) -> Exit {
        let Self { link, child, reader, writer, is_relay: _, lasting: _, counted } = self;
        writer.abort();
        let _ = writer.await;
        let exit = child.stop(STOP_GRACE).await;
        counted.exited(&exit.to_string());
        drop(reader);
        link.end(LinkError::Closed("the server was stopped".into()));
        exit
    }
}
