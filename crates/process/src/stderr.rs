//! Reads a child's standard error: splits it into lines, cleans them, passes them to a callback, and keeps the last ones
//! to explain why the child died.
//!
//! The text is untrusted. Lines are bounded, and control characters are removed so that they cannot control the
//! terminal of a person who reads a log. The pipe is always drained, because a child that cannot write blocks. If a child
//! writes very many lines, only some are passed to the callback, with a count of the others; the kept tail has them all.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The longest line in bytes; the rest of a longer one is dropped.
const LONGEST_LINE: usize = 8 * 1024;
/// How many bytes of lines are kept by default.
const TAIL: usize = 64 * 1024;
/// How many lines a second are shown in the long run.
const RATE: u32 = 200;
/// How many lines are shown at once after a pause.
const BURST: u32 = 1000;
/// How often a notice about dropped lines is shown.
const NOTICE: Duration = Duration::from_secs(1);
/// How long to wait for a child's last output once it has ended. Usually the pipe closes with it, but a descendant
/// that left the process group may hold it open forever.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Called with each line that is shown.
pub type LineCallback = Box<dyn Fn(&str) + Send>;

/// The last lines that a child has written so far. Clones share them, and they outlive the child.
#[derive(Clone, Debug, Default)]
pub struct Stderr {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug)]
struct Kept {
    lines: VecDeque<Box<str>>,
    bytes: usize,
    most: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self { lines: VecDeque::new(), bytes: 0, most: TAIL }
    }
}

impl Stderr {
    /// Keeps the last `most` bytes.
    pub(crate) fn keeping(most: Option<usize>) -> Self {
        let kept = Kept { most: most.unwrap_or(TAIL), ..Kept::default() };
        Self { kept: Arc::new(Mutex::new(kept)) }
    }

    /// The kept lines, without a final line break.
    #[must_use]
    pub fn tail(&self) -> String {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::with_capacity(kept.bytes);
        for line in &kept.lines {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(line);
        }
        text
    }

    fn keep(&self, line: &str) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Counts the line break too; otherwise the number of empty lines would be unbounded.
        kept.bytes += line.len() + 1;
        kept.lines.push_back(line.into());
        while kept.bytes > kept.most {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.len() + 1;
        }
    }
}

/// Reads `pipe` until it ends, or until shortly after `ended` resolves.
pub(crate) async fn collect(
    mut pipe: impl AsyncRead + Unpin,
    stderr: Stderr,
    on_line: LineCallback,
    mut ended: oneshot::Receiver<()>,
) {
    let mut lines = Lines { stderr, on_line, line: Vec::new(), rate: Rate::new(Instant::now()) };
    let mut buffer = vec![0; 8 * 1024];
    loop {
        tokio::select! {
            read = pipe.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return lines.finish(),
                Ok(count) => lines.take(&buffer[..count]),
            },
            () = tokio::time::sleep_until(lines.rate.notice_at), if lines.rate.dropped > 0 => lines.notice(),
            _ = &mut ended => break,
        }
    }
    let rest = async {
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            lines.take(&buffer[..count]);
        }
    };
    // Stops in either case. A last line without a line break counts as a line.
    let _ = tokio::time::timeout(LAST_WORDS, rest).await;
    lines.finish();
}

struct Lines {
    stderr: Stderr,
    on_line: LineCallback,
    line: Vec<u8>,
    rate: Rate,
}

/// Limits how many lines are shown: a token bucket.
struct Rate {
    tokens: f64,
    filled: Instant,
    dropped: u64,
    /// When the next notice about dropped lines is due, if any were dropped.
    notice_at: Instant,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Self { tokens: f64::from(BURST), filled: now, dropped: 0, notice_at: now }
    }

    /// Whether a line may be shown now; counts it as dropped if not.
    fn admits(&mut self, now: Instant) -> bool {
        let gained = now.duration_since(self.filled).as_secs_f64() * f64::from(RATE);
        self.tokens = (self.tokens + gained).min(f64::from(BURST));
        self.filled = now;
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return true;
        }
        if self.dropped == 0 {
            self.notice_at = now + NOTICE;
        }
        self.dropped += 1;
        false
    }
}

impl Lines {
    fn take(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.extend(&bytes[..end]);
            self.emit();
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = LONGEST_LINE - self.line.len();
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn emit(&mut self) {
        let mut text: String = String::from_utf8_lossy(&self.line)
            .chars()
            .filter(|&character| character == '\t' || !character.is_control())
            .collect();
        // Replacing invalid UTF-8 may make the text longer.
        text.truncate(text.floor_char_boundary(LONGEST_LINE));
        self.line.clear();
        self.stderr.keep(&text);
        let now = Instant::now();
        // Checked here too, because during a flood the timer may never get its turn.
        if self.rate.dropped > 0 && now >= self.rate.notice_at {
            self.notice();
        }
        if self.rate.admits(now) {
            (self.on_line)(&text);
        }
    }

    /// Shows how many lines were dropped.
    fn notice(&mut self) {
        let dropped = std::mem::take(&mut self.rate.dropped);
        let s = if dropped == 1 { "" } else { "s" };
        (self.on_line)(&format!("({dropped} line{s} not shown: more than {RATE} a second)"));
    }

    fn finish(&mut self) {
        if !self.line.is_empty() {
            self.emit();
        }
        if self.rate.dropped > 0 {
            self.notice();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn collected(input: &[u8]) -> (Vec<String>, String) {
        let (sender, receiver) = mpsc::channel();
        let stderr = Stderr::default();
        let (_running, ended) = oneshot::channel();
        let on_line = Box::new(move |line: &str| sender.send(line.to_owned()).unwrap());
        collect(input, stderr.clone(), on_line, ended).await;
        (receiver.iter().collect(), stderr.tail())
    }

    /// LINK-1: stderr is captured, without control characters that could affect a reader's terminal.
    #[tokio::test]
    async fn lines_are_cleaned() {
        let (lines, tail) = collected(b"one\r\n\ttwo \x1b[31mred\x07\n\nb\xffd \xc2\x9b1m\nlast").await;
        assert_eq!(lines, ["one", "\ttwo [31mred", "", "b\u{fffd}d 1m", "last"]);
        assert_eq!(tail, lines.join("\n"));
    }

    #[tokio::test]
    async fn lines_and_tail_are_bounded() {
        let mut input = "x".repeat(1 << 20);
        input.push_str("\nnext\n");
        let (lines, _) = collected(input.as_bytes()).await;
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [LONGEST_LINE, 4]);

        let (lines, _) = collected(&[0xff; LONGEST_LINE]).await;
        assert!(lines[0].len() <= LONGEST_LINE);

        let numbered: String = (0..20_000).map(|number| format!("line {number}\n")).collect();
        let (_, tail) = collected(numbered.as_bytes()).await;
        assert!(tail.len() <= TAIL && tail.len() > TAIL - 100, "{}", tail.len());
        assert!(tail.ends_with("\nline 19999"));

        let (_, tail) = collected("\n".repeat(1 << 20).as_bytes()).await;
        assert!(tail.len() <= TAIL);
    }

    /// POOL-9: of a flood only some lines are shown, a notice says how many were not, and its end is kept.
    #[tokio::test(start_paused = true)]
    async fn a_flood_is_shown_in_part() {
        let (mut writer, reader) = tokio::io::duplex(1 << 20);
        let (sender, receiver) = mpsc::channel();
        let stderr = Stderr::default();
        let (_running, ended) = oneshot::channel();
        let on_line = Box::new(move |line: &str| sender.send(line.to_owned()).unwrap());
        let task = tokio::spawn(collect(reader, stderr.clone(), on_line, ended));

        let flood: String = (0..5000).map(|number| format!("line {number}\n")).collect();
        writer.write_all(flood.as_bytes()).await.unwrap();
        // The notice does not need another line to trigger it.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let shown: Vec<String> = receiver.try_iter().collect();
        assert_eq!(shown.len(), 1001);
        assert_eq!(shown[999..], ["line 999", "(4000 lines not shown: more than 200 a second)"]);
        assert!(stderr.tail().ends_with("line 4998\nline 4999"));

        // In 1.5 seconds the bucket has refilled for 300 lines.
        writer.write_all(flood.as_bytes()).await.unwrap();
        drop(writer);
        task.await.unwrap();
        let shown: Vec<String> = receiver.iter().collect();
        assert_eq!(shown.len(), 301);
        assert_eq!(shown[300], "(4700 lines not shown: more than 200 a second)");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipe_that_stays_open_is_left_soon_after_the_end() {
        let (mut writer, reader) = tokio::io::duplex(64);
        let stderr = Stderr::default();
        let (running, ended) = oneshot::channel::<()>();
        let task = tokio::spawn(collect(reader, stderr.clone(), Box::new(|_| {}), ended));
        writer.write_all(b"first\n").await.unwrap();
        drop(running);
        writer.write_all(b"last words").await.unwrap();
        task.await.unwrap();
        assert_eq!(stderr.tail(), "first\nlast words");
        assert!(writer.write_all(b"too late").await.is_err());
    }
}
