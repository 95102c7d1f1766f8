"""Another client opens the event stream of a legacy session again. The first stream must go on, or be ended for its owner only: nobody
may take the stream of another principal's session."""

import time

from lib import Gateway, check, legacy, serve, server_command

serve({"echo": lambda arguments, _context: "echo"})

CONFIG = """
[auth]
keys_file = "keys.toml"

[servers.one]
"""


def made(gateway):
    gateway.keys = [gateway.key("alice"), gateway.key("bob")]


with Gateway(CONFIG + server_command(), prepare=made) as gateway:
    alice, bob = gateway.keys
    session = gateway.session(alice)
    check(session, "no session was opened")
    _, headers = legacy("x", session=session)
    headers["Accept"] = "text/event-stream"
    first = gateway.send("GET", "/mcp", b"", headers, alice)
    time.sleep(0.3)
    foreign = gateway.request("GET", "/mcp", headers=headers, key=bob)
    check(foreign.status == 404, f"another principal got {foreign.status} for the stream of a session")
    foreign = gateway.request("DELETE", "/mcp", headers=headers, key=bob)
    check(foreign.status == 404, f"another principal got {foreign.status} for the end of a session")
    first.settimeout(5)
    head = first.recv(4096)
    check(b"200" in head.split(b"\r\n")[0], f"the first stream was not opened: {head}")
    second = gateway.send("GET", "/mcp", b"", headers, alice)
    second.settimeout(5)
    again = second.recv(4096)
    first.settimeout(0.5)
    try:
        ended = first.recv(4096) == b""
    except TimeoutError:
        ended = False
    refused = b"409" in again.split(b"\r\n")[0]
    check(refused or not ended, f"a second stream ended the first without a word: {again[:100]}")
