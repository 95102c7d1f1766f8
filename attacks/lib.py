"""What the attacks share: a gateway as a user starts it, scripted servers, HTTP by hand, and a verdict.

An attack is one file beside this one. It starts what it needs with `Gateway`, tries the attack from outside, and calls
`check(held, "what went wrong")`, which ends it with status 1 if the attack worked. Everything is on loopback, bounded in time
and count, and ends with the script. Only the standard library is used.

A scripted server is the attack's own file: `serve(tools)` takes over if the file was started with `--serve`, and
`server_command()` is the entry of a configuration that starts it so.
"""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
PROGRAM = os.environ.get("BRIDGEHEAD_PROGRAM", "bridgehead")
PATIENCE = float(os.environ.get("ATTACK_PATIENCE", "30"))


def check(held, what):
    """Ends the attack as a success of the attacker unless `held`."""
    if not held:
        print(f"the attack worked: {what}", file=sys.stderr)
        sys.stderr.flush()
        raise SystemExit(1)


def until(what, condition, patience=PATIENCE):
    """Waits until the condition is truthy and returns its value; names what it waited for otherwise."""
    ends = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > ends:
            raise TimeoutError(f"waited {patience:.0f} s for: {what}")
        time.sleep(0.02)


def takes_long():
    """Ends the attack unless `cargo xtask attack --long` runs it: CI has no minute for each."""
    if not os.environ.get("ATTACK_LONG"):
        skip("it takes a minute; `cargo xtask attack --long` shows it")


def skip(why):
    """Ends the attack because this machine cannot show it."""
    print(f"not shown here: {why}")
    raise SystemExit(77)


# ---------------------------------------------------------------------------------------------------- the gateway


class Answer:
    """A complete HTTP answer."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def messages(self):
        """The JSON-RPC messages in it, from a JSON body or an event stream."""
        text = self.body.decode("utf-8", "replace")
        if "text/event-stream" in self.headers.get("content-type", ""):
            events = (line[5:].strip() for line in text.splitlines() if line.startswith("data:"))
            return [json.loads(event) for event in events if event]
        return [json.loads(text)] if text.strip().startswith("{") else []

    @property
    def message(self):
        """The response: the last message."""
        return self.messages[-1] if self.messages else {}

    @property
    def text(self):
        """The text of the first content block of a result."""
        return self.message.get("result", {}).get("content", [{}])[0].get("text", "")


class Gateway(contextlib.AbstractContextManager):
    """A running `bridgehead serve` with its own home folder, and the program's other verbs in the same environment.

    `config` is the text of a `bridgehead.toml`; `{home}` in it stands for the home folder.
    """

    def __init__(self, config, *, files=None, arguments=(), variables=None, program=PROGRAM, start=True, prepare=None):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="attack-"))
        self.program, self.process, self.port = program, None, None
        self.variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_RUNTIME_DIR": str(self.home / "run"),
            **(variables or {}),
        }
        for folder in ("config", "state", "run"):
            (self.home / folder).mkdir(mode=0o700)
        self.config = self.write("bridgehead.toml", config.replace("{home}", str(self.home)))
        for name, text in (files or {}).items():
            self.write(name, text)
        self.arguments = list(arguments)
        if prepare:
            prepare(self)
        if start:
            self.start()
            self.ready()

    def write(self, name, text, mode=0o600):
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def start(self):
        self.log = open(self.home / "stderr", "ab")
        listen = [] if "--listen" in self.arguments else ["--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [self.program, "serve", "--config", str(self.config), *listen, *self.arguments],
            env=self.variables, cwd=self.home, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log,
            start_new_session=True,
        )

        def listening():
            if self.process.poll() is not None:
                raise RuntimeError(f"the gateway ended with {self.process.returncode}:\n{self.stderr()}")
            return re.search(r"http://127\.0\.0\.1:(\d+)/mcp", self.stderr())

        self.port = int(until("the gateway listens", listening).group(1))

    def status(self):
        """What `status --json` says of this gateway."""
        found = json.loads(self.run("status", "--json").stdout or "{}").get("gateways", [])
        return next((each for each in found if each.get("pid") == self.process.pid), None)

    def ready(self):
        """Waits until no server is starting any more."""

        def settled():
            servers = (self.status() or {}).get("upstreams", [])
            return all(server["state"] != "starting" for server in servers)

        until("every server has started or failed", settled)
        return self

    def stderr(self):
        path = self.home / "stderr"
        return path.read_text(errors="replace") if path.exists() else ""

    def run(self, *arguments, input=None, timeout=60):
        """Another verb of the program, to its end."""
        return subprocess.run(
            [self.program, *map(str, arguments)], env={"BRIDGEHEAD_CONFIG": str(self.config), **self.variables},
            cwd=self.home, input=input, capture_output=True, text=True, timeout=timeout,
        )

    def key(self, name, *more):
        """A new key of this name."""
        made = self.run("key", "new", name, *more)
        found = re.search(r"bhk_[A-Za-z0-9_-]+", made.stdout)
        if not found:
            raise RuntimeError(f"no key was made: {made.stdout}{made.stderr}")
        return found.group(0)

    def connect(self, timeout=PATIENCE):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def socket(self, timeout=PATIENCE):
        """A bare connection, for what no library sends."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def request(self, verb, path, body=None, headers=(), key=None, timeout=PATIENCE):
        connection = self.connect(timeout)
        try:
            headers = dict(headers)
            if key:
                headers["Authorization"] = f"Bearer {key}"
            connection.request(verb, path, body=body, headers=headers)
            reply = connection.getresponse()
            names = {name.lower(): value for name, value in reply.getheaders()}
            return Answer(reply.status, names, reply.read())
        finally:
            connection.close()

    def modern(self, method, params=None, *, key=None, path="/mcp", id=1, capabilities=None, timeout=PATIENCE, headers=()):
        """A request of revision 2026-07-28, to its end."""
        body, all_headers = modern(method, params, id=id, capabilities=capabilities)
        return self.request("POST", path, body, {**all_headers, **dict(headers)}, key, timeout)

    def call(self, tool, arguments=None, **more):
        """A modern tool call, to its end."""
        return self.modern("tools/call", {"name": tool, "arguments": arguments or {}}, **more)

    def begin(self, method, params=None, *, key=None, path="/mcp", id=1, capabilities=None):
        """Sends a modern request and returns its socket at once; closing it hangs up."""
        body, headers = modern(method, params, id=id, capabilities=capabilities)
        return self.send("POST", path, body, headers, key)

    def send(self, verb, path, body, headers, key=None):
        """Sends any request and returns its socket at once."""
        if key:
            headers = {**headers, "Authorization": f"Bearer {key}"}
        head = f"{verb} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Length: {len(body)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
        connection = self.socket()
        connection.sendall(head.encode() + body)
        return connection

    def session(self, key=None, capabilities=None):
        """A legacy session: its id."""
        answer = self.legacy("initialize", {
            "protocolVersion": LEGACY, "capabilities": capabilities or {},
            "clientInfo": {"name": "attack", "version": "1"},
        }, key=key)
        session = answer.headers.get("mcp-session-id")
        if session:
            self.legacy("notifications/initialized", None, key=key, session=session, id=None)
        return session

    def legacy(self, method, params=None, *, key=None, session=None, id=1, timeout=PATIENCE):
        """A request of a legacy session, to its end."""
        body, headers = legacy(method, params, session=session, id=id)
        return self.request("POST", "/mcp", body, headers, key, timeout)

    def rows(self, *arguments):
        """The record, as `audit list --json` prints it."""
        listed = self.run("audit", "list", "--json", *arguments)
        text = listed.stdout.strip()
        if text.startswith("["):
            return json.loads(text)
        return [json.loads(line) for line in text.splitlines() if line.strip()]

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def __exit__(self, kind, error, _trace):
        self.stop()
        if kind not in (None, SystemExit) or (kind is SystemExit and error.code not in (None, 0, 77)):
            sys.stderr.write("the end of the gateway's log:\n" + self.stderr()[-4000:] + "\n")
        shutil.rmtree(self.home, ignore_errors=True)
        return False


def modern(method, params=None, *, id=1, capabilities=None):
    """The body and the headers of a request of revision 2026-07-28."""
    params = dict(params or {})
    params["_meta"] = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities or {},
        "io.modelcontextprotocol/clientInfo": {"name": "attack", "version": "1"},
        **params.get("_meta", {}),
    }
    headers = {
        "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": params["_meta"]["io.modelcontextprotocol/protocolVersion"], "Mcp-Method": method,
    }
    name = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}.get(method)
    if name and isinstance(params.get(name), str):
        headers["Mcp-Name"] = header_value(params[name])
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    return json.dumps(body).encode(), headers


def legacy(method, params=None, *, session=None, id=1):
    """The body and the headers of a request of a legacy session; a notification if `id` is `None`."""
    body = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        body["id"] = id
    if params is not None:
        body["params"] = params
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if session:
        headers |= {"Mcp-Session-Id": session, "MCP-Protocol-Version": LEGACY}
    return json.dumps(body).encode(), headers


def header_value(text):
    plain = re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", text) and not text.startswith("=?base64?")
    return text if plain else "=?base64?" + base64.b64encode(text.encode()).decode() + "?="


def in_parallel(count, work):
    """Runs `work(index)` on so many threads and returns the results in order; an exception is a result too."""
    results = [None] * count

    def run(index):
        try:
            results[index] = work(index)
        except Exception as error:  # noqa: BLE001 (what a thread raises is judged by the attack)
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE * 2)
    return results


# ------------------------------------------------------------------------------------------------ scripted servers


def is_server():
    return "--serve" in sys.argv


def server_command(*arguments):
    """The lines of a `[servers.NAME]` table that start this attack's own file as a server."""
    parts = [str(pathlib.Path(sys.argv[0]).resolve()), "--serve", *map(str, arguments)]
    return f"command = {json.dumps(sys.executable)}\nargs = {json.dumps(parts)}\n"


class Tool:
    """A tool of a scripted server: `run(arguments, context)` returns text, a result (dict) or an `RpcError`."""

    def __init__(self, run, schema=None, **more):
        self.run, self.schema, self.more = run, schema or {"type": "object"}, more


class RpcError(Exception):
    def __init__(self, code, message, data=None):
        super().__init__(message)
        self.error = {"code": code, "message": message, **({"data": data} if data is not None else {})}


class Context:
    """What a tool of a scripted server knows of its call."""

    def __init__(self, server, message):
        self.server, self.message = server, message
        self.cancelled = threading.Event()


class Server:
    """A legacy server on stdio. Each request runs on its own thread; cancellations are ignored unless a tool looks at
    `context.cancelled`. `methods` answers further methods: `{"resources/read": lambda params, context: result}`.
    """

    def __init__(self, tools=None, methods=None, capabilities=None, heard=None):
        self.tools = {name: tool if isinstance(tool, Tool) else Tool(tool) for name, tool in (tools or {}).items()}
        self.methods, self.heard = methods or {}, heard
        self.capabilities = capabilities or {"tools": {"listChanged": True}}
        self.lock, self.running, self.answers, self.next = threading.Lock(), {}, {}, 0

    def send(self, message):
        with self.lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def ask(self, method, params, timeout=PATIENCE):
        """Asks the client and waits for its answer."""
        with self.lock:
            self.next += 1
            id = f"ask-{self.next}"
            event = self.answers[id] = threading.Event()
        self.send({"id": id, "method": method, "params": params})
        event.wait(timeout)
        return self.answers.pop(id).__dict__.get("message")

    def answer(self, message):
        context = Context(self, message)
        self.running[json.dumps(message["id"])] = context
        try:
            result = self.result(message["method"], message.get("params", {}), context)
            self.send({"id": message["id"], "result": result})
        except RpcError as error:
            self.send({"id": message["id"], "error": error.error})
        finally:
            self.running.pop(json.dumps(message["id"]), None)

    def result(self, method, params, context):
        if method in self.methods:
            return self.methods[method](params, context)
        if method == "initialize":
            return {"protocolVersion": params["protocolVersion"], "capabilities": self.capabilities,
                    "serverInfo": {"name": "attacked", "version": "1"}}
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [{"name": name, "inputSchema": tool.schema, **tool.more} for name, tool in self.tools.items()]}
        if method == "tools/call" and params.get("name") in self.tools:
            result = self.tools[params["name"]].run(params.get("arguments", {}), context)
            return result if isinstance(result, dict) else {"content": [{"type": "text", "text": str(result)}]}
        raise RpcError(-32601, f"no method {method}")

    def run(self):
        for line in sys.stdin:
            message = json.loads(line)
            if self.heard:
                self.heard(message)
            if "method" not in message:
                event = self.answers.get(message.get("id"))
                if event:
                    event.message = message
                    event.set()
            elif message["method"] == "notifications/cancelled":
                context = self.running.get(json.dumps(message["params"].get("requestId")))
                if context:
                    context.cancelled.set()
            elif "id" in message:
                threading.Thread(target=self.answer, args=(message,), daemon=True).start()


def serve(tools=None, **more):
    """Takes over as a server if this file was started as one."""
    if is_server():
        Server(tools, **more).run()
        os._exit(0)


# ------------------------------------------------------------------------------------------------------ an issuer


class Issuer(contextlib.AbstractContextManager):
    """An issuer of opaque tokens on loopback. `tokens` maps each good token to its user. It counts what it is asked."""

    def __init__(self, tokens, secret="s3cret-of-the-client", delay=0.0):
        import http.server

        self.tokens, self.secret, self.delay, self.asked = dict(tokens), secret, delay, []
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def reply(self, status, value):
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                self.reply(200, {
                    "issuer": issuer.url, "introspection_endpoint": issuer.url + "/introspect",
                    "jwks_uri": issuer.url + "/jwks", "authorization_endpoint": issuer.url + "/authorize",
                    "token_endpoint": issuer.url + "/token", "keys": [],
                })

            def do_POST(self):
                import urllib.parse

                asked = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                token = urllib.parse.parse_qs(asked).get("token", [""])[0]
                issuer.asked.append(token)
                time.sleep(issuer.delay)
                basic = "Basic " + base64.b64encode(f"gateway:{issuer.secret}".encode()).decode()
                if self.headers.get("Authorization") != basic:
                    return self.reply(401, {"error": "invalid_client"})
                user = issuer.tokens.get(token)
                claims = {"iss": issuer.url, "sub": user, "aud": AUDIENCE, "exp": int(time.time()) + 3600}
                self.reply(200, {"active": True, **claims} if user else {"active": False})

            def log_message(self, *_arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def config(self, secret="${file:secret}"):
        """The tables of a configuration that admit its tokens; the client's secret is in the file `secret`."""
        return (
            f'[auth]\npublic_url = "{AUDIENCE}"\n\n[auth.issuers.corp]\nissuer = "{self.url}"\n\n'
            f'[auth.issuers.corp.introspection]\nurl = "{self.url}/introspect"\nclient_id = "gateway"\n'
            f'client_secret = "{secret}"\n\n'
        )

    def __exit__(self, *_error):
        self.server.shutdown()
        return False


AUDIENCE = "https://mcp.example.com/mcp"
