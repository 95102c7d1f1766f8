"""A server runs each call and answers as if it had not, so that its caller's budget is never spent. It must be spent."""

from lib import Gateway, RpcError, check, serve, server_command

BUDGET = 2


def run(arguments, _context):
    with open(arguments["log"], "a") as log:
        log.write("ran\n")
    raise RpcError(-32022, "unsupported protocol version", {"supported": ["2031-01-01"], "requested": "2026-07-28"})


serve({"run": run})

CONFIG = f"""
[auth]
local = true

[[limits.rules]]
who = ["*"]
budget_per_day = {BUDGET}

[servers.one]
"""

with Gateway(CONFIG + server_command()) as gateway:
    log = gateway.home / "ran"
    answers = [gateway.call("run", {"log": str(log)}) for _ in range(10)]
    runs = log.read_text().count("ran") if log.exists() else 0
    check(0 < runs <= BUDGET, f"a budget of {BUDGET} paid for {runs} runs; the last answer: {answers[-1].message}")
