"""A script stands where the model stands, for the loop alone; the rest of its rollout is a real one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hermes_rl import AgentResult, SandboxError, ToolContext
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import StopReason
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import Step, parse_step, run_script
from tests.support.environments import FileEnv

ITEM = {"number": 7}


def write(text: str) -> tuple[str, dict[str, Any]]:
    return "terminal", {"command": f"echo {text} > answer"}


@asynccontextmanager
async def opened(environment: type[FileEnv] = FileEnv, **config: Any) -> AsyncIterator[FileEnv]:
    endpoint = NO_MODEL.model_copy(update={"health_check": False, "max_retries": 0})
    env = environment(environment.env_config_cls(**config), [endpoint])
    async with env.opened():
        yield env


@pytest.mark.parametrize(
    ("steps", "score", "turns"),
    [
        ([], 0.0, 1),
        (["I did it"], 0.0, 1),
        ([write("7"), "done"], 1.0, 2),
        ([write("7")], 1.0, 2),
        ([[write("6"), ("read_file", {"path": "answer"})], write("7"), "done"], 1.0, 3),
    ],
)
async def test_each_step_is_a_turn(steps: list[Step], score: float, turns: int) -> None:
    async with opened() as env:
        rollout, _ = await run_script(env, ITEM, steps)
    assert (rollout.score, rollout.turns_used, rollout.stop_reason) == (score, turns, StopReason.NATURAL)


async def test_a_script_is_cut_where_a_policy_would_be() -> None:
    async with opened(max_agent_turns=1) as env:
        rollout, _ = await run_script(env, ITEM, [write("6"), write("7")])
    assert (rollout.score, rollout.stop_reason) == (0.0, StopReason.MAX_TURNS)


async def test_a_step_may_depend_on_what_was_heard() -> None:
    def heard(messages: Any) -> str:
        assert messages[-1]["role"] == "tool"
        return f"it said {messages[-1]['content']}"

    async with opened() as env:
        rollout, result = await run_script(env, ITEM, [("terminal", {"command": "echo hello"}), heard])
    assert "hello" in result.final_response
    assert rollout.turns_used == 2


async def test_the_environments_own_methods_do_not_see_the_script() -> None:
    """A reward that asks `self.server` for a judgement must not get the next step as one."""

    class Judged(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            await self.server.chat_completion([{"role": "user", "content": "good?"}])
            return 1.0

    async with opened(Judged) as env:
        rollout, _ = await run_script(env, ITEM, ["first", "second"])
    assert str(rollout.failure) == "endpoint/connection"


async def test_buffers_of_the_environment_are_left_alone() -> None:
    class Counting(FileEnv):
        async def setup(self) -> None:
            await super().setup()
            self.rewards: list[float] = []

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            self.rewards.append(1.0)
            return 1.0

    async with opened(Counting) as env:
        await run_script(env, ITEM, ["done"])
        assert vars(env)["rewards"] == []


async def test_a_rollout_that_is_tried_again_plays_its_script_from_the_start() -> None:
    calls: list[int] = []

    class Flaky(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            calls.append(len(result.tool_calls))
            if len(calls) == 1:
                raise SandboxError("start", "the sandbox did not start")
            return 1.0

    async with opened(Flaky) as env:
        rollout, _ = await run_script(env, ITEM, [write("7"), "done"])
    assert (rollout.score, calls) == (1.0, [1, 1])


async def test_a_simulated_user_is_answered_with_the_next_step() -> None:
    class Conversation(FileEnv):
        async def next_user_message(self, item: Any, messages: list[Message], session: Any = None) -> str | None:
            return "write it then" if messages[-1]["content"] == "what shall I do?" else None

    async with opened(Conversation) as env:
        rollout, _ = await run_script(env, ITEM, ["what shall I do?", write("7"), "done"])
    assert rollout.score == 1.0


@pytest.mark.parametrize("step", [None, 3, ("terminal", "echo"), [("terminal",)], {"terminal": {}}])
def test_what_is_no_step_is_told(step: Any) -> None:
    with pytest.raises(TypeError, match="is not a step: give a text, a tool call"):
        parse_step(step)
