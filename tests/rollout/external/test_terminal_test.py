"""The bundled environment terminal_test with a small program as its agent."""

import json
from typing import Any

import pytest

from environments.terminal_test_env import TerminalTestEnv
from hermes_rl import APIServerConfig
from hermes_rl.core.trajectory import StopReason
from hermes_rl.rollout.group import run_group
from tests.rollout.external.programs import SMALL
from tests.support.scripted_model import Calls, ScriptedModel, Text


def echoes(request: dict[str, Any]) -> Calls | Text:
    if request["messages"][-1]["role"] == "tool":
        return Text("done")
    word = request["messages"][-1]["content"].split("Echo ")[-1].split()[0]
    return Calls([("bash", json.dumps({"command": f"echo {word} > out.txt"}))])


@pytest.mark.parametrize(
    ("turns", "ends"),
    [
        pytest.param(1, StopReason.MAX_TURNS, id="the calls of the last turn still run"),
        pytest.param(10, StopReason.NATURAL, id="to its own end"),
    ],
)
async def test_a_small_program_does_the_items_of_terminal_test(turns: int, ends: StopReason) -> None:
    config, _ = TerminalTestEnv.config_init()
    over = {**SMALL, "max_agent_turns": turns, "rollout_retries": 0}
    settings = type(config).model_validate(config.model_dump(exclude_unset=True) | over)
    async with ScriptedModel(echoes) as model:
        env = TerminalTestEnv(settings, [APIServerConfig(base_url=model.base_url, model_name="scripted", timeout=20)])
        async with env.opened():
            group = await run_group(env, "apple", size=2)
    assert group.scores == [1.0, 1.0]
    assert {rollout.stop_reason for rollout in group.rollouts} == {ends}
