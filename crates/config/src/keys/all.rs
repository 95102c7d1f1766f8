//! The table of keys itself. To let a key land, set its status to `Supported` and read it in `check`.

use super::KeyTable::{self, Audit, Bounds, Files, Gateway, Http, Limits, Queue, Root, Server, Tool};
use super::ValueKind::{self, Choice, ChoiceOrList, Flag, FlagOr, Integer, List, Map, Table, Tables, Text};
use super::{Key, Status};

const DAY_MS: u64 = 86_400_000;
/// What a duration may be: at least a millisecond, at most a week.
const DURATION: ValueKind = Integer { least: 1, most: 7 * DAY_MS };
const DURATION_OR_ZERO: ValueKind = Integer { least: 0, most: 7 * DAY_MS };
const COUNT: ValueKind = Integer { least: 1, most: 1_000_000 };
const MEGABYTES: ValueKind = Integer { least: 1, most: 4096 };
const HELD: ValueKind = Integer { least: 1, most: 1024 * 1024 };
const LIMIT: ValueKind = Integer { least: 1, most: u32::MAX as u64 };

const LATER: Status = Status::Later { accepts: &[], binding: false };

const fn works(
    place: KeyTable,
    name: &'static str,
    kind: ValueKind,
    default: &'static str,
    doc: &'static str,
) -> Key {
    Key { place, name, kind, doc, default, status: Status::Supported }
}

const fn later(
    status: Status,
    place: KeyTable,
    name: &'static str,
    kind: ValueKind,
    default: &'static str,
    doc: &'static str,
) -> Key {
    Key { place, name, kind, doc, default, status }
}

/// Every key of the configuration.
#[rustfmt::skip] // one key, one line: this is a table
pub const KEYS: &[Key] = &[
    works(Root, "gateway", Table(Gateway), "", "How calls are run."),
    works(Root, "http", Table(Http), "", "How clients reach the gateway over HTTP."),
    works(Root, "limits", Table(Bounds), "", "What clients and servers together may take of the gateway."),
    works(Root, "audit", Table(Audit), "", "Where the record of calls is kept."),
    works(Root, "servers", Tables(Server), "", "The MCP servers behind the gateway, each under its name."),
    works(Root, "queues", Tables(Queue), "", "Named queues that bound how many calls run at once, each under its name."),

    works(Gateway, "mode", Choice(&["full", "readonly", "minimal", "test"]), "\"full\"", "Which tools are offered: all, only those annotated read-only, only the built-in ones, or all with debug details."),
    works(Gateway, "prefix", FlagOr(&["auto"]), "\"auto\"", "Whether tools are named `server__tool`; `\"auto\"` leaves the prefix out if and only if one server is configured."),
    works(Gateway, "max_name_length", Integer { least: 16, most: 1024 }, "64", "Longest tool name shown to clients; a longer one gets a short form with a stable hash."),
    works(Gateway, "resource_uris", Choice(&["keep", "rewrite"]), "\"keep\"", "How resources are addressed: `\"keep\"` passes their URIs unchanged, and where two servers have the same the first has it; `\"rewrite\"` tells them apart as `bridgehead+SERVER:URI`, wherever they stand."),
    works(Gateway, "request_timeout_ms", DURATION, "300000", "How long a call may stay silent; progress restarts the clock."),
    works(Gateway, "max_total_ms", DURATION, "3600000", "How long a call may take altogether, progress or not."),
    works(Gateway, "startup_timeout_ms", DURATION, "30000", "How long the gateway itself may take to start."),
    works(Gateway, "list_wait_ms", DURATION_OR_ZERO, "5000", "How long the first list of tools waits for servers that are still starting."),
    works(Gateway, "question_timeout_ms", DURATION, "600000", "How long a client has to answer what a server asks during a call; then the question is cancelled."),
    works(Gateway, "threads", Integer { least: 1, most: 1024 }, "one per core", "Number of threads that serve HTTP clients."),
    works(Gateway, "debug_errors", Flag, "false", "Puts backtraces into the details of errors."),
    works(Gateway, "max_message_mb", MEGABYTES, "16", "Largest single message from a server, in megabytes."),
    works(Gateway, "init_concurrency", COUNT, "8", "How many server processes are launched at the same time. One that was launched and has not answered yet does not count, so a server that hangs holds up no other."),
    later(LATER, Gateway, "roots", List, "", "Folders announced to servers that ask for roots."),

    works(Http, "listen", Text, "\"127.0.0.1:4848\"", "Address and port; anything but loopback requires a token."),
    works(Http, "allowed_hosts", List, "loopback names", "`Host` headers that are accepted besides those of loopback; with a token any is."),
    works(Http, "allowed_origins", List, "loopback origins", "`Origin` headers that are accepted besides those of loopback; pages of these may use the endpoint from a browser (CORS)."),
    works(Http, "local_users", ChoiceOrList(&["same", "any"]), "\"same\"", "Who on this machine may call where no token is asked for: the gateway's own user, anybody, or the users of a list, by name or number."),
    works(Http, "token_file", Text, "", "File that holds the bearer token clients must send."),
    works(Http, "token_env", Text, "", "Name of the variable that holds the bearer token clients must send."),
    works(Http, "max_sessions", COUNT, "1024", "How many sessions of older clients may be open at once."),
    works(Http, "session_idle_ms", DURATION, "1800000", "How long a session without a request is kept."),
    works(Http, "max_body_mb", MEGABYTES, "16", "Largest request body, in megabytes."),
    works(Http, "keep_alive_ms", DURATION, "15000", "How often a comment is sent on a silent event stream."),
    works(Http, "poll_after_ms", DURATION, "never", "After how much silence the stream of a running call is closed, so that its client (2025-11-25) comes back later for the rest instead of holding a connection."),

    works(Bounds, "head_ms", DURATION, "10000", "How long a client over HTTP may take to send the whole head of a request, from its first byte."),
    works(Bounds, "body_ms", DURATION, "60000", "How long a client over HTTP may take to send the whole body of a request."),
    works(Bounds, "held_mb", HELD, "512", "How much is held for all clients and servers together, in megabytes: bodies, answers that wait, streams that can be taken up again, lists of tools."),
    works(Bounds, "held_per_peer_mb", HELD, "64", "How much of that is held for one session, connection or server, in megabytes."),

    works(Audit, "store", Choice(&["sqlite", "none"]), "\"sqlite\"", "Whether calls are recorded, in SQLite files; the mode `test` records nothing."),
    works(Audit, "folder", Text, "`$XDG_STATE_HOME/bridgehead/audit`", "Folder of the record."),
    works(Audit, "methods", List, "[]", "Methods that are recorded besides calls, prompts, reads, subscriptions and what is told to tasks: lists, `completion/complete`, `logging/setLevel`, `resources/unsubscribe`, `tasks/get`."),
    works(Audit, "payloads", Choice(&["redacted", "digest", "none"]), "\"redacted\"", "What is kept of arguments and results: their text without secrets and a digest, the digest, or neither."),
    works(Audit, "on_failure", Choice(&["refuse", "continue"]), "\"refuse\"", "What happens to a call that cannot be recorded: it is not made, or made without a record and counted."),
    works(Audit, "redact", List, "[]", "Regular expressions of what is hidden in the record, the log, events and errors, besides the built-in list."),
    works(Audit, "redact_paths", List, "[]", "Values that are hidden in arguments and results, as `tool:/path`; `*` is any tool, member or element."),
    works(Audit, "checkpoint_file", Text, "`checkpoints.jsonl` in the folder", "File that every checkpoint is appended to."),
    works(Audit, "signing_key_file", Text, "", "File with the Ed25519 secret key, in hexadecimal, that signs checkpoints."),
    works(Audit, "segment_mb", MEGABYTES, "64", "Size at which a file of the record is sealed and the next one begun, in megabytes."),
    works(Audit, "keep_days", Integer { least: 1, most: 36_500 }, "90", "How long sealed files are kept, in days."),
    works(Audit, "keep_mb", Integer { least: 1, most: 16_777_216 }, "1024", "How much all files may take before the oldest sealed ones are removed, in megabytes."),

    works(Server, "type", Choice(&["stdio", "http", "sse", "websocket", "streamable-http", "streamableHttp", "streamable_http", "ws"]), "by `command` or `url`", "How the server is reached; without it `command` is run, and at a `url` the server is asked what it speaks."),
    works(Server, "command", Text, "", "Program to run; excludes `url`."),
    works(Server, "args", List, "[]", "Arguments of the command."),
    works(Server, "env", Map, "{}", "Environment variables of the command, besides those that every server gets (`docs/environment.md`)."),
    works(Server, "inherit_env", List, "[]", "Names of further variables that the command gets as the gateway has them, credentials included; ignored in the file of a client."),
    works(Server, "env_file", Text, "", "File with `NAME=value` lines; `env` wins over it."),
    works(Server, "cwd", Text, "that of the gateway", "Folder in which the command runs."),
    works(Server, "url", Text, "", "Address of a remote server (`http`, `https`, `ws` or `wss`); excludes `command`."),
    works(Server, "headers", Map, "{}", "Headers sent to a remote server with every request, such as `Authorization`; never shown."),
    works(Server, "proxy", Text, "", "Proxy that a remote server is reached through, as `http://[NAME:PASSWORD@]HOST:PORT`; variables such as `HTTP_PROXY` are never looked at. Never shown."),
    works(Server, "follow_redirects", Flag, "false", "Follows redirects of a remote server (307 and 308, three in a row) that stay at the same scheme, host and port; to any other address they are never followed."),
    works(Server, "disabled", Flag, "false", "Leaves the server out."),
    works(Server, "enabled", Flag, "true", "`false` is another way to write `disabled = true`."),
    works(Server, "prefix", Flag, "that of the gateway", "Whether this server's tools are named `server__tool`."),
    works(Server, "request_timeout_ms", DURATION, "that of the gateway", "How long a call to this server may stay silent."),
    works(Server, "max_total_ms", DURATION, "that of the gateway", "How long a call to this server may take altogether."),
    works(Server, "tools", Tables(Tool), "", "Settings of single tools, each under its name at the server."),
    works(Server, "tools_allowed", List, "[\"*\"]", "Patterns of the tools that are offered, by their name at the server: `*`, `any`, or globs; letter case does not matter."),
    works(Server, "tools_denied", List, "[]", "Patterns of the tools that are not offered; wins over `tools_allowed`."),
    works(Server, "isolation", Choice(&["shared", "session", "call"]), "\"shared\"", "Who shares a process of this server: everyone, one client session, or nobody: with `call` every call of a tool has a process of its own, which is killed after it."),
    works(Server, "shared", Flag, "true", "`false` is another way to write `isolation = \"session\"`."),
    works(Server, "limits", Table(Limits), "", "What the server's processes and calls may use; what is left out is not limited."),
    works(Server, "require", List, "[]", "What must be kept by the system itself, or the server is not started: `memory:hard`, `processes:hard`, and of a confined server `signals`."),
    works(Server, "files", Table(Files), "", "Which files the server may use, besides those that every program needs; without it, all."),
    works(Server, "network", Choice(&["none", "full"]), "\"full\"", "Whether the server may use the network."),
    works(Server, "profile", Text, "", "Ready-made set of `files` and `network`, which both can add to: `offline-readonly`, `offline-workspace`, `readonly`, `workspace`."),
    works(Server, "on_missing", Choice(&["refuse", "degrade"]), "\"refuse\"", "What happens to a server whose `files` and `network` cannot be kept here: it is not started, or runs with what can be kept, with a warning."),
    works(Server, "idle_timeout_ms", DURATION_OR_ZERO, "0", "How long an unused server keeps running; 0 means for ever. Its tools stay listed, and the next call starts it."),
    works(Server, "lazy", Flag, "false", "Starts the server on first use; until then its tools are those of the last time."),
    works(Server, "era", Choice(&["auto", "modern", "legacy"]), "\"auto\"", "Protocol era spoken with the server: found out, the stateless one of 2026, or the one with a handshake."),
    works(Server, "queue", Text, "one of its own", "Queue that bounds this server's calls; servers that name the same one share it."),
    works(Server, "start_timeout_ms", DURATION, "180000", "How long one attempt to start this server may take, downloads of its launcher included; calls wait for it a minute at the most."),
    works(Server, "stable_after_ms", DURATION, "60000", "Health that resets the restart delays."),
    works(Server, "jitter", Flag, "true", "Spreads restarts over time."),
    works(Server, "probe_interval_ms", DURATION, "30000", "How often the server's health is probed."),
    works(Server, "health_probe", Choice(&["ping", "list_tools"]), "\"ping\"", "What the server is asked when its health is probed: `ping` (of a server of 2026 `server/discover`), with the tool list where that is refused or not answered, or the tool list only."),
    works(Server, "restart", Flag, "true", "Restarts the server when it ends."),
    works(Server, "retry", Choice(&["always", "safe", "never"]), "\"safe\"", "Whether a call whose server was lost is tried again: always, only where it provably did not run or the tool is annotated read-only or idempotent, or never."),
    works(Server, "interactive", Choice(&["auto", "exclusive", "shared"]), "\"auto\"", "Whether calls of clients that can be asked something have a process or session for themselves: once a question could not be attributed, always, or never."),
    works(Server, "max_leases", COUNT, "8", "How many processes or sessions there are at most for such calls; further calls wait."),
    works(Server, "question_timeout_ms", DURATION, "that of the gateway", "How long a client has to answer what this server asks."),
    works(Server, "output", Choice(&["off", "report", "enforce"]), "\"off\"", "What is done with results that do not fit their tool's output schema: nothing, they are logged and counted, or the call fails."),
    works(Server, "roots", List, "", "Folders that this server is told when it asks for roots, as paths or URIs; nobody else is asked then. Without it the client is asked."),

    works(Tool, "lock", Flag, "false", "Runs calls of this tool one at a time."),
    works(Tool, "queue", Text, "that of the server", "Queue that bounds this tool's calls."),
    works(Tool, "limits", Table(Limits), "those of the server", "What one call of this tool may use; all but `max_execution_ms` only with `isolation = \"call\"`."),

    works(Limits, "max_memory_mb", LIMIT, "", "Memory of the whole process tree, in megabytes; whoever takes more is killed, with all of the tree."),
    works(Limits, "max_execution_ms", DURATION, "", "Time one call may run, progress or not."),
    works(Limits, "max_processes", LIMIT, "", "Processes in the tree; all of them are killed when there are more."),
    works(Limits, "max_open_files", LIMIT, "", "Open files of each process."),
    works(Limits, "max_file_mb", LIMIT, "", "Largest file a process may write, in megabytes."),
    works(Limits, "max_output_mb", MEGABYTES, "", "Largest answer to one call, in megabytes; never more than `max_message_mb`."),
    works(Limits, "max_log_kb", LIMIT, "64", "How much of the end of the server's error output is kept, in kilobytes."),

    works(Files, "read", List, "[]", "Paths the server may read."),
    works(Files, "write", List, "[]", "Paths the server may read and write."),

    works(Queue, "concurrency", COUNT, "64", "How many calls run at once."),
    works(Queue, "max_waiting", Integer { least: 0, most: 1_000_000 }, "1024", "How many calls may wait for their turn; one more is refused."),
];
