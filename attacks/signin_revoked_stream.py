"""An opaque token is revoked while a stream that it opened is open. The stream must end within about a minute."""

import time

from lib import Gateway, Issuer, check, serve, server_command, takes_long

serve({"echo": lambda arguments, _context: "echo"})
takes_long()

with Issuer({"one": "alice"}) as issuer:
    with Gateway(issuer.config() + "[servers.one]\n" + server_command(), files={"secret": issuer.secret}) as gateway:
        listening = {"notifications": {"toolsListChanged": True}}
        stream = gateway.begin("subscriptions/listen", listening, key="one")
        stream.settimeout(5)
        check(b"200" in stream.recv(4096).split(b"\r\n")[0], "the stream was not opened")
        issuer.tokens.clear()
        stream.settimeout(1)
        ends = time.monotonic() + 90
        while time.monotonic() < ends:
            try:
                if not stream.recv(4096):
                    break
            except TimeoutError:
                continue
        else:
            check(False, "a stream lived for 90 seconds after its token was revoked")
