"""A member of `_meta` or of a nested object is spelled in another case, with letters that fold to it, or twice, so that the gateway
and the server read different values. Such a request must be refused, or the copy must not reach the server."""

import json

from lib import Gateway, check, modern, serve, server_command


def run(arguments, context):
    return json.dumps(context.message)


serve({"run": run})

PREFIX = "io.modelcontextprotocol/"
VARIANTS = [
    (PREFIX + "ProtocolVersion", "2025-11-25"),
    (PREFIX + "protocolversion", "2025-11-25"),
    ("IO.MODELCONTEXTPROTOCOL/PROTOCOLVERSION", "2025-11-25"),
    (PREFIX + "protocolVer\u017fion", "2025-11-25"),
    (PREFIX + "clientCapabilitie\u017f", {"sampling": {}}),
    (PREFIX + "CLIENTCAPABILITIES", {"sampling": {}}),
    ("progre\u017f\u017fToken", "x"),
    ("ProgressToken", "x"),
    ("PROGRESSTOKEN", "x"),
    ("TraceParent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
]

with Gateway("[servers.one]\n" + server_command()) as gateway:
    for key, value in VARIANTS:
        answer = gateway.modern("tools/call", {"name": "run", "arguments": {}, "_meta": {key: value}})
        if "error" in answer.message:
            continue
        seen = json.loads(answer.text)
        check(key not in json.dumps(seen, ensure_ascii=False), f"{key!r} reached the server: {seen}")
    # The same names twice, once escaped.
    for member in ("name", "arguments", "_meta"):
        body, headers = modern("tools/call", {"name": "run", "arguments": {}})
        escaped = f"\\u{ord(member[0]):04x}{member[1:]}"
        text = body.decode().replace('"params": {', '"params": {"%s": {"a": 1}, ' % escaped, 1)
        answer = gateway.request("POST", "/mcp", text.encode(), headers)
        check("error" in answer.message, f"`{member}` appears twice, once escaped, and passes: {answer.message}")
    for look in ("Name", "ARGUMENTS", "argument\u017f", "_META"):
        body, headers = modern("tools/call", {"name": "run", "arguments": {}, look: {"x": 1}})
        answer = gateway.request("POST", "/mcp", body, headers)
        if "error" in answer.message:
            continue
        params = json.loads(answer.text)["params"]
        check(look not in params, f"`{look}` beside the real member reached the server: {params}")
