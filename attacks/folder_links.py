"""A checkout has links instead of files, and a hostile `.mcp.json`. Importing it must not write into the user's own files, and a file of
variables that never ends must not be read."""

import json
import os

from lib import Gateway, check

with Gateway("", start=False) as gateway:
    own = gateway.write("config/bridgehead/bridgehead.toml", "")
    profile = gateway.write(".profile", "# mine\n")
    hostile = {"mcpServers": {"evil": {"command": "/bin/false", "env": {"API_TOKEN": "ghp_0123456789abcdefghijABCDEFGHIJ012345"}}}}
    project = gateway.home / "project"
    project.mkdir()
    (project / ".mcp.json").write_text(json.dumps(hostile))
    variables = {**gateway.variables}

    def bridgehead(*arguments):
        import subprocess

        return subprocess.run(
            [gateway.program, *arguments], cwd=project, env=variables, capture_output=True, text=True, timeout=30,
            stdin=subprocess.DEVNULL,
        )

    (project / "bridgehead.toml").symlink_to(os.path.relpath(own, project))
    bridgehead("import", "--scope", "project", "--yes")
    bridgehead("add", "--scope", "project", "evil", "--", "/bin/false")
    check(own.read_text() == "", f"the user's own file was changed: {own.read_text()}")
    (project / "bridgehead.toml").unlink()

    (project / "bridgehead.env").symlink_to("../.profile")
    bridgehead("import", "--scope", "project", "--yes")
    check(profile.read_text() == "# mine\n", f"the user's profile was changed: {profile.read_text()}")
    for name in ("bridgehead.toml", "bridgehead.env"):
        (project / name).unlink(missing_ok=True)

    (project / "bridgehead.toml").write_text('[secrets]\nenv_file = "../.profile"\n')
    bridgehead("import", "--scope", "project", "--yes")
    check(profile.read_text() == "# mine\n", f"the user's profile was changed: {profile.read_text()}")

    for endless in ("/dev/zero", str(gateway.home / "pipe")):
        if not os.path.exists(endless):
            os.mkfifo(endless, 0o600)
        config = gateway.write("endless.toml", f'[servers.one]\ncommand = "/bin/true"\nenv_file = "{endless}"\n')
        checked = gateway.run("check", "--config", config, timeout=20)
        check("regular file" in checked.stdout + checked.stderr, f"`env_file = {endless}` is not refused: {checked}")
