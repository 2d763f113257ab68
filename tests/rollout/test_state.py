"""A rollout's state: made once, shared by its tools and its reward, recorded turn by turn, and no sandbox for it."""

import asyncio
import json
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import pytest

from hermes_rl import AgentResult, HermesAgentBaseEnv, Message, Reward, StopReason, ToolContext, ToolSession, tool
from hermes_rl.core.trajectory import Group, Rollout, StepReward, TurnState
from hermes_rl.evaluation.rescore import RescoreStats, rescore_groups
from hermes_rl.rollout.group import run_group
from hermes_rl.rollout.replay import recorded_result
from hermes_rl.rollout.rollout import prompt_of
from tests.support.environments import opened
from tests.support.scripted_model import Calls, Reply, ScriptedModel, Text, always

# Without settings it cannot be opened: whatever asks for a sandbox fails.
NO_BACKEND = "ssh"
ITEM = {"word": "crane", "tries": 3}


@dataclass
class Board:
    word: str
    guesses: list[str] = field(default_factory=list)


class GuessEnv(HermesAgentBaseEnv[dict[str, Any]]):
    """Guess a word. Its state is a board; guesses are a method of the environment."""

    points: ClassVar[float] = 0.25

    def initial_state(self, item: dict[str, Any]) -> Any:
        return Board(item["word"])

    def format_prompt(self, item: dict[str, Any]) -> str:
        return f"guess a word of {len(item['word'])} letters"

    @tool(sandboxed=False)
    async def guess(self, session: ToolSession[Board], word: str) -> str:
        """Guess."""
        board = session.state
        board.guesses.append(word)
        if word[0] == board.word[0]:
            session.reward(self.points, "first letter")
        if word == board.word or len(board.guesses) == session.item["tries"]:
            session.end("solved" if word == board.word else "no tries left")
        return f"{len(board.guesses)} of {session.item['tries']}, turn {session.turn}"

    async def compute_reward(self, item: dict[str, Any], result: AgentResult, ctx: ToolContext) -> float | Reward:
        assert ctx.state is result.state
        return 1.0 if item["word"] in ctx.state.guesses else result.step_reward


def guesses(*words: str) -> Any:
    """A model that guesses a word a turn, and then says that it is done."""

    def script(request: dict[str, Any]) -> Reply:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        return Calls([("guess", json.dumps({"word": words[turn]}))]) if turn < len(words) else Text("done")

    return script


async def played(script: Any, environment: type[HermesAgentBaseEnv] = GuessEnv, **config: Any) -> Rollout:
    settings = {"terminal_backend": NO_BACKEND, **config}
    async with ScriptedModel(script) as model, opened(environment, model, **settings) as env:
        return (await run_group(env, ITEM, size=1)).rollouts[0]


async def test_tools_and_reward_share_one_state_and_no_sandbox_is_needed() -> None:
    rollout = await played(guesses("slate", "crane"))
    assert (rollout.failure, rollout.score) == (None, 1.0)
    assert rollout.tool_uses[0].result == "1 of 3, turn 1"


async def test_a_tool_ends_the_rollout_after_the_results_of_its_turn() -> None:
    rollout = await played(guesses("slate", "crane", "never"))
    assert (rollout.stop_reason, rollout.turns_used) == (StopReason.ENDED, 2)
    assert rollout.metadata["end_reason"] == "solved"
    assert rollout.messages[-1]["content"] == "2 of 3, turn 2"


async def test_calls_of_a_turn_run_in_order_and_not_beyond_the_end() -> None:
    calls = [("guess", json.dumps({"word": word})) for word in ("slate", "crane", "cramp")]
    rollout = await played(always(Calls(calls)))
    assert [use.error for use in rollout.tool_uses] == [None, None, "not run: the task is over"]
    assert rollout.states[-1].value["guesses"] == ["slate", "crane"]


async def test_a_tool_may_call_another_of_the_environment() -> None:
    class Twice(GuessEnv):
        @tool(sandboxed=False)
        async def guess_twice(self, session: ToolSession[Board], word: str) -> str:
            """Guess two times."""
            said = [(await session.call("guess", {"word": word})).text, await self.guess.function(session, word)]
            return "; ".join(said)

    rollout = await played(always(Calls([("guess_twice", '{"word": "slate"}')])), Twice, max_agent_turns=1)
    assert rollout.tool_uses[0].result == "1 of 3, turn 1; 2 of 3, turn 1"


async def test_the_state_is_recorded_where_it_changed() -> None:
    rollout = await played(guesses("slate", "crane"))
    boards = [(state.turn, state.value["guesses"]) for state in rollout.states]
    assert boards == [(0, []), (1, ["slate"]), (2, ["slate", "crane"])]
    unchanged = await played(always(Text("I give up")))
    assert list(unchanged.states) == [TurnState(0, asdict(Board("crane")))]


async def test_step_rewards_are_summed_for_the_rollout_and_for_each_turn() -> None:
    class PerTurn(GuessEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Reward:
            return Reward(result.step_reward, turns=result.step_rewards)

    rollout = await played(guesses("slate", "chair"), PerTurn)
    assert (rollout.score, rollout.turn_scores) == (0.25, (0.0, 0.25, 0.0))
    assert rollout.metadata["step_rewards"] == [StepReward(2, 0.25, "first letter")._asdict()]


async def test_rollouts_of_a_group_have_states_of_their_own() -> None:
    async with ScriptedModel(guesses("slate")) as model, opened(GuessEnv, model, terminal_backend=NO_BACKEND) as env:
        group = await run_group(env, ITEM, size=8)
    assert [rollout.states[-1].value["guesses"] for rollout in group.rollouts] == [["slate"]] * 8


async def test_the_generator_of_a_rollout_repeats_with_its_seed() -> None:
    class Dice(GuessEnv):
        def initial_state(self, item: Any) -> Any:
            return []

        @tool(sandboxed=False)
        async def roll(self, session: ToolSession) -> int:
            """Roll a die."""
            session.state.append(session.rng.randrange(10**9))
            return len(session.state)

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return 0.0

    def rolls(request: dict[str, Any]) -> Reply:
        return Calls([("roll", "{}")]) if len(request["messages"]) < 4 else Text("done")

    async def rolled() -> list[Any]:
        async with ScriptedModel(rolls) as model, opened(Dice, model, terminal_backend=NO_BACKEND) as env:
            return [rollout.states[-1].value for rollout in (await run_group(env, ITEM, size=2)).rollouts]

    first, again = await rolled(), await rolled()
    assert first == again
    assert first[0] != first[1]


async def test_prompt_and_user_get_the_session_if_they_ask_for_it() -> None:
    class Talking(GuessEnv):
        def format_prompt(self, item: Any, session: ToolSession | None = None) -> str:
            assert session is not None
            return f"the first letter is {session.state.word[0]}"

        def initial_messages(self, item: Any) -> list[Message]:
            return [{"role": "system", "content": "a game"}, *super().initial_messages(item)]

        async def next_user_message(
            self, item: Any, messages: list[Message], session: ToolSession | None = None
        ) -> str | None:
            assert session is not None
            session.reward(0.5, "polite")
            session.end("goodbye")
            return "thank you"

    async with (
        ScriptedModel(always(Text("hello"))) as model,
        opened(Talking, model, terminal_backend=NO_BACKEND) as env,
    ):
        rollout = (await run_group(env, ITEM, size=1)).rollouts[0]
        prompt = await prompt_of(env, ITEM)
    assert prompt == rollout.messages[:2]
    assert prompt[1]["content"] == "the first letter is c"
    assert rollout.messages[-1]["content"] == "thank you"
    assert (rollout.stop_reason, rollout.score) == (StopReason.ENDED, 0.5)


async def test_a_state_may_come_from_a_coroutine() -> None:
    class Slow(GuessEnv):
        async def initial_state(self, item: Any) -> Any:
            await asyncio.sleep(0)
            return Board(item["word"])

    assert (await played(guesses("crane"), Slow)).score == 1.0


async def test_a_state_that_cannot_be_made_is_the_environments_failure() -> None:
    class Broken(GuessEnv):
        def initial_state(self, item: Any) -> Any:
            raise KeyError("board")

    rollout = await played(guesses("crane"), Broken)
    assert str(rollout.failure) == "environment/state"
    assert rollout.failure is not None
    assert "initial_state raised KeyError at test_state.py:" in rollout.failure.message


async def test_a_state_without_a_json_form_is_left_out_with_one_note() -> None:
    class Plain:
        guesses: ClassVar[list[str]] = []

    class Opaque(GuessEnv):
        def initial_state(self, item: Any) -> Any:
            return Plain()

    warned: list[str] = []
    settings: dict[str, Any] = {"terminal_backend": NO_BACKEND}
    async with ScriptedModel(always(Text("pass"))) as model, opened(Opaque, model, **settings) as env:
        env.tools.report = warned.append
        group = await run_group(env, ITEM, size=3)
    problem = "Plain has no JSON form: make it a dataclass or a pydantic model"
    assert [(rollout.score, rollout.states) for rollout in group.rollouts] == [(0.0, ())] * 3
    assert [rollout.notes for rollout in group.rollouts] == [{"state": f"not recorded: {problem}"}] * 3
    assert warned == [f"the state is not in the records: {problem}"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_reward_is_finite(value: float) -> None:
    session = ToolSession("one", {}, None, asyncio.Semaphore(1), 1.0, turn=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be finite"):
        session.reward(value)


async def test_notes_of_the_reward_are_kept() -> None:
    class Noted(GuessEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Reward:
            return Reward(0.5, notes={"judge": "half of it is right"})

    assert (await played(guesses(), Noted)).notes == {"judge": "half of it is right"}


async def test_turn_rewards_for_answers_that_were_never_given_are_refused() -> None:
    class Generous(GuessEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Reward:
            return Reward(0.0, turns=[0.0] * (result.turns_used + 1))

    rollout = await played(guesses("slate"), Generous)
    assert str(rollout.failure) == "verifier/turns"
    assert "3 numbers for 2 answers" in str(rollout.failure and rollout.failure.message)


async def test_rescoring_plays_the_calls_on_a_new_state() -> None:
    class Strict(GuessEnv):
        points = 0.5

    async with ScriptedModel(guesses("slate", "chair")) as model:
        async with opened(GuessEnv, model, terminal_backend=NO_BACKEND) as env:
            group = await run_group(env, ITEM, size=1)
        async with opened(Strict, model, terminal_backend=NO_BACKEND) as env:
            stats = RescoreStats()
            again: list[Group] = []
            await rescore_groups(env, [group], again.append, stats)
    assert (group.scores, again[0].scores, stats.replayed) == ([0.25], [0.5], 1)
    assert recorded_result(group.rollouts[0]).step_reward == 0.25


async def test_an_environment_without_tools_is_an_agent_without_tools() -> None:
    class Talk(HermesAgentBaseEnv[dict[str, Any]]):
        def format_prompt(self, item: Any) -> str:
            return "say something"

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return float(len(result.final_response))

    async with ScriptedModel(always(Text("hi"))) as model, opened(Talk, model, terminal_backend=NO_BACKEND) as env:
        group = await run_group(env, ITEM, size=1)
    assert (group.scores, group.tools) == ([2.0], ())
    assert "tools" not in model.bodies[0]


async def test_a_reward_that_needs_a_sandbox_opens_it() -> None:
    class Checked(GuessEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return float(ctx.terminal("echo 0.75")["output"])

    async with ScriptedModel(guesses("slate")) as model, opened(Checked, model, terminal_backend="local") as env:
        assert not env.tools.pool.is_open
        group = await run_group(env, ITEM, size=2)
    assert group.scores == [0.75, 0.75]


async def test_a_reward_that_gets_no_sandbox_ends_the_run() -> None:
    class Checked(GuessEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return float(ctx.terminal("echo 0.75")["output"])

    async with ScriptedModel(guesses("slate")) as model, opened(Checked, model, terminal_backend=NO_BACKEND) as env:
        group = await run_group(env, ITEM, size=1)
        assert str(group.rollouts[0].failure) == "sandbox/start"
        with pytest.raises(Exception, match="needs the setting"):
            env.tools.check()
