"""The server as a client meets it, over no transport: tools, hints, errors and resources."""

import base64
import json

import pytest
from mcp import Client, MCPError
from mcp_types import BlobResourceContents, TextResourceContents

from hermes_rl.orchestration.mcp_server.server import rl_server
from hermes_rl.orchestration.rl_tools.dispatch import MCP_TOOLS
from hermes_rl.orchestration.run_state import Phase
from tests.support.recorded_runs import make_run, write_log, write_steps
from tests.support.rl_mcp import said

# Both ways to begin a conversation that clients know.
MODES = ("legacy", "auto")


def connected(mode: str = "auto") -> Client:
    return Client(rl_server(lambda _: "mcp-test"), mode=mode)


@pytest.mark.parametrize("mode", MODES)
async def test_the_tools_come_with_schemas_and_hints(mode: str) -> None:
    async with connected(mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == list(MCP_TOOLS)
    for name, known in MCP_TOOLS.items():
        hints = tools[name].annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.destructive_hint) == (known.read_only, known.destructive)
        assert (hints.idempotent_hint, hints.open_world_hint) == (known.idempotent, known.open_world)
        assert tools[name].input_schema == dict(known.tool.parameters)


async def test_an_error_of_a_tool_is_marked_as_one() -> None:
    async with connected() as client:
        result = await client.call_tool("rl_check_status", {"run": "x"})
        assert result.is_error
        assert "run_id" in (await said(client, "rl_check_status", run="x"))["error"]


async def test_a_failed_run_is_no_error_of_the_tool_that_tells_of_it() -> None:
    make_run("r1", phase=Phase.FAILED, reason="no disk")
    async with connected() as client:
        result = await client.call_tool("rl_check_status", {"run_id": "r1"})
    assert not result.is_error


async def test_a_tool_that_is_not_there_is_answered_with_those_that_are() -> None:
    async with connected() as client:
        assert "rl_start_training" in (await said(client, "rl_train"))["tools"]


async def test_a_run_is_read_by_its_resources() -> None:
    places = make_run("r1", phase=Phase.RUNNING)
    write_steps(places, 5)
    write_log(places, "trainer", "first\nlast\n")
    async with connected() as client:
        listed = {str(one.uri) for one in (await client.list_resources()).resources}
        templates = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
        [runs] = (await client.read_resource("hermes-rl://runs")).contents
        [log] = (await client.read_resource("hermes-rl://runs/r1/log/trainer")).contents
        [config] = (await client.read_resource("hermes-rl://runs/r1/config")).contents
        [curve] = (await client.read_resource("hermes-rl://runs/r1/curve")).contents
    assert {"hermes-rl://runs", "hermes-rl://runs/r1/log/trainer", "hermes-rl://runs/r1/curve"} <= listed
    assert "hermes-rl://runs/{run_id}/log/{part}" in templates
    assert isinstance(runs, TextResourceContents) and json.loads(runs.text)["runs"][0]["run_id"] == "r1"
    assert isinstance(log, TextResourceContents) and log.text.splitlines() == ["first", "last"]
    assert isinstance(config, TextResourceContents) and "run_id: r1" in config.text
    assert isinstance(curve, BlobResourceContents) and base64.b64decode(curve.blob).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "uri",
    ["hermes-rl://runs/nothing/config", "hermes-rl://runs/r1/log", "hermes-rl://runs/..%2f/config", "hermes-rl://x"],
)
async def test_an_unknown_resource_is_an_error_that_says_where_to_look(uri: str) -> None:
    make_run("r1")
    async with connected() as client:
        with pytest.raises(MCPError, match=r"hermes-rl://runs|not a run id"):
            await client.read_resource(uri)
