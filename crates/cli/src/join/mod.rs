//! `serve --stdio` as a client of a gateway that all clients of a user share: joins it, or starts it, and is a pipe to it.
//!
//! - [`entrance`]: finds the gateway, starts one if there is none
//! - [`folder`]: the folder of sockets, the lock of starters
//! - [`pipe`]: passes lines on, and enters the next gateway if this one dies
//! - [`ledger`]: what the client has open, and what its session holds
//! - [`detached`]: the other side, a gateway that was started for its clients

pub(crate) mod detached;
pub(crate) mod entrance;
mod folder;
mod ledger;
mod pipe;

use std::path::Path;

use bridgehead::StopSignal;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::entrance::{Entrance, NotEntered};
use self::pipe::Pipe;
use crate::exit::Exit;
use crate::output;
use crate::world::World;

/// Serves the client on stdin and stdout at a shared gateway. `None` if this process has to serve it alone; the reason has been
/// told.
pub(crate) fn run(world: &World, explicit: Option<&Path>) -> Option<Exit> {
    let config = match world.without_secrets(explicit) {
        Ok(config) => config,
        Err(error) => return Some(output::configuration_error(&error, false)),
    };
    output::show(&config.warnings);
    world.note_demo(&config);
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::talk(&format!("error: cannot start the runtime: {error}"));
            return Some(Exit::Failure);
        }
    };
    let exit = runtime.block_on(async {
        let mut entrance = Entrance { world, explicit, shown: output::diagnostics(&config.warnings) };
        let entered = match entrance.find(&config).await {
            Ok(entered) => entered,
            Err(NotEntered::Failed(exit)) => return Some(exit),
            Err(NotEntered::Alone(reason)) => {
                output::talk(&format!("warning: this client is served alone: {reason}"));
                return None;
            }
        };
        let stop = CancellationToken::new();
        let limit = config.gateway.max_message_bytes;
        let pipe = Pipe::new(tokio::io::stdin(), tokio::io::stdout(), limit, stop.clone());
        tokio::select! {
            exit = pipe.run(&mut entrance, entered) => Some(exit),
            forced = signals(&stop) => Some(Exit::Forced(forced)),
        }
    });
    runtime.shutdown_timeout(crate::serve::LAST_MOMENT);
    exit
}

/// Ends the input at the first signal; returns the second one.
async fn signals(stop: &CancellationToken) -> StopSignal {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Then a signal ends the process at once.
        return std::future::pending().await;
    };
    loop {
        let signal = tokio::select! {
            _ = interrupt.recv() => StopSignal::Interrupt,
            _ = terminate.recv() => StopSignal::Terminate,
        };
        if stop.is_cancelled() {
            return signal;
        }
        stop.cancel();
    }
}
