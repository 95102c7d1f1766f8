"""A request from outside carries headers that only parts of the gateway or a proxy set. They must mean nothing."""

from lib import Gateway, check, serve, server_command

serve({"echo": lambda arguments, _context: "echo"})

CONFIG = """
[auth]
keys_file = "keys.toml"

[servers.one]
"""

HEADERS = [
    "X-Bridgehead-Principal", "Bridgehead-Principal", "X-Bridgehead-User", "X-Bridgehead-Hop", "Bridgehead-Hop", "Bridgehead-Join",
    "X-Forwarded-User", "X-Remote-User", "Remote-User", "X-Auth-Request-User", "X-Forwarded-Email", "X-Forwarded-For", "Forwarded",
    "X-Real-IP", "X-Forwarded-Client-Cert",
]


def made(gateway):
    gateway.alice = gateway.key("alice")


with Gateway(CONFIG + server_command(), prepare=made) as gateway:
    for header in HEADERS:
        for value in ("alice", "key:alice", "127.0.0.1", "local:0", "for=127.0.0.1"):
            answer = gateway.modern("tools/list", headers={header: value})
            check(answer.status == 401, f"{header}: {value} was answered with {answer.status}")
    for path in ("/api/v1/status", "/api/v1/tools", "/join", "/metrics", "/api/v1/restart"):
        for header in HEADERS:
            answer = gateway.request("GET", path, headers={header: "alice"})
            check(answer.status in (401, 403, 404, 405), f"{path} with {header} was answered with {answer.status}")
    upgrade = {"Connection": "Upgrade", "Upgrade": "bridgehead-lines", "Bridgehead-Join": "1"}
    answer = gateway.request("GET", "/join", headers=upgrade)
    check(answer.status in (400, 401, 403, 404, 405), f"the stdio door was opened over HTTP: {answer.status}")
