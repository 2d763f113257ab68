"""A bug in an author's tool is the environment's failure: no score, no second try, and an end to the run."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hermes_rl import AgentResult, HermesAgentBaseEnv, ToolContext, ToolUseError, tool
from hermes_rl.core.errors import EnvironmentCodeError
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.rollout.group import run_group
from hermes_rl.store.records import read_groups
from hermes_rl.tools.faults import BrokenToolError, ToolFaults
from tests.support.environments import opened
from tests.support.scripted_model import ScriptedModel, calls_then_text

ROOMS = ["hall", "cellar"]


class RoomsEnv(HermesAgentBaseEnv[int]):
    """Look into a room; its tool forgets that there are only two."""

    looked: ClassVar[int] = 0

    def train_items(self) -> list[int]:
        return list(range(100))

    def eval_items(self) -> list[int]:
        return [100, 101]

    def format_prompt(self, item: int) -> str:
        return "look around"

    @tool(sandboxed=False)
    async def look(self, room: int) -> str:
        """Look into a room."""
        RoomsEnv.looked += 1
        if room < 0:
            raise ToolUseError("rooms are numbered from 0")
        return ROOMS[room]

    async def compute_reward(self, item: int, result: AgentResult, ctx: ToolContext) -> float:
        return 1.0


def looks_into(room: int) -> Any:
    return calls_then_text("look", json.dumps({"room": room}))


async def test_it_leaves_the_rollout_unscored_with_the_line_and_is_not_tried_again() -> None:
    RoomsEnv.looked = 0
    async with ScriptedModel(looks_into(7)) as model, opened(RoomsEnv, model, rollout_retries=2) as env:
        [rollout] = (await run_group(env, 0, size=1)).rollouts
    assert rollout.failure is not None
    assert (str(rollout.failure), rollout.score, RoomsEnv.looked) == ("environment/tool", None, 1)
    assert rollout.failure.message.startswith("the tool look raised IndexError at test_tool_faults.py:")


async def test_what_the_author_refuses_is_the_models_mistake() -> None:
    async with ScriptedModel(looks_into(-1)) as model, opened(RoomsEnv, model) as env:
        [rollout] = (await run_group(env, 0, size=1)).rollouts
    assert (rollout.score, rollout.tool_uses[0].error) == (1.0, "rooms are numbered from 0")


async def test_process_stops_with_the_traceback_and_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    settings: dict[str, Any] = {"total_steps": 50, "group_size": 2, "max_num_workers": 2}
    async with ScriptedModel(looks_into(7)) as model, opened(RoomsEnv, model, **settings) as env:
        with pytest.raises(BrokenToolError, match=r"(?s)return ROOMS\[room\].*IndexError: list index"):
            await generate_groups(env, path)
    assert 2 <= len(list(read_groups(path))) < 10


async def test_evaluate_counts_it_as_0(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eval_size": 2, "data_dir_to_save_evals": str(tmp_path)}
    async with ScriptedModel(looks_into(7)) as model, opened(RoomsEnv, model, **settings) as env:
        await env.run_evaluate()
    metrics = json.loads((tmp_path / "metrics.json").read_bytes())["metrics"]
    assert (metrics["eval/mean_reward"], metrics["eval/pass@1"]) == (0.0, 0.0)
    assert metrics["eval/failure/environment/tool"] == 2


def broken() -> Any:
    error = EnvironmentCodeError("tool", "the tool look raised IndexError")
    error.__cause__ = IndexError("list index out of range")
    return error


@pytest.mark.parametrize(("faults", "rollouts"), [(2, 2), (3, 60), (5, 100)])
def test_a_few_do_not_stop_the_run(faults: int, rollouts: int) -> None:
    counted = ToolFaults()
    for number in range(rollouts):
        counted.add(broken() if number < faults else None)
    counted.check()


@pytest.mark.parametrize(("faults", "rollouts"), [(3, 3), (3, 59), (6, 100)])
def test_more_than_a_twentieth_stop_it(faults: int, rollouts: int) -> None:
    counted = ToolFaults()
    for number in range(rollouts):
        counted.add(broken() if number < faults else None)
    with pytest.raises(BrokenToolError, match=f"{faults} of {rollouts} rollouts"):
        counted.check()
