"""The secret of the gateway at an issuer is rotated: the file has a new one, the old one is void. After a reload the new one must be used,
or the gateway must say that a restart is needed."""

import re
import signal
import time

from lib import Gateway, Issuer, check, serve, server_command, until

serve({"echo": lambda arguments, _context: "echo"})

with Issuer({"one": "alice", "two": "bob"}, secret="first") as issuer:
    config = issuer.config() + "[servers.one]\n" + server_command()
    with Gateway(config, files={"secret": "first"}) as gateway:
        check(gateway.modern("tools/list", key="one").status == 200, "a good token was refused")
        issuer.secret = "second"
        gateway.write("secret", "second")
        seen = len(gateway.stderr())
        gateway.process.send_signal(signal.SIGHUP)
        until("the reload is over", lambda: "configuration" in gateway.stderr()[seen:] or "restart" in gateway.stderr()[seen:], 10)
        time.sleep(0.3)
        answer = gateway.modern("tools/list", key="two").status
        told = re.search(r"\brestart\b", gateway.stderr()[seen:])
        check(answer == 200 or told, f"a good token got {answer} after the secret was rotated, and nothing says why:\n{gateway.stderr()[seen:]}")
