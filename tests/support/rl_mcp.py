"""`hermes-rl mcp` as a client meets it: the command as a program, and the official client over stdio and HTTP."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

COMMAND = [sys.executable, "-m", "hermes_rl", "mcp"]
READY_S = 60.0


class Address(NamedTuple):
    url: str
    token: str | None = None
    """The token that the server made; None when it was given one."""


def over_stdio(mode: str = "auto", *options: str) -> Client:
    """The client has the command as its program; variables are passed on, as a client's configuration would."""
    program = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *options], env=dict(os.environ))
    return Client(program, mode=mode)


@asynccontextmanager
async def http_server(*options: str) -> AsyncIterator[Address]:
    """The command over HTTP, on a free port."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--http", "--port", "0", "--json", *options, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        yield Address(**json.loads(line))
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), READY_S)


@asynccontextmanager
async def over_http(address: Address, mode: str = "auto") -> AsyncIterator[Client]:
    headers = {} if address.token is None else {"Authorization": f"Bearer {address.token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=None)) as http,
        Client(streamable_http_client(address.url, http_client=http), mode=mode) as client,
    ):
        yield client


async def said(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """What a tool answers, by its text, as a model reads it."""
    return text_of(await client.call_tool(tool, arguments))


def text_of(result: CallToolResult) -> dict[str, Any]:
    [block] = result.content
    assert isinstance(block, TextContent)
    answer: dict[str, Any] = json.loads(block.text)
    assert result.structured_content == answer
    return answer
