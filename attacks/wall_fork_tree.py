"""A server multiplies as fast as it can, far beyond its limit of processes. The whole tree must end, and soon."""

import os
import pathlib
import time

from lib import Gateway, check, serve, server_command, until

LIMIT, GENERATIONS, GONE_WITHIN = 24, 9, 10


def multiply(arguments, context):
    """Every process forks in every generation; then all of them spin, so that whoever counts them has to wait its turn."""
    for _ in range(GENERATIONS):
        os.fork()
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        pass
    os._exit(0)


serve({"multiply": multiply})


def members(mark):
    """The processes of the server, by the mark in their arguments."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:
            pass
    return found


MARK = f"fork-tree-{os.getpid()}"
config = f"[servers.tree]\nlimits = {{ max_processes = {LIMIT} }}\n" + server_command(MARK)

with Gateway(config) as gateway:
    doctor = gateway.run("doctor", "--machine", "--json").stdout
    check("hard, by" in doctor or "sampled" in doctor, f"doctor does not say what holds: {doctor}")
    first = until("the server runs", lambda: members(MARK.encode()))
    begun = time.monotonic()
    answer = gateway.call("multiply")
    check(answer.message.get("error", {}).get("data", {}).get("details", {}).get("reason") == "process_limit", answer.message)

    def gone():
        # Afterwards there may be a new server, which is alone.
        left = members(MARK.encode())
        return len(left) <= 1 and not set(first) & set(left)

    until("the tree is gone", gone, GONE_WITHIN)
    check(time.monotonic() - begun < GONE_WITHIN, "the tree lived too long")
