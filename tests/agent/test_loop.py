"""The loop: what the model writes never raises, what the world does always does."""

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from hermes_rl.agent.limits import ResultBudget
from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.agent.result import AgentResult
from hermes_rl.core.errors import ConfigError, EndpointError, SandboxError
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Span, StopReason
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.sandbox.backends.registry import open_backend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools
from tests.support.scripted_model import Calls, RawMessage, ScriptedModel, Status, Text, in_order

DONE = Text("done")
PROMPT: list[Message] = [{"role": "user", "content": "go"}]
TOOLS = all_tools()
SMALL = ResultBudget(per_result=1000, per_turn=1000, preview=100)
SCHEMAS = [tool.schema for tool in TOOLS.values()]


@pytest.fixture
async def host() -> AsyncIterator[ToolHost]:
    host = ToolHost(all_tools(), SandboxPool(await open_backend("bubblewrap")), calls_in_flight=16, terminal_timeout=10)
    with host.running():
        yield host
    await host.close()


async def run(*replies: Any, then: Any = DONE, **options: Any) -> tuple[AgentResult, ScriptedModel]:
    """The loop on a scripted model, with the terminal and file tools."""
    async with ScriptedModel(in_order(*replies, then=then)) as model, _server(model) as server:
        loop = HermesAgentLoop(server, SCHEMAS, set(TOOLS), **options)
        return await loop.run(PROMPT), model


def _server(model: ScriptedModel) -> ServerManager:
    return ServerManager([APIServerConfig(base_url=model.base_url, model_name="scripted", max_retries=0)])


def call(command: str) -> tuple[str, str]:
    return "terminal", json.dumps({"command": command})


async def test_an_answer_without_calls_ends_naturally() -> None:
    result, _ = await run(Text("hello"))
    assert (result.stop_reason, result.finished_naturally, result.turns_used) == (StopReason.NATURAL, True, 1)
    assert result.final_response == "hello"


async def test_a_tool_call_runs_in_the_sandbox_and_its_result_goes_back(host: ToolHost) -> None:
    result, model = await run(Calls([call("echo one > f; cat f")]), then=Text("it says one"))
    assert [message["role"] for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(result.messages[2]["content"]) == {"output": "one\n", "exit_code": 0, "error": None}
    assert result.messages[2]["tool_call_id"] == result.messages[1]["tool_calls"][0]["id"]
    assert model.bodies[1]["messages"] == result.messages[:3]
    assert result.tools_used == ["terminal"]


async def test_a_call_written_as_text_is_parsed_and_the_model_sees_its_own_words_again(host: ToolHost) -> None:
    text = 'Let me see. <tool_call>{"name": "terminal", "arguments": {"command": "echo two"}}</tool_call>'
    result, model = await run(Text(text))
    assert result.messages[1]["content"] == "Let me see."
    assert result.tool_calls[0].name == "terminal"
    assert json.loads(result.tool_uses[0].result)["output"] == "two\n"
    assert model.bodies[1]["messages"][1] == {"role": "assistant", "content": text}


async def test_text_is_not_parsed_when_the_endpoint_parsed_calls_itself(host: ToolHost) -> None:
    fake = '<tool_call>{"name": "terminal", "arguments": {"command": "touch fake"}}</tool_call>'
    result, _ = await run(Calls([call("echo real")], content=fake), max_turns=1)
    assert [use.arguments for use in result.tool_uses] == [call("echo real")[1]]


async def test_the_last_turn_still_runs_its_calls(host: ToolHost) -> None:
    result, model = await run(then=Calls([call("echo again")]), max_turns=3)
    assert (result.stop_reason, result.turns_used, len(result.tool_uses)) == (StopReason.MAX_TURNS, 3, 3)
    assert not result.finished_naturally
    assert result.messages[-1]["role"] == "tool"
    assert model.requests == 3


async def test_calls_of_one_turn_run_together_and_answer_in_order(host: ToolHost) -> None:
    waits = call("until [ -e sign ]; do sleep 0.05; done; echo waited")
    result, _ = await run(Calls([waits, call("touch sign; echo signed")]))
    assert [json.loads(use.result)["output"].strip() for use in result.tool_uses] == ["waited", "signed"]
    asked = [raw["id"] for raw in result.messages[1]["tool_calls"]]
    assert [message["tool_call_id"] for message in result.messages if message["role"] == "tool"] == asked


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("rm_everything", "{}", "unknown tool 'rm_everything'; available: "),
        ("terminal", "{not json", "not valid JSON"),
        ("terminal", '["ls"]', "must be one JSON object, not list"),
        ("terminal", '"ls"', "must be one JSON object, not str"),
        ("terminal", "", "command: Field required"),
        ("terminal", '{"cmd": "ls"}', "command: Field required"),
        ("terminal", '{"command": {"run": "ls"}}', "command: Input should be a valid string"),
        ("terminal", '{"command": "ls", "colour": "red"}', "colour: Extra inputs are not permitted"),
    ],
)
async def test_a_wrong_call_is_told_to_the_model_and_recorded(
    host: ToolHost, name: str, arguments: str, told: str
) -> None:
    result, _ = await run(Calls([(name, arguments)]))
    assert result.stop_reason is StopReason.NATURAL
    assert told in json.loads(result.messages[2]["content"])["error"]
    (error,) = result.tool_errors
    assert (error.turn, error.tool_name, error.arguments) == (1, name, arguments[:200])
    assert told in error.error


async def test_a_failing_command_is_not_a_tool_error(host: ToolHost) -> None:
    result, _ = await run(Calls([call("exit 3")]))
    assert json.loads(result.tool_uses[0].result)["exit_code"] == 3
    assert result.tool_errors == []


async def test_text_cut_by_the_token_limit_is_not_natural() -> None:
    result, _ = await run(Text("I was about to", finish_reason="length"))
    assert (result.stop_reason, result.finished_naturally) == (StopReason.LENGTH, False)


async def test_an_unreadable_tool_call_is_not_natural() -> None:
    result, _ = await run(Text('<tool_call>{"name": "terminal", </tool_call>'))
    assert (result.stop_reason, result.finished_naturally) == (StopReason.UNPARSED_TOOL_CALL, False)
    assert "not valid JSON" in result.tool_errors[0].error


async def test_a_broken_call_does_not_drop_its_good_neighbour_and_is_told(host: ToolHost) -> None:
    good = '<tool_call>{"name": "terminal", "arguments": {"command": "echo good"}}</tool_call>'
    result, _ = await run(Text(f"<tool_call>oops</tool_call>{good}"), max_turns=1)
    assert json.loads(result.tool_uses[0].result)["output"] == "good\n"
    assert "could not be read" in json.loads(result.messages[-1]["content"])["error"]
    (error,) = result.tool_errors
    assert (error.tool_name, error.arguments) == ("", "oops")


async def test_null_content_and_reasoning_are_kept_apart() -> None:
    result, _ = await run(RawMessage({"role": "assistant", "content": None, "reasoning": "hm"}))
    assert result.messages[-1] == {"role": "assistant", "content": "", "reasoning_content": "hm"}
    assert result.reasoning_per_turn == ["hm"]


async def test_without_tools_markup_is_only_text() -> None:
    text = '<tool_call>{"name": "terminal", "arguments": {}}</tool_call>'
    async with ScriptedModel(in_order(then=Text(text))) as model, _server(model) as server:
        result = await HermesAgentLoop(server, [], set()).run(PROMPT)
    assert result.stop_reason is StopReason.NATURAL
    assert "tools" not in model.bodies[0]


async def test_the_request_carries_what_was_set() -> None:
    options: dict[str, Any] = {"temperature": 0.3, "max_tokens": 7, "extra_body": {"provider": {"order": ["x"]}}}
    _, model = await run(seed=5, **options)
    body = model.bodies[0]
    assert (body["temperature"], body["max_tokens"], body["provider"]) == (0.3, 7, {"order": ["x"]})
    assert (body["n"], body["seed"], body["tools"]) == (1, 6, SCHEMAS)


async def test_each_turn_draws_from_its_own_seed(host: ToolHost) -> None:
    _, model = await run(Calls([call("true")]), seed=40)
    assert [body["seed"] for body in model.bodies] == [41, 42]


async def test_the_callers_messages_are_left_alone() -> None:
    prompt: list[Message] = [{"role": "user", "content": "go"}]
    async with ScriptedModel(in_order(then=Text("done"))) as model, _server(model) as server:
        await HermesAgentLoop(server, [], set()).run(prompt)
    assert prompt == [{"role": "user", "content": "go"}]


async def test_worked_examples_in_the_prompt_are_not_the_agents_calls() -> None:
    prompt: list[Message] = [
        {"role": "user", "content": "example"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "terminal", "arguments": "{}"}}]},
        {"role": "user", "content": "go"},
    ]
    async with ScriptedModel(in_order(then=Text("done"))) as model, _server(model) as server:
        result = await HermesAgentLoop(server, SCHEMAS, set(TOOLS)).run(prompt)
    assert (result.tool_calls, result.tools_used) == ([], [])


async def test_the_answer_of_a_worked_example_is_not_the_agents() -> None:
    prompt: list[Message] = [
        {"role": "user", "content": "example"},
        {"role": "assistant", "content": "It says 417."},
        {"role": "user", "content": "go"},
    ]
    async with ScriptedModel(in_order(then=Text(""))) as model, _server(model) as server:
        result = await HermesAgentLoop(server, [], set()).run(prompt)
    assert result.final_response == ""


async def test_a_failed_endpoint_raises_and_keeps_the_work_so_far(host: ToolHost) -> None:
    script = in_order(Calls([call("echo kept")]), then=Status(500))
    async with ScriptedModel(script) as model, _server(model) as server:
        loop = HermesAgentLoop(server, SCHEMAS, set(TOOLS), raise_failures=True)
        with pytest.raises(EndpointError, match="HTTP 500"):
            await loop.run(PROMPT)
    assert json.loads(loop.result.tool_uses[0].result)["output"] == "kept\n"
    assert loop.result.stop_reason is None


async def test_code_that_runs_a_loop_itself_gets_the_work_so_far_and_the_failure(host: ToolHost) -> None:
    dead, _ = await run(then=Status(500))
    assert (dead.turns_used, dead.finished_naturally, dead.messages) == (0, False, PROMPT)
    assert str(dead.failure) == "endpoint/http_500"
    later, _ = await run(Calls([call("echo kept")]), then=Status(500))
    assert (later.turns_used, later.stop_reason, str(later.failure)) == (1, None, "endpoint/http_500")
    assert json.loads(later.tool_uses[0].result)["output"] == "kept\n"
    finished, _ = await run(Text("hello"))
    assert finished.failure is None


async def test_the_parser_is_the_servers_unless_one_is_given(host: ToolHost) -> None:
    written = '[TOOL_CALLS] [{"name": "terminal", "arguments": {"command": "echo two"}}]'
    for options, parsed in (({}, 0), ({"tool_call_parser": "mistral"}, 1)):
        result, _ = await run(Text(written), **options)
        assert len(result.tool_uses) == parsed
    async with ScriptedModel(in_order(Text(written), then=DONE)) as model, _server(model) as server:
        server.tool_parser = "mistral"
        result = await HermesAgentLoop(server, SCHEMAS, set(TOOLS)).run(PROMPT)
    assert len(result.tool_uses) == 1


async def test_a_budget_of_its_own_limits_the_results(host: ToolHost) -> None:
    long = Calls([call("seq 1 2000")])
    shown = [len((await run(long, budget_config=budget))[0].messages[2]["content"]) for budget in (None, SMALL)]
    assert shown[0] > 8000
    assert shown[1] < 2000


async def test_a_dead_sandbox_raises_and_cancels_the_other_calls_of_the_turn(host: ToolHost) -> None:
    script = in_order(then=Calls([call("sleep 30"), call("echo two")]))
    async with ScriptedModel(script) as model, _server(model) as server:
        loop = HermesAgentLoop(server, SCHEMAS, set(TOOLS), task_id="dying", raise_failures=True)
        await (await host.session("dying").sandbox()).close()
        with pytest.raises(SandboxError):
            await loop.run(PROMPT)


async def test_tools_without_an_environment_say_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="no environment is running here"):
        await run(Calls([call("true")]))


async def test_model_time_and_tokens_are_counted(host: ToolHost) -> None:
    result, _ = await run(Calls([call("true")]))
    assert [timing.span for timing in result.timings] == [Span.MODEL, Span.MODEL]
    assert result.usage.completion_tokens is not None
    assert result.usage.completion_tokens > 0


async def test_the_answers_of_the_openai_client_are_understood() -> None:
    message = SimpleNamespace(content="from objects", tool_calls=None)
    answer = SimpleNamespace(choices=[SimpleNamespace(finish_reason="stop", message=message)], usage=None)

    class Server:
        async def chat_completion(self, messages: Any, **_: Any) -> Any:
            return answer

    result = await HermesAgentLoop(Server(), [], set()).run(PROMPT)
    assert result.final_response == "from objects"
