"""A caller writes a URI so that the rules see one file and the server opens another. No such URI may be read."""

import pathlib
import urllib.parse

from lib import Gateway, check, serve, server_command, until


def read(params, _context):
    """Opens files as several well-known parsers would, one after the other, and answers the first secret it finds."""
    uri = params["uri"]
    paths = set()
    for text in (uri, uri.replace("\t", "").replace("\n", "").replace("\r", "")):
        for shape in (text, urllib.parse.unquote(text)):
            paths |= {urllib.parse.urlsplit(shape).path, shape.removeprefix("file://"), shape.removeprefix("file:")}
            paths |= {urllib.parse.unquote(path) for path in list(paths)}
    for path in paths:
        parts = []
        for part in path.split("/"):
            if part == "..":
                parts = parts[:-1]
            elif part not in ("", "."):
                parts.append(part)
        if "/".join(parts).startswith(("etc/", "srv/secret")):
            return {"contents": [{"uri": uri, "text": "the secret"}]}
    return {"contents": [{"uri": uri, "text": "nothing"}]}


serve(
    methods={
        "resources/read": read,
        "resources/list": lambda *_: {"resources": []},
        "resources/templates/list": lambda *_: {"resourceTemplates": [{"name": "f", "uriTemplate": "file:///srv/{+path}"}]},
    },
    capabilities={"resources": {}},
)

CONFIG = """
[[policy]]
who = ["*"]
resources = ["files/file:///srv/**"]
deny_resources = ["files/file:///srv/secret*"]

[servers.files]
"""

TRICKS = [
    "file:///srv/../etc/passwd?/../../srv/x",
    "file:///srv/../etc/passwd#/../../srv/x",
    "file:///srv/.\t./etc/passwd",
    "file:///srv/.\n./etc/passwd",
    "file:///srv/se\tcret",
    "file:///srv/x/%2e%2e/secret",
    "file:///srv/x/%252e%252e/secret",
    "file:///srv/x?/../secret",
    "file:/srv/secret",
    "file:srv/secret",
    "file://localhost/srv/secret",
    "file://srv/secret",
    "file:///srv//secret",
    "file:///srv/\\secret",
    "file:///srv/secret?a",
    "file:///srv/secret#a",
    " file:///srv/secret",
]

with Gateway(CONFIG + server_command()) as gateway:
    plain = until("an allowed file can be read", lambda: gateway.modern("resources/read", {"uri": "file:///srv/a.txt"}).message.get("result"))
    check(plain["contents"][0]["text"] == "nothing", f"an allowed file is not the one that was asked for: {plain}")
    for uri in TRICKS:
        answer = gateway.modern("resources/read", {"uri": uri})
        check(b"the secret" not in answer.body, f"{uri!r} was read: {answer.message}")
    session = gateway.session()
    for uri in TRICKS:
        answer = gateway.legacy("resources/read", {"uri": uri}, session=session)
        check(b"the secret" not in answer.body, f"{uri!r} was read in a session: {answer.message}")
