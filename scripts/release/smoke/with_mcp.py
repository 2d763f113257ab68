"""The extra `mcp`: the official client has the tools of `hermes-rl mcp` over standard input and output."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters


def main(_given: dict[str, Any]) -> str:
    return asyncio.run(asked())


async def asked() -> str:
    command = str(Path(sys.executable).with_name("hermes-rl"))
    async with Client(StdioServerParameters(command=command, args=["mcp"], env=dict(os.environ))) as client:
        tools = sorted(tool.name for tool in (await client.list_tools()).tools)
        assert len(tools) == 11 and all(name.startswith("rl_") for name in tools), tools
        answer = str((await client.call_tool("rl_list_environments", {})).content)
        assert "terminal_test" in answer, answer
    return "eleven tools listed and one called over stdio"


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
