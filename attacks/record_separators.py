"""A caller puts line separators, C1 controls and direction marks into arguments. `audit list --json` must not print them raw."""

import json

from lib import Gateway, check, modern, serve, server_command

serve({"echo": lambda arguments, _context: "echo"})

HOSTILE = "a\u2028b\u2029c\u0085d\u009be\u202ef\u2066g\u200eh"

with Gateway("[servers.one]\n" + server_command()) as gateway:
    body, headers = modern("tools/call", {"name": "echo", "arguments": {"text": HOSTILE, HOSTILE: 1}})
    raw = json.dumps(json.loads(body), ensure_ascii=False).encode()
    answer = gateway.request("POST", "/mcp", raw, headers)
    check(answer.text == "echo", f"the call failed: {answer.message}")
    for arguments in (("audit", "list", "--json"), ("audit", "list")):
        printed = gateway.run(*arguments).stdout
        found = [f"U+{ord(mark):04X}" for mark in "\u2028\u2029\u0085\u009b\u202e\u2066\u200e" if mark in printed]
        check(not found, f"`{' '.join(arguments)}` prints {', '.join(found)}")
