"""A caller names a tool and itself by a token, and a server writes a private key to stderr: no copy of them may be kept or shown."""

import sys

from lib import Gateway, check, serve, server_command, until

TOKEN = "ghp_0123456789abcdefABCDEF0123456789abcd"
LINES = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj", "c2hvcnQ="]


def leak(_arguments, _context):
    key = ["-----BEGIN PRIVATE KEY-----", *LINES, "-----END PRIVATE KEY-----", "the key is out"]
    sys.stderr.write("\n".join(key) + "\n")
    sys.stderr.flush()
    return "done"


serve(
    tools={"leak": leak},
    methods={
        "resources/list": lambda *_: {"resources": [{"name": "x", "uri": "file:///x"}]},
        "resources/read": lambda params, _context: {"contents": [{"uri": params["uri"], "text": "x"}]},
    },
    capabilities={"tools": {}, "resources": {}},
)

with Gateway("[servers.odd]\n" + server_command()) as gateway:
    info = {"io.modelcontextprotocol/clientInfo": {"name": TOKEN, "version": "1"}}
    gateway.modern("tools/call", {"name": TOKEN, "arguments": {}, "_meta": info})
    gateway.modern("resources/read", {"uri": f"file:///x?token={TOKEN}", "_meta": info})
    check(gateway.call("leak").text == "done", "the tool does not run")
    methods = ("tools/call", "resources/read")
    logs = until("the last line of stderr is kept", lambda: (
        lambda said: said if "the key is out" in said else "")(gateway.run("logs", "odd").stdout))
    rows = until("all calls are recorded", lambda: (
        lambda rows: rows if len(rows) >= 3 and {row["method"] for row in rows} >= set(methods) else None)(gateway.rows()))
    record = "\n".join(map(str, rows))
    places = {"the record": record, "the lines of the server": logs, "the log": gateway.stderr(),
              "the status": gateway.run("status", "--json").stdout}
    for place, text in places.items():
        for secret in (TOKEN, *LINES):
            check(secret not in text, f"{secret[:12]}… is in {place}")
