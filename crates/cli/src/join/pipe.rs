//! The pipe between a client and the gateway it has joined.
//!
//! Bytes pass unchanged, line by line, in both directions. If the gateway dies, the client's end stays open: requests that were
//! on their way are answered with an error that can be retried, the pipe enters the next gateway and repeats the handshake
//! there, and lines that were not sent yet go to that one. If the gateway stops on purpose, or none can be entered for a while, the
//! next one is entered when the client sends something again. Memory is bounded by the longest message and by the limits of the
//! [`Ledger`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::time::Duration;

use bridgehead_front::{STOPPED, too_long};
use bridgehead_wire::{Code, Id, Line, LineBuffer, error_response};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::ledger::{Again, Head, Ledger, Sent, failed, sent};
use crate::exit::Exit;
use crate::output;

/// How long to wait after each failed attempt to enter the next gateway.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1600),
    Duration::from_millis(3200),
];
/// How long the next gateway may take to answer the repeated handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a gateway may take to close the connection after the end of the client's input. It gives requests in progress one
/// second.
const LAST_ANSWERS: Duration = Duration::from_secs(10);
/// How many bytes are sent, or read ahead, at once.
const CHUNK: usize = 64 * 1024;

/// Where gateways are found; scripted in tests.
pub(crate) trait Gateways {
    /// The two directions of the connection to a gateway.
    type Reader: AsyncRead + Unpin;
    type Writer: AsyncWrite + Unpin;

    /// Joins a running gateway, or starts one. Says why not, and returns the exit code to use if it was the last attempt.
    async fn enter(&mut self) -> Result<Entered<Self::Reader, Self::Writer>, Exit>;
}

/// A connection to a gateway that has been joined.
pub(crate) struct Entered<R, W> {
    pub(crate) reader: R,
    pub(crate) writer: W,
    /// What was read of it already.
    pub(crate) early: Bytes,
}

/// The client's end.
pub(crate) struct Pipe<R, W> {
    input: Input<R>,
    output: W,
    ledger: RefCell<Ledger>,
    /// Answers of this program itself.
    owed: RefCell<BytesMut>,
    owes: Notify,
    room: Notify,
    /// What was read of the gateway and is not a whole line yet.
    heard: BytesMut,
}

/// How the connection to a gateway ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// The client has what it wanted, or is gone.
    Done,
    /// The gateway is gone.
    Crashed,
    /// The gateway was stopped.
    Stopped,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Pipe<R, W> {
    /// A pipe for a client. Lines longer than `limit` are refused. When `stop` is cancelled, no more input is read.
    pub(crate) fn new(input: R, output: W, limit: usize, stop: CancellationToken) -> Self {
        Self {
            input: Input {
                reader: input,
                lines: LineBuffer::new(limit),
                limit,
                ended: false,
                ahead: 0,
                stop,
                pending: Pending::default(),
            },
            output,
            ledger: RefCell::default(),
            owed: RefCell::default(),
            owes: Notify::new(),
            room: Notify::new(),
            heard: BytesMut::new(),
        }
    }

    /// Serves the client to its end, first at the gateway that was entered.
    pub(crate) async fn run<G: Gateways>(
        mut self,
        gateways: &mut G,
        mut at: Entered<G::Reader, G::Writer>,
    ) -> Exit {
        loop {
            let mut left = self.stay(&mut at).await;
            drop(at);
            if left == Left::Done {
                return Exit::Success;
            }
            if self.gateway_is_gone().await.is_err() {
                return Exit::Success;
            }
            at = loop {
                let reads_on = left == Left::Crashed || self.input.more(&self.ledger, &self.owed).await;
                if !reads_on || self.input.is_done() {
                    let _ = self.tell_owed().await;
                    return Exit::Success;
                }
                let exit = match self.enter_next(gateways).await {
                    Ok(Some(next)) => break next,
                    Ok(None) => return Exit::Success,
                    Err(exit) => exit,
                };
                if self.give_up().await.is_err() || self.input.is_done() {
                    return exit;
                }
                // The cause may go away, such as a file that is saved in two steps.
                output::talk(
                    "note: no gateway can be started; it is tried again when the client sends something",
                );
                left = Left::Stopped;
            };
        }
    }

    /// Passes lines on until the client or the gateway ends.
    async fn stay<GR: AsyncRead + Unpin, GW: AsyncWrite + Unpin>(
        &mut self,
        at: &mut Entered<GR, GW>,
    ) -> Left {
        self.heard.extend_from_slice(&std::mem::take(&mut at.early));
        let Self { input, output, ledger, owed, owes, room, heard } = self;
        let mut up = pin!(up(input, &mut at.writer, ledger, (owed, owes), room));
        let mut down = pin!(down(&mut at.reader, output, heard, ledger, (owed, owes), room));
        tokio::select! {
            biased;
            left = &mut down => left,
            gateway_reads = &mut up => {
                // Either way the gateway may still have answers.
                match gateway_reads {
                    true => timeout(LAST_ANSWERS, down).await.map_or(Left::Done, |_| Left::Done),
                    false => down.await,
                }
            }
        }
    }

    /// Answers what was at the gateway.
    async fn gateway_is_gone(&mut self) -> io::Result<()> {
        self.heard.clear();
        let answers = self.ledger.get_mut().gateway_is_gone();
        self.input.pending.restart(self.ledger.get_mut());
        self.output.write_all(&answers).await?;
        self.output.flush().await
    }

    /// Enters the next gateway and repeats the handshake there; `None` if the client leaves meanwhile.
    async fn enter_next<G: Gateways>(
        &mut self,
        gateways: &mut G,
    ) -> Result<Option<Entered<G::Reader, G::Writer>>, Exit> {
        let mut exit = Exit::Failure;
        for pause in PAUSES {
            let entered = tokio::select! {
                biased;
                entered = gateways.enter() => entered,
                () = self.input.gone() => return Ok(None),
            };
            match entered {
                Ok(mut next) => match timeout(HANDSHAKE, self.repeat(&mut next)).await {
                    Ok(Ok(())) => return Ok(Some(next)),
                    Ok(Err(error)) => tracing::debug!(%error, "the gateway did not take the handshake"),
                    Err(_) => tracing::debug!("the gateway did not answer the handshake"),
                },
                Err(refused) => exit = refused,
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = self.input.gone() => return Ok(None),
            }
        }
        Err(exit)
    }

    /// Says to the next gateway what the session needs, and to the client that lists may have changed.
    async fn repeat<GR: AsyncRead + Unpin, GW: AsyncWrite + Unpin>(
        &mut self,
        next: &mut Entered<GR, GW>,
    ) -> io::Result<()> {
        self.heard.clear();
        self.heard.extend_from_slice(&std::mem::take(&mut next.early));
        let Some(again) = self.ledger.get_mut().again() else { return Ok(()) };
        let Again { handshake, id, answered, then, hears } = again;
        next.writer.write_all(&handshake).await?;
        next.writer.write_all(b"\n").await?;
        let (answer, ok) = loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line = self.heard.split_to(end + 1);
                match Head::of(&line) {
                    Head::Answer { id: answered, ok } if *answered == *id => break (line.freeze(), ok),
                    // Nothing else comes before the answer.
                    _ => continue,
                }
            }
            if next.reader.read_buf(&mut self.heard).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        if !answered {
            self.ledger.get_mut().handshake_was_answered(ok);
            self.output.write_all(&answer).await?;
        }
        next.writer.write_all(&then).await?;
        if hears {
            self.output.write_all(&lists_changed(&answer)).await?;
        }
        self.output.flush().await
    }

    /// Answers what waits and cannot be sent. Nothing waits any more then, so that only the client's next line tries again.
    async fn give_up(&mut self) -> io::Result<()> {
        let mut requests: Vec<Box<str>> = self.ledger.get_mut().give_handshake_up().into_iter().collect();
        loop {
            self.input.more_at_hand(&self.ledger, &self.owed);
            let lines = self.input.pending.take();
            if lines.is_empty() {
                break;
            }
            for one in lines.into_iter().flat_map(|(_, says)| says) {
                match one {
                    Sent::Request { id, .. } => requests.push(id),
                    // The next gateway is told what it means for the session.
                    told => self.ledger.get_mut().was_sent(vec![told]),
                }
            }
        }
        let message = "the gateway ended, and no other could be started";
        let mut answers = std::mem::take(self.owed.get_mut());
        for id in requests {
            answers.put_slice(failed(&id, Code::ProviderUnavailable, message, false).as_bytes());
            answers.put_u8(b'\n');
        }
        self.output.write_all(&answers).await?;
        self.output.flush().await
    }

    async fn tell_owed(&mut self) -> io::Result<()> {
        let owed = std::mem::take(self.owed.get_mut());
        self.output.write_all(&owed).await?;
        self.output.flush().await
    }
}

/// The notifications that make a client ask for all lists again, as far as the gateway's handshake announces them.
fn lists_changed(answer: &[u8]) -> BytesMut {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    let mut out = BytesMut::new();
    for list in ["tools", "prompts", "resources"] {
        if answer["result"]["capabilities"][list]["listChanged"] == true {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed"}}"#);
            out.put_slice(line.as_bytes());
            out.put_u8(b'\n');
        }
    }
    out
}

/// Sends the client's lines to the gateway. Returns whether the gateway has taken everything to the end of the input.
async fn up<R: AsyncRead + Unpin>(
    input: &mut Input<R>,
    gateway: &mut (impl AsyncWrite + Unpin),
    ledger: &RefCell<Ledger>,
    (owed, owes): (&RefCell<BytesMut>, &Notify),
    room: &Notify,
) -> bool {
    loop {
        while let Some(rest) = input.pending.rest() {
            match gateway.write(rest).await {
                Ok(0) | Err(_) => return false,
                Ok(written) => input.pending.advance(written, &mut ledger.borrow_mut()),
            }
        }
        if ledger.borrow().is_full() {
            room.notified().await;
            continue;
        }
        let goes_on = input.more(ledger, owed).await;
        if !owed.borrow().is_empty() {
            // The client gets it before more is read.
            owes.notify_one();
            room.notified().await;
            continue;
        }
        if !goes_on {
            let _ = gateway.shutdown().await;
            return true;
        }
    }
}

/// Writes the gateway's lines, and answers of this program, to the client.
async fn down(
    gateway: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
    heard: &mut BytesMut,
    ledger: &RefCell<Ledger>,
    (owed, owes): (&RefCell<BytesMut>, &Notify),
    room: &Notify,
) -> Left {
    let mut left = Left::Crashed;
    // What was read early is looked at first.
    let mut seen = 0;
    loop {
        if let Some(end) = heard.iter().skip(seen).rposition(|byte| *byte == b'\n') {
            let mut lines = heard.split_to(seen + end + 1);
            if lines.ends_with(STOPPED.as_bytes()) {
                lines.truncate(lines.len() - STOPPED.len());
                left = Left::Stopped;
            }
            let lines = for_client(lines, &mut ledger.borrow_mut());
            room.notify_one();
            if client.write_all(&lines).await.is_err() || client.flush().await.is_err() {
                return Left::Done;
            }
        }
        seen = heard.len();
        if heard.capacity() - heard.len() < CHUNK / 4 {
            heard.reserve(CHUNK.max(heard.len()));
        }
        let read = tokio::select! {
            read = gateway.read_buf(heard) => Some(read),
            () = owes.notified() => None,
        };
        match read {
            Some(Ok(0) | Err(_)) => return left,
            Some(Ok(_)) => {}
            None => {
                let owed = std::mem::take(&mut *owed.borrow_mut());
                if client.write_all(&owed).await.is_err() || client.flush().await.is_err() {
                    return Left::Done;
                }
                room.notify_one();
            }
        }
    }
}

/// The lines without those that are not for the client; in the usual case, all of them.
fn for_client(lines: BytesMut, ledger: &mut Ledger) -> BytesMut {
    let (mut kept, mut start) = (None, 0);
    while let Some(end) = lines[start..].iter().position(|byte| *byte == b'\n') {
        let line = &lines[start..start + end];
        let wanted = ledger.was_heard(line);
        if !wanted && kept.is_none() {
            kept = Some(BytesMut::from(&lines[..start]));
        }
        start += end + 1;
        if let Some(kept) = kept.as_mut().filter(|_| wanted) {
            kept.extend_from_slice(&lines[start - end - 1..start]);
        }
    }
    kept.unwrap_or(lines)
}

/// The client's input: lines that wait to be sent.
struct Input<R> {
    reader: R,
    lines: LineBuffer,
    limit: usize,
    ended: bool,
    /// How many bytes were read and not looked at.
    ahead: usize,
    stop: CancellationToken,
    pending: Pending,
}

impl<R: AsyncRead + Unpin> Input<R> {
    /// Whether nothing more comes, and nothing waits.
    fn is_done(&self) -> bool {
        self.ended && self.ahead == 0 && self.pending.rest().is_none()
    }

    /// Waits until a line can be sent; false if none comes any more. Dropping the future loses nothing.
    async fn more(&mut self, ledger: &RefCell<Ledger>, owed: &RefCell<BytesMut>) -> bool {
        loop {
            self.more_at_hand(ledger, owed);
            if self.pending.rest().is_some() || !owed.borrow().is_empty() {
                return true;
            }
            if self.ended {
                return false;
            }
            self.read().await;
        }
    }

    /// Waits until the client has gone without leaving anything to be sent.
    async fn gone(&mut self) {
        while !self.ended && self.ahead < CHUNK {
            self.read().await;
        }
        if !self.is_done() {
            std::future::pending::<()>().await;
        }
    }

    async fn read(&mut self) {
        let read = tokio::select! {
            biased;
            () = self.stop.cancelled() => 0,
            read = self.reader.read_buf(self.lines.space()) => read.unwrap_or(0),
        };
        self.ended = read == 0;
        self.ahead += read;
    }

    /// Takes the lines that have been read, at most a chunk of them.
    fn more_at_hand(&mut self, ledger: &RefCell<Ledger>, owed: &RefCell<BytesMut>) {
        while self.pending.bytes.len() < CHUNK {
            let line = match self.lines.next_line() {
                None if self.ended => self.lines.finish(),
                line => line,
            };
            match line {
                None => {
                    self.ahead = 0;
                    return;
                }
                Some(Line::Text(line)) => {
                    let messages = sent(&line);
                    // It answers a gateway that is gone; the next one may have asked something else under that id.
                    if !ledger.borrow().is_late(&messages) {
                        self.pending.push(&line, messages);
                    }
                }
                Some(Line::TooLong { bytes, id }) => {
                    let mut owed = owed.borrow_mut();
                    error_response(&mut owed, id.as_ref().map(Id::raw), &too_long(bytes, self.limit));
                    owed.put_u8(b'\n');
                }
            }
        }
    }
}

/// Lines on their way to the gateway.
#[derive(Default)]
struct Pending {
    /// The rest of a line that is partly sent, and the lines after it.
    bytes: BytesMut,
    /// How much of the first line is sent.
    at: usize,
    /// The length of each line, with its line break, and what it says.
    lines: VecDeque<(usize, Vec<Sent>)>,
}

impl Pending {
    fn push(&mut self, line: &[u8], says: Vec<Sent>) {
        self.bytes.extend_from_slice(line);
        self.bytes.put_u8(b'\n');
        self.lines.push_back((line.len() + 1, says));
    }

    /// What can be sent.
    fn rest(&self) -> Option<&[u8]> {
        let rest = self.bytes.get(self.at..)?;
        (!rest.is_empty()).then_some(rest)
    }

    /// This much has been sent.
    fn advance(&mut self, written: usize, ledger: &mut Ledger) {
        self.at += written;
        while let Some((length, says)) = self.lines.pop_front_if(|(length, _)| *length <= self.at) {
            self.bytes.advance(length);
            self.at -= length;
            ledger.was_sent(says);
        }
    }

    /// The gateway is gone. A line that it has not got whole is sent again from its start, unless it answers that gateway.
    fn restart(&mut self, ledger: &Ledger) {
        self.at = 0;
        let mut rest = std::mem::take(&mut self.bytes);
        for (length, says) in std::mem::take(&mut self.lines) {
            let line = rest.split_to(length);
            if !ledger.is_late(&says) {
                self.bytes.extend_from_slice(&line);
                self.lines.push_back((length, says));
            }
        }
    }

    /// Everything that waits, of which nothing is partly sent; nothing waits any more.
    fn take(&mut self) -> VecDeque<(usize, Vec<Sent>)> {
        self.bytes.clear();
        std::mem::take(&mut self.lines)
    }
}

#[cfg(test)]
mod tests;
