//! The requirements that Bridgehead promises to meet, one line each, and whether each is due already.
//!
//! The table is the only list of ids in the repository. A requirement is marked as landed in the change that meets it;
//! from then on a test has to name it.

/// One promise.
pub(crate) struct Requirement {
    pub(crate) family: &'static str,
    pub(crate) number: u8,
    pub(crate) summary: &'static str,
    pub(crate) due: Due,
}

/// Whether a test must name a promise now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    /// The change that will meet it.
    With(&'static str),
}

impl Requirement {
    /// The id, as tests write it.
    pub(crate) fn id(&self) -> String {
        format!("{}-{}", self.family, self.number)
    }

    pub(crate) fn group(&self) -> Group {
        match (self.family, self.number) {
            ("PROV", 2) | ("POOL", _) => Group::Health,
            ("CAT" | "LINK" | "PROV", _) => Group::Integration,
            ("BOX", _) => Group::Isolation,
            ("ERR", _) => Group::Errors,
            _ => Group::Rest,
        }
    }
}

/// The group of a promise in the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Integration,
    Isolation,
    Health,
    Errors,
    Rest,
}

impl Group {
    pub(crate) const ALL: [Self; 5] =
        [Self::Integration, Self::Isolation, Self::Health, Self::Errors, Self::Rest];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Integration => "Integration",
            Self::Isolation => "Process isolation",
            Self::Health => "Health",
            Self::Errors => "Error normalisation",
            Self::Rest => "The rest",
        }
    }
}

const fn kept(family: &'static str, number: u8, summary: &'static str) -> Requirement {
    Requirement { family, number, summary, due: Due::Now }
}

#[expect(dead_code, reason = "every promise is kept now; a promise of a change to come is written with it")]
const fn later(family: &'static str, number: u8, summary: &'static str, change: &'static str) -> Requirement {
    Requirement { family, number, summary, due: Due::With(change) }
}

/// All promises. Within a group the report keeps this order.
pub(crate) const REQUIREMENTS: &[Requirement] = &[
    kept("BRG", 1, "a library call opens one link to a server; closing it twice is fine"),
    kept("BRG", 2, "handshake and attempts have a timeout: option, variable, then 30 s"),
    kept("BRG", 3, "a call is tried a bounded number of times, with doubling pauses on an injected clock"),
    kept("BRG", 4, "only failures that are worth another attempt get one"),
    kept("BRG", 5, "the final error has the cause, the attempts, whether it was retryable, and the tool"),
    kept("BRG", 6, "retry policies `always`, `safe` and `never`; `Retry-After` is honoured"),
    kept("BRG", 7, "an in-memory transport joins a client and a server in one process"),
    kept("SRV", 1, "a server context is built from defaults and without side effects"),
    kept(
        "SRV",
        2,
        "start installs its handlers once, keeps to its timeout, and the exit codes tell how it ended",
    ),
    kept("SRV", 3, "the front answers at once while servers warm up; stop returns when everything is closed"),
    kept("SRV", 4, "on stdio, stdout carries the protocol and nothing else"),
    kept("SRV", 5, "four modes decide which tools are offered, and refusals name tool and mode"),
    kept("SRV", 6, "only known environment variables are read; an unknown one of ours is an error"),
    kept("SRV", 7, "`server_ping` and `server_health` answer in the envelope"),
    kept("SRV", 8, "names and schemas of Rust tools are checked at registration, with three distinct errors"),
    kept("PIPE", 1, "lock, validation, audit enter, dispatch, audit exit: one order for every tool"),
    kept(
        "PIPE",
        2,
        "locks, queues and limits are fair by principal, and held after a client hung up until its server is done",
    ),
    kept("PIPE", 3, "arguments are checked against the tool's schema, and refusals say where and why"),
    kept("PIPE", 4, "a call that cannot be recorded is not made"),
    kept("PIPE", 5, "failure and panic of a Rust tool are one error; backtraces only when asked for"),
    kept("PIPE", 6, "audit exit always runs, and its own failure never reaches the client"),
    kept("PIPE", 7, "every call leaves exactly one pair of audit events, refused and cancelled ones too"),
    kept(
        "PIPE",
        8,
        "one correlation id from the front to logs, spans, errors, results and servers; traces are continued",
    ),
    kept("PIPE", 9, "a call times out after too long a silence, or when it takes too long in total"),
    kept("ERR", 1, "one table maps every code of ours to what a client sees"),
    kept("ERR", 2, "every code has a page with cause and cure, and the hint points there"),
    kept("AUD", 1, "a sink gets an immutable enter and exit; the default sink stores nothing"),
    kept("AUD", 2, "the SQLite sink loses no enter of an answered call, even when killed"),
    kept("AUD", 3, "a changed, removed or reordered row is found, and inclusion can be proven offline"),
    kept("AUD", 4, "secrets are taken out before anything is stored, logged or published"),
    kept("AUD", 5, "several gateways on one machine keep separate chains that are read together"),
    kept("AUD", 6, "retention seals whole segments, which stay verifiable"),
    kept("ENV", 1, "built-in tools answer in one envelope, as structured content and as text"),
    kept("ENV", 2, "the library's envelope of an upstream call, with data and meta"),
    kept("ENV", 3, "data is the structured content where there is any, else the mapped blocks"),
    kept("ENV", 4, "output schemas come from discovery; a tool without one may return anything"),
    kept("ENV", 5, "results are cast to their schema, and every change is listed"),
    kept("ENV", 6, "a tool's own error is data; only transport failures are errors"),
    kept("ENV", 7, "content blocks are mapped and none is dropped"),
    kept("ENV", 8, "the flat form of a result for agents"),
    kept("ENV", 9, "every tool of an upstream becomes an operation with spec and handler"),
    kept("LINK", 1, "stdio: a child process with pipes, known pid, captured stderr and a small environment"),
    kept("LINK", 2, "streamable HTTP in both eras, with custom headers"),
    kept("LINK", 3, "the older HTTP with SSE, with custom headers"),
    kept("LINK", 4, "WebSocket with custom headers, a frame for each message"),
    kept("LINK", 5, "the transport of a server is configured by name or alias, or detected"),
    kept("LINK", 6, "a server that requires OAuth is reported as such, with an alternative"),
    kept("CAT", 1, "on connect the revision is agreed and all tools are read, page by page"),
    kept("CAT", 2, "schemas and lists are answered from memory; announced changes refresh it"),
    kept("CAT", 3, "offered names: prefix, collisions and length, resolved through a map"),
    kept("CAT", 4, "allow and deny patterns decide which tools are offered; deny wins"),
    kept("CAT", 5, "instructions of servers and tools become one text"),
    kept("CAT", 6, "twenty thousand tools over two hundred servers stay usable"),
    kept(
        "POOL",
        1,
        "a server is shared by everyone or by a session; unused servers sleep; contradictory settings are an error",
    ),
    kept("POOL", 2, "acquiring a server joins a running start, and fails at once after a failed one"),
    kept("POOL", 3, "restart delays grow to a minute, and only lasting health resets them"),
    kept("POOL", 4, "the adapter reconnects through the same supervisor, with its own policy"),
    kept("POOL", 5, "when health probes run and what they ask"),
    kept("POOL", 6, "a link that ends by itself is restarted, one that we close is not"),
    kept("POOL", 7, "fair and bounded queues; a full one is a retryable refusal"),
    kept("POOL", 8, "warm-up is parallel, repeatable, and no failed server blocks another"),
    kept("POOL", 9, "no process is left behind, whichever one is killed; stderr is kept and marked"),
    kept("POOL", 10, "a client's cancellation reaches the server"),
    kept("POOL", 11, "separate codes for a restart in progress and for one that will not happen"),
    kept("POOL", 12, "cleanup leaves nothing behind and may be followed by a new start"),
    kept("POOL", 13, "layers of timeouts are ordered so that the tool's own message wins"),
    kept("POOL", 14, "what is measured and logged about starts and calls, and at which level"),
    kept("PROV", 1, "the provider adapter's trait and configuration"),
    kept("PROV", 2, "healthy, degraded, unavailable: how the adapter moves between them"),
    kept("PROV", 3, "a call while disconnected is a retryable refusal"),
    kept("PROV", 4, "execute looks up, checks, runs confined, and checks the output"),
    kept("PROV", 5, "terminate ends everything and may be repeated"),
    kept("BOX", 1, "an isolated call runs in a process of its own, with limits"),
    kept("BOX", 2, "the payload travels by IPC, and captured output is bounded"),
    kept("BOX", 3, "timeout, crash and memory limit end the whole tree and are told apart"),
    kept("BOX", 4, "no zombie, orphan or open descriptor after any outcome"),
    kept("BOX", 5, "isolation adds less than 10 ms at the 95th percentile"),
    kept("BUS", 1, "the topics and what their events carry"),
    kept("BUS", 2, "every event has a correlation id; every call has one outcome event"),
    kept("BUS", 3, "publishing never blocks a call; a slow subscriber is told what it lost"),
    kept("ERA", 1, "old and new clients and servers work together in all four combinations"),
    kept("ERA", 2, "a parked call never runs twice, and its state is sealed"),
    kept("ERA", 3, "questions of a server are attributed to a call, or the server gets exclusive leases"),
    kept("ERA", 4, "what passes between revisions is converted field by field"),
    kept(
        "WALL",
        1,
        "a confined server cannot write files that configure, record, authorize or run anything less confined",
    ),
    kept("WALL", 2, "paths of a confinement are resolved once, and a start follows no link in them"),
    kept(
        "WALL",
        3,
        "a confined server reaches no other process by limits, priorities, namespaces or shared memory",
    ),
    kept(
        "WALL",
        4,
        "a Landlock version that is too old for the request counts as missing, and gaps are shown",
    ),
    kept("WALL", 5, "a confined server with network cannot call the gateway's own endpoint"),
    kept("WALL", 6, "over loopback only the users that `http.local_users` names may call"),
    kept("WALL", 7, "a configuration found in the current folder runs only after a person agreed to it"),
    kept("WALL", 8, "a gateway that would start itself refuses, by a marker in its children's environment"),
    kept(
        "WALL",
        9,
        "retention goes by the seal's own time, an unexplained removal is a finding, and the folder is checked",
    ),
    kept("WIRE", 1, "members that a lenient reader would read differently are refused, with their path"),
    kept("WIRE", 2, "an exit is paired with its enter by a ticket, never by a client's correlation id"),
    kept("WIRE", 3, "what servers, tools and schemas say cannot break a log line or a terminal"),
    kept("WIRE", 4, "a server's question is never displaced by progress messages"),
    kept(
        "WIRE",
        5,
        "who holds more than a fair share makes way when another principal waits, and waits end with the call's own timeouts",
    ),
    kept(
        "BOUND",
        1,
        "a server that floods requests and does not read is ended, and costs bounded memory and descriptors",
    ),
    kept("BOUND", 2, "schema work has a budget, and large checks run off the serving threads"),
    kept(
        "BOUND",
        3,
        "every byte that is held is charged to a peer or a principal, within `held_mb` and `held_per_peer_mb`",
    ),
    kept("BOUND", 4, "connections and sessions that never send a request make way for those that do"),
    kept(
        "FAULT",
        1,
        "a kill at any system call of a segment's life leaves a record that recovers and verifies",
    ),
    kept("FAULT", 2, "the test command passes on a busy machine"),
    kept("FAULT", 3, "a session with a server waits for its event stream only where a call needs it"),
    kept(
        "HOUR",
        1,
        "modern clients with roots keep their process, and `roots` answers from the configuration",
    ),
    kept(
        "HOUR",
        2,
        "a start attempt has its own timeout, and a call waits for a starting server within the call's timeout",
    ),
    kept("HOUR", 3, "`call` and `tools` use the running gateway, else start only what they need"),
    kept(
        "HOUR",
        4,
        "`audit list` shows the newest calls of all gateways, and its filters refuse unknown values",
    ),
    kept("HOUR", 5, "servers get what programs need to reach the network, and no credentials"),
    kept(
        "HOUR",
        6,
        "a confined server that fails to start names its profile and the key that is probably missing",
    ),
    kept("HOUR", 7, "a restriction that does nothing is honoured or warned about"),
    kept("HOUR", 8, "a removed configuration file changes nothing"),
    kept("HOUR", 9, "the error for a `command` that contains arguments says that they belong in `args`"),
    kept("HOUR", 10, "the endpoint that is printed works, and `allowed_origins` works in a browser"),
    kept("HOUR", 11, "hints survive redaction, JSON logs are only JSON, and errors point to what a user has"),
    kept(
        "HOUR",
        12,
        "`uninstall` lists what Bridgehead wrote and removes it; the record, keys and configuration stay unless named",
    ),
    kept(
        "GATE",
        1,
        "every request of every surface passes one function, and its subject defines what each stage means",
    ),
    kept(
        "GATE",
        2,
        "prompts, reads, subscriptions and task changes are recorded as calls are; `audit.methods` adds the rest",
    ),
    kept(
        "GATE",
        3,
        "an authenticator makes one principal, which is carried everywhere; what it owns is refused to others",
    ),
    kept(
        "GATE",
        4,
        "lists are prepared per view and revision class, never per client, and a call is routed in its view",
    ),
    kept("GATE", 5, "the record has a store behind a trait, and one test suite covers two implementations"),
    kept("GATE", 6, "each thing that happens is one typed signal, which feeds logs, bus and counters"),
    kept(
        "GATE",
        7,
        "the credentials of a remote server are consulted for each request and notified of a refusal",
    ),
    kept(
        "GATE",
        8,
        "each pair of eras has its own strategy, and the compiler checks that it decides on every method",
    ),
    kept(
        "WORD",
        1,
        "errors and help name the thing, the place and the cure, and no path inside the repository",
    ),
    kept("WORD", 2, "the documentation is a book whose links are checked"),
    kept("WORD", 3, "unused and duplicate dependencies and wrong licences fail the check"),
    kept("WORD", 4, "the shim refuses a gateway of another version"),
    kept(
        "LIB",
        1,
        "many servers are called in process, each call through the gate under the embedder's principal",
    ),
    kept(
        "LIB",
        2,
        "tools, prompts and resources are typed Rust functions that may report progress and ask questions",
    ),
    kept("LIB", 3, "features keep out what an embedder does not use"),
    kept("LIB", 4, "every documented example runs as it is written"),
    kept(
        "LIB",
        5,
        "a call that is cancelled at any await, a panicking handler and a dropped runtime leave nothing behind",
    ),
    kept("LIB", 6, "the packages build and run outside the workspace"),
    kept("LIB", 7, "what a file can say about a server, code can say, and absent times are the gateway's"),
    kept(
        "ACC",
        1,
        "principals come from keys, tokens of issuers, a trusted proxy or the local user, and never fall through",
    ),
    kept(
        "ACC",
        2,
        "keys are made, listed, rotated and revoked, and a revoked key ends what it opened within a second",
    ),
    kept(
        "ACC",
        3,
        "rules decide who may use what; deny wins, and what is denied looks as if it did not exist",
    ),
    kept("ACC", 4, "`explain` says which rule decides, and agrees with what is enforced"),
    kept(
        "ACC",
        5,
        "rates, concurrency and budgets bound each principal fairly, and never decide who may call",
    ),
    kept(
        "ACC",
        6,
        "listeners have their own authentication and TLS, and health is readable without credentials",
    ),
    kept("ACC", 7, "operators have their own credentials, and each of their actions is in the record"),
    kept(
        "ACC",
        8,
        "secrets come from files and listed commands, are never printed or put into arguments, and a rotated one is in effect or named",
    ),
    kept("ACC", 9, "failed sign-ins, denials, keys and policies are in the record"),
    kept("JOIN", 1, "`import` merges the files of known clients and copies no secret into a readable file"),
    kept("JOIN", 2, "`connect` and `disconnect` edit a client's file and restore it byte for byte"),
    kept(
        "JOIN",
        3,
        "`add`, `remove`, `enable` and `disable` change the configuration, and a running gateway applies it",
    ),
    kept(
        "JOIN",
        4,
        "clients over stdio join one gateway of the same user and configuration, and survive its end",
    ),
    kept("JOIN", 5, "a start can be watched, and an early list is completed later"),
    kept("JOIN", 6, "a found configuration is used after `trust`, for that content only"),
    kept("JOIN", 7, "packages for npm and PyPI and a tarball carry the program and run it"),
    kept(
        "JOIN",
        8,
        "verbs name their configuration where it matters, fit the terminal and suggest the nearest name",
    ),
    kept("JOIN", 9, "a mistake in the configuration keeps nobody from reading"),
    kept("QA", 1, "coverage bars for the crates, the chain and the bootstrap"),
    kept("QA", 2, "every promise is named by a test, and this report says by which one"),
    kept("QA", 3, "test doubles are scripted peers over real transports, and published programs"),
    kept("QA", 4, "a troubleshooting section for each class of failure"),
    kept("QA", 5, "the adapter's own cost stays below 10 ms at the 95th percentile"),
    kept("QA", 6, "the tests notice small breaks of the code, to published bars"),
    kept("QA", 7, "the tests pass with a low priority and into a slow pipe, and their waits have bounds"),
];

/// The families, each once, in the order of the table.
pub(crate) fn families() -> Vec<&'static str> {
    let mut families: Vec<&str> = REQUIREMENTS.iter().map(|requirement| requirement.family).collect();
    families.dedup();
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_is_complete_and_in_order() {
        let last: Vec<(&str, u8)> = families()
            .into_iter()
            .map(|family| {
                let numbers: Vec<u8> =
                    REQUIREMENTS.iter().filter(|one| one.family == family).map(|one| one.number).collect();
                assert!(numbers.iter().copied().eq(1..=numbers.len() as u8), "{family}: {numbers:?}");
                (family, numbers.len() as u8)
            })
            .collect();
        let expected = [
            ("BRG", 7),
            ("SRV", 8),
            ("PIPE", 9),
            ("ERR", 2),
            ("AUD", 6),
            ("ENV", 9),
            ("LINK", 6),
            ("CAT", 6),
            ("POOL", 14),
            ("PROV", 5),
            ("BOX", 5),
            ("BUS", 3),
            ("ERA", 4),
            ("WALL", 9),
            ("WIRE", 5),
            ("BOUND", 4),
            ("FAULT", 3),
            ("HOUR", 12),
            ("GATE", 8),
            ("WORD", 4),
            ("LIB", 7),
            ("ACC", 9),
            ("JOIN", 9),
            ("QA", 7),
        ];
        assert_eq!(last, expected);
    }
}
