"""Hanging up frees nothing: a server that ignores cancellation runs no more calls at once than its lock and its queue allow."""

import pathlib
import sys
import threading
import time

from lib import Gateway, check, in_parallel, serve, server_command, until

guard, running, most = threading.Lock(), 0, 0


def slow(arguments, context):
    """Runs on, whatever is cancelled, and notes how many run at once."""
    global running, most
    with guard:
        running += 1
        most = max(most, running)
        pathlib.Path(sys.argv[-1]).write_text(str(most))
    time.sleep(0.8)
    with guard:
        running -= 1
    return "done"


serve({"slow": slow, "fast": lambda arguments, context: "fast"})

for tool, more, allowed in [("locked", "[servers.m.tools.slow]\nlock = true\n", 1),
                            ("queued", "[queues.two]\nconcurrency = 2\n", 2)]:
    # The server writes its count beside this configuration.
    gateway = Gateway("", start=False)
    count = gateway.home / "most"
    entry = "[servers.m]\n" + server_command(count) + ("queue = \"two\"\n" if allowed == 2 else "")
    gateway.write("bridgehead.toml", entry + more)
    with gateway:
        gateway.start()
        gateway.ready()

        def hang_up(index):
            connection = gateway.begin("tools/call", {"name": "slow", "arguments": {}})
            until("a call runs", count.exists)
            time.sleep(0.05 * (1 + index % 6))
            connection.close()

        in_parallel(12, hang_up)
        answer = gateway.call("fast")
        check(answer.text == "fast", f"a call after those that hung up got {answer.status} {answer.message}")
        seen = int(count.read_text())
        check(seen <= allowed, f"{seen} calls ran at once ({tool}), where {allowed} may")
