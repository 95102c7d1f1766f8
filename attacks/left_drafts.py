"""An edit of the configuration is killed in the middle: what it leaves, secrets included, must be gone after the next edit."""

import os
import signal
import subprocess

from lib import Gateway, check

with Gateway("", start=False) as gateway:
    folder, own = gateway.config.parent, gateway.config
    own.write_text("".join(f'[servers.s{n}]\ncommand = "true"\ndisabled = true\n' for n in range(200)))
    add = [gateway.program, "add", "--no-check", "--disabled", "--env", "API_TOKEN=hunter2-hunter2"]
    for n in range(12):
        edit = subprocess.Popen([*add, f"n{n}", "--", "true"], env={**gateway.variables, "BRIDGEHEAD_CONFIG": str(own)}, cwd=gateway.home,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            edit.wait(0.01 + 0.01 * n)
        except subprocess.TimeoutExpired:
            edit.send_signal(signal.SIGKILL)
            edit.wait(10)
    # Whether one of them was hit in the right moment or not, this is what it leaves.
    gone = subprocess.Popen(["true"])
    gone.wait(10)
    for name in ("bridgehead.toml", "bridgehead.env"):
        (folder / f".{name}.draft-{gone.pid}").write_text("API_TOKEN=hunter2-hunter2")
    (folder / f".other.draft-{os.getpid()}").write_text("")
    done = gateway.run("add", "--no-check", "--disabled", "--env", "API_TOKEN=hunter2-hunter2", "last", "--", "true")
    check(done.returncode == 0, f"the next edit fails: {done.stderr}")
    left = sorted(path.name for path in folder.iterdir() if ".draft-" in path.name)
    check(left == [f".other.draft-{os.getpid()}"], f"drafts are left: {left}")
