"""Many requests with good tokens of an issuer arrive at once: 20 with one token, and 30 users behind one address. None may be refused,
and the issuer is asked once for each token. Guessing is still slowed, and does not lock out tokens that were found good."""

from lib import Gateway, Issuer, check, in_parallel, serve, server_command

serve({"echo": lambda arguments, _context: "echo"})

USERS = 30

with Issuer({f"good-{number}": f"user{number}" for number in range(USERS + 1)}, delay=0.05) as issuer:
    files = {"secret": issuer.secret}
    with Gateway(issuer.config() + "[servers.one]\n" + server_command(), files=files) as gateway:
        answers = in_parallel(20, lambda _: gateway.modern("tools/list", key="good-0").status)
        check(answers == [200] * 20, f"20 requests at once with one good token: {answers}")
        check(issuer.asked.count("good-0") == 1, f"the issuer was asked {issuer.asked.count('good-0')} times for one token")
        answers = in_parallel(USERS, lambda number: gateway.modern("tools/list", key=f"good-{number + 1}").status)
        check(answers == [200] * USERS, f"{USERS} users behind one address: {answers}")
        guesses = [gateway.modern("tools/list", key=f"guess-{number}").status for number in range(20)]
        check(429 in guesses, f"guesses are not slowed: {guesses}")
        known = gateway.modern("tools/list", key="good-1").status
        check(known == 200, f"a token that was found good got {known} after somebody else guessed")
