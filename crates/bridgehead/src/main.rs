//! The `bridgehead` program: reads the command line and the environment, runs one verb, exits with its code.

mod cli;

use std::process::ExitCode;

/// For the many small allocations of a call. Without huge pages, which would make an idle gateway twice as large.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // First, as a helper has nothing to do with the command line.
    bridgehead::main_if_asked();
    cli::main()
}
