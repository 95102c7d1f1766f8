"""A small server on the Python SDK, which serves clients of both eras.

With a port as its argument it listens there for streamable HTTP, without one it speaks over stdio. `foreign/remote.mjs`,
`foreign/interactive.mjs` and `foreign/python_interactive.py` know what its tools answer.
"""

import sys
from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, ListRoots, MCPServer, Resolve, Sample
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CreateMessageResult, ListRootsResult, SamplingMessage, TextContent
from pydantic import BaseModel

server = MCPServer("python-remote")


class Name(BaseModel):
    name: str


def ask_name() -> Elicit[Name]:
    return Elicit("What is your name?", Name)


def ask_model(question: str) -> Sample:
    said = TextContent(type="text", text=question)
    return Sample([SamplingMessage(role="user", content=said)], max_tokens=10)


def ask_roots() -> ListRoots:
    return ListRoots()


@server.tool()
def echo(message: str) -> str:
    """Gives its message back."""
    return f"Echo: {message}"


@server.tool()
def add(a: int, b: int) -> dict[str, int]:
    """Adds two numbers, as structured content."""
    return {"sum": a + b}


@server.tool()
async def count(steps: int, context: Context) -> str:
    """Reports its progress step by step."""
    for step in range(1, steps + 1):
        await context.report_progress(step, steps, f"step {step}")
    return "counted"


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ToolError("not today")


@server.tool()
def introduce(answer: Annotated[Name, Resolve(ask_name)]) -> str:
    """Asks the user for a name."""
    return f"Hello {answer.name}"


@server.tool()
def consult(question: str, answer: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Asks the client's model."""
    return answer.content.text


@server.tool()
def places(answer: Annotated[ListRootsResult, Resolve(ask_roots)]) -> str:
    """Asks for the client's roots."""
    return " ".join(str(root.uri) for root in answer.roots)


if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run("stdio")
