"""The official client over standard input and output."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from hermes_rl.orchestration.run_paths import drafts_home
from tests.support.rl_mcp import COMMAND, over_stdio, said

pytestmark = pytest.mark.timeout(180)
# Both ways to begin a conversation that clients know.
MODES = ("legacy", "auto")


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_has_one_draft_through_all_its_calls(mode: str) -> None:
    async with over_stdio(mode) as client:
        assert "error" not in await said(client, "rl_select_environment", name="plain_text")
        assert (await said(client, "rl_edit_config", field="group_size", value=4))["value"] == 4
    assert not list(drafts_home().glob("mcp-*"))


async def test_progress_is_told_while_a_run_is_checked_and_started() -> None:
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with over_stdio() as client:
        await said(client, "rl_select_environment", name="plain_text")
        await client.call_tool("rl_start_training", {"dry_run": True}, progress_callback=hear)
    assert heard == ["checking the configuration"]


async def test_standard_output_holds_nothing_but_the_protocol(home: Path) -> None:
    noisy = (
        (home / "rl" / "environments" / "plain_text_env.py")
        .read_text()
        .replace("class Plain", "print('noise')\n\n\nclass Plain")
    )
    (home / "rl" / "environments" / "plain_text_env.py").write_text(noisy)
    process = await asyncio.create_subprocess_exec(
        *COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    asked = [
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": "rl_select_environment", "arguments": {"name": "plain_text"}},
        },
    ]
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"".join(json.dumps(one).encode() + b"\n" for one in asked))
    await process.stdin.drain()
    lines = [json.loads(await asyncio.wait_for(process.stdout.readline(), 90)) for _ in range(2)]
    process.stdin.close()
    rest = await asyncio.wait_for(process.stdout.read(), 60)
    assert await asyncio.wait_for(process.wait(), 60) == 0
    assert [one["id"] for one in lines] == [1, 2]
    assert lines[1]["result"]["structuredContent"]["environment"] == "plain_text"
    assert not rest


async def test_a_file_may_be_anywhere_unless_paths_are_given(
    home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("mine") / "mine_env.py"
    outside.write_text((home / "rl" / "environments" / "plain_text_env.py").read_text())
    async with over_stdio() as client:
        assert "error" not in await said(client, "rl_select_environment", name=str(outside))
    async with over_stdio("auto", "--allow-path", str(home)) as client:
        assert "--allow-path" in (await said(client, "rl_select_environment", name=str(outside)))["error"]
