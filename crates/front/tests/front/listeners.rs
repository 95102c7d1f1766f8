//! Several listeners of one gateway: addresses, Unix sockets, TLS, each with its own authenticator.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridgehead_config::{HttpSettings, ListenAddress, Listener, ListenerAuth, Secret, TlsFiles};
use bridgehead_front::{Api, Operators, Reached, Token, bind, listener_authenticator, serve_http};
use bridgehead_gateway::{Gateway, Options};
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::client::mirrored;
use crate::fake::{initialize, legacy, modern};

const TOKEN: (&str, &str) = ("authorization", "Bearer s3cret");

/// A gateway at an address, at a Unix socket, and at an address with TLS.
struct Place {
    plain: SocketAddr,
    encrypted: SocketAddr,
    socket: PathBuf,
    certificate: CertificateDer<'static>,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
    folder: tempfile::TempDir,
}

/// Writes a new certificate for `localhost` and its key.
fn certify(folder: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    fs::set_permissions(folder.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
    fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
    made.cert.der().clone()
}

impl Place {
    async fn new(threads: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificate = certify(folder.path());
        let socket = folder.path().join("gate.sock");
        let files =
            TlsFiles { cert_file: folder.path().join("cert.pem"), key_file: folder.path().join("key.pem") };
        let listener = |name: &str, listen, auth, tls| Listener { name: name.to_owned(), listen, auth, tls };
        let any = "127.0.0.1:0".parse().unwrap();
        let settings = HttpSettings {
            listen: any,
            listeners: vec![
                listener("local", ListenAddress::Unix(socket.clone()), Some(ListenerAuth::Open), None),
                listener("team", ListenAddress::Tcp(any), Some(ListenerAuth::Required), Some(files)),
            ],
            ..HttpSettings::default()
        };
        let token = Token::new("token", Secret::new("s3cret"));
        let make = |auth| listener_authenticator(&settings, auth, Some(token.clone()));
        let listeners = bind(&settings, &make).await.unwrap();
        let reached = listeners.reached();
        let [
            Reached::Tcp { address: plain, tls: false },
            Reached::Unix(path),
            Reached::Tcp { address, tls: true },
        ] = &reached[..]
        else {
            panic!("{reached:?}");
        };
        assert_eq!(*path, socket);
        let (plain, encrypted) = (*plain, *address);
        assert_eq!(reached[2].to_string(), format!("https://{encrypted}/mcp"));
        let gateway = Gateway::new(Options::default()).unwrap();
        gateway.start();
        let shutdown = CancellationToken::new();
        let api = Api::new(gateway.clone(), Operators::default(), shutdown.clone());
        let serving =
            tokio::spawn(serve_http(gateway, listeners, Box::new(settings), api, threads, shutdown.clone()));
        Self { plain, encrypted, socket, certificate, shutdown, serving, folder }
    }

    async fn plain(&self) -> Connection {
        Connection::new(TcpStream::connect(self.plain).await.unwrap()).await
    }

    async fn unix(&self) -> Connection {
        Connection::new(UnixStream::connect(&self.socket).await.unwrap()).await
    }

    /// A connection to the listener with TLS that trusts `certificate` alone.
    async fn encrypted(&self, certificate: &CertificateDer<'static>) -> std::io::Result<Connection> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let stream = TcpStream::connect(self.encrypted).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        Ok(Connection::new(stream).await)
    }

    async fn stop(self) -> tempfile::TempDir {
        self.shutdown.cancel();
        self.serving.await.unwrap().unwrap();
        self.folder
    }
}

struct Connection {
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    _connection: AbortOnDropHandle<()>,
}

impl Connection {
    async fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        Self { sender, _connection: AbortOnDropHandle::new(connection) }
    }

    async fn post(&mut self, headers: &[(&str, &str)], body: &str) -> (u16, HeaderMap, String) {
        let mut request = Request::builder().method("POST").uri("/mcp").header("host", "gate.example");
        let common =
            [("accept", "application/json, text/event-stream"), ("content-type", "application/json")];
        for (name, value) in common.iter().chain(headers) {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
        let (parts, body) = self.sender.send_request(request).await.unwrap().into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), parts.headers, String::from_utf8(text.to_vec()).unwrap())
    }

    async fn lists(&mut self, extra: &[(&str, &str)]) -> u16 {
        let headers: Vec<_> = [&mirrored("tools/list", "")[..], extra].concat();
        self.post(&headers, &modern("1", "tools/list", "")).await.0
    }
}

/// ACC-6: each listener has its own rules for credentials, whichever thread serves it, and the socket's file goes at the end.
#[tokio::test]
async fn each_listener_has_its_own_rules() {
    for threads in [1, 2] {
        let place = Place::new(threads).await;
        for _ in 0..threads {
            let mut plain = place.plain().await;
            assert_eq!((plain.lists(&[]).await, plain.lists(&[TOKEN]).await), (401, 200));
            let mut encrypted = place.encrypted(&place.certificate).await.unwrap();
            assert_eq!((encrypted.lists(&[]).await, encrypted.lists(&[TOKEN]).await), (401, 200));
            let mut unix = place.unix().await;
            assert_eq!(unix.lists(&[]).await, 200, "the gateway's own user");
            assert_eq!(unix.lists(&[("origin", "https://evil.example")]).await, 403);
        }
        let socket = place.socket.clone();
        assert!(socket.exists());
        let _folder = place.stop().await;
        assert!(!socket.exists());
    }
}

/// ACC-6: all listeners share the sessions, and a session belongs to its principal on each of them.
#[tokio::test]
async fn listeners_share_the_sessions() {
    let place = Place::new(1).await;
    let mut plain = place.plain().await;
    let (_, headers, _) = plain.post(&[TOKEN], &initialize("0", "2025-06-18")).await;
    let id = ("mcp-session-id", headers["mcp-session-id"].to_str().unwrap());
    let ping = legacy("1", "ping", "");
    let mut encrypted = place.encrypted(&place.certificate).await.unwrap();
    assert_eq!(encrypted.post(&[TOKEN, id], &ping).await.0, 200);
    assert_eq!(place.unix().await.post(&[id], &ping).await.0, 404, "the local user is another principal");
    place.stop().await;
}

/// ACC-6: a renewed certificate is used for new connections without a restart; a broken one is not.
#[tokio::test]
async fn a_renewed_certificate_is_used() {
    let place = Place::new(1).await;
    let mut old = place.encrypted(&place.certificate).await.unwrap();
    fs::write(place.folder.path().join("cert.pem"), "broken").unwrap();
    let renewed = certify(place.folder.path());
    let waiting = async {
        loop {
            match place.encrypted(&renewed).await {
                Ok(connection) => return connection,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
            }
        }
    };
    let mut new = tokio::time::timeout(std::time::Duration::from_secs(30), waiting).await.unwrap();
    assert_eq!(new.lists(&[TOKEN]).await, 200);
    assert_eq!(old.lists(&[TOKEN]).await, 200, "a connection keeps what it has");
    assert!(place.encrypted(&place.certificate).await.is_err());
    // Who speaks plainly to a listener with TLS is not served.
    let mut plainly = TcpStream::connect(place.encrypted).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut plainly, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    drop(tokio::io::AsyncReadExt::read_to_end(&mut plainly, &mut answer).await);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    place.stop().await;
}
