"""A caller that never answers a question keeps a locked tool from others: its call must make way, cancelled and retryable."""

import json
import time

from lib import Gateway, check, legacy, serve, server_command

FORM = {"message": "who?", "requestedSchema": {"type": "object", "properties": {}}}


def ask(arguments, context):
    if arguments.get("silent"):
        return "here"
    return json.dumps(context.server.ask("elicitation/create", FORM, timeout=120))


serve({"ask": ask})

CONFIG = """
[auth]
keys_file = "keys.toml"
[servers.m]
"""

with Gateway(CONFIG + server_command() + "[servers.m.tools.ask]\nlock = true\n", start=False) as gateway:
    keys = [gateway.key(name) for name in ("eve", "ada")]
    gateway.start()
    gateway.ready()
    eve, ada = keys
    session = gateway.session(key=eve, capabilities={"elicitation": {}})
    body, headers = legacy("tools/call", {"name": "ask", "arguments": {}}, session=session)
    held = gateway.send("POST", "/mcp", body, headers, eve)
    held.settimeout(30)
    heard = b""
    while b"elicitation/create" not in heard:
        more = held.recv(65536)
        check(more, f"the caller was not asked: {heard!r}")
        heard += more
    began = time.monotonic()
    answer = gateway.call("ask", {"silent": True}, key=ada, timeout=60)
    waited = time.monotonic() - began
    check(answer.text == "here", f"the second caller got {answer.status} {answer.message}")
    check(waited < 40, f"the second caller waited {waited:.0f} s")
    while b"made way" not in heard:
        more = held.recv(65536)
        check(more, f"the first caller was not told: {heard[-600:]!r}")
        heard += more
    check(b'"retryable":true' in heard and b'"mayHaveRun":true' in heard, f"the first caller was told {heard[-600:]!r}")
