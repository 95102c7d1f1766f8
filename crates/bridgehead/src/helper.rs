//! The other lives of a program that has servers: keeper of their processes, and relay to one that is reached.
//!
//! A tree of processes is kept by a process of its own, and with `isolation = "call"` a remote server is reached from one,
//! so that nothing that it sends is taken apart in the host. Both are the program itself, started again under another
//! argument: nothing else has to be installed, and both ends are always of one build.

use std::collections::BTreeMap;
use std::io::Write;

use bridgehead_config::{Config, Launch, Prefix, Server as Upstream};
use bridgehead_upstream::{UpstreamState, relay};

use crate::{Ending, Server, Transport};

/// Becomes a helper of isolation, and does not return, if this process was started as one; otherwise remembers that this
/// program can be.
///
/// A program that embeds Bridgehead calls this first in its `main`, before it starts a thread or a runtime and before it
/// looks at its arguments. Without it a server that is reached by a `url` cannot have `isolation = "call"`, and trees of
/// processes are kept only where `bridgehead-shim` lies beside the program.
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
                // Kept by whoever started this; where nobody reads it, nobody does.
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
        relay::told(told).ok_or_else(|| format!("{} does not say whom to reach", relay::VARIABLE))?;
    let name = "relayed".parse().map_err(|_| "it has no name".to_owned())?;
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
            Ok(other) => Err(format!("it ended by {other:?}")),
            Err(error) => Err(error.to_string()),
        },
        reason = unreachable => Err(reason),
    }
}
