//! The `bridgehead` program: reads the command line and the environment, runs one verb, exits with its code.

mod cli;

use std::process::ExitCode;

/// Measured against the system's allocator on the call path; it also returns memory after bursts.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // First, as a shim has nothing to do with the command line.
    bridgehead_process::shim::main_if_asked();
    cli::main()
}
