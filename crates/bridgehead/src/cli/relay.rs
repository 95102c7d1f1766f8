//! `bridgehead relay`, as a person may type it: a relay that was told whom to reach has gone its way before there was a
//! command line ([`bridgehead::main_if_asked`]).

use bridgehead_upstream::relay;

use super::exit::Exit;
use super::output;

/// Says that there is nothing to do.
pub(crate) fn run() -> Exit {
    output::talk(&format!(
        "error: {} does not say whom to reach; only a gateway starts this",
        relay::VARIABLE
    ));
    Exit::Usage
}
