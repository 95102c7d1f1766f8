//! Stands for the transports to remote servers in a program that is built without the feature `http`. Connecting fails and says
//! so. No value of these types exists, so nothing else of them can run.

use std::convert::Infallible;

use bridgehead_config::{Remote, ServerConfig};

use super::ConnectError;

fn not_built_in(remote: &Remote) -> ConnectError {
    ConnectError::Unusable(format!(
        "the `url` {} cannot be reached, because this program is built without connections to remote servers: build it \
         with the feature `http`",
        remote.url
    ))
}

/// Streamable HTTP and HTTP+SSE.
pub(crate) mod http {
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use bridgehead_wire::{Abilities, Id, Method, RpcError, Spliced};

    use super::{ConnectError, Infallible, ServerConfig, not_built_in};
    use crate::link::negotiate::{Offer, Peer};
    use crate::link::switchboard::Switchboard;
    use crate::link::{Event, Link, LinkError, Mirror, Purpose};
    use crate::transport::credentials::Credentials;

    #[derive(Debug)]
    pub(crate) struct Remote {
        pub(crate) board: Switchboard,
        never: Infallible,
    }

    #[derive(Debug)]
    pub(crate) struct HttpExchange(Infallible);

    #[derive(Debug)]
    pub(crate) struct HttpConnection(Infallible);

    pub(crate) async fn connect(
        _server: &ServerConfig,
        remote: &bridgehead_config::Remote,
        _credentials: Arc<dyn Credentials>,
        _limit: usize,
        _offer: Offer,
    ) -> Result<(Link, HttpConnection, Peer), ConnectError> {
        Err(not_built_in(remote))
    }

    impl Remote {
        pub(crate) fn in_flight(&self) -> usize {
            match self.never {}
        }

        pub(crate) fn is_modern(&self) -> bool {
            match self.never {}
        }

        pub(crate) fn has_own_streams(&self) -> bool {
            match self.never {}
        }

        pub(crate) async fn notify(&self, _method: &Method, _params: Option<&Spliced>) {
            match self.never {}
        }
    }

    impl HttpExchange {
        pub(crate) fn open_as(
            remote: &Arc<Remote>,
            _id: u64,
            _purpose: Purpose,
            _abilities: Abilities,
        ) -> Self {
            match remote.never {}
        }

        pub(crate) fn over(&self) -> std::future::Pending<()> {
            match self.0 {}
        }

        pub(crate) fn abandon(&mut self) -> Option<Self> {
            match self.0 {}
        }

        pub(crate) const fn id(&self) -> u64 {
            match self.0 {}
        }

        pub(crate) fn want_logs(&mut self) {
            match self.0 {}
        }

        pub(crate) fn was_sent(&self) -> bool {
            match self.0 {}
        }

        pub(crate) fn sends(&self) -> u32 {
            match self.0 {}
        }

        pub(crate) fn put_off(&self) -> Option<LinkError> {
            match self.0 {}
        }

        pub(crate) fn send(&mut self, _method: &Method, _params: &Spliced, _mirror: Mirror<'_>) {
            match self.0 {}
        }

        pub(crate) fn poll_next(&mut self, _context: &mut Context<'_>) -> Poll<Event> {
            match self.0 {}
        }

        pub(crate) fn reply(&mut self, _id: &Id, _outcome: Result<&Spliced, &RpcError>) {
            match self.0 {}
        }
    }

    impl HttpConnection {
        pub(crate) const fn is_sse(&self) -> bool {
            match self.0 {}
        }

        pub(crate) async fn ended(&self) {
            match self.0 {}
        }

        pub(crate) async fn stop(self) {
            match self.0 {}
        }
    }
}

/// WebSockets.
pub(crate) mod websocket {
    use super::{ConnectError, Infallible, Remote, ServerConfig, not_built_in};
    use crate::link::Link;
    use crate::link::negotiate::{Offer, Peer};
    use crate::transport::credentials::Credentials;

    #[derive(Debug)]
    pub(crate) struct WebSocket {
        pub(crate) link: Link,
        never: Infallible,
    }

    pub(crate) async fn connect(
        _server: &ServerConfig,
        remote: &Remote,
        _credentials: &dyn Credentials,
        _limit: usize,
        _offer: Offer,
    ) -> Result<(WebSocket, Peer), ConnectError> {
        Err(not_built_in(remote))
    }

    impl WebSocket {
        pub(crate) async fn ended(&mut self) {
            match self.never {}
        }

        pub(crate) async fn stop(self) {
            match self.never {}
        }
    }
}
