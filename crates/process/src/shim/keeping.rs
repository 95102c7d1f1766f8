//! Keeps one tree: starts the server, reaps every process below, and kills the tree when it has to end.

use std::collections::BTreeSet;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use rustix::process::{Pid, WaitOptions};

use super::cgroup::{Ground, Group};
use super::confine::{self, Walls};
use super::killing::{self, DYING, ROUND};
use super::nursery::Means;
use super::own_users;
use super::program::Program;
use super::watch::{self, Counted, Watch};
use crate::descent;
use crate::message::{Birth, ORDER_HEAD, Order, OrderHead, RELEASE, Report, Stage};
use crate::sys::{self, Alone, Fork, SignalMask};
use crate::ungrouped::Ungrouped;
use crate::{Breach, Confined, Effective, Limits};

/// Keeps one tree. `heard` is the signal mask that the server gets; `means` enforce the limits of a tree.
pub(super) fn main(heard: &SignalMask, means: Option<Means>) -> i32 {
    let stdin = io::stdin();
    let control = stdin.as_fd();
    let Started { server, children, watch, group, effective } = match start(control, heard, means) {
        Ok(started) => started,
        Err((stage, error)) => {
            let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            report(control, Report::Failed { stage, errno });
            return 1;
        }
    };
    // Only we can reap it, and have not yet, so its pid is valid.
    let birth = |pid: u32| Birth { pid, born: descent::born(pid).unwrap_or_default() };
    let program = birth(server.as_raw_pid().unsigned_abs());
    report(control, Report::Started { program, shim: birth(std::process::id()), effective });
    let (phase, killed) = (Phase::Running, BTreeSet::new());
    let left = Keeper { control, children, server, watch, group, phase, killed }.keep();
    i32::from(left > 0)
}

/// A running server.
struct Started {
    server: Pid,
    children: OwnedFd,
    watch: Watch,
    group: Option<Group>,
    effective: Effective,
}

fn start(
    control: BorrowedFd<'_>,
    heard: &SignalMask,
    means: Option<Means>,
) -> Result<Started, (Stage, io::Error)> {
    let keeping = |error: io::Error| (Stage::Keeping, error);
    let children = sys::ends_of_children().map_err(keeping)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| keeping(error.into()))?;
    // The name is for lists of processes. The own group keeps signals to the nursery's group away from us.
    let _ = rustix::thread::set_name(c"bridgehead-shim");
    let _ = rustix::process::setpgid(None, None);

    let (order, pipes) =
        receive(control).map_err(|_| (Stage::Order, io::Error::from_raw_os_error(RELEASE)))?;
    let program = Program::new(&order, pipes).map_err(keeping)?;
    let limits = order.limits;
    let (group, counted) = means_of(means, &limits, order.confinement.is_some())
        .map_err(|lack| (Stage::Ungrouped(lack), Errno::OPNOTSUPP.into()))?;
    let effective = watch::effective(&limits, counted);
    let walls = match order.confinement {
        None => None,
        Some(asked) => {
            let walls = Walls::prepare(asked, &order.program, order.landlock);
            Some(walls.map_err(confine::Refusal::failure)?)
        }
    };
    let (pid, confined) = fork(program, &limits, counted, walls, group.as_ref(), heard)?;
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let effective = Effective { confined, ..effective };
    let watch = Watch::new(&limits, &effective);
    pid.map(|server| Started { server, children, watch, group, effective })
        .ok_or_else(|| (Stage::Program, Errno::SRCH.into()))
}

/// What enforces the limits of the tree: its control group, if they need one and there can be one, and what counts its processes.
/// An error if that is not enough for the limits that the system itself must enforce.
fn means_of(
    means: Option<Means>,
    limits: &Limits,
    confined: bool,
) -> Result<(Option<Group>, Counted), Ungrouped> {
    if !limits.is_of_tree() {
        return Ok((None, Counted::Sampling));
    }
    let (ground, own_users) = match means {
        Some(Means { ground, own_users }) => (ground, own_users),
        None => (Err(Ungrouped::Refused), false),
    };
    match ground.and_then(|ground: Ground| Group::make(&ground, limits).map_err(|_| Ungrouped::Refused)) {
        Ok(group) => Ok((Some(group), Counted::Group)),
        Err(lack) if limits.hard_memory => Err(lack),
        Err(_) if own_users && own_users::are_wanted(limits, confined) => Ok((None, Counted::OwnUsers)),
        Err(lack) if limits.hard_processes => Err(lack),
        Err(_) => Ok((None, Counted::Sampling)),
    }
}

/// The size of the messages that the new process sends before it becomes the server: how it is confined, or why it cannot
/// become the server.
const WORD: usize = 6;

/// Forks this process. The child starts inside the group, confines and limits itself, and becomes the server.
fn fork(
    program: Program,
    limits: &Limits,
    counted: Counted,
    walls: Option<Walls>,
    group: Option<&Group>,
    heard: &SignalMask,
) -> Result<(u32, Option<Confined>), (Stage, io::Error)> {
    let keeping = |error: io::Error| (Stage::Keeping, error);
    let (mut said, says) = io::pipe().map_err(keeping)?;
    let alone = Alone::check().map_err(keeping)?;
    let forked = match group {
        Some(group) => group.fork(&alone),
        None => sys::fork(&alone),
    };
    match forked.map_err(keeping)? {
        Fork::Child => {
            drop(said);
            let mut says = says;
            let mut say = |tag: u8, rest: [u8; WORD - 1]| {
                let mut word = [tag; WORD];
                word[1..].copy_from_slice(&rest);
                // Fails only if the shim has died; then this process is killed anyway.
                let _ = says.write_all(&word);
            };
            let number = |number: u32| {
                let [a, b, c, d] = number.to_le_bytes();
                [a, b, c, d, 0]
            };
            let error = |error: io::Error| number(error.raw_os_error().unwrap_or_default().cast_unsigned());
            if counted == Counted::OwnUsers
                && let Err(refused) = own_users::enter()
            {
                say(b'L', error(refused));
                std::process::exit(126);
            }
            match walls.map(Walls::close).transpose() {
                Ok(confined) => {
                    match confined {
                        Some(confined) => say(b'C', number(confined.encode())),
                        None => say(b'N', number(0)),
                    }
                    let mut of_limits = false;
                    // Returns only if it failed.
                    let failed =
                        program.run(heard, || watch::set(limits, counted).inspect_err(|_| of_limits = true));
                    say(if of_limits { b'L' } else { b'X' }, error(failed));
                }
                Err(gap) => say(b'G', confine::encode(gap)),
            }
            std::process::exit(126);
        }
        Fork::Parent { child } => {
            // Closes our copies of the pipes, so that they close when the server ends.
            drop((says, program));
            let mut words = Vec::new();
            said.read_to_end(&mut words).map_err(keeping)?;
            let (words, _) = words.as_chunks::<WORD>();
            let number = |rest: [u8; WORD - 1]| {
                let [a, b, c, d, _] = rest;
                u32::from_le_bytes([a, b, c, d])
            };
            let mut outcome = Err((Stage::Keeping, Errno::PROTO.into()));
            for &[tag, ref rest @ ..] in words {
                outcome = match tag {
                    b'C' => Ok((child, Some(Confined::decode(number(*rest))))),
                    b'N' => Ok((child, None)),
                    b'G' => Err(match confine::decode(*rest) {
                        Some((feature, error)) => (Stage::Confinement(feature), error),
                        None => (Stage::Keeping, Errno::PROTO.into()),
                    }),
                    tag => {
                        let errno = number(*rest).cast_signed();
                        let stage = if tag == b'L' { Stage::Limits } else { Stage::Program };
                        Err((stage, io::Error::from_raw_os_error(errno)))
                    }
                };
            }
            outcome
        }
    }
}

fn receive(control: BorrowedFd<'_>) -> io::Result<(Order, [OwnedFd; 3])> {
    let broken = || io::Error::from(Errno::PROTO);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut head = [0; ORDER_HEAD];
    let received = rustix::net::recvmsg(
        control,
        &mut [IoSliceMut::new(&mut head)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let descriptors = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => {
            <[OwnedFd; 3]>::try_from(descriptors.collect::<Vec<_>>()).ok()
        }
        _ => None,
    });
    read_exact(control, &mut head[received.bytes..])?;
    let head = OrderHead::decode(&head).ok_or_else(broken)?;
    let mut strings = vec![0; head.length];
    read_exact(control, &mut strings)?;
    head.order(&strings).zip(descriptors).ok_or_else(broken)
}

fn read_exact(from: BorrowedFd<'_>, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match rustix::io::read(from, &mut *buffer)? {
            0 => return Err(Errno::PIPE.into()),
            count => buffer = &mut buffer[count..],
        }
    }
    Ok(())
}

/// Sending fails only when the gateway is gone, which `listen` notices.
fn report(control: BorrowedFd<'_>, report: Report) {
    let _ = rustix::net::send(control, &report.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// What ended a sleep, besides the end of a child and the timeout.
struct Woken {
    by_gateway: bool,
    by_group: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Running,
    /// All processes got SIGTERM. Those that still run at this time are killed.
    Terminating(Instant),
    /// Kills until no process is left, or until this time.
    Killing(Instant),
}

struct Keeper<'control> {
    control: BorrowedFd<'control>,
    children: OwnedFd,
    server: Pid,
    watch: Watch,
    group: Option<Group>,
    phase: Phase,
    killed: BTreeSet<u32>,
}

impl Keeper<'_> {
    /// Returns when the tree is gone, with the number of processes that could not be killed.
    fn keep(mut self) -> u32 {
        // False once the gateway has closed its end; the socket is not polled any more then.
        let mut connected = true;
        loop {
            if !self.reap() {
                return self.gone(0);
            }
            let now = Instant::now();
            if let Phase::Terminating(deadline) = self.phase
                && now >= deadline
            {
                self.kill();
            }
            if self.phase == Phase::Running
                && self.watch.due().is_some_and(|due| now >= due)
                && let Some(breach) = self.watch.look(self.group.as_ref())
            {
                report(self.control, Report::Breached(breach));
                self.kill();
            }
            let timeout = match self.phase {
                Phase::Running => self.watch.due().map(|due| due.saturating_duration_since(Instant::now())),
                Phase::Terminating(deadline) => Some(deadline - now),
                Phase::Killing(deadline) if now >= deadline => {
                    let left = descent::below(std::process::id()).len();
                    return self.gone(u32::try_from(left).unwrap_or(u32::MAX));
                }
                Phase::Killing(_) => {
                    self.kill_all();
                    Some(ROUND)
                }
            };
            let woken = self.sleep(timeout, connected);
            if woken.by_group && self.phase == Phase::Running {
                self.look_for_refusals();
            }
            if woken.by_gateway {
                connected = self.listen();
            }
        }
    }

    /// Sleeps until a child ends, the gateway sends something, the group refuses a process, or the timeout passes.
    fn sleep(&self, timeout: Option<Duration>, connected: bool) -> Woken {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // A placeholder for a missing source: a descriptor that always exists, polled for nothing.
        let nobody = || PollFd::new(&self.children, PollFlags::empty());
        let group = self.group.as_ref().filter(|_| self.phase == Phase::Running);
        let mut sources = [
            PollFd::new(&self.children, PollFlags::IN),
            group.map_or_else(nobody, |group| PollFd::from_borrowed_fd(group.refusals(), PollFlags::PRI)),
            if connected { PollFd::from_borrowed_fd(self.control, PollFlags::IN) } else { nobody() },
        ];
        // After an interrupted sleep the caller checks everything again anyway.
        if poll(&mut sources, timeout.as_ref()).is_err() {
            return Woken { by_gateway: false, by_group: false };
        }
        let [ended, by_group, by_gateway] = sources.map(|source| !source.revents().is_empty());
        if ended {
            // One signal may stand for the end of many children; `reap` waits for all of them.
            let _ = rustix::io::read(&self.children, &mut [0_u8; 1024]);
        }
        Woken { by_gateway, by_group }
    }

    /// Kills a tree to which the system has refused a process.
    fn look_for_refusals(&mut self) {
        if let Some(breach) = self.group.as_mut().and_then(Group::refused) {
            report(self.control, Report::Breached(breach));
            self.kill();
        }
    }

    /// Reads and obeys a message of the gateway. False if the gateway has gone or the message is malformed.
    fn listen(&mut self) -> bool {
        let mut grace = [0; 4];
        if read_exact(self.control, &mut grace).is_err() {
            self.kill();
            return false;
        }
        if self.phase == Phase::Running {
            killing::terminate();
            let grace = Duration::from_millis(u32::from_le_bytes(grace).into());
            self.phase = Phase::Terminating(Instant::now() + grace);
        }
        true
    }

    fn kill(&mut self) {
        if !matches!(self.phase, Phase::Killing(_)) {
            self.phase = Phase::Killing(Instant::now() + DYING);
        }
    }

    /// Reaps all children that have ended. False if none is left.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.server => {
                    let failed = self.phase == Phase::Running && status.exit_status() != Some(0);
                    if let Some(breach) = failed.then(|| self.died_of()).flatten() {
                        report(self.control, Report::Breached(breach));
                    }
                    report(self.control, Report::Exited { status: status.as_raw() });
                    // After a request to stop, the others keep their grace. If the server ended by itself, they are
                    // leftovers and are killed.
                    if self.phase == Phase::Running {
                        self.kill();
                    }
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// The limit of which a server died, if any.
    fn died_of(&mut self) -> Option<Breach> {
        let of_group = self.group.as_mut().and_then(|group| group.starved().or_else(|| group.refused()));
        of_group.or_else(|| self.watch.died_of())
    }

    /// Kills every process in the tree.
    fn kill_all(&mut self) {
        if let Some(group) = &self.group {
            self.killed.extend(group.kill());
        }
        // Needed even with a group, because a process may have left it.
        self.killed.extend(killing::kill(&BTreeSet::new()));
    }

    fn gone(&mut self, left: u32) -> u32 {
        let killed = u32::try_from(self.killed.len()).unwrap_or(u32::MAX);
        let killed = killed.max(self.group.as_ref().map_or(0, Group::killed_for_memory));
        // Removes the group's folder before the gateway hears that nothing is left.
        self.group = None;
        report(self.control, Report::Gone { killed, left });
        left
    }
}
