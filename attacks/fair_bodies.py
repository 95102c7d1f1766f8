"""One key sends many bodies that it never finishes, until no memory is left. The large call of another key must still be served."""

from lib import Gateway, check, modern, serve, server_command

serve({"size": lambda arguments, context: str(len(arguments["text"]))})

CONFIG = """
[auth]
keys_file = "keys.toml"
[limits]
held_mb = 16
held_per_peer_mb = 8
[servers.m]
"""
MEGABYTE = 1 << 20

with Gateway(CONFIG + server_command(), start=False) as gateway:
    eve, ada = gateway.key("eve"), gateway.key("ada")
    gateway.start()
    gateway.ready()
    held = []
    _, headers = modern("tools/call", {"name": "size", "arguments": {}})
    for _ in range(24):
        connection = gateway.socket()
        head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\nContent-Length: {2 * MEGABYTE}\r\n"
        head += f"Authorization: Bearer {eve}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(head.encode() + b"\r\n")
        connection.settimeout(0.3)
        try:
            connection.sendall(b" " * MEGABYTE)
        except OSError:
            pass
        held.append(connection)
    for _ in range(4):
        answer = gateway.call("size", {"text": "x" * MEGABYTE}, key=ada)
        check(answer.text == str(MEGABYTE), f"unfinished bodies keep another key out: {answer.status} {answer.body[:300]}")
    for connection in held:
        connection.close()
