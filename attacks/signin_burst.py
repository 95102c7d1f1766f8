"""Somebody sends many requests with one good credential at once, or shares an address with somebody who guesses. Good credentials must
not be refused for it, and guessing must still be slowed."""

from lib import Gateway, check, in_parallel, serve, server_command

serve({"echo": lambda arguments, _context: "echo"})

CONFIG = """
[auth]
keys_file = "keys.toml"

[servers.one]
"""

GOOD = 30


def made(gateway):
    gateway.keys = [gateway.key(f"user{number}") for number in range(GOOD)]


with Gateway(CONFIG + server_command(), prepare=made) as gateway:
    answers = in_parallel(20, lambda _: gateway.modern("tools/list", key=gateway.keys[0]).status)
    check(answers == [200] * 20, f"20 requests at once with one good key: {answers}")
    answers = in_parallel(GOOD, lambda number: gateway.modern("tools/list", key=gateway.keys[number]).status)
    check(answers == [200] * GOOD, f"{GOOD} users behind one address: {answers}")
    guesses = [gateway.modern("tools/list", key="bhk_" + "x" * 40).status for _ in range(15)]
    check(429 in guesses, f"guesses are not slowed: {guesses}")
    known = gateway.modern("tools/list", key=gateway.keys[0]).status
    check(known == 200, f"a key that was found good before got {known} after somebody else guessed")
