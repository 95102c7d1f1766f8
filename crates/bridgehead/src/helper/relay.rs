//! The relay as a helper process: a small gateway with one remote server, on stdin and stdout.

use std::io::Write;

use bridgehead_config::{GatewaySettings, Launch, Prefix, ServerConfig};
use bridgehead_upstream::{UpstreamState, relay};

use crate::{Ending, Server, Transport};

/// Runs as the relay and does not return, if this process was started as one. Otherwise remembers that this program can be.
pub(super) fn main_if_asked() {
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
    let settings = GatewaySettings { prefix: Prefix::Never, builtin: false, ..GatewaySettings::default() };
    let mut server = ServerConfig::new(name, Launch::Remote(remote), &settings);
    (server.era, server.restart) = (era, false);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(relay_by(settings, server))
}

async fn relay_by(settings: GatewaySettings, server: ServerConfig) -> Result<(), String> {
    let options = Server::builder().settings(settings).upstream(server).transport(Transport::Stdio);
    let server = options.build().map_err(|error| error.to_string())?;
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
