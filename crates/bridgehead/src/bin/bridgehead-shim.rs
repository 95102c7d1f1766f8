//! The shim as a program of its own; see `bridgehead_process::shim`. It is installed with `bridgehead`, beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    bridgehead_process::shim::main_if_asked();
    // Started by hand; there is nothing that it could do.
    ExitCode::from(2)
}
