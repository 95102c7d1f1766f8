//! What the program needs to know of a verb to run it.

use bridgehead::config::LogLevel;

use super::exit::Exit;
use super::world::World;

/// A verb of the command line, with its options.
pub(crate) trait Run {
    /// Whether errors of the environment are reported as JSON on stdout.
    fn json(&self) -> bool {
        false
    }

    /// Whether stdin and stdout carry the protocol.
    fn speaks_mcp(&self) -> bool {
        false
    }

    /// Whether it only reads, so that a mistake in the environment is told and does not end it.
    fn only_reads(&self) -> bool {
        false
    }

    /// How much is logged unless somebody says otherwise.
    fn log_level(&self) -> LogLevel {
        LogLevel::Warn
    }

    /// Runs a verb that reads neither the environment nor the configuration; `None` if this is not one.
    fn run_anywhere(&self) -> Option<Exit> {
        None
    }

    /// Runs the verb.
    fn run(&self, _world: &World) -> Exit {
        Exit::Success
    }
}
