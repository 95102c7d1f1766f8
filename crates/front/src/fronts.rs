//! The fronts of a real gateway, as boxed futures.
//!
//! The rest of this crate is generic over [`Backend`](crate::Backend), and the code of generics and of futures is compiled in the
//! crate that uses them. These functions are compiled here, once: the program around them builds faster, and need not be
//! optimised for calls to be fast.

use std::io;

#[cfg(feature = "http")]
use bridgehead_config::HttpSettings;
use bridgehead_gateway::{Caller, ClientRequest, Gateway, ProgressSink};
use bridgehead_wire::{RpcError, Spliced};
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
#[cfg(feature = "http")]
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "http")]
use crate::http::{Api, Listeners, Routes, Workers, control_router, router, serve_all, serve_socket};
use crate::stdio::{LineOptions, serve_lines};

/// Serves HTTP clients and, under its path, the operators' API, on all listeners and on `threads` threads. Ends after `shutdown`.
#[cfg(feature = "http")]
pub fn serve_http(
    gateway: Gateway,
    Listeners(listeners): Listeners,
    settings: Box<HttpSettings>,
    api: Api,
    threads: usize,
    shutdown: CancellationToken,
) -> BoxFuture<'static, io::Result<()>> {
    Box::pin(async move {
        let workers = Workers::start(threads.saturating_sub(1))?;
        let mut all = Vec::with_capacity(listeners.len());
        let mut first: Option<Routes<Gateway>> = None;
        for listener in listeners {
            let listen = listener.address();
            let routes = match &first {
                Some(first) => first.beside(&settings, listen, listener.authenticator),
                None => {
                    let settings =
                        HttpSettings { listen: listen.unwrap_or(settings.listen), ..*settings.clone() };
                    let routes = router(gateway.clone(), &settings, listener.authenticator, shutdown.clone());
                    first.insert(routes.with_api(api.clone())).clone()
                }
            };
            all.push((listener.socket, listener.tls, routes));
        }
        serve_all(all, &workers, &shutdown).await;
        Ok(())
    })
}

/// Serves one client over lines; see [`serve_lines`].
pub fn serve_client(
    gateway: Gateway,
    reader: Box<dyn AsyncRead + Send + Unpin>,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    options: LineOptions,
    shutdown: CancellationToken,
) -> BoxFuture<'static, io::Result<()>> {
    Box::pin(serve_lines(reader, writer, gateway, options, shutdown))
}

/// Serves operators and clients of the gateway's own user on the control socket. The mode of the socket's file controls access: no
/// browser and no other user can open it. So neither host names nor a token are checked.
#[cfg(feature = "http")]
pub fn serve_control(
    gateway: Gateway,
    listener: UnixListener,
    api: Api,
    max_message_bytes: usize,
    shutdown: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let clients = control_router(gateway, shutdown.clone());
        serve_socket(listener, api, clients, max_message_bytes, shutdown).await;
    })
}

/// Answers one request that this process makes itself; see [`Gateway::answer`].
pub fn answer<'a>(
    gateway: &'a Gateway,
    caller: &'a Caller,
    request: &'a ClientRequest,
    progress: Option<ProgressSink>,
) -> BoxFuture<'a, Result<Spliced, RpcError>> {
    Box::pin(gateway.answer(caller, request, progress))
}
