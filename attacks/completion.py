"""A caller completes a template of which it may read a part, and hopes for the names of the rest. They must not be named."""

from lib import Gateway, check, serve, server_command

serve(
    methods={
        "resources/list": lambda *_: {"resources": []},
        "resources/templates/list": lambda *_: {"resourceTemplates": [{"name": "f", "uriTemplate": "file:///{dir}/{name}"}]},
        "completion/complete": lambda *_: {"completion": {"values": ["public", "secret-merger"], "total": 2}},
    },
    capabilities={"resources": {}, "completions": {}},
)

CONFIG = """
[[policy]]
who = ["*"]
resources = ["files/file:///public/**"]

[servers.files]
"""

ASK = {"ref": {"type": "ref/resource", "uri": "file:///{dir}/{name}"}, "argument": {"name": "dir", "value": ""}}

with Gateway(CONFIG + server_command()) as gateway:
    answer = gateway.modern("completion/complete", ASK)
    check(b"secret" not in answer.body, f"a hidden name was completed: {answer.message}")
    values = answer.message.get("result", {}).get("completion", {}).get("values")
    check(values == ["public"], f"what may be read is not completed: {answer.message}")
