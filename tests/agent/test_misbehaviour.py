"""What models do wrong, a row each: the loop ends with the right StopReason, nothing raises, nothing is called success.

Every row is a whole rollout over a real socket with a real sandbox behind the tools.
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from hermes_rl.agent.compaction import DropOldResults
from hermes_rl.agent.limits import AgentLimits, ResultBudget
from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.agent.result import AgentResult
from hermes_rl.core.trajectory import StopReason
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.sandbox.backends.registry import open_backend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools
from tests.support.scripted_model import Calls, RawMessage, Reply, ScriptedModel, Status, Text, in_order

TOOLS = all_tools()
SCHEMAS = [tool.schema for tool in TOOLS.values()]
DONE = Text("done")
MAX_TURNS = 40


def run_command(command: str) -> tuple[str, str]:
    return "terminal", json.dumps({"command": command})


def text_call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def told(result: AgentResult, place: int = 0) -> str:
    """What the model was told by its place-th tool result."""
    return [str(message["content"]) for message in result.messages if message["role"] == "tool"][place]


def nothing_more(_: AgentResult) -> bool:
    return True


@dataclass(frozen=True)
class Misbehaviour:
    """Replies in order, then the last one for ever; the reason the rollout ends; what must be true of it."""

    name: str
    replies: tuple[Reply, ...]
    stops: StopReason
    holds: Callable[[AgentResult], Any] = nothing_more
    limits: AgentLimits = field(default_factory=AgentLimits)


CALL = {"id": "1", "function": {"name": "terminal", "arguments": '{"command": "true"}'}}
RELENTLESS = tuple(Calls([run_command(f"echo {number}")]) for number in range(9))
MISBEHAVIOURS = (
    Misbehaviour(
        "never stops calling",
        (*RELENTLESS, Calls([run_command("date +%N")])),
        StopReason.MAX_TURNS,
        lambda result: result.turns_used == MAX_TURNS,
        AgentLimits(),
    ),
    Misbehaviour(
        "makes the same call for ever",
        (Calls([run_command("echo stuck")]),),
        StopReason.REPEATED_CALL,
        lambda result: len(result.tool_uses) == 8,
    ),
    Misbehaviour(
        "repeats a pair of calls for ever",
        (Calls([run_command("echo a"), run_command("echo b")]),),
        StopReason.REPEATED_CALL,
        lambda result: len(result.tool_uses) == 16,
    ),
    Misbehaviour(
        "polls something that changes, which is no loop",
        (*[Calls([run_command("echo x >> f; wc -l < f")])] * 10, DONE),
        StopReason.NATURAL,
        lambda result: len(result.tool_uses) == 10,
    ),
    Misbehaviour(
        "spends its tool budget",
        (Calls([run_command("date +%N")]),),
        StopReason.TOOL_BUDGET,
        lambda result: len(result.tool_uses) == 5,
        AgentLimits(max_tool_calls=5),
    ),
    Misbehaviour(
        "asks for more calls in a turn than are allowed",
        (Calls([run_command(f"echo {number}") for number in range(70)]), DONE),
        StopReason.NATURAL,
        lambda result: "at most 64 calls" in told(result, 64) and "63" in told(result, 63),
    ),
    Misbehaviour(
        "runs its commands past the deadline",
        (Calls([run_command("sleep 1; date +%N")]),),
        StopReason.DEADLINE,
        lambda result: 2 <= result.turns_used <= 4,
        AgentLimits(deadline=2.5),
    ),
    Misbehaviour(
        "talks past the deadline",
        (Calls([run_command("true")], content="word " * 400),),
        StopReason.DEADLINE,
        lambda result: result.turns_used == 1 and not result.tool_uses,
        AgentLimits(deadline=5.0),
    ),
    Misbehaviour("is cut off by the token limit", (Text("I was about", "length"),), StopReason.LENGTH),
    Misbehaviour(
        "is cut off inside a tool call", (Text('<tool_call>{"name": "terminal", "argu', "length"),), StopReason.LENGTH
    ),
    Misbehaviour("is stopped by the provider's filter", (Text("", "content_filter"),), StopReason.CONTENT_FILTER),
    Misbehaviour(
        "writes a call nobody can read",
        (Text("<tool_call>{'name': 'terminal'}</tool_call>"),),
        StopReason.UNPARSED_TOOL_CALL,
        lambda result: result.tool_errors,
    ),
    Misbehaviour("leaks the markup of another format", (Text('[TOOL_CALLS] [{"na'),), StopReason.UNPARSED_TOOL_CALL),
    Misbehaviour("leaks a closing tag alone", (Text("all done </tool_call>"),), StopReason.UNPARSED_TOOL_CALL),
    Misbehaviour(
        "calls a tool inside its thinking",
        (Text(f"<think>{text_call('terminal', json.dumps({'command': 'touch t'}))}</think>no"),),
        StopReason.NATURAL,
        lambda result: not result.tool_uses and result.messages[-1]["content"] == "no",
    ),
    Misbehaviour(
        "never stops thinking",
        (Text("<think>hm, hm, hm", "length"),),
        StopReason.LENGTH,
        lambda result: result.reasoning_per_turn == ["hm, hm, hm"] and result.final_response == "",
    ),
    Misbehaviour(
        "only closes its thinking, opened by the template",
        (Text("because</think>yes"),),
        StopReason.NATURAL,
        lambda result: (result.reasoning_per_turn, result.final_response) == (["because"], "yes"),
    ),
    Misbehaviour(
        "says nothing at all",
        (RawMessage({"role": "assistant", "content": None}),),
        StopReason.NATURAL,
        lambda result: result.final_response == "",
    ),
    Misbehaviour(
        "calls a tool that does not exist",
        (Calls([("browse", "{}")]), DONE),
        StopReason.NATURAL,
        lambda result: "unknown tool 'browse'; available: " in told(result),
    ),
    Misbehaviour(
        "gives no name",
        (Calls([("", "{}")]), DONE),
        StopReason.NATURAL,
        lambda result: "unknown tool ''" in told(result),
    ),
    Misbehaviour(
        "gives broken JSON",
        (Calls([("terminal", '{"command": "ls"')]), DONE),
        StopReason.NATURAL,
        lambda result: "not valid JSON" in told(result),
    ),
    Misbehaviour(
        "gives an array",
        (Calls([("terminal", '["ls"]')]), DONE),
        StopReason.NATURAL,
        lambda result: "not list" in told(result),
    ),
    Misbehaviour(
        "gives an empty string",
        (Calls([("terminal", "")]), DONE),
        StopReason.NATURAL,
        lambda result: "command: Field required" in told(result),
    ),
    Misbehaviour(
        "gives an object for a string",
        (Calls([("terminal", '{"command": {"a": 1}}')]), DONE),
        StopReason.NATURAL,
        lambda result: "command: Input should be a valid string" in told(result),
    ),
    Misbehaviour(
        "gives arguments already parsed",
        (
            RawMessage(
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "terminal", "arguments": {"command": "echo hi"}}}],
                }
            ),
            DONE,
        ),
        StopReason.NATURAL,
        lambda result: json.loads(told(result))["output"] == "hi\n",
    ),
    Misbehaviour(
        "gives an argument nobody knows",
        (Calls([("terminal", '{"command": "ls", "sudo": true}')]), DONE),
        StopReason.NATURAL,
        lambda result: "sudo: Extra inputs" in told(result),
    ),
    Misbehaviour(
        "gives a megabyte of arguments",
        (Calls([("write_file", json.dumps({"path": "big", "content": "x" * 1_000_000}))]), DONE),
        StopReason.NATURAL,
        lambda result: json.loads(told(result))["bytes_written"] == 1_000_000,
    ),
    Misbehaviour(
        "gives a megabyte of command",
        (Calls([run_command(f"echo {'x' * 1_000_000} | wc -c")]), DONE),
        StopReason.NATURAL,
        lambda result: json.loads(told(result))["output"].strip() == "1000001",
    ),
    Misbehaviour(
        "prints binary",
        (Calls([run_command("head -c 2000 /dev/urandom")]), DONE),
        StopReason.NATURAL,
        lambda result: json.loads(told(result))["exit_code"] == 0,
    ),
    Misbehaviour(
        "prints a megabyte",
        (Calls([run_command("yes | head -c 1000000")]), DONE),
        StopReason.NATURAL,
        lambda result: len(told(result)) <= 100_000,
    ),
    Misbehaviour(
        "uses one id for two calls",
        (
            RawMessage(
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "same", "function": {"name": "terminal", "arguments": run_command(f"echo {n}")[1]}}
                        for n in (1, 2)
                    ],
                }
            ),
            DONE,
        ),
        StopReason.NATURAL,
        lambda result: len({m["tool_call_id"] for m in result.messages if m["role"] == "tool"}) == 2,
    ),
    Misbehaviour(
        "writes half a surrogate pair",
        (Text(text_call("terminal", r'{"command": "echo \ud83d"}')), DONE),
        StopReason.NATURAL,
        lambda result: result.tool_uses[0].error is None,
    ),
    Misbehaviour(
        "writes a NUL into a command",
        (Calls([("terminal", json.dumps({"command": "echo a\0b"}))]), DONE),
        StopReason.NATURAL,
        lambda result: json.loads(told(result))["exit_code"] == 126,
    ),
    Misbehaviour(
        "nests its arguments a thousand deep",
        (Calls([("terminal", '{"command": ' + "[" * 1000 + "]" * 1000 + "}")]), DONE),
        StopReason.NATURAL,
        lambda result: result.tool_uses[0].error,
    ),
    Misbehaviour(
        "waits for input that never comes",
        (Calls([run_command("cat; read x; echo $?")]), DONE),
        StopReason.NATURAL,
        lambda result: json.loads(told(result))["output"].strip() == "1",
    ),
    Misbehaviour(
        "asks for all the time in the world",
        (Calls([("terminal", '{"command": "sleep 60", "timeout": 1000000}')]), DONE),
        StopReason.NATURAL,
        lambda result: "timed out after 1 s" in told(result),
    ),
    Misbehaviour(
        "fills the context with results",
        (Calls([run_command("seq -s ' ' 120")]),),
        StopReason.CONTEXT_FULL,
        lambda result: result.turns_used > 3,
        AgentLimits(context_tokens=1200, max_repeated_calls=None),
    ),
    Misbehaviour(
        "outgrows the context, as the endpoint tells",
        (Calls([run_command("echo")]), Status(400, {"error": {"message": "This model's maximum context length is 9"}})),
        StopReason.CONTEXT_FULL,
        lambda result: result.turns_used == 1,
    ),
)


@pytest.fixture
async def host() -> AsyncIterator[ToolHost]:
    pool = SandboxPool(await open_backend("bubblewrap"))
    host = ToolHost(all_tools(), pool, calls_in_flight=16, terminal_timeout=10, max_command_seconds=1)
    with host.running():
        yield host
    await host.close()


async def rollout(
    *replies: Reply, limits: AgentLimits | None = None, **options: Any
) -> tuple[AgentResult, ScriptedModel]:
    limits = limits or AgentLimits()
    async with ScriptedModel(in_order(*replies[:-1], then=replies[-1])) as model:
        endpoint = APIServerConfig(base_url=model.base_url, model_name="scripted", max_retries=0)
        async with ServerManager([endpoint]) as server:
            loop = HermesAgentLoop(server, SCHEMAS, set(TOOLS), MAX_TURNS, limits=limits, **options)
            return await loop.run([{"role": "user", "content": "go"}]), model


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("row", MISBEHAVIOURS, ids=lambda row: row.name.replace(" ", "-"))
async def test_a_model_that(row: Misbehaviour) -> None:
    result, _ = await rollout(*row.replies, limits=row.limits)
    assert result.stop_reason is row.stops
    assert result.finished_naturally is (row.stops is StopReason.NATURAL)
    assert row.holds(result)


def test_there_are_enough_of_them() -> None:
    assert len({row.name for row in MISBEHAVIOURS}) == len(MISBEHAVIOURS) >= 25


# Result budgets.


async def test_a_result_too_long_goes_to_a_file_the_agent_can_read(host: ToolHost) -> None:
    read_back = Calls([run_command("wc -c /tmp/hermes-results/1-0.txt")])
    limits = AgentLimits(results=ResultBudget(per_result=2_000, preview=300))
    result, _ = await rollout(Calls([run_command("seq 5000")]), read_back, DONE, limits=limits)
    assert "characters. The whole is in /tmp/hermes-results/1-0.txt" in told(result)
    assert len(told(result)) < 600
    assert len(result.tool_uses[0].result) > 20_000
    assert str(len(result.tool_uses[0].result)) in told(result, 1)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("trick", ["touch /tmp/hermes-results", "ln -s /usr /tmp/hermes-results"])
async def test_a_policy_that_bars_the_place_of_long_results_is_scored_all_the_same(trick: str) -> None:
    limits = AgentLimits(results=ResultBudget(per_result=2_000, preview=300))
    result, _ = await rollout(Calls([run_command(f"{trick}; seq 5000")]), DONE, limits=limits)
    assert result.stop_reason is StopReason.NATURAL
    assert "Ask for less at a time" in told(result)


@pytest.mark.usefixtures("host")
async def test_the_largest_results_of_a_turn_go_first() -> None:
    calls = Calls([run_command(f"head -c {size} /dev/zero | tr '\\0' x") for size in (3000, 900, 5000)])
    limits = AgentLimits(results=ResultBudget(per_turn=5_000, preview=200))
    result, _ = await rollout(calls, DONE, limits=limits)
    assert ["<persisted-output>" in told(result, place) for place in range(3)] == [False, False, True]


@pytest.mark.usefixtures("host")
async def test_a_small_context_scales_the_budgets_down() -> None:
    result, _ = await rollout(Calls([run_command("seq 2000")]), DONE, limits=AgentLimits(context_tokens=4_000))
    assert "<persisted-output>" in told(result)
    assert len(told(result)) < 1_500


@pytest.mark.usefixtures("host")
async def test_what_was_read_back_is_cut_and_not_written_again() -> None:
    limits = AgentLimits(results=ResultBudget(per_turn=3_000, preview=300))
    replies = (Calls([run_command("seq 3000 > f")]), Calls([("read_file", '{"path": "f", "limit": 3000}')]), DONE)
    result, _ = await rollout(*replies, limits=limits)
    assert "Ask for less at a time" in told(result, 1)


# The two hooks.


@pytest.mark.usefixtures("host")
async def test_a_simulated_user_carries_the_conversation_on() -> None:
    lines = iter(["and then?", None])

    async def user(messages: list[dict[str, Any]]) -> str | None:
        assert messages[-1]["role"] == "assistant"
        return next(lines)

    result, model = await rollout(Text("first"), Text("second"), DONE, next_user_message=user)
    assert [message["content"] for message in result.messages] == ["go", "first", "and then?", "second"]
    assert result.stop_reason is StopReason.NATURAL
    assert model.bodies[1]["messages"][-1] == {"role": "user", "content": "and then?"}


@pytest.mark.usefixtures("host")
async def test_compaction_shortens_what_is_sent_and_keeps_the_record_whole() -> None:
    long = Calls([run_command("seq -s ' ' 150")])
    limits = AgentLimits(context_tokens=2_500, max_repeated_calls=None)
    result, model = await rollout(*[long] * 30, DONE, limits=limits, compaction=DropOldResults(keep=2))
    assert result.stop_reason is StopReason.NATURAL
    assert result.compactions >= 1
    assert "dropped to save room" in json.dumps(model.bodies[-1]["messages"])
    assert "dropped to save room" not in json.dumps(result.messages)


@pytest.mark.usefixtures("host")
async def test_thinking_goes_back_the_way_it_came() -> None:
    replies = (
        RawMessage({"role": "assistant", "reasoning_details": [{"type": "t", "text": "hm"}], "tool_calls": [CALL]}),
        Text("<think>so</think>" + text_call("terminal", '{"command": "true"}')),
        DONE,
    )
    result, model = await rollout(*replies)
    sent = model.bodies[-1]["messages"]
    assert sent[1]["reasoning_details"] == [{"type": "t", "text": "hm"}]
    assert sent[3]["content"].startswith("<think>so</think><tool_call>")
    said = [message for message in result.messages if message["role"] == "assistant"]
    assert [message.get("reasoning_content") for message in said] == ["hm", "so", None]


@pytest.mark.usefixtures("host")
async def test_a_refused_conversation_is_compacted_and_goes_on() -> None:
    too_long = Status(400, {"error": {"message": "This model's maximum context length is 900 tokens"}})
    long = Calls([run_command("seq -s ' ' 400")])
    result, model = await rollout(long, long, long, too_long, DONE, compaction=DropOldResults(keep=1))
    assert (result.stop_reason, result.compactions) == (StopReason.NATURAL, 1)
    assert "dropped to save room" in json.dumps(model.bodies[-1]["messages"])


@pytest.mark.usefixtures("host")
async def test_an_answer_is_never_asked_to_be_longer_than_the_context_has_room_for() -> None:
    limits = AgentLimits(context_tokens=1_000)
    _, model = await rollout(Calls([run_command("seq -s ' ' 300")]), DONE, limits=limits, max_tokens=900)
    asked = [body["max_tokens"] for body in model.bodies]
    assert asked[0] == 900
    assert 16 <= asked[1] < 900
