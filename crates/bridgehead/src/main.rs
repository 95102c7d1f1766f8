//! The `bridgehead` program: reads the command line and the environment, runs one verb, exits with its code.

mod cli;

use std::process::ExitCode;

/// mimalloc, because a call makes many small allocations. Huge pages are off: they would double the size of an idle gateway.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // First, because a helper does not use the command line.
    bridgehead::main_if_asked();
    cli::main()
}
