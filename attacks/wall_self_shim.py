"""Not an attack but what one would be blamed for: the program without its helper, and both replaced while they run. Servers with
a memory limit must start all the same, and a client that is connected must go on."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

from lib import LEGACY, Gateway, check, serve, server_command, until

serve({"hello": lambda arguments, context: "hello"})

config = "[servers.limited]\nlimits = { max_memory_mb = 256 }\n" + server_command()


def copy(source, target):
    """A copy that costs no disk where that is possible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


with Gateway(config, start=False) as gateway:
    whole = pathlib.Path(shutil.which(gateway.program)).resolve()
    alone = gateway.home / "alone"
    alone.mkdir()
    copy(whole, alone / "bridgehead")
    gateway.program = str(alone / "bridgehead")
    gateway.start()
    answer = gateway.call("hello")
    check(answer.text == "hello", f"without its helper: {answer.message}")
    gateway.stop()

    both = gateway.home / "both"
    both.mkdir()
    names = ["bridgehead", "bridgehead-shim"]
    for name in names:
        shutil.copy2(whole.with_name(name), both / name)
    client = subprocess.Popen(
        [both / "bridgehead", "serve", "--stdio", "--config", gateway.config], env=gateway.variables, cwd=gateway.home,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    try:

        def ask(id, method, params):
            client.stdin.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + "\n")
            client.stdin.flush()
            while True:
                line = client.stdout.readline()
                check(line, "the client was disconnected")
                message = json.loads(line)
                if message.get("id") == id:
                    return message

        ask(1, "initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}})
        client.stdin.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

        def hello(id):
            return ask(id, "tools/call", {"name": "hello", "arguments": {}}).get("result", {}).get("content")

        check(hello(2), "the first call")
        run = gateway.home / "run" / "bridgehead"
        about = json.loads(next(run.glob("*.json")).read_text())
        for name in names:
            shutil.copy2(whole.with_name(name), both / f"{name}.new")
            os.rename(both / f"{name}.new", both / name)
        os.kill(about["pid"], signal.SIGKILL)
        answered = until("the client goes on", lambda: hello(f"again-{os.times().elapsed}"), 20)
        check(answered[0]["text"] == "hello", answered)
    finally:
        client.stdin.close()
        client.wait(20)
        for file in (gateway.home / "run" / "bridgehead").glob("*.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(file.read_text())["pid"], signal.SIGTERM)
