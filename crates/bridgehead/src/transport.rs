//! The transports for clients: their settings, and connecting them.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use bridgehead_config::HttpSettings;
#[cfg(feature = "http")]
use bridgehead_config::TokenSource;
#[cfg(feature = "http")]
use bridgehead_front::{Authenticator, Token, authenticator, check_reachable, resolve_token, serve_http};
use bridgehead_front::{LineOptions, serve_client};
use bridgehead_gateway::{ClientTransport, Gateway, Principal};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
#[cfg(feature = "http")]
use tokio::net::TcpListener;
#[cfg(feature = "http")]
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::control::Api;
use crate::server::StartError;

/// Both directions of a connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for S {}

/// A connection that is being established.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send>>;

/// Makes the authenticator of an HTTP endpoint, when its token is known.
#[cfg(feature = "http")]
pub(crate) struct SignIn(pub(crate) Box<MakeAuthenticator>);

/// Makes the authenticator of an endpoint with these settings and this token.
#[cfg(feature = "http")]
pub(crate) type MakeAuthenticator =
    dyn Fn(&HttpSettings, Option<Token>) -> io::Result<Box<dyn Authenticator>> + Send + Sync;

/// There is no HTTP endpoint to sign in at.
#[cfg(not(feature = "http"))]
pub(crate) struct SignIn(std::convert::Infallible);

impl std::fmt::Debug for SignIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignIn")
    }
}

/// A way for clients to reach the server.
pub enum Transport {
    /// One client on this process's stdin and stdout.
    Stdio,
    /// Any number of clients over streamable HTTP.
    #[cfg(feature = "http")]
    Http(Box<HttpSettings>),
    /// One client in this process, on the other end of the pair.
    Memory(DuplexStream),
    /// One client on a connection that takes time to establish; the startup timeout covers it.
    Deferred(Connecting),
}

impl Transport {
    /// A [`Transport::Deferred`] from any future that resolves to a connection.
    pub fn deferred<S: ByteStream>(connecting: impl Future<Output = io::Result<S>> + Send + 'static) -> Self {
        Self::Deferred(Box::pin(async {
            let stream: Box<dyn ByteStream> = Box::new(connecting.await?);
            Ok(stream)
        }))
    }

    /// A [`Transport::Http`] with these settings.
    #[cfg(feature = "http")]
    pub fn http(settings: HttpSettings) -> Self {
        Self::Http(Box::new(settings))
    }

    /// The settings, if this is HTTP.
    pub(crate) fn http_settings(&self) -> Option<&HttpSettings> {
        match self {
            #[cfg(feature = "http")]
            Self::Http(settings) => Some(settings),
            Self::Stdio | Self::Memory(_) | Self::Deferred(_) => None,
        }
    }

    /// Acquires what it needs: the streams, or the port and who may call there.
    pub(crate) async fn connect(self, sign_in: Option<&SignIn>) -> Result<Connected, StartError> {
        // Only HTTP asks who calls.
        #[cfg(not(feature = "http"))]
        let _ = sign_in;
        match self {
            Self::Stdio => Ok(Connected::Lines {
                reader: Box::new(tokio::io::stdin()),
                writer: Box::new(tokio::io::stdout()),
                kind: ClientTransport::Stdio,
            }),
            Self::Memory(stream) => Ok(Connected::lines(stream)),
            Self::Deferred(connecting) => connecting.await.map(Connected::lines).map_err(StartError::Connect),
            #[cfg(feature = "http")]
            Self::Http(mut settings) => {
                let token = match settings.token {
                    // On another thread, so that the startup timeout also works if the file system hangs.
                    TokenSource::File(_) => {
                        let settings = settings.clone();
                        let resolving = spawn_blocking(move || resolve_token(&settings));
                        resolving.await.map_err(|error| StartError::Connect(io::Error::other(error)))?
                    }
                    TokenSource::None | TokenSource::Env { .. } => resolve_token(&settings),
                }?;
                let authenticator = match sign_in {
                    Some(SignIn(make)) => make(&settings, token).map_err(StartError::SignIn)?,
                    None => authenticator(&settings, token),
                };
                check_reachable(settings.listen, authenticator.asks_for_secret())?;
                let listener = TcpListener::bind(settings.listen)
                    .await
                    .map_err(|error| StartError::Listen { address: settings.listen, error })?;
                settings.listen = listener.local_addr().map_err(StartError::Connect)?;
                Ok(Connected::Http { listener, settings, authenticator })
            }
        }
    }
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Stdio => "Stdio",
            #[cfg(feature = "http")]
            Self::Http(_) => "Http",
            Self::Memory(_) => "Memory",
            Self::Deferred(_) => "Deferred",
        })
    }
}

/// A transport that is ready to serve.
pub(crate) enum Connected {
    Lines {
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        kind: ClientTransport,
    },
    #[cfg(feature = "http")]
    Http { listener: TcpListener, settings: Box<HttpSettings>, authenticator: Box<dyn Authenticator> },
}

impl Connected {
    fn lines(stream: impl ByteStream) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self::Lines { reader: Box::new(reader), writer: Box::new(writer), kind: ClientTransport::Memory }
    }

    /// The address it listens on, if any.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Lines { .. } => None,
            #[cfg(feature = "http")]
            Self::Http { settings, .. } => Some(settings.listen),
        }
    }

    /// Serves until the client is gone or `shutdown`, then finishes the requests in progress.
    pub(crate) async fn serve(
        self,
        gateway: Gateway,
        api: Api,
        max_message_bytes: usize,
        threads: usize,
        shutdown: CancellationToken,
    ) -> io::Result<()> {
        // Only HTTP has an API and threads of its own.
        #[cfg(not(feature = "http"))]
        let _ = (api, threads);
        match self {
            Self::Lines { reader, writer, kind } => {
                let options =
                    LineOptions { principal: Principal::local(), transport: kind, max_message_bytes };
                serve_client(gateway, reader, writer, options, shutdown).await
            }
            #[cfg(feature = "http")]
            Self::Http { listener, settings, authenticator } => {
                serve_http(gateway, listener, (settings, authenticator), api, threads, shutdown).await
            }
        }
    }
}
