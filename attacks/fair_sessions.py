"""One key takes what there is of sessions and processes for sessions: a stream on each session, a process for each. Another key must
still get both, and there are never more processes than `max_session_processes`."""

import os

from lib import Gateway, check, serve, server_command, until

serve({"pid": lambda arguments, context: str(os.getpid())})

CONFIG = """
[auth]
keys_file = "keys.toml"
[http]
max_sessions = 8
[servers.m]
isolation = "session"
max_session_processes = 4
"""

with Gateway(CONFIG + server_command(), start=False) as gateway:
    eve, ada = gateway.key("eve"), gateway.key("ada")
    gateway.start()
    gateway.ready()
    streams, pids = [], []
    for _ in range(8):
        session = gateway.session(key=eve)
        check(session, "a session was refused while there was room")
        answer = gateway.legacy("tools/call", {"name": "pid", "arguments": {}}, key=eve, session=session)
        pids.append(answer.text)
        headers = {"Accept": "text/event-stream", "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
        streams.append(gateway.send("GET", "/mcp", b"", headers, eve))
        check(b"200" in streams[-1].recv(64), "the stream of a session was refused")

    def alive():
        return [pid for pid in pids if pid and os.path.exists(f"/proc/{pid}")]

    until("no more than four processes are left", lambda: len(alive()) <= 4)
    session = gateway.session(key=ada)
    check(session, "one key holds all sessions")
    answer = gateway.legacy("tools/call", {"name": "pid", "arguments": {}}, key=ada, session=session)
    check(answer.text.isdigit(), f"one key holds all processes: {answer.message}")
    for stream in streams:
        stream.close()
