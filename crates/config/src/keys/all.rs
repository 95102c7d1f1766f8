//! The table of keys itself. To make a reserved key work, set its status to `Supported` and read it in `check`.

use super::KeyTable::{
    self, ApiKey, Audit, Auth, Bounds, Files, Gateway, Http, Introspection, Issuer, LimitRule, Limits,
    Listener, Policy, Queue, Root, Secrets, Server, Tls, Tool, TrustedProxy,
};
use super::ValueKind::{
    self, Choice, ChoiceOrList, Flag, FlagOr, Integer, List, ListMap, Map, NamedRows, Rows, Table, Tables,
    Text, Time,
};
use super::{Key, Status};

const DAY_MS: u64 = 86_400_000;
/// A duration: at least a millisecond, at most a week.
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
    works(Root, "gateway", Table(Gateway), "", "How the gateway runs calls."),
    works(Root, "http", Table(Http), "", "How clients reach the gateway over HTTP."),
    works(Root, "limits", Table(Bounds), "", "How long the gateway waits for requests, how much it holds in memory for clients and servers and, under `[[limits.rules]]`, how much callers may use."),
    works(Root, "audit", Table(Audit), "", "What the audit record holds, and where it is kept."),
    works(Root, "auth", Table(Auth), "", "Who is admitted, and as whom."),
    works(Root, "policy", Rows(Policy), "", "Who may use what. Without rules that allow something, everybody who is admitted may use everything that no rule denies; with one, everybody may use what a rule allows."),
    works(Root, "secrets", Table(Secrets), "", "Where secrets come from."),
    works(Root, "servers", Tables(Server), "", "The MCP servers behind the gateway, each under its name."),
    works(Root, "queues", Tables(Queue), "", "Queues, each under its name; a queue limits how many calls run at once."),

    works(Gateway, "mode", Choice(&["full", "readonly", "minimal", "test"]), "\"full\"", "Which tools are offered: all (`full`), only those annotated read-only (`readonly`), only the built-in ones (`minimal`), or all with debug details in errors (`test`)."),
    works(Gateway, "prefix", FlagOr(&["auto"]), "\"auto\"", "Whether tool names carry the name of their server (`server__tool`); `\"auto\"` adds it unless exactly one server is configured."),
    works(Gateway, "max_name_length", Integer { least: 16, most: 1024 }, "64", "Longest tool name that clients see; a longer name is cut and ends with a stable hash."),
    works(Gateway, "resource_uris", Choice(&["keep", "rewrite"]), "\"keep\"", "How clients address resources: `\"keep\"` leaves URIs unchanged, and a URI that two servers list belongs to the first; `\"rewrite\"` turns every URI into `bridgehead+SERVER:URI`, wherever it appears."),
    works(Gateway, "request_timeout_ms", DURATION, "300000", "How long a call may stay silent; progress restarts the clock."),
    works(Gateway, "max_total_ms", DURATION, "3600000", "How long a call may take in total, with or without progress."),
    works(Gateway, "startup_timeout_ms", DURATION, "30000", "How long the gateway itself may take to start."),
    works(Gateway, "list_wait_ms", DURATION_OR_ZERO, "5000", "How long the first list of tools waits for a silent server that is still starting and has no saved list; five times as long for a process that has not answered yet."),
    works(Gateway, "linger_ms", DURATION_OR_ZERO, "30000", "How long a gateway that `serve --stdio` started stays after its last client has left."),
    works(Gateway, "question_timeout_ms", DURATION, "600000", "How long a client has to answer a question that a server asks during a call; then the question is cancelled."),
    works(Gateway, "cancel_grace_ms", DURATION_OR_ZERO, "5000", "How long a cancelled call keeps its lock and its places in queues and limits, unless its server answers it or ends first. Its client does not wait."),
    works(Gateway, "threads", Integer { least: 1, most: 1024 }, "one per core", "Number of threads that serve HTTP clients."),
    works(Gateway, "debug_errors", Flag, "false", "Adds backtraces to the details of errors."),
    works(Gateway, "max_message_mb", MEGABYTES, "16", "Largest single message from a server, in megabytes."),
    works(Gateway, "init_concurrency", COUNT, "8", "How many server processes the gateway launches at the same time. A launched server that has not answered yet does not count, so a hanging server does not delay the others."),
    later(LATER, Gateway, "roots", List, "", "Folders announced to servers that ask for roots."),

    works(Http, "listen", Text, "\"127.0.0.1:4848\"", "Address and port to listen on; any address other than loopback requires credentials."),
    works(Http, "listeners", Tables(Listener), "", "More addresses at which clients are served, each under its name."),
    works(Http, "allowed_hosts", List, "loopback names", "`Host` headers accepted besides the loopback names; with a token, every `Host` is accepted."),
    works(Http, "allowed_origins", List, "loopback origins", "`Origin` headers accepted besides the loopback origins; pages from these origins may use the endpoint from a browser (CORS). `\"*\"` admits every origin, and needs configured credentials."),
    works(Http, "local_users", ChoiceOrList(&["same", "any"]), "\"same\"", "Who on this machine may connect when no token is required: the gateway's own user (`\"same\"`), every user (`\"any\"`), or the listed users, by name or number."),
    works(Http, "token_file", Text, "", "File that holds the bearer token clients must send, and that only its owner may read."),
    works(Http, "token_env", Text, "", "Name of the environment variable that holds the bearer token clients must send."),
    works(Http, "max_sessions", COUNT, "1024", "How many sessions of legacy clients may be open at once."),
    works(Http, "session_idle_ms", DURATION, "1800000", "How long a session stays open without a request."),
    works(Http, "max_body_mb", MEGABYTES, "16", "Largest request body, in megabytes."),
    works(Http, "keep_alive_ms", DURATION, "15000", "How often the gateway sends a comment on a silent event stream."),
    works(Http, "poll_after_ms", DURATION, "never", "After how much silence the gateway closes the stream of a running call. The client (2025-11-25) then polls for the rest instead of holding a connection."),

    works(Bounds, "head_ms", DURATION, "10000", "How long an HTTP client may take to send the whole head of a request, counted from its first byte."),
    works(Bounds, "body_ms", DURATION, "60000", "How long an HTTP client may take to send the whole body of a request."),
    works(Bounds, "held_mb", HELD, "512", "How much the gateway holds in memory for all clients and servers together, in megabytes: request bodies, waiting answers, resumable streams, tool lists."),
    works(Bounds, "held_per_peer_mb", HELD, "64", "How much of `held_mb` one session, connection or server may take, in megabytes."),
    works(Bounds, "views_mb", HELD, "64", "How much the prepared lists of all principals may take together, in megabytes; further lists are assembled for each request."),
    works(Bounds, "rules", Rows(LimitRule), "", "How much each principal may do."),

    works(Audit, "store", Choice(&["sqlite", "none"]), "\"sqlite\"", "Whether calls are recorded: in SQLite files (`sqlite`) or not at all (`none`); mode `test` records nothing."),
    works(Audit, "folder", Text, "`$XDG_STATE_HOME/bridgehead/audit`", "Folder of the audit record."),
    works(Audit, "methods", List, "[]", "Methods to record besides those that always are (tool calls, prompts, resource reads, subscriptions, `tasks/update` and `tasks/cancel`): lists, `completion/complete`, `logging/setLevel`, `resources/unsubscribe`, `tasks/get`."),
    works(Audit, "payloads", Choice(&["redacted", "digest", "none"]), "\"redacted\"", "What the record keeps of arguments and results: redacted text and a digest (`redacted`), a digest only (`digest`), or neither (`none`)."),
    works(Audit, "on_failure", Choice(&["refuse", "continue"]), "\"refuse\"", "What happens to a call that cannot be recorded: it is refused (`refuse`), or it runs without a record and is counted (`continue`)."),
    works(Audit, "redact", List, "[]", "Regular expressions, in addition to the built-in list; matching text is hidden in the record, the log, events and errors."),
    works(Audit, "redact_paths", List, "[]", "Values to hide in arguments and results, as `tool:/path`; `*` stands for any tool, member or element."),
    works(Audit, "checkpoint_file", Text, "`checkpoints.jsonl` in the folder", "File to which every checkpoint is appended."),
    works(Audit, "signing_key_file", Text, "", "File with the Ed25519 secret key, in hexadecimal, that signs checkpoints."),
    works(Audit, "segment_mb", MEGABYTES, "64", "Size at which a file of the record is sealed and the next one started, in megabytes."),
    works(Audit, "keep_days", Integer { least: 1, most: 36_500 }, "90", "How long sealed files are kept, in days."),
    works(Audit, "keep_mb", Integer { least: 1, most: 16_777_216 }, "1024", "How much space all files may take, in megabytes; above that, the oldest sealed files are removed."),

    works(Server, "type", Choice(&["stdio", "http", "sse", "websocket", "streamable-http", "streamableHttp", "streamable_http", "ws"]), "by `command` or `url`", "How to reach the server. Without it, the gateway runs `command`, or asks the server at `url` which transport it speaks."),
    works(Server, "command", Text, "", "Program to run; excludes `url`."),
    works(Server, "args", List, "[]", "Arguments of the command."),
    works(Server, "env", Map, "{}", "Environment variables of the command, in addition to those every server gets (see `bridgehead explain environment`)."),
    works(Server, "inherit_env", List, "[]", "Names of further variables that the command inherits from the gateway, credentials included; ignored in a client's file."),
    works(Server, "env_file", Text, "", "File with `NAME=value` lines; `env` wins over it."),
    works(Server, "cwd", Text, "that of the gateway", "Folder in which the command runs."),
    works(Server, "url", Text, "", "Address of a remote server (`http`, `https`, `ws` or `wss`); excludes `command`."),
    works(Server, "headers", Map, "{}", "Headers sent to a remote server with every request, such as `Authorization`; their values are never shown."),
    works(Server, "proxy", Text, "", "Proxy for a remote server, as `http://[NAME:PASSWORD@]HOST:PORT`; never shown. Variables such as `HTTP_PROXY` are ignored."),
    works(Server, "follow_redirects", Flag, "false", "Follows redirects of a remote server (307 and 308, at most three in a row) to the same scheme, host and port; redirects to any other address are never followed."),
    works(Server, "disabled", Flag, "false", "Turns the server off."),
    works(Server, "enabled", Flag, "true", "`false` is another way to write `disabled = true`."),
    works(Server, "prefix", Flag, "that of the gateway", "Whether the names of this server's tools carry its name (`server__tool`)."),
    works(Server, "request_timeout_ms", DURATION, "that of the gateway", "How long a call to this server may stay silent."),
    works(Server, "max_total_ms", DURATION, "that of the gateway", "How long a call to this server may take in total."),
    works(Server, "tools", Tables(Tool), "", "Settings of individual tools, each under the server's own name for it."),
    works(Server, "tools_allowed", List, "[\"*\"]", "Patterns of the tools to offer, matched against the server's own tool names: `*`, `any`, or globs; letter case does not matter."),
    works(Server, "tools_denied", List, "[]", "Patterns of the tools not to offer; they win over `tools_allowed`."),
    works(Server, "isolation", Choice(&["shared", "session", "call"]), "\"shared\"", "Who shares a process of this server: all clients (`shared`), one client session (`session`), or nobody (`call`). With `call`, every tool call gets its own process, which is killed after the call."),
    works(Server, "shared", Flag, "true", "`false` is another way to write `isolation = \"session\"`."),
    works(Server, "limits", Table(Limits), "", "Limits on what the server's processes and calls may use. A limit that is left out does not apply; with `isolation = \"call\"` it has a default."),
    works(Server, "require", List, "[]", "What the system itself must enforce, or the server is not started: `memory:hard`, `processes:hard`, and for a confined server `signals`."),
    works(Server, "files", Table(Files), "", "Which files the server may use, besides those that every program needs; without this key, all files."),
    works(Server, "network", Choice(&["none", "full"]), "\"full\"", "Whether the server may use the network."),
    works(Server, "profile", Text, "", "Predefined confinement, to which `files` adds and which `network` overrides: `offline-readonly`, `offline-workspace`, `readonly`, `workspace`."),
    works(Server, "on_missing", Choice(&["refuse", "degrade"]), "\"refuse\"", "What happens to a server if this system cannot enforce its `files` and `network`: it is not started (`refuse`), or it runs with what can be enforced, with a warning (`degrade`)."),
    works(Server, "idle_timeout_ms", DURATION_OR_ZERO, "0", "How long an unused server keeps running; 0 means forever. Its tools stay listed, and the next call starts it again."),
    works(Server, "lazy", Flag, "false", "Starts the server on first use; until then its tools are those of its last run."),
    works(Server, "era", Choice(&["auto", "modern", "legacy"]), "\"auto\"", "Protocol era to speak with the server: detected (`auto`), the stateless one of 2026 (`modern`), or the one with a handshake (`legacy`)."),
    works(Server, "queue", Text, "a queue of its own", "Queue that limits this server's calls; servers that name the same queue share it."),
    works(Server, "start_timeout_ms", DURATION, "180000", "How long one attempt to start this server may take, including downloads by its launcher; calls wait for it at most one minute."),
    works(Server, "stable_after_ms", DURATION, "60000", "How long the server must stay healthy before its restart delays are reset."),
    works(Server, "jitter", Flag, "true", "Randomizes restart delays, so that restarts spread over time."),
    works(Server, "probe_interval_ms", DURATION, "30000", "How often the server's health is probed."),
    works(Server, "health_probe", Choice(&["ping", "list_tools"]), "\"ping\"", "Request that probes the server's health: `ping` (`server/discover` for a modern server), and the tool list if that is refused or not answered; or the tool list only (`list_tools`)."),
    works(Server, "restart", Flag, "true", "Restarts the server when it ends."),
    works(Server, "retry", Choice(&["always", "safe", "never"]), "\"safe\"", "Whether to repeat a call whose server was lost: always (`always`), only if it provably did not run or its tool is annotated read-only or idempotent (`safe`), or never (`never`)."),
    works(Server, "interactive", Choice(&["auto", "exclusive", "shared"]), "\"auto\"", "Whether calls of clients that can answer questions get their own process or session: after a question could not be attributed to a call (`auto`), always (`exclusive`), or never (`shared`)."),
    works(Server, "max_leases", COUNT, "8", "How many such processes or sessions (see `interactive`) may exist at once; further calls wait."),
    works(Server, "max_session_processes", COUNT, "32", "How many processes or sessions may exist at once with `isolation = \"session\"`. The newest of whoever has the most makes way for others."),
    works(Server, "question_timeout_ms", DURATION, "that of the gateway", "How long a client has to answer a question of this server."),
    works(Server, "cancel_grace_ms", DURATION_OR_ZERO, "that of the gateway", "How long a cancelled call of this server keeps its lock and its places."),
    works(Server, "output", Choice(&["off", "report", "enforce"]), "\"off\"", "What happens to a result that does not match its tool's output schema: nothing (`off`), it is logged and counted (`report`), or the call fails (`enforce`)."),
    works(Server, "roots", List, "", "Folders, as paths or URIs, that the gateway answers when this server asks for roots. Without this key, the gateway asks the client."),

    works(Tool, "lock", Flag, "false", "Runs calls of this tool one at a time."),
    works(Tool, "cost", Integer { least: 0, most: 1_000_000 }, "1", "What one call of this tool takes from a daily budget."),
    works(Tool, "queue", Text, "that of the server", "Queue that limits this tool's calls."),
    works(Tool, "limits", Table(Limits), "those of the server", "Limits on what one call of this tool may use; without `isolation = \"call\"`, only `max_execution_ms` is allowed."),

    works(Limits, "max_memory_mb", LIMIT, "", "Memory of the whole process tree, in megabytes; a tree that takes more is killed."),
    works(Limits, "max_execution_ms", DURATION, "", "How long one call may run, with or without progress."),
    works(Limits, "max_processes", LIMIT, "", "Number of processes in the tree; if there are more, all of them are killed."),
    works(Limits, "max_open_files", LIMIT, "", "Open files per process."),
    works(Limits, "max_file_mb", LIMIT, "", "Largest file a process may write, in megabytes."),
    works(Limits, "max_output_mb", MEGABYTES, "", "Largest answer to one call, in megabytes; never more than `max_message_mb`."),
    works(Limits, "max_log_kb", LIMIT, "64", "How much of the end of the server's stderr is kept, in kilobytes."),

    works(Files, "read", List, "[]", "Paths the server may read."),
    works(Files, "write", List, "[]", "Paths the server may read and write."),

    works(Queue, "concurrency", COUNT, "64", "How many calls run at once."),
    works(Queue, "max_waiting", Integer { least: 0, most: 1_000_000 }, "1024", "How many calls may wait for their turn; further calls are refused."),

    works(Listener, "listen", Text, "", "Address and port, or `unix:PATH` for a Unix socket."),
    works(Listener, "auth", Choice(&["open", "required"]), "what `[auth]` says", "Whether clients need credentials here: `open` admits the users of this machine without them, `required` admits nobody without them."),
    works(Listener, "tls", Table(Tls), "", "Certificate and key, for TLS."),

    works(Tls, "cert_file", Text, "", "File with the chain of certificates, in PEM; it is read again when it changes."),
    works(Tls, "key_file", Text, "", "File with the private key, in PEM, which only its owner may read."),

    works(Auth, "public_url", Text, "", "Address that clients use, without a slash at the end: the base of metadata and challenges, and an accepted audience of tokens."),
    works(Auth, "local", Flag, "false", "Whether a local user is admitted over loopback without credentials, although credentials are configured."),
    works(Auth, "keys_file", Text, "`keys.toml` beside this file", "File to which `bridgehead key new` adds keys, and which the gateway watches."),
    works(Auth, "keys", NamedRows(ApiKey), "", "API keys, each under its name; several under one name are valid side by side."),
    works(Auth, "issuers", Tables(Issuer), "", "Authorization servers whose tokens are accepted, each under its name."),
    works(Auth, "proxy", Table(TrustedProxy), "", "Proxy in front of the gateway, which names its clients in a header, or only their addresses."),
    works(Auth, "operators", List, "[]", "Who may use the operators' API, written as in a rule."),
    works(Auth, "operators_read", List, "[]", "Who may use the part of the operators' API that changes nothing."),
    works(Auth, "step_up", Choice(&["http", "in-band"]), "\"http\"", "How a call whose scope is missing is answered: with status 403 and a challenge, as the protocol says (`http`), or with a JSON-RPC error (`in-band`)."),
    works(Auth, "legacy_discovery", Flag, "false", "Serves the metadata of the first issuer where clients of 2025-03-26 look for it."),

    works(ApiKey, "sha256", Text, "", "Digest (SHA-256) of the key, in hexadecimal; `bridgehead key new` prints the key and stores its digest."),
    works(ApiKey, "groups", List, "[]", "Groups of its holder."),
    works(ApiKey, "scopes", List, "[]", "Scopes of its holder."),
    works(ApiKey, "expires", Time, "never", "When it stops working: a time with its offset (RFC 3339), or a date, which means the first moment of that day in UTC."),
    works(ApiKey, "revoked", Time, "", "When it was revoked. It then needs no `sha256` and admits nobody; rules may still name it."),

    works(Issuer, "issuer", Text, "", "Identifier of the issuer, exactly as its tokens have it in `iss`."),
    works(Issuer, "audiences", List, "[]", "Audiences that are accepted besides `public_url`."),
    works(Issuer, "algorithms", List, "[\"RS256\", \"PS256\", \"ES256\", \"EdDSA\"]", "Signature algorithms that are accepted."),
    works(Issuer, "jwks", Text, "by its metadata", "Address of the issuer's keys."),
    works(Issuer, "introspection", Table(Introspection), "", "How tokens of this issuer are checked if they are opaque; with it, they are never read as JWTs."),
    works(Issuer, "groups_claim", Text, "", "Claim that lists the groups of the principal."),
    works(Issuer, "required_scopes", List, "[]", "Scopes that every request needs."),
    works(Issuer, "scope_includes", ListMap, "{}", "Scopes that include others, as `\"repo\" = [\"repo:read\"]`."),

    works(Introspection, "url", Text, "by its metadata", "Address that is asked about a token (RFC 7662)."),
    works(Introspection, "client_id", Text, "", "The gateway's own client id at the issuer."),
    works(Introspection, "client_secret", Text, "", "The gateway's own secret at the issuer, as a reference such as `${file:PATH}`; never shown."),

    works(TrustedProxy, "proxies", List, "", "Addresses or networks of the proxy, such as `10.0.0.0/8`; only these TCP peers, and Unix sockets, are believed. The last address in their `X-Forwarded-For` is the one that failed sign-ins count against."),
    works(TrustedProxy, "user_header", Text, "", "Header that names the principal. Without it the proxy signs nobody in: only the address of its client is believed."),
    works(TrustedProxy, "groups_header", Text, "", "Header that lists the groups of the principal, separated by commas."),

    works(Policy, "who", List, "", "Whom the rule speaks of: `*`, `local`, `local:UID`, `token`, `key:NAME`, `group:NAME`, `proxy:NAME`, `ISSUER/SUBJECT` or `ISSUER/*`."),
    works(Policy, "tools", List, "[]", "Tools they may call, as `SERVER/NAME` with the server's own name of the tool; both may be patterns, and letter case does not matter. The gateway's own tools are those of the server `bridgehead`."),
    works(Policy, "prompts", List, "[]", "Prompts they may get, as `SERVER/NAME`."),
    works(Policy, "resources", List, "[]", "Resources they may read, as `SERVER/URI`."),
    works(Policy, "deny_tools", List, "[]", "Tools they may not call, whatever other rules allow."),
    works(Policy, "deny_prompts", List, "[]", "Prompts they may not get, whatever other rules allow."),
    works(Policy, "deny_resources", List, "[]", "Resources they may not read, whatever other rules allow."),
    works(Policy, "scopes", ListMap, "{}", "Scopes that calls of these tools need, as `\"github/create_*\" = [\"repo:write\"]`; the tools stay visible without them."),
    works(Policy, "read_only", Flag, "false", "Whether `tools` admits only those tools whose server says that they change nothing."),

    works(LimitRule, "who", List, "", "Whom the rule limits, each on its own; written as in `[[policy]]`."),
    works(LimitRule, "tools", List, "everything", "Tools whose calls count, written as in `[[policy]]`."),
    works(LimitRule, "rate", Text, "", "How many requests per time, as `60/min`; the units are `s`, `sec`, `min`, `h`, `hour` and `day`."),
    works(LimitRule, "burst", LIMIT, "the number in `rate`", "How many of them may come at once."),
    works(LimitRule, "concurrent", LIMIT, "", "How many requests may run at once; further ones are refused, and may be made again."),
    works(LimitRule, "budget_per_day", Integer { least: 1, most: i64::MAX as u64 }, "", "How much may be spent each day (UTC); a call costs what `cost` of its tool says."),

    works(Secrets, "commands", ListMap, "{}", "Commands that print a secret, as `NAME = [\"program\", \"argument\"]`; `${cmd:NAME}` stands for what the command prints. It runs once when the configuration is loaded, in the folder of this file, for at most ten seconds."),
    works(Secrets, "env_file", Text, "", "File with `NAME=value` lines that only its owner may read; `${NAME}` stands for the value there, or else for a variable of the gateway's environment. `bridgehead add` writes it."),
    works(Secrets, "allow_group_read", Flag, "false", "Whether the group of a secret file, a token file or a TLS key may read it, as with mounted secrets."),
];
