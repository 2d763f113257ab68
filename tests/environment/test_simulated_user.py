"""A simulated user on a scripted endpoint: what it hears, what it says, how it ends, and what its faults are."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from hermes_rl import (
    AgentResult,
    APIServerConfig,
    ConfigError,
    HermesAgentBaseEnv,
    Message,
    Rollout,
    ScriptedUser,
    SimulatedUser,
    ToolContext,
    ToolSession,
    tool,
)
from hermes_rl.core.trajectory import Span, StopReason
from hermes_rl.environment.command import run_command
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import GO_ON, Step, run_script
from hermes_rl.environment.simulated_user import OPENING, RULES, STOP, Dialogue, User, require_user_endpoint
from hermes_rl.rollout.budget import Budget, Prices
from hermes_rl.rollout.metrics import RolloutCounts
from tests.support.environments import opened
from tests.support.scripted_model import Script, ScriptedModel, Status, Text, always, in_order

ITEM = {"name": "Ada", "goal": "return a lamp"}
PROMPT = "You are {name}. You want to {goal}."


@tool(sandboxed=False)
async def look(session: ToolSession, what: str) -> str:
    """Look something up."""
    session.state["seen"].append(what)
    return f"secret of {what}"


class Talk(HermesAgentBaseEnv):
    own_tools = (look,)
    user: ClassVar[User | None] = SimulatedUser(PROMPT)

    def train_items(self) -> Sequence[Any]:
        return [ITEM]

    def initial_state(self, item: Any) -> Any:
        return {"mood": "calm", "seen": []}

    def format_prompt(self, item: Any) -> str:
        return "Hello"

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return 1.0


@asynccontextmanager
async def talking(
    user: User | None, *, endpoint: APIServerConfig | None = None, kind: type[Talk] = Talk
) -> AsyncIterator[Talk]:
    environment: type[Talk] = type("Talking", (kind,), {"user": user})
    env = environment(environment.env_config_cls(user_endpoint=endpoint), [NO_MODEL])
    async with env.opened():
        yield env


async def talk(
    steps: Sequence[Step], script: Script, user: User | None = Talk.user, kind: type[Talk] = Talk, **endpoint: Any
) -> tuple[Rollout, ScriptedModel]:
    """The rollout of an agent that takes these steps, with a user whose model is scripted."""
    async with ScriptedModel(script) as model:
        settings = {"model_name": "user-1", "max_retries": 0, "health_check": False, **endpoint}
        async with talking(user, endpoint=APIServerConfig(base_url=model.base_url, **settings), kind=kind) as env:
            return (await run_script(env, ITEM, steps)).rollout, model


def said(rollout: Rollout) -> list[str]:
    return [message["content"] for message in rollout.messages if message["role"] == "user"]


# --- what it hears ---


async def test_it_hears_the_agents_answers_with_the_roles_reversed() -> None:
    _, model = await talk(["What is it?", "Which one?"], in_order(Text("A lamp."), then=Text(STOP)))
    system, *heard = model.bodies[-1]["messages"]
    assert system == {"role": "system", "content": f"You are Ada. You want to return a lamp.\n\n{RULES}"}
    assert heard == [
        {"role": "user", "content": OPENING},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "A lamp."},
        {"role": "user", "content": "Which one?"},
    ]


async def test_it_hears_no_tool_call_and_no_result() -> None:
    _, model = await talk([("look", {"what": "the lamp"}), "It is broken."], always(Text(STOP)))
    assert [message["content"] for message in model.bodies[-1]["messages"][1:]] == [OPENING, "Hello", "It is broken."]


async def test_it_hears_no_worked_example() -> None:
    class Examples(Talk):
        def initial_messages(self, item: Any) -> list[Message]:
            example = [{"role": "user", "content": "example"}, {"role": "assistant", "content": "answer"}]
            return [*example, *super().initial_messages(item)]

    _, model = await talk(["one", "two"], in_order(Text("more"), then=Text(STOP)), kind=Examples)
    heard = [message["content"] for message in model.bodies[-1]["messages"][1:]]
    assert heard == [OPENING, "Hello", "one", "more", "two"]


async def test_its_prompt_may_depend_on_the_item_and_the_state() -> None:
    def prompt(item: Any, session: ToolSession) -> str:
        return f"{item['name']} has seen {session.state['seen']}"

    user = SimulatedUser(prompt, rules="")
    _, model = await talk([("look", {"what": "a lamp"}), "done"], always(Text(STOP)), user)
    assert model.bodies[-1]["messages"][0]["content"] == "Ada has seen ['a lamp']"
    _, model = await talk(["done"], always(Text(STOP)), SimulatedUser("{name} is {state[mood]}", rules=""))
    assert model.bodies[-1]["messages"][0]["content"] == "Ada is calm"


async def test_it_is_asked_with_its_own_budget() -> None:
    user = SimulatedUser(PROMPT, max_tokens=33, extra_body={"top_k": 1})
    _, model = await talk(["done"], always(Text(STOP)), user)
    body = model.bodies[-1]
    assert (body["model"], body["max_tokens"], body["temperature"], body["top_k"]) == ("user-1", 33, 0.0, 1)
    assert "tools" not in body


# --- what it says, and how it ends ---


async def test_what_it_says_are_user_messages_and_its_stop_marker_ends_the_rollout() -> None:
    replies = in_order(Text("A lamp."), Text("<think>so</think>Yes."), then=Text(f"Thanks {STOP}"))
    rollout, _ = await talk(["What?", "This?", "Done.", "never said"], replies)
    assert said(rollout) == ["Hello", "A lamp.", "Yes."]
    assert (rollout.score, rollout.stop_reason, rollout.turns_used) == (1.0, StopReason.NATURAL, 3)
    record = rollout.metadata["user"]
    assert (record["ended"], record["last_words"], record["replies"]) == ("stop", "Thanks", 2)


async def test_a_marker_of_ones_own_is_told_and_ends_the_rollout() -> None:
    rollout, model = await talk(["Done."], always(Text("BYE")), SimulatedUser(PROMPT, stop="BYE"))
    assert rollout.metadata["user"]["ended"] == "stop"
    assert "write BYE and nothing else" in model.bodies[-1]["messages"][0]["content"]


async def test_a_function_may_end_the_conversation_by_the_state() -> None:
    def stop(words: str, session: ToolSession) -> bool:
        return "lamp" in session.state["seen"]

    user = SimulatedUser(PROMPT, stop=stop)
    rollout, _ = await talk(["What?", ("look", {"what": "lamp"}), "Here.", "never said"], always(Text("go on")), user)
    assert said(rollout) == ["Hello", "go on"]


async def test_it_replies_no_more_than_max_turns() -> None:
    rollout, model = await talk(["a", "b", "c", "d"], always(Text("more")), SimulatedUser(PROMPT, max_turns=2))
    assert (said(rollout), model.requests) == (["Hello", "more", "more"], 2)
    assert rollout.metadata["user"]["ended"] == "max_turns"


async def test_its_tokens_time_and_cost_are_recorded_apart_from_the_policys() -> None:
    replies = in_order(Text("one two three"), then=Text(STOP))
    rollout, _ = await talk(["What?", "Done."], replies, prompt_price=1_000_000, completion_price=2_000_000)
    record = rollout.metadata["user"]
    assert (record["model"], record["completion_tokens"], rollout.usage.completion_tokens) == ("user-1", 4, 0)
    assert record["cost"] == record["prompt_tokens"] + 2 * 4
    spans = [timing for timing in rollout.timings if timing.span is Span.USER]
    assert len(spans) == 2
    # The time is taken just before the span ends.
    assert 0 < record["seconds"] <= sum(timing.seconds for timing in spans) + 0.001
    budget = Budget(prices=Prices(0, 0))
    budget.add([rollout])
    assert budget.spent == record["cost"]
    tally = RolloutCounts()
    tally.add_rollouts([rollout])
    assert (tally.summary()["user_ended"], tally.summary()["user_completion_tokens"]) == ({"stop": 1}, 4)


async def test_a_user_may_have_an_endpoint_of_its_own_and_depend_on_the_item() -> None:
    async with ScriptedModel(always(Text(STOP))) as model:
        endpoint = APIServerConfig(base_url=model.base_url, model_name="mine", health_check=False)

        class Chosen(Talk):
            def simulated_user(self, item: Any) -> User | None:
                return SimulatedUser(PROMPT, endpoint=endpoint) if item["name"] == "Ada" else None

        async with talking(None, kind=Chosen) as env:
            talked = (await run_script(env, ITEM, ["Done."])).rollout
            silent = (await run_script(env, {**ITEM, "name": "Ben"}, ["Done."])).rollout
    assert (talked.metadata["user"]["model"], "user" in silent.metadata, model.requests) == ("mine", False, 1)


async def test_an_override_may_call_the_user() -> None:
    class Louder(Talk):
        async def next_user_message(self, item: Any, messages: list[Message]) -> str | None:
            text = await super().next_user_message(item, messages)
            return None if text is None else text.upper()

    rollout, _ = await talk(["What?", "Done."], in_order(Text("a lamp"), then=Text(STOP)), kind=Louder)
    assert said(rollout) == ["Hello", "A LAMP"]


# --- scripted users ---


async def test_a_scripted_user_says_its_lines_and_ends() -> None:
    def about(dialogue: Dialogue) -> str:
        return f"you said {dialogue.answer}, I am {dialogue.state['mood']}"

    async with talking(ScriptedUser(["first", about])) as env:
        rollout, _ = await run_script(env, ITEM, ["a", "b", "c", "d"])
    assert said(rollout) == ["Hello", "first", "you said b, I am calm"]
    assert (rollout.turns_used, rollout.metadata["user"]["ended"]) == (3, "script")


async def test_a_function_of_a_script_may_end_the_conversation() -> None:
    async with talking(ScriptedUser([lambda dialogue: None, "never said"])) as env:
        rollout, _ = await run_script(env, ITEM, ["a", "b"])
    assert said(rollout) == ["Hello"]


async def test_an_attribute_of_the_author_that_happens_to_be_named_user_is_none() -> None:
    environment: type[Talk] = type("Named", (Talk,), {"user": "root"})
    async with talking(None, kind=environment) as env:
        vars(env)["user"] = "root"
        rollout, _ = await run_script(env, ITEM, ["Done."])
    assert (rollout.score, said(rollout)) == (1.0, ["Hello"])


# --- without a model ---


async def test_a_scripted_agent_needs_no_model_of_the_user() -> None:
    async with talking(Talk.user) as env:
        rollout, _ = await run_script(env, ITEM, ["What?", ("look", {"what": "lamp"}), "Done."])
    assert (said(rollout), rollout.turns_used, rollout.score) == (["Hello", GO_ON], 3, 1.0)


async def test_a_policy_that_talks_to_a_user_without_a_model_has_no_score() -> None:
    async with ScriptedModel(always(Text("What?"))) as model, opened(Talk, model, group_size=1) as env:
        [rollout] = (await env.collect_group(ITEM)).rollouts
    assert rollout.failure is not None
    assert str(rollout.failure) == "environment/user"
    assert "the simulated user has no model: pass --env.user_endpoint" in rollout.failure.message


@pytest.mark.parametrize("mode", ["process", "evaluate", "serve"])
def test_an_environment_whose_user_has_no_model_is_refused_before_a_run(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(Talk, [mode, "--openai.base_url", "http://127.0.0.1:9/v1"]) != 0
    assert "has no model: pass --env.user_endpoint" in capsys.readouterr().err


def test_a_scripted_user_and_one_with_an_endpoint_need_no_other() -> None:
    require_user_endpoint(ScriptedUser(["hello"]), None)
    require_user_endpoint(SimulatedUser(PROMPT, endpoint=APIServerConfig(base_url="http://localhost:1/v1")), None)
    require_user_endpoint(None, None)


# --- faults ---


@pytest.mark.parametrize(
    ("reply", "failure", "part"),
    [
        (Status(500), "endpoint/user", "the simulated user's model failed: "),
        (Status(401), "endpoint/user", "HTTP 401"),
        (Status(400), "environment/user_refused", "the simulated user's model refused: "),
        (Text(""), "environment/user_refused", "wrote nothing (finish_reason stop)"),
        (Text("<think>cut", "length"), "environment/user_refused", "raise max_tokens"),
    ],
)
async def test_a_user_whose_model_fails_is_no_score(reply: Any, failure: str, part: str) -> None:
    rollout, _ = await talk(["What?"], always(reply))
    assert (str(rollout.failure), rollout.score) == (failure, None)
    assert rollout.failure is not None
    assert part in rollout.failure.message


async def test_what_the_policy_said_and_the_users_model_refuses_is_charged_to_the_policy() -> None:
    """Otherwise a policy could decline its score by words that a filter refuses."""

    def refuse(body: dict[str, Any]) -> Any:
        return Status(400) if body["messages"][-1]["content"] == "forbidden" else Text(STOP)

    rollout, _ = await talk(["forbidden"], refuse)
    assert (rollout.score, rollout.failure) == (0.0, None)
    assert list(rollout.metadata["charged"]) == ["environment/user_refused"]


async def test_a_prompt_that_cannot_be_filled_in_names_its_fields() -> None:
    rollout, _ = await talk(["What?"], always(Text("never")), SimulatedUser('{"json": 1}'))
    assert rollout.failure is not None
    assert "its fields are item, state, name, goal; write a brace that is text twice" in rollout.failure.message


@pytest.mark.parametrize("options", [{"max_turns": 0}, {"max_tokens": 0}, {"stop": ""}])
def test_a_user_that_could_never_speak_or_stop_is_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match="SimulatedUser"):
        SimulatedUser(PROMPT, **options)
