"""An operator who may only look tries every route and method of the operators' API. None may start, end or restart anything."""

import json
import time

from lib import Gateway, check, serve, server_command

serve({"echo": lambda arguments, _context: "echo"})

CONFIG = """
[auth]
keys_file = "keys.toml"
operators_read = ["key:reader"]

[servers.one]
"""

SHOULD_WORK = {("GET", "status"), ("GET", "configuration"), ("GET", "tools"), ("GET", "logs")}


def made(gateway):
    gateway.reader, gateway.other = gateway.key("reader"), gateway.key("other")


def pids(gateway):
    return [(server["name"], server.get("pid")) for server in gateway.status()["upstreams"]]


with Gateway(CONFIG + server_command(), prepare=made) as gateway:
    before = pids(gateway)
    body = json.dumps({"server": "one", "name": "x", "command": "/bin/sh"}).encode()
    headers = {"Content-Type": "application/json"}
    for verb in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        for route in ("status", "configuration", "tools", "logs", "restart", "join", "call", "servers", "reload", "probe", "stop"):
            query = "?server=one" if route == "logs" else ""
            path = f"/api/v1/{route}{query}"
            answer = gateway.request(verb, path, None if verb == "GET" else body, headers, gateway.reader)
            allowed = (verb, route) in SHOULD_WORK
            check(allowed == (answer.status == 200), f"{verb} {path} by a reader was answered with {answer.status}")
            other = gateway.request(verb, path, None if verb == "GET" else body, headers, gateway.other)
            check(other.status in (401, 403, 404, 405), f"{verb} {path} by a stranger was answered with {other.status}")
    time.sleep(0.3)
    check(pids(gateway) == before, f"a process was started or ended: {before} is now {pids(gateway)}")
