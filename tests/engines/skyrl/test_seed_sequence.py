"""The ten tools in the order of the third seed, through real training runs: as Python functions and over MCP.

`pytest -s` prints each call with its time and the size of its answer.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_types import TextContent

from hermes_rl.orchestration import rl_tools
from tests.engines.conftest import Endpoint
from tests.support.rl_mcp import over_stdio
from tests.support.tiny_runs import (
    RUN_SECONDS,
    await_nothing_left,
    home_of_runs,
    tell_first_step,
    tiny_changes,
    trained_tensors,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * RUN_SECONDS)]

STEPS = 3
Call = Callable[..., Awaitable[str]]
"""Calls a tool by its name with its arguments, and returns the text of its answer."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with home_of_runs(tmp_path, monkeypatch) as folder:
        yield folder


@asynccontextmanager
async def by_functions() -> AsyncIterator[Call]:
    async def call(name: str, /, **arguments: Any) -> str:
        return str(await getattr(rl_tools, name)(**arguments))

    yield call


@asynccontextmanager
async def over_mcp() -> AsyncIterator[Call]:
    async with over_stdio() as client:

        async def call(name: str, /, **arguments: Any) -> str:
            [block] = (await client.call_tool(name, arguments)).content
            assert isinstance(block, TextContent)
            return block.text

        yield call


class Drive:
    """An agent at the tools, which prints what it measures."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.called: list[str] = []
        self.sizes: dict[str, int] = {}

    async def __call__(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        began = time.monotonic()
        text = await self._call(name, **arguments)
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        print(f"{name}({given}): {len(text.encode())} bytes, {time.monotonic() - began:.2f} s")
        print(f"    {' '.join(text.split())[:400]}")
        self.called.append(name)
        self.sizes[name] = max(self.sizes.get(name, 0), len(text.encode()))
        answer: dict[str, Any] = json.loads(text)
        assert "error" not in answer, answer
        return answer

    async def until(self, run_id: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Check the run until its status is as wished; an ended run that is not fails."""
        async with asyncio.timeout(RUN_SECONDS):
            while not reached(status := await self("rl_check_status", run_id=run_id)):
                assert not status["ended"], status
                await asyncio.sleep(2)
        return status


@pytest.mark.parametrize("way", [by_functions, over_mcp])
async def test_the_seeds_sequence_trains_a_model(way: Callable[[], Any], home: Path, small_model: Endpoint) -> None:
    model = {"model": small_model.model_name, "base_url": small_model.base_url}
    async with way() as call:
        drive = Drive(call)
        listed = await drive("rl_list_environments")
        assert "plain_text" in [one["name"] for one in listed["environments"]]
        await drive("rl_select_environment", name="plain_text", preset="laptop")
        assert "base_model" in (await drive("rl_get_current_config"))["missing"][0]
        for field, value in (tiny_changes() | {"total_steps": STEPS}).items():
            await drive("rl_edit_config", field=field, value=value)
        tested = await drive("rl_test_inference", num_steps=1, group_size=2, models=[model])
        [one] = tested["models_tested"]
        assert (one["scored"], one["failed_by_cause"]) == (2, {})

        assert (await drive("rl_start_training", dry_run=True))["config"]["total_steps"] == STEPS
        began = time.time()
        run_id = (await drive("rl_start_training"))["run_id"]
        assert (await drive.until(run_id, lambda status: status["ended"]))["status"] == "finished"
        tell_first_step(run_id, began)
        assert [one["run_id"] for one in (await drive("rl_list_runs"))["runs"]] == [run_id]
        results = await drive("rl_get_results", run_id=run_id)
        assert (results["metrics"]["step"], len(results["history"])) == (STEPS, STEPS)
        assert trained_tensors(results["weights_path"])

        # A longer run, stopped on its way.
        await drive("rl_edit_config", field="total_steps", value=1000)
        second = (await drive("rl_start_training"))["run_id"]
        await drive.until(second, lambda status: status["status"] == "running")
        await drive("rl_stop_training", run_id=second)
        assert (await drive.until(second, lambda status: status["ended"]))["status"] == "stopped"
        assert {one["status"] for one in (await drive("rl_list_runs"))["runs"]} == {"finished", "stopped"}
        await drive("rl_get_results", run_id=second)
    assert set(drive.called) == set(rl_tools.RL_TOOLS)
    assert drive.sizes["rl_get_current_config"] < 8_000
    await_nothing_left(home)
