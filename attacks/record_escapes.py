"""A caller names a tool so that a terminal or a line reader is misled by the record, and opens sessions without counting for its rate."""

import json

from lib import LEGACY, Gateway, check, until

ACTS = "\u2028\u2029\u202e\u2066\u0085\u009b"
CONFIG = """
[[limits.rules]]
who = ["*"]
rate = "4/hour"
burst = 4
"""

with Gateway("") as gateway:
    gateway.call(f"a{ACTS}b")
    listed = until("the call is recorded", lambda: gateway.run("audit", "list", "--json").stdout.strip())
    check(not any(act in listed for act in ACTS), f"characters that act are printed raw: {listed!r}")
    check(json.loads(listed.splitlines()[0])["tool"] == f"a{ACTS}b", f"the name is not the same: {listed!r}")
    check(len(listed.split("\n")) == len(listed.splitlines()), "a row takes two lines")

for what, ask in {
    "initialize": lambda gateway: gateway.legacy("initialize", {
        "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "attack", "version": "1"}}),
    "server/discover": lambda gateway: gateway.modern("server/discover"),
}.items():
    with Gateway(CONFIG) as gateway:
        answers = [ask(gateway) for _ in range(12)]
        refused = [answer for answer in answers if b"RATE_LIMITED" in answer.body]
        check(len(refused) >= 7, f"{what} counts for no rate: {len(answers) - len(refused)} of 12 were answered")
        check(b"RATE_LIMITED" not in answers[0].body, f"{what} is refused at once")
