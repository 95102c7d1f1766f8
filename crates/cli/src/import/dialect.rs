//! How the clients' entries differ from each other, one row each.
//!
//! Most keys mean the same wherever they appear, and [`entry`](super::entry) knows all of them. A row says what a key cannot:
//! which references a client replaces and where, the unit of its time limits, and what an address without a kind means.

use super::variables::Syntax;
use crate::clients::Client;
use crate::servers_file::EntryTransport;

/// The peculiarities of one client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dialect {
    /// The references that it replaces.
    pub(super) syntax: Syntax,
    /// Where it replaces them.
    pub(super) within: Within,
    /// How many milliseconds its `timeout` counts in.
    pub(super) timeout: Option<u32>,
    /// The transport of an address without a kind; `None` for Streamable HTTP, which the gateway tries first.
    pub(super) untyped: Option<EntryTransport>,
    /// Which entries are no servers.
    pub(super) skips: Skips,
}

/// Where references are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Within {
    /// In every value.
    All,
    /// In the values of variables.
    Env,
    /// In addresses and headers.
    Remote,
}

/// Entries that are no servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skips {
    /// None is known.
    Nothing,
    /// Extensions of the client, which have settings only, or name it as their source.
    Extensions,
    /// What is built into the client, by its `type`.
    Builtins,
    /// Entries that turn a server of another file on or off.
    Toggles,
    /// Entries that name a package of a catalogue.
    Packages,
}

const MILLISECONDS: Option<u32> = Some(1);
const SECONDS: Option<u32> = Some(1000);

const PLAIN: Dialect = Dialect {
    syntax: Syntax::NONE,
    within: Within::All,
    timeout: None,
    untyped: None,
    skips: Skips::Nothing,
};
const EDITOR: Dialect = Dialect { syntax: Syntax::EDITOR, ..PLAIN };

/// The row of a client.
pub(super) fn of(client: &Client) -> Dialect {
    match client.id {
        "claude-code" => Dialect { syntax: Syntax::BRACES, timeout: MILLISECONDS, ..PLAIN },
        "cursor" | "vscode" | "windsurf" | "lmstudio" | "junie" | "ai-assistant" => EDITOR,
        "zed" => Dialect { timeout: SECONDS, skips: Skips::Extensions, ..PLAIN },
        "codex" => Dialect { timeout: SECONDS, ..PLAIN },
        "goose" => Dialect {
            syntax: Syntax::SHELL,
            within: Within::Remote,
            timeout: SECONDS,
            skips: Skips::Builtins,
            ..PLAIN
        },
        "opencode" => Dialect {
            syntax: Syntax { single: true, ..Syntax::NONE },
            timeout: MILLISECONDS,
            skips: Skips::Toggles,
            ..PLAIN
        },
        "gemini" => {
            Dialect { syntax: Syntax { percent: true, ..Syntax::SHELL }, timeout: MILLISECONDS, ..PLAIN }
        }
        "cline" | "roo" => Dialect { timeout: SECONDS, untyped: Some(EntryTransport::Sse), ..EDITOR },
        "continue" => {
            Dialect { syntax: Syntax { secrets: true, ..Syntax::NONE }, skips: Skips::Packages, ..PLAIN }
        }
        "amp" | "warp" => Dialect { syntax: Syntax::BRACES, ..PLAIN },
        "copilot" => Dialect { syntax: Syntax::SHELL, within: Within::Env, timeout: MILLISECONDS, ..PLAIN },
        _ => PLAIN,
    }
}
