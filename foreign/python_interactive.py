"""Servers that ask, report and tell of changes, used through the gateway by the Python SDK in either era.

Makes the checks of interactive.mjs that this SDK can make; prints one line of JSON per check.
"""

import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent

job = json.loads(sys.argv[1])
MODES = {"legacy": "legacy", "modern": "2026-07-28"}
PATIENCE = 10.0
URL_REQUIRED = -32042
# How many processes of a server its clients have at the most, unless it is configured.
PROCESSES = 8

failed = False
asked: list[Any] = []
updated: list[str] = []


def tell(upstream: str, name: str, ok: bool, detail: str | None = None) -> None:
    global failed
    failed = failed or not ok
    line = {"upstream": upstream, "check": name, "ok": ok}
    print(json.dumps(line | ({"detail": detail} if detail else {})), flush=True)


async def check(upstream: str, name: str, body: Callable[[], Awaitable[Any]]) -> None:
    asked.clear()
    try:
        with anyio.fail_after(PATIENCE):
            detail = await body()
    except Exception:
        tell(upstream, name, False, traceback.format_exc())
    else:
        tell(upstream, name, True, detail)


async def elicit(_context: Any, params: Any) -> ElicitResult:
    asked.append(params)
    if getattr(params, "mode", None) == "url":
        return ElicitResult(action="accept")
    return ElicitResult(action="accept", content={"name": "Ada", "integer": 7})


async def sample(_context: Any, params: Any) -> CreateMessageResult:
    asked.append(params)
    said = TextContent(type="text", text=f"heard: {params.messages[0].content.text}")
    return CreateMessageResult(model="parrot", role="assistant", content=said)


async def roots(_context: Any) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri=f"file:///{job['client']}", name=f"of {job['client']}")])


async def note(message: Any) -> None:
    if getattr(message, "method", None) == "notifications/resources/updated":
        updated.append(str(message.params.uri))


def text(result: Any) -> str:
    return "".join(getattr(block, "text", "") for block in result.content)


class Server:
    def __init__(self, client: Client, rooted: Client, plain: Client, name: str) -> None:
        self.client = client
        self.rooted = rooted
        self.plain = plain
        self.name = name

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
        return await self.client.call_tool(f"{self.name}__{tool}", arguments or {}, **options)

    async def report(self, tool: str, arguments: dict[str, Any]) -> list[float]:
        seen: list[float] = []

        async def progress(reached: float, _total: float | None, _message: str | None) -> None:
            seen.append(reached)

        await self.call(tool, arguments, progress_callback=progress)
        # The SDK runs callbacks beside the answer, so the last may still be on its way.
        while len(seen) < 3:
            await anyio.sleep(0.01)
        return sorted(seen)


class Everything(Server):
    def checks(self) -> dict[str, Callable[[], Awaitable[Any]]]:
        checks = {
            "elicitation": self.elicitation,
            "sampling": self.sampling,
            "url": self.url,
            "url error": self.url_error,
            "roots": self.roots,
            "progress": self.progress,
            "annotations": self.annotations,
        }
        # Over stdio every client has a gateway of its own.
        if self.plain is self.client or job["transport"] == "http":
            checks["subscription"] = self.subscription
        return checks

    async def elicitation(self) -> None:
        answer = text(await self.call("trigger-elicitation-request"))
        assert "- Name: Ada\n- Favorite Integer: 7" in answer, answer
        assert len(asked[0].requested_schema["properties"]) == 13, asked

    async def sampling(self) -> None:
        answer = text(await self.call("trigger-sampling-request", {"prompt": "Grüße", "maxTokens": 5}))
        assert "heard: Resource trigger-sampling-request context: Grüße" in answer, answer
        assert (asked[0].max_tokens, asked[0].temperature) == (5, 0.7)

    async def url(self) -> None:
        url = "https://example.invalid/go"
        answer = text(await self.call("trigger-url-elicitation", {"url": url, "message": "go there"}))
        assert "User completed the URL elicitation flow" in answer, answer
        assert (str(asked[0].url), asked[0].message) == (url, "go there")

    async def visiting(self, tool: str, given: dict, left: int = PROCESSES):
        """A server remembers the visit in the process that it was asked in; the next call may have another one."""
        try:
            return await self.call(tool, given)
        except MCPError as error:
            if error.error.code != URL_REQUIRED or left == 0:
                raise
        return await self.visiting(tool, given, left - 1)

    async def url_error(self) -> None:
        given = {"url": f"https://example.invalid/{job['client']}", "errorPath": True}
        before: list[str] = ["https://modelcontextprotocol.io"]
        if job["era"] == "legacy":
            try:
                raise AssertionError(await self.call("trigger-url-elicitation", given))
            except MCPError as error:
                assert error.error.code == URL_REQUIRED, error.error
            before = []
        answer = text(await self.visiting("trigger-url-elicitation", given))
        assert "User completed the URL elicitation flow" in answer, answer
        assert [str(params.url).rstrip("/") for params in asked] == [*before, given["url"]], asked

    async def roots(self) -> None:
        answer = text(await self.rooted.call_tool(f"{self.name}__get-roots-list", {}))
        assert f"file:///{job['client']}" in answer, answer

    async def progress(self) -> None:
        seen = await self.report("trigger-long-running-operation", {"duration": 0.3, "steps": 3})
        assert seen == [1, 2, 3], seen

    async def annotations(self) -> None:
        content = (await self.call("get-annotated-message", {"messageType": "error"})).content
        assert content[0].annotations.priority == 1
        assert content[0].annotations.audience == ["user", "assistant"]

    async def subscription(self) -> None:
        # All three of the one server have it, so that clients see it by server.
        resource = f"bridgehead+{self.name}:demo://resource/dynamic/text/1"
        if job["era"] == "modern":
            async with self.client.listen(resource_subscriptions=[resource]) as listening:
                await self.toggled(lambda: anext(aiter(listening)))
            return
        await self.client.subscribe_resource(resource)

        async def seen() -> None:
            while resource not in updated:
                await anyio.sleep(0.01)

        await self.toggled(seen)
        await self.client.unsubscribe_resource(resource)

    async def toggled(self, body: Callable[[], Awaitable[Any]]) -> None:
        """Switches the updates on, however they stood, and off again."""

        async def toggle() -> str:
            return text(await self.plain.call_tool(f"{self.name}__toggle-subscriber-updates", {}))

        if not (await toggle()).startswith("Started"):
            await toggle()
        try:
            await body()
        finally:
            await toggle()


class Python(Server):
    def checks(self) -> dict[str, Callable[[], Awaitable[Any]]]:
        return {
            "elicitation": self.elicitation,
            "sampling": self.sampling,
            "roots": self.roots,
            "progress": self.progress,
        }

    async def elicitation(self) -> None:
        assert text(await self.call("introduce")) == "Hello Ada"
        assert asked[0].message == "What is your name?"

    async def sampling(self) -> None:
        assert text(await self.call("consult", {"question": "why?"})) == "heard: why?"

    async def roots(self) -> None:
        answer = text(await self.rooted.call_tool(f"{self.name}__places", {}))
        assert answer == f"file:///{job['client']}", answer

    async def progress(self) -> None:
        assert await self.report("count", {"steps": 3}) == [1, 2, 3]


async def main() -> None:
    if job["transport"] == "stdio":
        server: Any = StdioServerParameters(command=job["command"], args=job["args"], env=job["env"])
    else:
        server = job["url"]
    modern = job["era"] == "modern"
    answering: dict[str, Any] = {"elicitation_callback": elicit, "sampling_callback": sample}
    if not modern:
        answering["list_roots_callback"] = roots
    # In the modern era who has roots has a server that asks for them for one call only, and who has nothing shares it
    # with everybody. This SDK says the same with every request, so there are other clients for these two.
    async with AsyncExitStack() as stack:
        try:
            client = Client(server, mode=MODES[job["era"]], message_handler=note, **answering)
            await stack.enter_async_context(client)
            rooted = plain = client
            if modern:
                rooted = Client(server, mode=MODES[job["era"]], list_roots_callback=roots)
                plain = Client(server, mode=MODES[job["era"]])
                await stack.enter_async_context(rooted)
                await stack.enter_async_context(plain)
            tell("", "connect", True, str(client.protocol_version))
        except Exception:
            return tell("", "connect", False, traceback.format_exc())
        for upstream in job["servers"]:
            kind = Python if upstream["kind"] == "python" else Everything
            for name, body in kind(client, rooted, plain, upstream["name"]).checks().items():
                await check(upstream["name"], name, body)
    tell("", "close", True)


anyio.run(main)
sys.exit(1 if failed else 0)
