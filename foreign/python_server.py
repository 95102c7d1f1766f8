"""A small server on the Python SDK over streamable HTTP, for the gateway to reach by its address.

Takes the port as its only argument. `foreign/remote.mjs` knows what its tools answer.
"""

import sys

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("python-remote")


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


server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
