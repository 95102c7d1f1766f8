"""A caller over its rate sends refused calls with large arguments, to push its own traces out of the record. They must stay, and its
refusals must not fill the record."""

from lib import Gateway, check, in_parallel, serve, server_command

serve({"echo": lambda arguments, _context: "echo"})

CONFIG = """
[auth]
local = true

[audit]
segment_mb = 2
keep_mb = 8

[[limits.rules]]
who = ["*"]
rate = "5/min"
burst = 5

[servers.one]
"""

FLOOD = 1200

with Gateway(CONFIG + server_command()) as gateway:
    first = gateway.call("echo", {"text": "the trace"})
    check(first.text == "echo", f"the first call failed: {first.message}")
    large = {"text": "x" * 60_000}
    in_parallel(8, lambda _: [gateway.call("echo", large) for _ in range(FLOOD // 8)])
    gateway.stop()
    state = gateway.home / "state"
    size = sum(file.stat().st_size for file in state.rglob("*") if file.is_file())
    check(size < 12 * 1024 * 1024, f"{FLOOD} refused calls made the record grow to {size >> 20} MB")
    traces = [row for row in gateway.rows("--limit", "5000") if "the trace" in str(row.get("arguments"))]
    check(traces, "the trace of the call that ran is gone")
