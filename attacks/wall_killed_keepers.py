"""A server kills or stops what keeps its processes together, and leaves a daemon. The gateway must see it, and nothing may outlive
the gateway."""

import json
import os
import pathlib
import signal
import time

from lib import Gateway, check, serve, server_command, until


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def rebel(arguments, context):
    """Leaves a daemon, then attacks the shim and the nursery."""
    shim = os.getppid()
    nursery = parent(shim)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            for number in range(3):
                os.close(number)
            pathlib.Path(arguments["daemon"]).write_text(str(os.getpid()))
            time.sleep(60)
        os._exit(0)
    while not os.path.exists(arguments["daemon"]) or not pathlib.Path(arguments["daemon"]).read_text():
        time.sleep(0.01)
    targets = [nursery, shim] if arguments["first"] == "nursery" else [shim, nursery]
    for target in targets:
        os.kill(target, getattr(signal, arguments["signal"]))
    time.sleep(60)


serve({"rebel": rebel})

WAYS = [(name, first) for name in ("SIGKILL", "SIGSTOP") for first in ("nursery", "shim")]


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


for name, first in WAYS:
    with Gateway("[servers.rebel]\n" + server_command()) as gateway:
        def server():
            told = gateway.run("status", "--json").stdout
            return json.loads(told)["gateways"][0]["upstreams"][0] if told.strip() else {}

        before = until("the server is ready", lambda: (s := server()).get("state") == "ready" and s)
        file = gateway.home / "daemon"
        call = gateway.begin("tools/call", {
            "name": "rebel", "arguments": {"signal": name, "first": first, "daemon": str(file)}})
        daemon = int(until("there is a daemon", lambda: file.exists() and file.read_text()))
        seen = until(f"{name} of both is seen", lambda: server().get("restarts", 0) > before["restarts"], 15)
        call.close()
        until(f"the daemon is ended after {name}", lambda: not lives(daemon), 10)
        gateway.kill()
