//! Stands for the control socket in a program that is built without the feature `http`: there is none, and no setting for it.

use std::net::SocketAddr;

use bridgehead_gateway::Gateway;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

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
    _shutdown: &CancellationToken,
) -> (Api, Option<AbortOnDropHandle<()>>) {
    (Api, None)
}
