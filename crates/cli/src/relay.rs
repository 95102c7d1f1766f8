//! `bridgehead relay` when a person types it. A real relay never gets here: [`bridgehead::main_if_asked`] takes over before
//! the command line is parsed.

use bridgehead_upstream::relay;
use clap::Args;

use super::exit::Exit;
use super::{Run, output};

/// One remote server, on stdin and stdout, for a gateway
#[derive(Debug, Args)]
pub(crate) struct Relay {}

impl Run for Relay {
    /// Reports that only a gateway starts a relay.
    fn run_anywhere(&self) -> Option<Exit> {
        output::talk(&format!(
            "error: {} does not name a server to reach; only a gateway starts `bridgehead relay`",
            relay::VARIABLE
        ));
        Some(Exit::Usage)
    }
}
