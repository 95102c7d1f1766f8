//! Stands for the control socket in a program that is built without the feature `http`: there is none, and no setting for it.

use std::net::SocketAddr;

use bridgehead_gateway::Gateway;
use tokio_util::sync::CancellationToken;

/// The settings of a control socket, which nothing can make.
#[derive(Debug)]
pub(crate) enum Control {}

/// The API for operators, which nothing serves.
#[derive(Clone)]
pub(crate) struct Api;

/// Who may use it: nobody.
#[derive(Default)]
pub(crate) struct Operators(());

pub(crate) fn open(
    _control: Option<&Control>,
    _gateway: &Gateway,
    _addresses: &[SocketAddr],
    _version: &str,
    _operators: Operators,
    _max_message_bytes: usize,
    _shutdown: &CancellationToken,
) -> (Api, Option<Serving>) {
    (Api, None)
}

/// A control socket, which nothing can make.
#[derive(Debug)]
pub(crate) enum Serving {}

impl Serving {
    #[expect(clippy::unused_async, reason = "it stands for one that waits")]
    pub(crate) async fn opened(&mut self) -> std::io::Result<()> {
        match *self {}
    }

    #[expect(clippy::unused_async, reason = "it stands for one that waits")]
    pub(crate) async fn ended(self) {
        match self {}
    }
}
