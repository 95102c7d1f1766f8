//! The helper processes of a program with servers: the shim of a process tree, and the relay to a remote server.
//!
//! A separate process looks after each process tree. With `isolation = "call"`, a separate process also reaches a remote
//! server, so that the host never parses what that server sends. Both are the program itself, started again with another
//! argument. So nothing else has to be installed, and both ends always come from the same build.

use std::collections::BTreeMap;
use std::io::Write;

use bridgehead_config::{Config, Launch, Prefix, Server as Upstream};
use bridgehead_upstream::{UpstreamState, relay};

use crate::{Ending, Server, Transport};

/// Runs as a helper and does not return, if this process was started as one. Otherwise remembers that this program can be
/// started as a helper.
///
/// A program that embeds Bridgehead calls this first in its `main`, before it starts a thread or a runtime and before it
/// reads its arguments. Without it, a server with a `url` cannot have `isolation = "call"`, and process trees have a shim
/// only if `bridgehead-shim` lies beside the program.
///
/// ```no_run
/// // The first line of `main`.
/// bridgehead::main_if_asked();
/// ```
pub fn main_if_asked() {
    bridgehead_process::shim::main_if_asked();
    if std::env::args_os().nth(1).is_some_and(|argument| argument == relay::VERB)
        && let Some(told) = std::env::var_os(relay::VARIABLE)
    {
        std::process::exit(match be_relay(&told.to_string_lossy()) {
            Ok(()) => 0,
            Err(reason) => {
                // The gateway that started this relay reads its stderr; a failed write is ignored.
                let _ = writeln!(std::io::stderr(), "error: {reason}");
                1
            }
        });
    }
    if let Ok(program) = std::env::current_exe() {
        relay::use_relay(program);
    }
}

/// Serves one remote server on stdin and stdout, until the input ends or the server cannot be reached.
fn be_relay(told: &str) -> Result<(), String> {
    let (remote, era) =
        relay::told(told).ok_or_else(|| format!("{} does not name a server to reach", relay::VARIABLE))?;
    let name = "relayed".parse().map_err(|_| "the relay has no valid server name".to_owned())?;
    let mut config = Config::demo();
    (config.gateway.prefix, config.gateway.builtin) = (Prefix::Never, false);
    let mut server = Upstream::new(name, Launch::Remote(remote), &config.gateway);
    (server.era, server.restart) = (era, false);
    config.servers.push(server);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(relay_by(&config))
}

async fn relay_by(config: &Config) -> Result<(), String> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let variables: BTreeMap<String, String> = std::env::vars_os().filter_map(text).collect();
    let options = Server::builder().configured(config).environment(variables);
    let server = options.transport(Transport::Stdio).build().map_err(|error| error.to_string())?;
    let running = server.start().await.map_err(|error| error.to_string())?;
    let unreachable = async {
        server.gateway().settled().await;
        match server.gateway().upstreams().first().map(bridgehead_upstream::Upstream::state) {
            Some(UpstreamState::Failed(failure)) => failure.reason.clone(),
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = running.wait() => match ended {
            Ok(Ending::ClientGone | Ending::Signal(_)) => Ok(()),
            Ok(other) => Err(format!("the relay ended with {other:?}")),
            Err(error) => Err(error.to_string()),
        },
        reason = unreachable => Err(reason),
    }
}
