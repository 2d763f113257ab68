"""ToolContext: every call of the contract, without await, in the rollout's own sandbox."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import SandboxError
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.sandbox.backends.registry import open_backend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools


@pytest.fixture
async def host() -> AsyncIterator[ToolHost]:
    pool = SandboxPool(await open_backend("bubblewrap"))
    host = ToolHost(all_tools(), pool, calls_in_flight=8, terminal_timeout=10)
    with host.running():
        yield host
    await host.close()


async def verified(verify: Callable[[ToolContext], Any]) -> Any:
    """What a reward's body returns when it is run as a reward is."""

    async def reward() -> Any:
        return verify(ToolContext("rollout"))

    return await bridged(reward())


async def test_terminal_gives_output_and_exit_code(host: ToolHost) -> None:
    done = await verified(lambda ctx: ctx.terminal("echo out; echo err >&2; exit 4"))
    assert done == {"output": "out\nerr\n", "exit_code": 4, "error": None}


async def test_a_command_past_its_time_says_so(host: ToolHost) -> None:
    done = await verified(lambda ctx: ctx.terminal("echo begun; sleep 30", timeout=1))
    assert (done["exit_code"], done["output"]) == (124, "begun\n")
    assert "timed out after 1 s" in done["error"]


async def test_files_are_written_and_read_as_they_are(host: ToolHost) -> None:
    def verify(ctx: ToolContext) -> Any:
        ctx.write_file("notes/a.txt", "one\ntwo\n")
        return ctx.read_file("notes/a.txt"), ctx.read_file("missing")

    written, missing = await verified(verify)
    assert written == {"content": "one\ntwo\n"}
    assert "no file missing" in missing["error"]


async def test_search_finds_lines(host: ToolHost) -> None:
    def verify(ctx: ToolContext) -> Any:
        ctx.write_file("a.py", "x = 1\nanswer = 42\n")
        return ctx.search(r"answer = \d+")

    assert (await verified(verify))["matches"] == ["/workspace/a.py:2:answer = 42"]


async def test_directories_travel_both_ways_whole(host: ToolHost, tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    files = {"a.bin": os.urandom(300_000), "deep/er/ü b.txt": "häl lo".encode(), "empty": b""}
    for name, data in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)

    def verify(ctx: ToolContext) -> Any:
        return ctx.upload_dir(str(source), "tests"), ctx.download_dir("tests", str(copy))

    sent, fetched = await verified(verify)
    assert all(one["success"] for one in (*sent, *fetched))
    assert {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()} == files


async def test_one_file_travels_both_ways(host: ToolHost, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\x00\xff")

    def verify(ctx: ToolContext) -> Any:
        ctx.upload_file(str(tmp_path / "in"), "~/data")
        return ctx.download_file("data", str(tmp_path / "out")), ctx.download_file("nothing", str(tmp_path / "none"))

    fetched, missing = await verified(verify)
    assert (fetched, missing["success"]) == ({"success": True, "bytes": 2}, False)
    assert (tmp_path / "out").read_bytes() == b"\x00\xff"
    assert not (tmp_path / "none").exists()


async def test_a_link_of_the_policy_is_left_behind_by_a_download(host: ToolHost, tmp_path: Path) -> None:
    def verify(ctx: ToolContext) -> Any:
        ctx.terminal("mkdir d; echo real > d/real; ln -s /etc/passwd d/link")
        return ctx.download_dir("d", str(tmp_path / "d"))

    await verified(verify)
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["real"]


async def test_any_tool_can_be_called_by_name(host: ToolHost) -> None:
    answer = await verified(lambda ctx: ctx.call_tool("write_file", {"path": "x", "content": "y"}))
    assert answer == '{"path":"x","bytes_written":1}'


async def test_the_policys_processes_are_dead_before_the_first_call(host: ToolHost) -> None:
    await host.session("rollout").call("terminal", {"command": "sleep 300", "background": True})
    done = await verified(lambda ctx: ctx.terminal("pgrep -c sleep"))
    assert done["output"].strip() == "0"


async def test_after_cleanup_the_sandbox_is_gone(host: ToolHost) -> None:
    def verify(ctx: ToolContext) -> None:
        ctx.terminal("true")
        ctx.cleanup()
        assert host.pool.live == 0
        ctx.terminal("true")

    with pytest.raises(SandboxError, match="already closed"):
        await verified(verify)
