//! `bridgehead relay` when a person types it. A real relay never gets here: [`bridgehead::main_if_asked`] takes over before
//! the command line is parsed.

use bridgehead_upstream::relay;

use super::exit::Exit;
use super::output;

/// Reports that only a gateway starts a relay.
pub(crate) fn run() -> Exit {
    output::talk(&format!(
        "error: {} does not name a server to reach; only a gateway starts `bridgehead relay`",
        relay::VARIABLE
    ));
    Exit::Usage
}
