//! The shim as a separate program, installed beside `bridgehead`; see `bridgehead_process::shim`.

use std::process::ExitCode;

fn main() -> ExitCode {
    bridgehead_process::shim::main_if_asked();
    // A user started it by hand, and it has nothing to do.
    ExitCode::from(2)
}
