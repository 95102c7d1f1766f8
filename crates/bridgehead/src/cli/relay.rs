//! `bridgehead relay`: one remote server on stdin and stdout, for a gateway that wants nothing of it in its own process.
//!
//! Started by a gateway only. It ends when its input does, and when the server cannot be reached.

use bridgehead::config::{Launch, Prefix, Server as Upstream};
use bridgehead::{Config, Server, Transport};
use bridgehead_upstream::{State, relay};
use tokio::runtime::Builder;

use super::exit::Exit;
use super::output;
use super::world::World;

/// Runs the verb.
pub(crate) fn run(world: &World) -> Exit {
    let told = world.variables.get(relay::VARIABLE).and_then(|told| relay::told(told));
    let (Some((remote, era)), Ok(name)) = (told, "relayed".parse()) else {
        output::talk(&format!(
            "error: {} does not say whom to reach; only a gateway starts this",
            relay::VARIABLE
        ));
        return Exit::Usage;
    };
    let mut config = Config::demo();
    (config.gateway.prefix, config.gateway.builtin) = (Prefix::Never, false);
    let mut server = Upstream::new(name, Launch::Remote(remote), &config.gateway);
    (server.era, server.restart) = (era, false);
    config.servers.push(server);
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::talk(&format!("error: cannot start the runtime: {error}"));
            return Exit::Failure;
        }
    };
    runtime.block_on(serve(&config, world))
}

async fn serve(config: &Config, world: &World) -> Exit {
    let options = Server::builder().configured(config).environment(world.variables.clone());
    let server = match options.transport(Transport::Stdio).build() {
        Ok(server) => server,
        Err(error) => {
            output::talk(&format!("error: {error}"));
            return Exit::Failure;
        }
    };
    let running = match server.start().await {
        Ok(running) => running,
        Err(error) => {
            output::talk(&format!("error: {error}"));
            return Exit::from(&error);
        }
    };
    let unreachable = async {
        server.gateway().settled().await;
        match server.gateway().upstreams().first().map(bridgehead_upstream::Upstream::state) {
            Some(State::Failed(failure)) => failure.reason.clone(),
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = running.wait() => Exit::from(&ended),
        reason = unreachable => {
            output::talk(&format!("error: {reason}"));
            Exit::Unreachable
        }
    }
}
