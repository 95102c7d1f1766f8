//! The shim that the tests of this crate and of the crates above it use. The installed shim is `bridgehead-shim`, the same
//! program in the package `bridgehead-cli`: Cargo installs only the programs of the requested package.

use std::process::ExitCode;

fn main() -> ExitCode {
    bridgehead_process::shim::main_if_asked();
    // It was started by hand, so there is no gateway to talk to.
    ExitCode::from(2)
}
