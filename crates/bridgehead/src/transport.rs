//! The transports for clients: their settings, and connecting them.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
#[cfg(feature = "http")]
use std::time::Duration;

use bridgehead_config::HttpSettings;
#[cfg(feature = "http")]
use bridgehead_config::{ListenerAuth, TokenSource};
#[cfg(feature = "http")]
use bridgehead_front::{
    Authenticator, Listeners, Reached, Token, bind_on, listener_authenticator, resolve_token, serve_http,
};
use bridgehead_front::{LineOptions, serve_client};
use bridgehead_gateway::{ClientTransport, Gateway, Principal};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
#[cfg(feature = "http")]
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::control::Api;
use crate::server::StartError;

/// How long a server that waits for clients to join has for the first one, at least.
#[cfg(feature = "http")]
const FIRST_CLIENT: Duration = Duration::from_secs(30);

/// Both directions of a connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for S {}

/// A connection that is being established.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send>>;

/// Makes the authenticator of each listener, when the token is known.
#[cfg(feature = "http")]
pub(crate) struct SignIn(pub(crate) Box<MakeAuthenticator>);

/// Makes the authenticator of a listener with these settings, from what the listener itself says and from the token.
#[cfg(feature = "http")]
pub(crate) type MakeAuthenticator = dyn Fn(&HttpSettings, Option<ListenerAuth>, Option<Token>) -> io::Result<Box<dyn Authenticator>>
    + Send
    + Sync;

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
    /// Any number of clients that join over the control socket. The server ends when nobody has been joined for a while.
    #[cfg(feature = "http")]
    Joined {
        /// How long it stays after its last client has left.
        linger: Duration,
    },
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
            #[cfg(feature = "http")]
            Self::Joined { .. } => None,
            Self::Stdio | Self::Memory(_) | Self::Deferred(_) => None,
        }
    }

    /// Acquires what it needs: the streams, or the port and who may call there.
    /// HTTP takes `listening` in place of its own port.
    pub(crate) async fn connect(
        self,
        sign_in: Option<&SignIn>,
        listening: &mut Option<TcpListener>,
    ) -> Result<Connected, StartError> {
        // Only HTTP asks who calls, and listens.
        #[cfg(not(feature = "http"))]
        let _ = (sign_in, listening);
        match self {
            Self::Stdio => Ok(Connected::Lines {
                reader: Box::new(tokio::io::stdin()),
                writer: Box::new(tokio::io::stdout()),
                kind: ClientTransport::Stdio,
            }),
            #[cfg(feature = "http")]
            Self::Joined { linger } => Ok(Connected::Joined { linger }),
            Self::Memory(stream) => Ok(Connected::lines(stream)),
            Self::Deferred(connecting) => connecting.await.map(Connected::lines).map_err(StartError::Connect),
            #[cfg(feature = "http")]
            Self::Http(settings) => {
                let token = match settings.token {
                    // On another thread, so that the startup timeout also works if the file system hangs.
                    TokenSource::File(_) => {
                        let settings = settings.clone();
                        let resolving = spawn_blocking(move || resolve_token(&settings));
                        resolving.await.map_err(|error| StartError::Connect(io::Error::other(error)))?
                    }
                    TokenSource::None | TokenSource::Env { .. } => resolve_token(&settings),
                }?;
                let make = |auth| match sign_in {
                    Some(SignIn(make)) => make(&settings, auth, token.clone()),
                    None => listener_authenticator(&settings, auth, token.clone()),
                };
                let listeners = bind_on(&settings, listening.take(), &make).await?;
                Ok(Connected::Http { listeners, settings })
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
            #[cfg(feature = "http")]
            Self::Joined { .. } => "Joined",
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
    Http { listeners: Listeners, settings: Box<HttpSettings> },
    /// The control socket serves the clients; this only waits for the last one to leave.
    #[cfg(feature = "http")]
    Joined { linger: Duration },
}

impl Connected {
    fn lines(stream: impl ByteStream) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self::Lines { reader: Box::new(reader), writer: Box::new(writer), kind: ClientTransport::Memory }
    }

    /// The addresses it listens on.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::Lines { .. } => Vec::new(),
            #[cfg(feature = "http")]
            Self::Joined { .. } => Vec::new(),
            #[cfg(feature = "http")]
            Self::Http { listeners, .. } => listeners.reached().iter().filter_map(Reached::address).collect(),
        }
    }

    /// The same for operators: plain addresses, and the others as clients write them.
    pub(crate) fn told(&self) -> Vec<String> {
        match self {
            Self::Lines { .. } => Vec::new(),
            #[cfg(feature = "http")]
            Self::Joined { .. } => Vec::new(),
            #[cfg(feature = "http")]
            Self::Http { listeners, .. } => listeners
                .reached()
                .iter()
                .map(|reached| match reached {
                    Reached::Tcp { address, tls: false } => address.to_string(),
                    other => other.to_string(),
                })
                .collect(),
        }
    }

    /// Where clients reach it over HTTP, as they write it.
    pub(crate) fn places(&self) -> Vec<String> {
        match self {
            Self::Lines { .. } => Vec::new(),
            #[cfg(feature = "http")]
            Self::Joined { .. } => Vec::new(),
            #[cfg(feature = "http")]
            Self::Http { listeners, .. } => listeners.reached().iter().map(ToString::to_string).collect(),
        }
    }

    /// Serves until the client is gone or `shutdown`, then finishes the requests in progress. Returns why it ends by itself.
    pub(crate) async fn serve(
        self,
        gateway: Gateway,
        api: Api,
        max_message_bytes: usize,
        threads: usize,
        shutdown: CancellationToken,
    ) -> io::Result<&'static str> {
        // Only HTTP has an API and threads of its own.
        #[cfg(not(feature = "http"))]
        let _ = (api, threads);
        match self {
            Self::Lines { reader, writer, kind } => {
                let options =
                    LineOptions { principal: Principal::local(), transport: kind, max_message_bytes };
                serve_client(gateway, reader, writer, options, shutdown).await?;
                Ok("the client is gone")
            }
            #[cfg(feature = "http")]
            Self::Http { listeners, settings } => {
                serve_http(gateway, listeners, settings, api, threads, shutdown).await?;
                Ok("the listeners are closed")
            }
            #[cfg(feature = "http")]
            Self::Joined { linger } => {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = gateway.left_alone(FIRST_CLIENT, linger) => {}
                }
                Ok("nobody is joined any more")
            }
        }
    }
}
