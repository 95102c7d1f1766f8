"""One key follows as many resources as it can, in many streams at once. What the gateway keeps for it must stay within its account."""

import pathlib

from lib import Gateway, check, serve, server_command

RESOURCES = [{"uri": f"note://{number:05}/" + "x" * 60, "name": str(number)} for number in range(4096)]
serve({"fast": lambda arguments, context: "fast"}, methods={
    "resources/list": lambda params, context: {"resources": RESOURCES},
    "resources/subscribe": lambda params, context: {},
    "resources/unsubscribe": lambda params, context: {},
}, capabilities={"tools": {}, "resources": {"subscribe": True}})

CONFIG = """
[auth]
keys_file = "keys.toml"
[limits]
held_mb = 64
held_per_peer_mb = 16
[servers.m]
"""


def resident(gateway):
    status = pathlib.Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


with Gateway(CONFIG + server_command(), start=False) as gateway:
    eve, ada = gateway.key("eve"), gateway.key("ada")
    gateway.start()
    gateway.ready()
    wanted = {"notifications": {"resourceSubscriptions": [resource["uri"] for resource in RESOURCES]}}

    def listen(key):
        """Opens a stream, and returns it with how many resources it follows."""
        stream = gateway.begin("subscriptions/listen", wanted, key=key)
        heard = b""
        while b"acknowledged" not in heard or b"\n\n" not in heard.split(b"acknowledged", 1)[1].replace(b"\r", b""):
            more = stream.recv(1 << 20)
            check(more, f"the stream ended: {heard[-300:]!r}")
            heard += more
        return stream, heard.count(b"note://")

    before = resident(gateway)
    streams = [listen(eve) for _ in range(5)]
    followed = [count for _, count in streams]
    grown = resident(gateway) - before
    check(followed[0] == 4096, f"the first stream follows {followed[0]}")
    check(followed[-1] == 0, f"nothing bounds what one key follows: {followed}")
    check(grown < 100, f"{grown} MB for one key whose account is 16 MB")
    check(listen(ada)[1] == 4096, "another key follows nothing")
