//! What a user sees after a mistake in the table of a server: its transport, its limits and confinement, its isolation.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed assumption is a failed test")]

mod common;

use common::toml;
use insta::assert_snapshot;

/// An impossible confinement is refused, and so is a confinement of a remote server.
#[test]
fn impossible_confinements_are_refused() {
    let text = r#"
[servers.a]
command = "x"
profile = "offline"

[servers.b]
command = "x"
profile = "workspace"

[servers.c]
url = "https://example.com/mcp"
network = "none"

[servers.d]
command = "x"
[servers.d.tools.t.limits]
max_memory_mb = 64
max_execution_ms = 9
"#;
    assert_snapshot!(toml(text), @r#"
    error: there is no profile `offline`
     --> bridgehead.toml:4:11
      |
    4 | profile = "offline"
      |           ^^^^^^^^^
      |
      = help: the profiles are `offline-readonly`, `offline-workspace`, `readonly`, `workspace`

    error: profile `workspace` needs the working folder of the server
     --> bridgehead.toml:8:11
      |
    8 | profile = "workspace"
      |           ^^^^^^^^^^^
      |
      = help: name that folder in `cwd`

    error: `network` cannot confine a remote server, which runs elsewhere
      --> bridgehead.toml:12:1
       |
    12 | network = "none"
       | ^^^^^^^
       |
       = help: remove the key, or run the server here with `command`

    error: `max_memory_mb` cannot limit one tool whose calls share processes
      --> bridgehead.toml:17:1
       |
    17 | max_memory_mb = 64
       | ^^^^^^^^^^^^^
       |
       = help: write `isolation = "call"`, or limit the whole server; `max_execution_ms` works for any tool
    "#);
}

/// BOX-1: process limits need processes that the gateway starts, and `require` takes only known words.
#[test]
fn impossible_limits_are_refused() {
    let text = r#"
[servers.a]
url = "https://example.com/mcp"
require = ["memory:firm"]
limits = { max_execution_ms = 5, max_memory_mb = 256 }
"#;
    assert_snapshot!(toml(text), @r#"
    error: `require` does not know `memory:firm`
     --> bridgehead.toml:4:12
      |
    4 | require = ["memory:firm"]
      |            ^^^^^^^^^^^^^
      |
      = help: `require` takes `memory:hard`, `processes:hard`, `signals`

    error: `max_memory_mb` cannot limit a remote server, which runs elsewhere
     --> bridgehead.toml:5:34
      |
    5 | limits = { max_execution_ms = 5, max_memory_mb = 256 }
      |                                  ^^^^^^^^^^^^^
      |
      = help: only `max_execution_ms` and `max_output_mb` limit calls to a `url`, unless `isolation = "call"`
    "#);
}

/// POOL-7: a queue that is not defined is an error.
#[test]
fn a_queue_must_be_defined() {
    let text = r#"
[queues.slow]
concurrency = 1

[servers.a]
command = "x"
queue = "slwo"

[servers.a.tools.t]
queue = "other"
"#;
    assert_snapshot!(toml(text), @r#"
    error: there is no queue `slwo`
     --> bridgehead.toml:7:9
      |
    7 | queue = "slwo"
      |         ^^^^^^ did you mean `slow`?

    error: there is no queue `other`
      --> bridgehead.toml:10:9
       |
    10 | queue = "other"
       |         ^^^^^^^
       |
       = help: write `[queues.other]` with its `concurrency`
    "#);
}

/// POOL-1: a contradiction is an error.
#[test]
fn isolation_that_contradicts_itself() {
    assert_snapshot!(toml("[servers.a]\ncommand = \"x\"\nisolation = \"session\"\nshared = true\n"), @r#"
    error: `shared` contradicts `isolation`
     --> bridgehead.toml:4:10
      |
    4 | shared = true
      |          ^^^^
      |
      = help: keep one of them; `shared = false` means `isolation = "session"`
    "#);
}

/// LINK-5: mistakes in a remote server, each with its cure.
#[test]
fn a_remote_server_with_a_mistake() {
    let text = r#"
[servers.a]
type = "http"
command = "x"

[servers.b]
type = "stdio"
url = "http://h/"

[servers.c]
url = "h/mcp?key=hunter2"

[servers.d]
type = "sse"
url = "ws://h/"

[servers.e]
type = "sse"
era = "modern"
url = "http://h/"
headers = { Host = "x", "a b" = "y", Authorization = "hunter2\n" }
"#;
    let shown = toml(text);
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_snapshot!(shown, @r#"
    error: this `type` does not go with `command`
     --> bridgehead.toml:3:8
      |
    3 | type = "http"
      |        ^^^^^^
      |
      = help: write `type = "stdio"`, or give a `url`

    error: `type = "stdio"` does not go with `url`
     --> bridgehead.toml:7:8
      |
    7 | type = "stdio"
      |        ^^^^^^^
      |
      = help: leave `type` out, or give a `command`

    error: `url` is not the address of a server: it does not begin with `http://`, `https://`, `ws://` or `wss://`
      --> bridgehead.toml:11:7
       |
    11 | url = …
       |       ^
       |
       = help: write it like `https://host/mcp`

    error: `type` and `url` do not match
      --> bridgehead.toml:15:7
       |
    15 | url = "ws://h/"
       |       ^^^^^^^^^
       |
       = help: a WebSocket address begins with `ws://` or `wss://`, any other with `http://` or `https://`

    error: `era = "modern"` cannot be spoken over HTTP+SSE
      --> bridgehead.toml:19:7
       |
    19 | era = "modern"
       |       ^^^^^^^^
       |
       = help: use `type = "http"`, or leave `era` out

    error: a name in `headers` cannot be used
      --> bridgehead.toml:21:13
       |
    21 | headers = { Host = …, "a b" = …, Authorization = … }
       |             ^^^^
       |
       = help: Bridgehead sets this header itself; remove it

    error: a name in `headers` cannot be used
      --> bridgehead.toml:21:23
       |
    21 | headers = { Host = …, "a b" = …, Authorization = … }
       |                       ^^^^^
       |
       = help: a header name has only letters, digits and `-`

    error: the value of `headers.Authorization` cannot be sent
      --> bridgehead.toml:21:50
       |
    21 | headers = { Host = …, "a b" = …, Authorization = … }
       |                                                  ^
       |
       = help: a header value has visible ASCII characters and spaces only; look for a line break at its end
    "#);
}

/// LINK-2: mistakes in a proxy address, each with its cure. The address is never shown, because it may contain a password.
#[test]
fn a_proxy_with_a_mistake() {
    let text = r#"
[servers.a]
url = "http://h/"
proxy = "me:hunter2"

[servers.b]
url = "http://h/"
proxy = "socks5://h"
follow_redirects = "yes"

[servers.c]
url = "http://h/"
proxy = "http://me:hunter/2@h"

[servers.d]
url = "http://h/"
proxy = "http://me:hunter@2@h"

[servers.e]
url = "http://h/"
proxy = "http://h:port"
headers = { Proxy-Authorization = "Basic hunter2" }
"#;
    let shown = toml(text);
    assert!(!shown.contains("hunter"), "{shown}");
    assert_snapshot!(shown, @r#"
    error: `proxy` is not the address of a proxy: it does not begin with `http://`
     --> bridgehead.toml:4:9
      |
    4 | proxy = …
      |         ^
      |
      = help: write it like `http://host:3128` or `http://NAME:PASSWORD@host:3128`

    error: `proxy` is not the address of a proxy: it does not begin with `http://`
     --> bridgehead.toml:8:9
      |
    8 | proxy = …
      |         ^
      |
      = help: write it like `http://host:3128` or `http://NAME:PASSWORD@host:3128`

    error: `follow_redirects` must be `true` or `false`, found a string
     --> bridgehead.toml:9:20
      |
    9 | follow_redirects = "yes"
      |                    ^^^^^ expected `true` or `false`
      |
      = help: follows redirects of a remote server (307 and 308, at most three in a row) to the same scheme, host and port; redirects to any other address are never followed

    error: `proxy` is not the address of a proxy: it has more text after the port; in a name or a password write `/`, `?` and `#` as `%..`
      --> bridgehead.toml:13:9
       |
    13 | proxy = …
       |         ^
       |
       = help: write it like `http://host:3128` or `http://NAME:PASSWORD@host:3128`

    error: `proxy` is not the address of a proxy: its credentials are not `NAME:PASSWORD`; write `:`, `@`, `/` and `%` in them as `%..`
      --> bridgehead.toml:17:9
       |
    17 | proxy = …
       |         ^
       |
       = help: write it like `http://host:3128` or `http://NAME:PASSWORD@host:3128`

    error: `proxy` is not the address of a proxy: its port is not a number from 1 to 65535
      --> bridgehead.toml:21:9
       |
    21 | proxy = …
       |         ^
       |
       = help: write it like `http://host:3128` or `http://NAME:PASSWORD@host:3128`

    error: a name in `headers` cannot be used
      --> bridgehead.toml:22:13
       |
    22 | headers = { Proxy-Authorization = … }
       |             ^^^^^^^^^^^^^^^^^^^
       |
       = help: Bridgehead sets this header itself; remove it
    "#);
}
