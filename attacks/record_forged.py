"""Somebody who can write all files of the record rewrites its rows, computes all heads anew and removes every checkpoint.
`audit verify` must find it, with the public key and without, and so must the independent checker."""

import hashlib
import json
import pathlib
import sqlite3
import subprocess
import sys

from lib import Gateway, check, serve, server_command

serve({"echo": lambda arguments, _context: "echo"})

CONFIG = """
[audit]
segment_mb = 1
signing_key_file = "{home}/secret"

[servers.one]
"""


def sha(tag, *parts):
    return hashlib.sha256(bytes([tag]) + b"".join(parts)).digest()


with Gateway(CONFIG + server_command(), files={"secret": "11" * 32}) as gateway:
    for number in range(20):
        gateway.call("echo", {"who": "alice", "text": "x" * 4000})
    gateway.stop()
    folder = gateway.home / "state" / "bridgehead" / "audit"
    kept = json.loads((folder / "checkpoints.jsonl").read_text().splitlines()[0])
    key = gateway.write("public", kept["key"])
    genuine = gateway.run("audit", "verify", "--key", key)
    check(genuine.returncode == 0, f"a genuine record does not verify: {genuine.stdout}{genuine.stderr}")
    for segment in sorted(folder.glob("*.sqlite")):
        database = sqlite3.connect(segment)
        (header,) = database.execute("SELECT CAST(body AS BLOB) FROM segment").fetchone()
        head = sha(3, header)
        rows = database.execute("SELECT seq, CAST(body AS BLOB) FROM rows ORDER BY seq").fetchall()
        for seq, body in rows:
            body = body.replace(b"alice", b"mallo")
            head = sha(2, head, sha(0, body))
            database.execute("UPDATE rows SET body = ?, head = ? WHERE seq = ?", (body.decode(), head, seq))
        database.execute("DELETE FROM checkpoints")
        database.commit()
        database.close()
    (folder / "checkpoints.jsonl").write_text("")
    for arguments in ((), ("--key", key)):
        forged = gateway.run("audit", "verify", *arguments)
        check(forged.returncode != 0, f"`audit verify {' '.join(map(str, arguments))}` accepts a forged record: {forged.stdout}")
    checker = pathlib.Path(__file__).resolve().parent.parent / "docs" / "verify_audit.py"
    files = [str(segment) for segment in sorted(folder.glob("*.sqlite"))]
    for arguments in ([], ["--key", str(key)]):
        forged = subprocess.run([sys.executable, checker, *files, *arguments], capture_output=True, text=True)
        check(forged.returncode != 0, f"the independent checker accepts a forged record: {forged.stdout}")
