//! A raw HTTP server: it records requests and writes replies byte for byte, right or wrong.
//!
//! It knows nothing of MCP. The test gives a function from a request to the parts of its reply.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// One request as received.
#[derive(Debug, Clone)]
pub struct Asked {
    /// `POST`, `GET` and so on.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The headers, their names in lower case; several values are joined with commas.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: String,
    /// The number of its connection, from 0.
    pub connection: usize,
}

/// What the peer does next on a connection.
#[derive(Debug, Clone)]
pub enum Part {
    /// Writes these bytes.
    Write(Vec<u8>),
    /// Waits.
    Wait(Duration),
    /// Waits until the test sets the value.
    Until(watch::Receiver<bool>),
    /// Writes nothing more until the client disconnects.
    Hang,
    /// Closes the connection.
    Close,
}

/// A running peer. It ends when dropped.
#[derive(Debug)]
pub struct Peer {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    asked: Mutex<Vec<Asked>>,
    connections: AtomicUsize,
    left: AtomicUsize,
}

impl Asked {
    /// A header's value, or an empty string.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// The method of the message in the body.
    pub fn rpc(&self) -> String {
        self.json()["method"].as_str().unwrap_or_default().to_owned()
    }
}

impl Peer {
    /// Serves on a loopback port.
    pub async fn start(script: impl Fn(&Asked) -> Vec<Part> + Send + Sync + 'static) -> Self {
        Self::serve(TcpListener::bind("127.0.0.1:0").await.expect("a port of loopback"), script)
    }

    /// Serves on a port that is already open.
    pub fn serve(
        listener: TcpListener,
        script: impl Fn(&Asked) -> Vec<Part> + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("a bound port");
        let shared = Arc::new(Shared::default());
        let (script, ours) = (Arc::new(script), Arc::clone(&shared));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (script, shared) = (Arc::clone(&script), Arc::clone(&ours));
                let number = shared.connections.fetch_add(1, Ordering::SeqCst);
                connections.spawn(async move {
                    let _ = serve(stream, number, &*script, &shared).await;
                    shared.left.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, shared, task }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL for a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().clone()
    }

    /// The requests whose message has this method.
    pub fn asked_for(&self, method: &str) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| asked.rpc() == method).collect()
    }

    /// How many connections have been opened.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many connections have ended.
    pub fn ended(&self) -> usize {
        self.shared.left.load(Ordering::SeqCst)
    }

    /// Waits until the condition holds; fails the test if it never does.
    pub async fn until(&self, what: &str, fits: impl Fn(&Self) -> bool) {
        let until = std::time::Instant::now() + crate::PATIENCE;
        while !fits(self) {
            assert!(std::time::Instant::now() < until, "never: {what}; asked: {:?}", self.asked());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    connection: usize,
    script: &(impl Fn(&Asked) -> Vec<Part> + Sync),
    shared: &Shared,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(asked) = read(&mut stream, &mut buffer, connection).await? {
        shared.asked.lock().push(asked.clone());
        for part in script(&asked) {
            match part {
                Part::Write(bytes) => stream.write_all(&bytes).await?,
                Part::Wait(time) => tokio::time::sleep(time).await,
                Part::Until(mut said) => drop(said.wait_for(|said| *said).await),
                Part::Close => return Ok(()),
                Part::Hang => {
                    while stream.read(&mut [0; 1024]).await? > 0 {}
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

async fn read(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    connection: usize,
) -> std::io::Result<Option<Asked>> {
    let head = loop {
        if let Some(at) = buffer.windows(4).position(|part| part == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let text = String::from_utf8_lossy(&buffer[..head]).into_owned();
    let mut lines = text.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        headers
            .entry(name.to_ascii_lowercase())
            .and_modify(|known| *known = format!("{known},{value}"))
            .or_insert_with(|| value.to_owned());
    }
    let length: usize = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    while buffer.len() < head + 4 + length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = String::from_utf8_lossy(&buffer[head + 4..head + 4 + length]).into_owned();
    buffer.drain(..head + 4 + length);
    Ok(Some(Asked { method: method.to_owned(), target: target.to_owned(), headers, body, connection }))
}

/// A reply of known length. `headers` are whole lines without line ends.
pub fn reply(status: &str, headers: &[&str], body: &str) -> Vec<Part> {
    let mut head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
    for header in headers {
        head += &format!("{header}\r\n");
    }
    vec![Part::Write(format!("{head}\r\n{body}").into_bytes())]
}

/// A JSON reply.
pub fn json_reply(value: &Value) -> Vec<Part> {
    reply("200 OK", &["content-type: application/json"], &value.to_string())
}

/// The beginning of an event stream; [`chunk`] gives its pieces, [`last_chunk`] ends it.
pub fn stream_head(headers: &[&str]) -> Part {
    let mut head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n".to_owned();
    for header in headers {
        head += &format!("{header}\r\n");
    }
    Part::Write(format!("{head}\r\n").into_bytes())
}

/// A chunk of a stream.
pub fn chunk(text: &str) -> Part {
    Part::Write(format!("{:x}\r\n{text}\r\n", text.len()).into_bytes())
}

/// One message as an event.
pub fn event(message: &Value) -> Part {
    chunk(&format!("data: {message}\n\n"))
}

/// The end of a stream.
pub fn last_chunk() -> Part {
    Part::Write(b"0\r\n\r\n".to_vec())
}
