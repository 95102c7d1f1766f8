//! Opens connections to remote servers, encrypted if the address says so.
//!
//! A proxy is used if one is configured, regardless of the environment. The TLS configuration is built at the first
//! encrypted connection: a gateway without one spends neither memory nor time on it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bridgehead_config::{Proxy, Url};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::proxy::tunnel;

/// How long connecting may take, including the proxy and TLS.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Why connecting failed. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("the host of {0} cannot be found ({1}): check the `url`")]
    Resolve(Url, io::Error),
    #[error("cannot connect to {0} ({1}): is the server running there?")]
    Connect(Url, io::Error),
    #[error("{0} did not accept a connection within {seconds} s: is it reachable from here?", seconds = DIAL_TIMEOUT.as_secs())]
    Timeout(Url),
    #[error(
        "no encrypted connection to {0} ({1}): check that the server speaks https and that this machine trusts its certificate (`SSL_CERT_FILE` names further ones)"
    )]
    Tls(Url, io::Error),
    #[error("the certificates that this machine trusts cannot be read: {0}")]
    Trust(String),
    #[error("the host of the proxy {0} cannot be found ({1}): check `proxy`")]
    ResolveProxy(Proxy, io::Error),
    #[error("cannot connect to the proxy {0} ({1}): check `proxy`, and whether it is running")]
    ConnectProxy(Proxy, io::Error),
    /// A failure of the proxy, as text.
    #[error("{0}")]
    Proxy(String),
}

/// Connects, through the proxy if there is one.
pub(crate) async fn dial(url: &Url, proxy: Option<&Proxy>) -> Result<Socket, DialError> {
    let connecting = async {
        let tcp = reach(url, proxy).await?;
        if url.is_secure() { encrypt(url, tcp, trust().await?).await } else { Ok(Socket::Plain(tcp)) }
    };
    tokio::time::timeout(DIAL_TIMEOUT, connecting).await.unwrap_or_else(|_| {
        Err(match proxy {
            None => DialError::Timeout(url.clone()),
            Some(proxy) => DialError::Proxy(format!(
                "no connection to {url} through the proxy {proxy} within {} s: is either of them reachable?",
                DIAL_TIMEOUT.as_secs()
            )),
        })
    })
}

/// Connects to an address for requests that are not MCP, such as those to an issuer of tokens: without a proxy, and encrypted
/// if the address says so.
///
/// # Errors
/// Which step failed, and how to fix it. The text shows no path or query.
pub async fn open_stream(url: &Url) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>> {
    dial(url, None).await.map_err(io::Error::other)
}

/// A TCP connection to the server, or to the proxy that carries the requests.
async fn reach(url: &Url, proxy: Option<&Proxy>) -> Result<TcpStream, DialError> {
    let Some(proxy) = proxy else {
        let resolve = |error| DialError::Resolve(url.clone(), error);
        return open(url.host(), url.port(), resolve, |error| DialError::Connect(url.clone(), error)).await;
    };
    let resolve = |error| DialError::ResolveProxy(proxy.clone(), error);
    let refused = |error| DialError::ConnectProxy(proxy.clone(), error);
    let mut tcp = open(proxy.host(), proxy.port(), resolve, refused).await?;
    if !super::proxy::carries(url) {
        tunnel(&mut tcp, url, proxy).await.map_err(DialError::Proxy)?;
    }
    Ok(tcp)
}

async fn open(
    host: &str,
    port: u16,
    unknown: impl FnOnce(io::Error) -> DialError,
    refused: impl FnOnce(io::Error) -> DialError,
) -> Result<TcpStream, DialError> {
    let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await.map_err(unknown)?.collect();
    let tcp = TcpStream::connect(addresses.as_slice()).await.map_err(refused)?;
    // Requests are small and wait for their answers.
    let _ = tcp.set_nodelay(true);
    Ok(tcp)
}

async fn encrypt(url: &Url, tcp: TcpStream, trust: Arc<ClientConfig>) -> Result<Socket, DialError> {
    let name = ServerName::try_from(url.host().to_owned())
        .map_err(|error| DialError::Tls(url.clone(), io::Error::other(error)))?;
    let connector = TlsConnector::from(trust);
    let tls = connector.connect(name, tcp).await.map_err(|error| DialError::Tls(url.clone(), error))?;
    Ok(Socket::Tls(Box::new(tls)))
}

/// The certificates that this machine trusts, read once.
async fn trust() -> Result<Arc<ClientConfig>, DialError> {
    static TRUST: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(trust) = TRUST.get() {
        return Ok(Arc::clone(trust));
    }
    let made = tokio::task::spawn_blocking(make_trust)
        .await
        .unwrap_or_else(|error| Err(DialError::Trust(error.to_string())))?;
    Ok(Arc::clone(TRUST.get_or_init(|| made)))
}

fn make_trust() -> Result<Arc<ClientConfig>, DialError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let reason = found.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
        return Err(DialError::Trust(reason));
    }
    trusting(roots)
}

fn trusting(roots: rustls::RootCertStore) -> Result<Arc<ClientConfig>, DialError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| DialError::Trust(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(context, buffer),
            Self::Tls(tls) => Pin::new(tls).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(context, bytes),
            Self::Tls(tls) => Pin::new(tls).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(context),
            Self::Tls(tls) => Pin::new(tls).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(context),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(context, parts),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(tcp) => tcp.is_write_vectored(),
            Self::Tls(tls) => tls.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_testkit::Encryption;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A proxy that passes on one connection, and then returns what it was asked.
    async fn proxy() -> (Proxy, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("http://me:x@{}", listener.local_addr().unwrap()).parse().unwrap();
        let passing = tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert_ne!(client.read_buf(&mut head).await.unwrap(), 0);
            }
            let head = String::from_utf8(head).unwrap();
            let mut server = TcpStream::connect(head.split(' ').nth(1).unwrap()).await.unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            head
        });
        (proxy, passing)
    }

    /// LINK-2: an encrypted connection needs a trusted certificate. It also works through a proxy, which sees
    /// nothing of the requests.
    #[tokio::test]
    async fn encryption() {
        let Encryption { acceptor, certificate, .. } = Encryption::of_localhost();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let Ok(mut tls) = acceptor.accept(tcp).await else { continue };
                let mut word = [0; 4];
                tls.read_exact(&mut word).await.unwrap();
                tls.write_all(&word).await.unwrap();
                tls.shutdown().await.unwrap();
            }
        });
        let url: Url = format!("https://localhost:{}/hunter2", address.port()).parse().unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).unwrap();
        let trust = trusting(roots).unwrap();
        let (proxy, passing) = proxy().await;
        for proxy in [None, Some(&proxy)] {
            let tcp = reach(&url, proxy).await.unwrap();
            let mut socket = encrypt(&url, tcp, Arc::clone(&trust)).await.unwrap();
            assert!(socket.is_write_vectored());
            let written = socket.write_vectored(&[io::IoSlice::new(b"ping")]).await.unwrap();
            assert_eq!(written, 4);
            socket.flush().await.unwrap();
            let mut word = [0; 4];
            socket.read_exact(&mut word).await.unwrap();
            assert_eq!(&word, b"ping");
            socket.shutdown().await.unwrap();
        }
        let asked = passing.await.unwrap();
        assert_eq!(asked.lines().next().unwrap(), format!("CONNECT localhost:{} HTTP/1.1", address.port()));
        assert!(!asked.contains("hunter2"), "the proxy saw a part of the request: {asked}");
        assert!(asked.contains("\r\nproxy-authorization: Basic bWU6eA==\r\n"), "{asked}");

        let error = format!("https://127.0.0.1:{}/hunter2", address.port()).parse().unwrap();
        let error = dial(&error, None).await.unwrap_err().to_string();
        assert!(error.contains("no encrypted connection") && error.contains("`SSL_CERT_FILE`"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        server.abort();
    }
}
