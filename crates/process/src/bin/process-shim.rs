//! The shim for the tests of this crate and of those above it. What is installed is `bridgehead-shim`, the same
//! program of the package `bridgehead`: Cargo installs only programs of the package that it is asked for.

use std::process::ExitCode;

fn main() -> ExitCode {
    bridgehead_process::shim::main_if_asked();
    // Started by hand; there is nothing that it could do.
    ExitCode::from(2)
}
