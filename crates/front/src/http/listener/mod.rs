//! The places where clients are served: addresses and Unix sockets, each with its own authenticator and, if configured, TLS.
//!
//! [`bind`] acquires everything and serves nobody yet, so that a mistake in one listener prevents the start. All listeners of a
//! gateway share its sessions and its places for connections. What must stay true: an address that other machines can reach asks
//! for a secret.

mod socket_file;
mod tls;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use bridgehead_config::{HttpSettings, ListenAddress, Listener, ListenerAuth};
use tokio::net::{TcpListener, UnixListener};

use self::socket_file::SocketFile;
pub use self::tls::TlsError;
pub(crate) use self::tls::{Handshake, Tls};
use super::ENDPOINT;
use super::auth::{Authenticator, LocalUser};
use crate::token::{Token, TokenError, check_reachable};

/// Makes the authenticator of a listener, from what the listener itself says about credentials.
pub type MakeAuthenticator<'a> =
    dyn Fn(Option<ListenerAuth>) -> io::Result<Box<dyn Authenticator>> + Send + Sync + 'a;

/// Listeners that are bound, and serve nobody yet. The first is that of `http.listen`.
#[derive(Debug)]
pub struct Listeners(pub(crate) Vec<Bound>);

/// One listener.
pub(crate) struct Bound {
    pub(crate) socket: Socket,
    pub(crate) tls: Option<Tls>,
    pub(crate) authenticator: Box<dyn Authenticator>,
}

pub(crate) enum Socket {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, SocketFile),
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reached())
    }
}

/// Where clients reach a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reached {
    /// At an address.
    Tcp {
        /// The address, with the actual port.
        address: SocketAddr,
        /// Whether it speaks TLS.
        tls: bool,
    },
    /// At a Unix socket.
    Unix(PathBuf),
}

impl Reached {
    /// The address, if it has one.
    pub const fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp { address, .. } => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

/// As a client writes it: a URL, or `unix:PATH`.
impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { address, tls: false } => write!(f, "http://{address}{ENDPOINT}"),
            Self::Tcp { address, tls: true } => write!(f, "https://{address}{ENDPOINT}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why a listener cannot serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address cannot be used.
    #[error("cannot listen on {address}: {error}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The Unix socket cannot be created.
    #[error("listener `{name}` cannot create its socket `{}`: {error}", path.display())]
    Socket {
        /// The listener.
        name: String,
        /// The path.
        path: PathBuf,
        /// What is wrong, with the cure.
        error: io::Error,
    },
    /// Others can reach `http.listen`, and nobody is asked for a secret there.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Others can reach another listener, and nobody is asked for a secret there.
    #[error(
        "`http.listeners.{name}.listen` is {listen}, which other machines can reach, so clients must show who they are: configure a key, an issuer or \
         `http.token_file`, or listen on 127.0.0.1"
    )]
    Open {
        /// The listener.
        name: String,
        /// The address.
        listen: SocketAddr,
    },
    /// The certificate or its key cannot be used.
    #[error("listener `{name}`: {error}")]
    Tls {
        /// The listener.
        name: String,
        /// What is wrong.
        error: TlsError,
    },
    /// The authenticator could not be made.
    #[error("nobody could sign in: {0}")]
    SignIn(io::Error),
}

/// The authenticator of a listener where only the endpoint's token and the local user are known.
pub fn listener_authenticator(
    settings: &HttpSettings,
    auth: Option<ListenerAuth>,
    token: Option<Token>,
) -> io::Result<Box<dyn Authenticator>> {
    match (auth, token) {
        (Some(ListenerAuth::Open), _) | (None, None) => Ok(Box::new(LocalUser::new(settings))),
        (None | Some(ListenerAuth::Required), Some(token)) => Ok(Box::new(token)),
        (Some(ListenerAuth::Required), None) => Err(io::Error::other(
            "a listener has `auth = \"required\"`, but there is no token; set `http.token_file`",
        )),
    }
}

/// Binds `http.listen` and every listener of the settings.
///
/// # Errors
/// If one of them cannot serve. Then none is left behind.
pub async fn bind(
    settings: &HttpSettings,
    authenticator: &MakeAuthenticator<'_>,
) -> Result<Listeners, BindError> {
    bind_on(settings, None, authenticator).await
}

/// Like [`bind`], but a socket that listens already takes the place of `http.listen`.
///
/// # Errors
/// Those of [`bind`].
pub async fn bind_on(
    settings: &HttpSettings,
    listening: Option<std::net::TcpListener>,
    authenticator: &MakeAuthenticator<'_>,
) -> Result<Listeners, BindError> {
    let made = authenticator(None).map_err(BindError::SignIn)?;
    let address = match &listening {
        Some(socket) => {
            socket.local_addr().map_err(|error| BindError::Address { address: settings.listen, error })?
        }
        None => settings.listen,
    };
    check_reachable(address, made.asks_for_secret())?;
    let socket = match listening {
        Some(socket) => given(socket, address).map_err(|error| BindError::Address { address, error })?,
        None => tcp(address).await?,
    };
    let mut bound = vec![Bound { authenticator: made, socket, tls: None }];
    for listener in &settings.listeners {
        bound.push(one(listener, settings, authenticator).await?);
    }
    Ok(Listeners(bound))
}

async fn one(
    listener: &Listener,
    settings: &HttpSettings,
    authenticator: &MakeAuthenticator<'_>,
) -> Result<Bound, BindError> {
    let name = &listener.name;
    let authenticator = authenticator(listener.auth).map_err(BindError::SignIn)?;
    let socket = match &listener.listen {
        ListenAddress::Tcp(listen) => {
            if check_reachable(*listen, authenticator.asks_for_secret()).is_err() {
                return Err(BindError::Open { name: name.clone(), listen: *listen });
            }
            tcp(*listen).await?
        }
        ListenAddress::Unix(path) => {
            let failed = |error| BindError::Socket { name: name.clone(), path: path.clone(), error };
            let (socket, file) = SocketFile::create(path).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            Socket::Unix(UnixListener::from_std(socket).map_err(failed)?, file)
        }
    };
    let tls = match &listener.tls {
        Some(files) => {
            let failed = |error| BindError::Tls { name: name.clone(), error };
            Some(Tls::load(files.clone(), settings.allow_group_read).await.map_err(failed)?)
        }
        None => None,
    };
    Ok(Bound { socket, tls, authenticator })
}

async fn tcp(address: SocketAddr) -> Result<Socket, BindError> {
    let failed = |error| BindError::Address { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let actual = listener.local_addr().map_err(failed)?;
    Ok(Socket::Tcp(listener, actual))
}

/// A socket that listens already.
fn given(socket: std::net::TcpListener, address: SocketAddr) -> io::Result<Socket> {
    socket.set_nonblocking(true)?;
    Ok(Socket::Tcp(TcpListener::from_std(socket)?, address))
}

impl Listeners {
    /// Where clients reach each of them.
    pub fn reached(&self) -> Vec<Reached> {
        self.0.iter().map(Bound::reached).collect()
    }
}

impl Bound {
    /// Its address, if it has one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.reached().address()
    }

    fn reached(&self) -> Reached {
        match &self.socket {
            Socket::Tcp(_, address) => Reached::Tcp { address: *address, tls: self.tls.is_some() },
            Socket::Unix(_, file) => Reached::Unix(file.path().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_config::Secret;

    use super::*;

    fn listener(listen: ListenAddress, auth: Option<ListenerAuth>) -> Listener {
        Listener { name: "extra".to_owned(), listen, auth, tls: None }
    }

    async fn bound(settings: &HttpSettings, token: Option<Token>) -> Result<Listeners, String> {
        let make = |auth| listener_authenticator(settings, auth, token.clone());
        bind(settings, &make).await.map_err(|error| error.to_string())
    }

    /// ACC-6: an address that other machines can reach asks for a secret, on every listener; a Unix socket and loopback may be
    /// open.
    #[tokio::test]
    async fn an_address_that_others_reach_asks_for_a_secret() {
        let folder = tempfile::tempdir().unwrap();
        let token = || Some(Token::new("token", Secret::new("s3cret")));
        let tcp = |address: &str| ListenAddress::Tcp(address.parse().unwrap());
        let unix = ListenAddress::Unix(folder.path().join("gate.sock"));
        let settings = |listen: &str, listeners: Vec<Listener>| HttpSettings {
            listen: listen.parse().unwrap(),
            listeners,
            ..HttpSettings::default()
        };
        let open = Some(ListenerAuth::Open);
        let local = settings("127.0.0.1:0", vec![listener(unix, open), listener(tcp("[::1]:0"), open)]);
        let listeners = bound(&local, None).await.unwrap();
        let [first, socket, second] = &listeners.reached()[..] else { panic!("{listeners:?}") };
        assert!(first.address().is_some_and(|address| address.port() != 0 && address.is_ipv4()));
        assert_eq!(socket.to_string(), format!("unix:{}", folder.path().join("gate.sock").display()));
        assert_eq!(socket.address(), None);
        assert_eq!(second.to_string(), format!("http://{}/mcp", second.address().unwrap()));
        assert_eq!(format!("{:?}", listeners.0[0]), first.to_string());

        let refused = bound(&settings("0.0.0.0:0", vec![]), None).await.unwrap_err();
        assert!(refused.contains("`http.listen` is 0.0.0.0:0"), "{refused}");
        bound(&settings("0.0.0.0:0", vec![]), token()).await.unwrap();
        for auth in [None, open] {
            let beside = settings("127.0.0.1:0", vec![listener(tcp("0.0.0.0:0"), auth)]);
            let refused = bound(&beside, None).await.unwrap_err();
            assert!(refused.contains("`http.listeners.extra.listen` is 0.0.0.0:0"), "{refused}");
            assert_eq!(bound(&beside, token()).await.is_ok(), auth.is_none(), "open stays open");
        }
        let required =
            settings("127.0.0.1:0", vec![listener(tcp("127.0.0.1:0"), Some(ListenerAuth::Required))]);
        let refused = bound(&required, None).await.unwrap_err();
        assert!(refused.contains("http.token_file"), "{refused}");
        bound(&required, token()).await.unwrap();
        let given = |address: &str| Some(std::net::TcpListener::bind(address).unwrap());
        let make = |auth| listener_authenticator(&local, auth, None);
        let socket = given("127.0.0.1:0");
        let address = socket.as_ref().unwrap().local_addr().unwrap();
        let on_given = bind_on(&settings("127.0.0.1:1", vec![]), socket, &make).await.unwrap();
        assert_eq!(on_given.reached()[0].address(), Some(address), "the socket counts, not the setting");
        let open = bind_on(&settings("127.0.0.1:0", vec![]), given("0.0.0.0:0"), &make).await;
        assert!(matches!(open.unwrap_err(), BindError::Token(_)), "the actual address is checked");
        let taken = settings(&first.address().unwrap().to_string(), vec![]);
        assert!(bound(&taken, None).await.unwrap_err().contains("cannot listen on 127.0.0.1"));
    }
}
