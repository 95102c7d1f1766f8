//! The one way out: whole lines on standard output, one at a time, with the script's litter
//! after each.
//!
//! A reader that went away ends nothing here; the end of standard input does.

use std::io::Write;

use parking_lot::Mutex;

/// Standard output, shared by all threads.
pub(crate) struct Output {
    noise: Vec<String>,
    next_noise: Mutex<usize>,
}

impl Output {
    /// An output that litters with these lines.
    pub(crate) fn new(noise: Vec<String>) -> Self {
        Self { noise, next_noise: Mutex::new(0) }
    }

    /// Writes all the litter at once, as a chatty program does at start.
    pub(crate) fn litter(&self) {
        let mut out = std::io::stdout().lock();
        for line in &self.noise {
            let _ = writeln!(out, "{line}");
        }
        let _ = out.flush();
    }

    /// Writes one line.
    pub(crate) fn line(&self, text: &str) {
        let mut next = self.next_noise.lock();
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes());
        let _ = out.write_all(b"\n");
        if !self.noise.is_empty() {
            let _ = writeln!(out, "{}", self.noise[*next % self.noise.len()]);
            *next += 1;
        }
        let _ = out.flush();
    }

    /// Answers a request. Both texts go out as they stand.
    pub(crate) fn result(&self, id: &str, result: &str) {
        self.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
    }

    /// Answers a request with an error, `data` as it stands.
    pub(crate) fn error(&self, id: &str, code: i64, message: &str, data: Option<&str>) {
        let message = serde_json::Value::from(message);
        let data = data.map_or_else(String::new, |data| format!(r#","data":{data}"#));
        self.line(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}{data}}}}}"#
        ));
    }

    /// Sends a notification with these parameters.
    pub(crate) fn notify(&self, method: &str, params: &str) {
        self.line(&format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#));
    }
}
