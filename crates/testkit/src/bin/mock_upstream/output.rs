//! Writes whole messages, one at a time, to their readers.
//!
//! On standard output a noise line from the script follows each message. A reader that disconnects ends nothing here;
//! only the end of standard input or of the process does.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use parking_lot::Mutex;

/// Where messages go. Clones share the destination.
#[derive(Clone)]
pub(crate) struct Output(Arc<Way>);

enum Way {
    /// Standard output, and the noise lines between messages.
    Standard { noise: Vec<String>, next_noise: Mutex<usize> },
    /// One reader: a response, a stream or a socket.
    Reader(Mutex<Sender<String>>),
    /// All listeners.
    Listeners(Mutex<Vec<Sender<String>>>),
}

impl Output {
    /// Standard output, with these noise lines between messages.
    pub(crate) fn standard(noise: Vec<String>) -> Self {
        Self(Arc::new(Way::Standard { noise, next_noise: Mutex::new(0) }))
    }

    /// No listeners yet.
    pub(crate) fn listeners() -> Self {
        Self(Arc::new(Way::Listeners(Mutex::default())))
    }

    /// A single reader.
    pub(crate) fn reader(sender: Sender<String>) -> Self {
        Self(Arc::new(Way::Reader(Mutex::new(sender))))
    }

    /// Adds a listener.
    pub(crate) fn add(&self, sender: Sender<String>) {
        if let Way::Listeners(listeners) = &*self.0 {
            listeners.lock().push(sender);
        }
    }

    /// Writes all noise lines at once, as a chatty program does at start.
    pub(crate) fn litter(&self) {
        let Way::Standard { noise, .. } = &*self.0 else { return };
        let mut out = std::io::stdout().lock();
        for line in noise {
            let _ = writeln!(out, "{line}");
        }
        let _ = out.flush();
    }

    /// Writes one message, or what the script writes instead of one.
    pub(crate) fn line(&self, text: &str) {
        match &*self.0 {
            Way::Standard { noise, next_noise } => {
                let mut next = next_noise.lock();
                let mut out = std::io::stdout().lock();
                let _ = out.write_all(text.as_bytes());
                let _ = out.write_all(b"\n");
                if !noise.is_empty() {
                    let _ = writeln!(out, "{}", noise[*next % noise.len()]);
                    *next += 1;
                }
                let _ = out.flush();
            }
            Way::Reader(reader) => {
                let _ = reader.lock().send(text.to_owned());
            }
            Way::Listeners(listeners) => {
                listeners.lock().retain(|listener| listener.send(text.to_owned()).is_ok());
            }
        }
    }

    /// Answers a request. Both texts are written unchanged.
    pub(crate) fn result(&self, id: &str, result: &str) {
        self.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
    }

    /// Answers a request with an error; `data` is written unchanged.
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
