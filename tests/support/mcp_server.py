"""A real MCP server, built with the official SDK, that behaves and misbehaves as its tools are told.

A program of its own: `python -m tests.support.mcp_server stdio` or `… http`, which prints its address.
"""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from mcp import MCPError
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, EmbeddedResource, ResourceLink, TextResourceContents
from pydantic import Field

ROOT = Path(__file__).parents[2]
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(91)
server: MCPServer[Any] = MCPServer("test", log_level="ERROR")
calls = 0


@server.tool()
def add(first: Annotated[int, Field(description="One number.")], second: int = 0) -> int:
    """Add two numbers."""
    return first + second


@server.tool(structured_output=False)
def count() -> str:
    """How often this was called since the server started."""
    global calls  # noqa: PLW0603 - a server that keeps state
    calls += 1
    return str(calls)


@server.tool(structured_output=False)
def session(session: str) -> str:
    """A parameter of a name that we use ourselves."""
    return f"session {session}"


@server.tool(name="odd.name/with spaces", structured_output=False)
def odd() -> str:
    """A name that OpenAI's form does not allow."""
    return "odd"


@server.tool()
def only_structured() -> CallToolResult:
    """An answer without text."""
    return CallToolResult(content=[], structured_content={"answer": 42})


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """An image, a link, a text and words."""
    link = ResourceLink(type="resource_link", name="page", uri="http://127.0.0.1/page")
    text = EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///note", text="a note"))
    return ["see", Image(data=PICTURE, format="png"), link, text]


@server.tool(structured_output=False)
def fail(why: str) -> str:
    """Report an error."""
    raise ToolError(why)


@server.tool(structured_output=False)
def protocol_error(code: int) -> str:
    """Answer with an error of the protocol."""
    raise MCPError(code, f"error {code}")


@server.tool(structured_output=False)
def die() -> str:
    """End the process in the middle of the call."""
    os.write(2, b"boom: out of luck\n")
    os._exit(3)


@server.tool(structured_output=False)
async def wait(seconds: float) -> str:
    """Answer late."""
    await asyncio.sleep(seconds)
    return f"waited {seconds:g}"


@server.tool(structured_output=False)
async def wait_for(begun: str, end: str) -> str:
    """Make the one file, and answer when there is the other."""
    Path(begun).touch()
    while not Path(end).exists():
        await asyncio.sleep(0.02)
    return "there it is"


@server.tool(structured_output=False)
async def freeze() -> str:
    """Hold up the whole server, and do not leave when asked."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    return "late"


@server.tool(structured_output=False)
def environment() -> str:
    """The server's variables."""
    return "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()))


@server.tool(structured_output=False)
def process_id() -> str:
    """The number of the server's process."""
    return str(os.getpid())


@server.tool(structured_output=False)
def long_text(length: int) -> str:
    """Much of it."""
    return "x" * length


def command(*arguments: str) -> list[str]:
    """How to start this as a stdio server; the arguments only make it one to be told from others."""
    return [sys.executable, "-m", "tests.support.mcp_server", "stdio", *arguments]


def http_command(port: int = 0) -> list[str]:
    return [sys.executable, "-m", "tests.support.mcp_server", "http", str(port)]


@asynccontextmanager
async def http_server(port: int = 0, **variables: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """This over streamable HTTP, in a process of its own: its address and the process."""
    process = await asyncio.create_subprocess_exec(
        *http_command(port),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | variables,
    )
    try:
        assert process.stdout is not None
        yield (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip(), process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def serve_http(port: int, token: str | None) -> None:
    app = server.streamable_http_app()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"").decode()
        if scope["type"] == "http" and token is not None and given != token:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
            return
        await app(scope, receive, send)

    listening = socket.create_server(("127.0.0.1", port))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    await uvicorn.Server(uvicorn.Config(guarded, log_level="error", ws="none")).serve(sockets=[listening])


if __name__ == "__main__":
    if sys.argv[1] == "http":
        asyncio.run(serve_http(int(sys.argv[2]), os.environ.get("WANTED_TOKEN")))
    else:
        server.run("stdio")
