"""The Python SDK, second generation, in either era.

Prints one line of JSON per check, as checks.mjs does; what is asked for is the same there and here.
"""

import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import ToolListChangedNotification

TOOLS = ["echo", "slow", "hang", "fail", "refuse", "cancelled", "grow"]
UPSTREAMS = ["old", "new"]
MODES = {"legacy": "legacy", "modern": "auto"}
REVISIONS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
PATIENCE = 60.0
# The SDK ends a stdio server that is still there two seconds after its input was closed.
POLITE_CLOSE = 1.9

failed = False


def tell(upstream: str, name: str, ok: bool, detail: str | None = None) -> None:
    global failed
    failed = failed or not ok
    line = {"upstream": upstream, "check": name, "ok": ok}
    print(json.dumps(line | ({"detail": detail} if detail else {})), flush=True)


async def check(upstream: str, name: str, body: Callable[[], Awaitable[Any]]) -> None:
    try:
        with anyio.fail_after(PATIENCE):
            detail = await body()
    except Exception:
        tell(upstream, name, False, traceback.format_exc())
    else:
        tell(upstream, name, True, detail)


async def rejection(call: Awaitable[Any]) -> Any:
    try:
        result = await call
    except MCPError as error:
        return error.error
    raise AssertionError(f"an answer where an error was due: {result}")


class Changes:
    """What a client of the legacy era is told unasked."""

    def __init__(self) -> None:
        self.seen = 0

    async def note(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.seen += 1


class Checks:
    def __init__(self, client: Client, upstream: str, changes: Changes) -> None:
        self.client = client
        self.upstream = upstream
        self.changes = changes

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
        return await self.client.call_tool(f"{self.upstream}__{tool}", arguments or {}, **options)

    async def echo(self) -> None:
        given = {"text": "Grüße, 世界 🦀", "nested": {"list": [1, 2.5, None, True], "empty": {}}}
        result = await self.call("echo", given)
        assert not result.is_error
        assert json.loads(result.content[0].text) == given
        assert result.structured_content == given

    async def parallel(self) -> None:
        answers: dict[str, str] = {}

        async def one(text: str) -> None:
            answers[text] = (await self.call("echo", {"text": text})).structured_content["text"]

        async with anyio.create_task_group() as group:
            for index in range(20):
                group.start_soon(one, f"call {index}")
        assert len(answers) == 20
        assert all(asked == answered for asked, answered in answers.items()), answers

    async def progress(self) -> None:
        seen: list[tuple[float, float | None, str | None]] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, total, message))

        result = await self.call("slow", progress_callback=note)
        assert result.content[0].text == "done"
        # The SDK runs callbacks beside the answer, so the last may still be on its way.
        with anyio.move_on_after(1):
            while len(seen) < 3:
                await anyio.sleep(0.01)
        assert sorted(seen) == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")], seen

    async def count_cancelled(self) -> int:
        return len((await self.call("cancelled")).structured_content["cancelled"])

    async def cancel(self) -> None:
        before = await self.count_cancelled()
        with anyio.CancelScope() as scope:

            async def stop(_progress: float, _total: float | None, _message: str | None) -> None:
                scope.cancel()

            await self.call("hang", progress_callback=stop)
        assert scope.cancelled_caught
        while await self.count_cancelled() != before + 1:
            await anyio.sleep(0.02)

    async def tool_error(self) -> None:
        result = await self.call("fail")
        assert result.is_error
        assert result.content[0].text == "the tool failed"

    async def server_error(self) -> None:
        error = await rejection(self.call("refuse"))
        assert error.code == 1234, error
        assert "not today" in error.message
        assert error.data == {"reason": "a rule of the server"}

    async def wrong_arguments(self) -> None:
        result = await self.call("echo", {"text": 7})
        assert result.is_error
        error = json.loads(result.content[0].text)["error"]
        assert error["code"] == "INVALID_PARAMS"
        assert error["details"]["issues"][0]["path"] == "/text"

    async def unknown_tool(self) -> None:
        error = await rejection(self.call("nothing"))
        assert error.code == -32602, error
        assert "nothing" in error.message

    async def change(self) -> None:
        if self.client.protocol_version == REVISIONS["modern"]:
            async with self.client.listen(tools_list_changed=True) as subscription:
                await self.call("grow")
                await anext(aiter(subscription))
        else:
            before = self.changes.seen
            await self.call("grow")
            while self.changes.seen == before:
                await anyio.sleep(0.02)
        grown = f"{self.upstream}__grown"
        while grown not in [tool.name for tool in (await self.client.list_tools()).tools]:
            await anyio.sleep(0.02)


async def list_tools(client: Client) -> str:
    tools = (await client.list_tools()).tools
    names = [tool.name for tool in tools if "__" in tool.name]
    assert names == [f"{upstream}__{tool}" for upstream in UPSTREAMS for tool in TOOLS], names
    schema = next(tool.input_schema for tool in tools if tool.name == "new__echo")
    assert schema["required"] == ["text"]
    return f"{len(tools)} tools"


async def cold(client: Client, job: dict[str, Any], started: float) -> str:
    """One list right after the connection, as of a client that never asks again."""
    tools = (await client.list_tools()).tools
    took = (time.monotonic() - started) * 1000
    for server, expected in job["cold"]["servers"].items():
        own = [tool.name for tool in tools if tool.name.startswith(f"{server}__")]
        assert len(own) == expected, f"{len(own)} tools of {server} after {took:.0f} ms"
    assert took < job["cold"]["within_ms"], f"it took {took:.0f} ms"
    return f"{len(tools)} tools after {took:.0f} ms"


async def call_slow(client: Client) -> None:
    thought = {"thought": "slowly", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}
    result = await client.call_tool("slow__sequentialthinking", thought)
    assert not result.is_error, result


async def main() -> None:
    job = json.loads(sys.argv[1])
    started = time.monotonic()
    if job["transport"] == "stdio":
        server = StdioServerParameters(command=job["command"], args=job["args"], env=job["env"])
    else:
        server = job["url"]
    changes = Changes()
    closing = 0.0
    try:
        async with Client(server, mode=MODES[job["era"]], message_handler=changes.note) as client:
            if "cold" in job:
                start = job["cold"]["start"]
                await check("", start, lambda: cold(client, job, started))
                await check("", f"{start}: call", lambda: call_slow(client))
                return
            version = client.protocol_version
            tell("", "connect", version == REVISIONS[job["era"]], str(version))
            await check("", "list", lambda: list_tools(client))
            for upstream in UPSTREAMS:
                checks = Checks(client, upstream, changes)
                await check(upstream, "call", checks.echo)
                await check(upstream, "parallel", checks.parallel)
                await check(upstream, "progress", checks.progress)
                await check(upstream, "cancel", checks.cancel)
                await check(upstream, "tool error", checks.tool_error)
                await check(upstream, "server error", checks.server_error)
                await check(upstream, "arguments", checks.wrong_arguments)
                await check(upstream, "unknown tool", checks.unknown_tool)
                await check(upstream, "change", checks.change)
            closing = time.monotonic()
    except Exception:
        tell("", "close" if closing else "connect", False, traceback.format_exc())
    else:
        took = time.monotonic() - closing
        tell("", "close", job["transport"] == "http" or took < POLITE_CLOSE, f"{took * 1000:.0f} ms")


anyio.run(main)
sys.exit(1 if failed else 0)
