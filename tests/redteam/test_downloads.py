"""What a policy that has replaced the programs of its sandbox can make the host write: nothing out of its place."""

from pathlib import Path
from typing import Any

import pytest

from hermes_rl.rewards import tool_context
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import ExecResult, Sandbox
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools


async def downloaded(place: Path, prepare: str, listing: bytes | None = None) -> list[dict[str, Any]]:
    """What download_dir says of the directory `out`, whose listing may be one that a policy made up."""
    backend = BubblewrapBackend()
    host = ToolHost(all_tools(), SandboxPool(backend), calls_in_flight=1, terminal_timeout=10)
    try:
        sandbox = await host.session("rollout").sandbox()
        await sandbox.exec(prepare, timeout=10)
        if listing is not None:
            _answer_with(sandbox, listing)
        with host.running():

            async def reward() -> list[dict[str, Any]]:
                return ToolContext("rollout").download_dir("out", str(place))

            return await bridged(reward())
    finally:
        await host.close()


def _answer_with(sandbox: Sandbox, listing: bytes) -> None:
    async def answer(*_: object, **__: object) -> ExecResult:
        return ExecResult(0, listing, b"")

    # As a `find` of the policy's would answer.
    sandbox.exec = answer  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/tmp/escaped", ".."])
async def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    said = await downloaded(
        tmp_path / "in", "mkdir -p out/a; echo ours > escaped; cp escaped out/fine", f"{name}\0./fine\0".encode()
    )
    assert {one["success"] for one in said} == {True, False}
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["fine"]


async def test_files_beyond_the_limit_are_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_context, "MAX_DOWNLOAD_BYTES", 1000)
    said = await downloaded(tmp_path, "mkdir out; truncate -s 600 out/a; truncate -s 600 out/b; truncate -s 1T out/c")
    assert [one["success"] for one in said] == [True, False, False]
    assert "larger than 400 bytes" in said[1]["error"]
