"""A server spreads its memory over children that are closed to their own user. Its memory limit must hold all the same."""

import os
import pathlib
import subprocess
import sys

from lib import Gateway, check, serve, server_command, until

CHILDREN, EACH_MB, LIMIT_MB = 12, 20, 64
CHILD = f"""
import ctypes, sys, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
held = bytearray(b"x") * ({EACH_MB} << 20)
time.sleep(60)
"""


def take(arguments, context):
    """Starts the children and waits until they have what they want."""
    children = [subprocess.Popen([sys.executable, "-c", CHILD]) for _ in range(CHILDREN)]
    pathlib.Path(arguments["pids"]).write_text(" ".join(str(child.pid) for child in children))
    for child in children:
        child.wait(30)
    return "kept it all"


serve({"take": take})


def alive(pids):
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}") and "\nState:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()]


with Gateway(f"[servers.big]\nlimits = {{ max_memory_mb = {LIMIT_MB} }}\n" + server_command()) as gateway:
    file = gateway.home / "pids"
    answer = gateway.call("take", {"pids": str(file)})
    check(answer.message.get("error", {}).get("data", {}).get("details", {}).get("reason") == "memory_limit", answer.message)
    until("the children are gone", lambda: not alive(file.read_text().split()), 10)
