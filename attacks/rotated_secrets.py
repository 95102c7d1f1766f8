"""Secrets are rotated while the gateway runs. Each must be in effect at once or be named as waiting for a restart."""

import os

from lib import Gateway, check, serve, server_command, until

serve({"key": lambda _arguments, _context: os.environ["KEY"]})

CONFIG = """
[secrets]
env_file = "secrets.env"

[http]
token_file = "token"

[audit]
signing_key_file = "signing-key"

[auth]
local = true
public_url = "https://gateway.example.com"

[auth.issuers.corp]
issuer = "https://127.0.0.1:9"

[auth.issuers.corp.introspection]
url = "https://127.0.0.1:9/introspect"
client_id = "gateway"
client_secret = "${ISSUER_SECRET}"

[servers.one]
"""

FILES = {
    "secrets.env": "ISSUER_SECRET=before\nKEY=before\n",
    "token": "before-before-before-before-before",
    "signing-key": "1" * 64,
}

with Gateway(CONFIG + server_command() + 'env = { KEY = "${KEY}" }\n', files=FILES) as gateway:
    def waiting():
        reload = (gateway.status() or {}).get("reload") or {}
        return reload.get("needsRestart") or []

    check(gateway.call("key").text == "before", "the attack's own server does not work")

    gateway.write("secrets.env", "ISSUER_SECRET=hunter-2\nKEY=before\n")
    until("the issuer's secret is named", lambda: "auth.issuers" in waiting())

    gateway.write("secrets.env", "ISSUER_SECRET=hunter-2\nKEY=hunter-3\n")
    until("the server has its new secret", lambda: gateway.call("key").text == "hunter-3")
    check("auth.issuers" in waiting(), "the issuer's secret is forgotten at the next reload")

    for file, setting in (("token", "http.token_file"), ("signing-key", "audit.signing_key_file")):
        gateway.write(file, "2" * 64)
        until(f"{setting} is named", lambda: setting in waiting())
    check("hunter-" not in gateway.stderr(), "a secret is in the log")
