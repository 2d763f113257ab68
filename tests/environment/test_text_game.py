"""An object with Gymnasium's `reset` and `step` is an environment: text in, observations out, rewards summed."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from hermes_rl import StopReason, TextGameEnv, ToolUseError
from hermes_rl.core.trajectory import Rollout
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import Step, run_script
from hermes_rl.environment.text_game import act
from hermes_rl.rollout.group import run_group
from hermes_rl.rollout.rollout import prompt_of
from hermes_rl.tools.session import ToolSession
from tests.support.environments import opened as opened_on
from tests.support.scripted_model import ScriptedModel, Status


class Steps:
    """Count to three by saying `up`; each step up is worth a quarter, the third one half. It ends after six moves."""

    def __init__(self) -> None:
        self.closed = False

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.at, self.moves, self.start = 0, 0, Random(seed).randint(0, 1000)
        return f"You start at {self.start}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.moves += 1
        up = action == "up"
        self.at += up
        done = self.at == 3
        return f"at {self.start + self.at}", 0.5 if done else 0.25 * up, done, self.moves == 6, {"at": self.at}

    def close(self) -> None:
        self.closed = True


class Stairs(TextGameEnv):
    game = Steps
    instructions = "Say up."


@asynccontextmanager
async def opened(environment: type[TextGameEnv[Any]] = Stairs, **config: Any) -> AsyncIterator[TextGameEnv[Any]]:
    endpoint = NO_MODEL.model_copy(update={"health_check": False})
    settings: Any = environment.env_config_cls(rollout_retries=0, **config)
    env = environment(settings, [endpoint])
    async with env.opened():
        yield env


async def played(
    *steps: Step, environment: type[TextGameEnv[Any]] = Stairs, item: Any = 5, **config: Any
) -> tuple[Rollout, Any]:
    async with opened(environment, **config) as env:
        rollout, result = await run_script(env, item, steps)
    return rollout, result.state


def said(rollout: Rollout) -> list[str]:
    return [message["content"] for message in rollout.messages if message["role"] == "user"]


async def test_each_answer_is_an_action_and_each_observation_a_user_message() -> None:
    rollout, _ = await played("up", "down", " up\n", "up")
    start = Random(5).randint(0, 1000)
    assert said(rollout) == [
        f"Say up.\n\nYou start at {start}.",
        *(f"at {start + height}" for height in (1, 1, 2, 3)),
    ]
    assert rollout.tool_uses == ()


async def test_the_score_is_the_sum_of_the_rewards_of_the_steps() -> None:
    rollout, state = await played("up", "down", "up", "up")
    assert (rollout.score, state.score, state.steps) == (1.0, 1.0, 4)


@pytest.mark.parametrize(
    ("steps", "reason", "score"),
    [(["up", "up", "up", "never said"], "terminated", 1.0), (["down"] * 9, "truncated", 0.0)],
)
async def test_the_end_of_the_game_ends_the_rollout(steps: list[Step], reason: str, score: float) -> None:
    rollout, state = await played(*steps)
    assert (rollout.stop_reason, rollout.metadata["end_reason"], rollout.score) == (StopReason.ENDED, reason, score)
    assert (state.terminated, state.truncated) == (reason == "terminated", reason == "truncated")


async def test_a_game_that_is_cut_off_is_scored_by_what_it_gave() -> None:
    rollout, _ = await played("up", "up", max_agent_turns=2)
    assert (rollout.stop_reason, rollout.score) == (StopReason.MAX_TURNS, 0.5)


async def test_it_needs_neither_a_tool_nor_a_sandbox() -> None:
    async with opened(terminal_backend="ssh") as env:  # which would need a host
        assert env.group_tools() == ([], set())
        assert (await run_script(env, 1, ["up"])).rollout.failure is None


async def test_rollouts_of_an_item_play_the_same_game_and_another_item_another() -> None:
    first, _ = await played("up")
    again, _ = await played("up")
    other, _ = await played("up", item=6)
    assert said(first) == said(again) != said(other)


async def test_the_items_are_seeds_and_the_held_out_ones_come_after() -> None:
    async with opened(train_seeds=3, eval_seeds=2) as env:
        assert (env.train_items(), env.eval_items()) == ([0, 1, 2], [3, 4])


async def test_a_game_may_depend_on_its_item() -> None:
    class From(TextGameEnv[dict[str, int]]):
        def new_game(self, item: dict[str, int]) -> Steps:
            game = Steps()
            game.reset = lambda *, seed=None: (f"from {item['height']}, seed {seed}", {})  # type: ignore[method-assign]
            return game

    async with opened(From) as env:
        prompts = [(await prompt_of(env, {"height": height}))[0]["content"] for height in (7, 7, 8)]
    assert prompts[0] == prompts[1] != prompts[2]
    assert prompts[0].startswith("from 7, seed ")


async def test_an_answer_without_an_action_is_told_and_costs_nothing() -> None:
    class Strict(Stairs):
        def action(self, text: str) -> str:
            if text not in ("up", "down"):
                raise ToolUseError("say up or down")
            return text

    rollout, state = await played("hm?", "up", environment=Strict, max_agent_turns=2)
    assert said(rollout)[1] == "say up or down"
    assert (state.steps, rollout.score) == (1, 0.25)


async def test_actions_and_observations_need_not_be_text() -> None:
    class Corridor:
        """As Gymnasium's table games: actions and observations are numbers, of numpy or Python."""

        def reset(self, seed: int | None = None, options: None = None) -> tuple[int, dict[str, Any]]:
            self.at = 0
            return self.at, {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            self.at += action
            return self.at, float(self.at == 2), self.at == 2, False, {}

    class Walk(TextGameEnv):
        game = Corridor

        def action(self, text: str) -> int:
            return {"left": -1, "right": 1}[text]

        def show(self, observation: int) -> str:
            return "." * observation + "x"

    rollout, _ = await played("right", "right", environment=Walk)
    assert (said(rollout), rollout.score) == (["x", ".x", "..x"], 1.0)


async def test_a_model_with_tools_plays_by_one() -> None:
    class ByTool(Stairs):
        own_tools = (act,)

    rollout, _ = await played(("act", {"text": "up"}), [("act", {"text": "up"})] * 3, environment=ByTool)
    results = [use.result for use in rollout.tool_uses]
    start = Random(5).randint(0, 1000)
    assert results[:3] == [f"at {start + height}" for height in (1, 2, 3)]
    assert "over" in results[3]
    assert (rollout.score, rollout.stop_reason) == (1.0, StopReason.ENDED)


async def test_text_of_a_model_that_plays_by_a_tool_is_its_final_answer() -> None:
    class ByTool(Stairs):
        own_tools = (act,)

    rollout, state = await played("up", environment=ByTool)
    assert (rollout.stop_reason, state.steps, rollout.score) == (StopReason.NATURAL, 0, 0.0)


async def test_methods_may_be_coroutines() -> None:
    class Slow:
        async def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
            return "begin", {}

        async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return "end", 1.0, True, False, {}

        async def close(self) -> None:
            closed.append(self)

    class Waiting(TextGameEnv):
        game = Slow

    closed: list[Slow] = []
    rollout, _ = await played("go", environment=Waiting)
    assert (said(rollout), rollout.score, len(closed)) == (["begin", "end"], 1.0, 1)


def returning(value: Any, method: str) -> type[TextGameEnv[Any]]:
    class Broken(Steps):
        pass

    setattr(Broken, method, lambda self, *_, **__: value)
    return type("BrokenEnv", (TextGameEnv,), {"game": Broken})


@pytest.mark.parametrize(
    ("method", "value", "told"),
    [
        ("reset", "hello", r"Broken.reset returned 'hello'; return \(observation, info\)"),
        ("step", ("seen", 1.0, True, {}), r"return \(observation, reward, terminated, truncated, info\)"),
    ],
)
async def test_what_is_not_gymnasiums_form_is_the_environments_failure(method: str, value: Any, told: str) -> None:
    rollout, _ = await played("up", environment=returning(value, method))
    assert rollout.failure is not None
    assert str(rollout.failure) == "environment/game"
    assert re.search(told, rollout.failure.message)


@pytest.mark.parametrize("method", ["reset", "step"])
async def test_a_game_that_raises_is_the_environments_failure_with_its_line(method: str) -> None:
    class Faulty(Steps):
        pass

    def fail(self: Steps, *_: Any, **__: Any) -> Any:
        raise KeyError("lost")

    setattr(Faulty, method, fail)
    environment = type("FaultyEnv", (TextGameEnv,), {"game": Faulty})
    rollout, _ = await played("up", environment=environment)
    assert rollout.failure is not None and rollout.failure.whose == "environment"
    assert "KeyError at test_text_game.py:" in rollout.failure.message
    assert rollout.score is None


async def test_a_game_is_closed_when_the_first_answer_never_comes() -> None:
    class Watched(Stairs):
        async def initial_state(self, item: Any, session: ToolSession | None = None) -> Any:
            states.append(await super().initial_state(item, session))
            return states[-1]

    states: list[Any] = []
    async with ScriptedModel(lambda _: Status(500)) as model, opened_on(Watched, model, rollout_retries=0) as env:
        group = await run_group(env, 5, size=1)
    assert group.rollouts[0].score is None
    assert [state.game.closed for state in states] == [True]


@pytest.mark.parametrize("steps", [["up", "up", "up"], ["up"], []])
async def test_a_game_is_closed_with_its_rollout(steps: list[Step]) -> None:
    _, state = await played(*steps, max_agent_turns=3)
    assert state.game.closed


async def test_without_a_game_the_next_step_is_told() -> None:
    rollout, _ = await played("up", environment=TextGameEnv)
    assert rollout.failure is not None
    assert "set `game` to a class, or define new_game" in rollout.failure.message


async def test_the_record_has_the_game_turn_by_turn() -> None:
    rollout, _ = await played("up", "down", "up", max_agent_turns=3)
    assert [(state.turn, state.value["steps"], state.value["score"]) for state in rollout.states] == [
        (0, 0, 0.0),
        (1, 1, 0.25),
        (2, 2, 0.25),
        (3, 3, 0.5),
    ]
    assert rollout.states[-1].value["info"] == {"at": 2}
    assert not any(name.startswith("_") for name in rollout.states[0].value)
