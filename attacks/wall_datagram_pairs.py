"""A confined server makes a pair of datagram sockets and sends from it to another program's socket. It must not get out."""

import array
import json
import os
import pathlib
import socket
import sys

from lib import Gateway, check, serve, server_command

SECRET = "only outside"


def escape(arguments, context):
    """Tries each kind of pair; says what came back, or why there was no way out."""
    tried = []
    for family, kind in [(socket.AF_UNIX, socket.SOCK_DGRAM), (socket.AF_UNIX, socket.SOCK_RAW), (30, socket.SOCK_STREAM)]:
        try:
            ours, _theirs = socket.socketpair(family, kind)
            ours.settimeout(2)
            ours.bind(arguments["reply"])
            ours.sendto(b"give", arguments["socket"])
            _, ancillary, _, _ = ours.recvmsg(10, socket.CMSG_SPACE(4))
            fds = array.array("i", ancillary[0][2])
            tried.append("got " + os.read(fds[0], 100).decode())
        except OSError as error:
            tried.append(f"{kind}: {error}")
    stream, _ = socket.socketpair()
    stream.close()
    return json.dumps(tried)


serve({"escape": escape})

here = f"{json.dumps(str(pathlib.Path(sys.argv[0]).resolve().parent))}, {json.dumps(sys.base_prefix)}"
WALLS = [
    'network = "none"\n',
    f'network = "none"\nfiles = {{ read = [{here}], write = ["{{home}}/own"] }}\n',
]
config = "".join(f"[servers.s{n}]\n{server_command()}{walls}" for n, walls in enumerate(WALLS))


def prepare(gateway):
    (gateway.home / "own").mkdir()
    gateway.write("secret", SECRET)


with Gateway(config, prepare=prepare) as gateway:
    outside = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    outside.bind(str(gateway.home / "outside"))
    outside.settimeout(0.2)
    for number in range(len(WALLS)):
        answer = gateway.begin("tools/call", {"name": f"s{number}__escape", "arguments": {
            "socket": str(gateway.home / "outside"), "reply": str(gateway.home / "own" / "reply")}})
        try:
            _, sender = outside.recvfrom(10)
            with open(gateway.home / "secret") as secret:
                outside.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [secret.fileno()]))], 0, sender)
            check(False, f"server {number} sent to a socket outside")
        except TimeoutError:
            pass
        answer.close()
        tried = gateway.call(f"s{number}__escape", {
            "socket": str(gateway.home / "outside"), "reply": str(gateway.home / "own" / "reply2")}).text
        check(tried.count("Operation not permitted") == 3 and SECRET not in tried, tried)
    told = gateway.run("doctor", "--machine", "--json")
    check('"sockets"' in told.stdout, "doctor does not try it: " + told.stdout + told.stderr)
