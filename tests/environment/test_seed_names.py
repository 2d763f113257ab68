"""Names of the seeds that authors call or override, each with the effect the seed describes."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hermes_rl import AgentResult, APIServerConfig, ConfigError, HermesAgentEnvConfig, ToolContext
from hermes_rl.environment.compat.agent_loop import HermesAgentLoop, resize_tool_pool
from hermes_rl.environment.compat.atropos import OpenAIServer
from hermes_rl.environment.compat.model_tools import get_tool_definitions, handle_function_call
from hermes_rl.environment.compat.patches import apply_patches
from hermes_rl.environment.compat.terminal_tool import (
    cleanup_vm,
    clear_task_env_overrides,
    register_task_env_overrides,
)
from hermes_rl.environment.compat.tool_call_parsers import ToolCallParser, get_parser, list_parsers, register_parser
from hermes_rl.environment.compat.toolset_distributions import DISTRIBUTIONS, sample_toolsets_from_distribution
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rollout.group import run_group
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Text, calls_then_text, delayed

HALVES: dict[str, Any] = {
    "distribution": "halves",
    "toolset_distributions": {"halves": {"terminal": 0.5, "file": 0.5}},
}


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(delayed(0.01, lambda _: Text("no"))) as model:
        yield model


@pytest.mark.parametrize(("server_type", "managed"), [("openai", False), ("vllm", True), ("sglang", True)])
async def test_the_server_type_decides_whether_tokens_are_recorded(server_type: str, managed: bool) -> None:
    endpoint = APIServerConfig.model_validate({"base_url": "http://localhost:1/v1", "server_type": server_type})
    env = FileEnv(HermesAgentEnvConfig(), [endpoint])
    assert env._use_managed_server() is managed
    assert isinstance(env.server.servers[0], OpenAIServer) is not managed
    await env.server.close()


def test_a_trajectory_is_shown_in_the_format_of_the_seed() -> None:
    call = {"function": {"name": "terminal", "arguments": "b" * 201}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "On it.", "reasoning_content": "a" * 301, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "c" * 501},
        {"role": "tool", "tool_call_id": "2", "content": "short"},
    ]
    assert FileEnv._format_trajectory_for_display(messages) == (
        "[SYSTEM]\nBe brief.\n\n[USER]\n\n\n"
        f"[ASSISTANT thinking]\n{'a' * 300}...\n\n[ASSISTANT]\nOn it.\n\n"
        f"[TOOL CALL] terminal({'b' * 200}...)\n\n[TOOL RESULT] {'c' * 500}...\n\n[TOOL RESULT] short"
    )


async def test_an_overridden_display_format_is_used(model: ScriptedModel) -> None:
    class Short(FileEnv):
        @staticmethod
        def _format_trajectory_for_display(messages: Any) -> str:
            return f"{len(messages)} messages"

    async with opened(Short, model) as env:
        await env.add_rollouts_for_wandb({"messages": [[{"role": "user", "content": "x"}]], "scores": [1.0]})
    assert env.rollouts_for_wandb == [[("1 messages", 1.0)]]


async def test_attributes_of_an_author_do_not_replace_ours(model: ScriptedModel) -> None:
    names = ("_tools", "_stream", "_exit_stack", "_cpu_workers", "_current_result", "_group_key", "_groups_sampled")

    class Env(FileEnv):
        async def setup(self) -> None:
            await super().setup()
            for name in names:
                setattr(self, name, "mine")

    async with opened(Env, model) as env:
        assert await env.next_draw() is not None
        assert (await run_group(env, {"number": 1}, size=1)).rollouts[0].failure is None
        assert {getattr(env, name) for name in names} == {"mine"}


async def test_each_of_many_groups_sees_its_own_tools(model: ScriptedModel) -> None:
    seen: dict[int, set[str]] = {}

    class Env(FileEnv):
        async def compute_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float:
            await asyncio.sleep(0.01)
            assert self._current_group_tools is not None
            schemas, seen[item["number"]] = self._current_group_tools
            assert {schema["function"]["name"] for schema in schemas} == seen[item["number"]]
            return 0.0

    async with opened(Env, model, **HALVES) as env:
        groups = await asyncio.gather(*(run_group(env, {"number": number}, size=2) for number in range(12)))
        assert env._current_group_tools is None
    assert {group.item["number"]: set(group.tools) for group in groups} == seen
    assert len({group.tools for group in groups}) > 1


async def test_an_overridden_choice_of_tools_decides_every_group(model: ScriptedModel) -> None:
    class OnlyRead(FileEnv):
        def _resolve_tools_for_group(self) -> tuple[list[dict[str, Any]], set[str]]:
            schemas, _ = super()._resolve_tools_for_group()
            kept = [schema for schema in schemas if schema["function"]["name"] == "read_file"]
            return kept, {"read_file"}

    async with opened(OnlyRead, model) as env:
        group = await run_group(env, {"number": 1}, size=1)
    assert group.tools == ("read_file",)
    assert [tool["function"]["name"] for tool in model.bodies[0]["tools"]] == ["read_file"]


def test_the_budget_of_tool_results_comes_from_the_config() -> None:
    config = HermesAgentEnvConfig(
        default_result_size_chars=500,
        turn_budget_chars=900,
        preview_size_chars=60,
        tool_result_overrides={"patch": 200},
    )
    budget = config.build_budget_config()
    assert (budget.per_result, budget.per_turn, budget.preview) == (500, 900, 60)
    assert (budget.limit_of("patch"), budget.limit_of("read_file"), budget.limit_of("terminal")) == (200, None, 500)


async def test_a_tool_error_in_the_buffer_has_the_result() -> None:
    async with ScriptedModel(calls_then_text("no_such_tool", "{}")) as model, opened(FileEnv, model) as env:
        env.note_tool_errors(await run_group(env, {"number": 1}, size=1))
    [error] = env._tool_error_buffer
    assert sorted(error) == ["args", "error", "result", "tool", "turn"]
    assert (error["turn"], error["tool"], error["args"]) == (1, "no_such_tool", "{}")
    assert "unknown tool" in json.loads(error["result"])["error"]


def test_parsers_answer_as_in_the_seed() -> None:
    text = 'Wait. <tool_call>{"name": "terminal", "arguments": {"command": "ls"}}</tool_call>'
    content, calls = get_parser("hermes").parse(text)
    assert content is not None and content.strip() == "Wait."
    assert calls is not None
    assert [(call.type, call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("function", "terminal", {"command": "ls"})
    ]
    assert get_parser("hermes").parse("No call.") == ("No call.", None)
    with pytest.raises(KeyError, match="hermes"):
        get_parser("no_such_parser")


async def test_a_registered_parser_reads_the_calls_of_rollouts() -> None:
    @register_parser("bang")
    class BangParser(ToolCallParser):
        def parse(self, text: str) -> tuple[str | None, list[dict[str, Any]] | None]:
            if not text.startswith("!"):
                return text, None
            arguments = json.dumps({"command": text[1:]})
            return None, [{"id": "1", "type": "function", "function": {"name": "terminal", "arguments": arguments}}]

    def script(request: dict[str, Any]) -> Text:
        return Text("!echo -n 7 > answer" if len(request["messages"]) == 1 else "Done.")

    async with ScriptedModel(script) as model, opened(FileEnv, model, tool_call_parser="bang") as env:
        [rollout] = (await run_group(env, {"number": 7}, size=1)).rollouts
    assert rollout.score == 1.0
    assert "bang" in list_parsers()
    assert isinstance(get_parser("bang"), BangParser)


async def test_tools_are_listed_and_called_as_in_model_tools(model: ScriptedModel) -> None:
    async def play() -> list[Any]:
        written = json.loads(handle_function_call("terminal", {"command": "echo -n 5 > answer; pwd"}, task_id="t"))
        read = json.loads(handle_function_call("read_file", {"path": "answer"}, task_id="t", user_task="write 5"))
        unknown = json.loads(handle_function_call("no_such_tool", {}, task_id="t"))
        names = [tool["function"]["name"] for tool in get_tool_definitions(["terminal", "todo"], ["todo"], True)]
        with pytest.raises(ConfigError, match="web is not open in this environment"):
            get_tool_definitions(["web"])
        every = {tool["function"]["name"] for tool in get_tool_definitions()}
        return [written["exit_code"], read["content"], list(unknown), names, every]

    async with opened(FileEnv, model) as env:
        with env.running():
            exit_code, read, unknown, names, every = await bridged(play())
    assert (exit_code, unknown, names) == (0, ["error"], ["terminal", "process"])
    assert "5" in read
    assert {"terminal", "read_file", "todo"} <= every
    assert "web_search" not in every


def test_tools_are_listed_outside_of_an_environment() -> None:
    assert {tool["function"]["name"] for tool in get_tool_definitions(["web"])} == {"web_search", "web_extract"}
    with pytest.raises(ConfigError, match="no toolset is named 'moa'"):
        get_tool_definitions(["terminal", "moa"], quiet_mode=True)


def test_distributions_are_sampled_by_the_global_generator() -> None:
    assert DISTRIBUTIONS["research"]["toolsets"] == {"web": 90, "browser": 70, "vision": 50, "terminal": 10}
    random.seed(3)
    first = [sample_toolsets_from_distribution("balanced") for _ in range(20)]
    random.seed(3)
    assert [sample_toolsets_from_distribution("balanced") for _ in range(20)] == first
    assert all(first)
    assert len(set(map(tuple, first))) > 5
    with pytest.raises(ValueError, match="Unknown distribution: nothing; known: balanced"):
        sample_toolsets_from_distribution("nothing")


async def test_a_task_gets_the_image_that_was_registered_for_it(model: ScriptedModel) -> None:
    async with opened(FileEnv, model, sandbox_image="/default") as env:
        with env.running():
            register_task_env_overrides("t", {"modal_image": "/other", "bubblewrap_image": "/image"})
            assert [env.tools.session(task).spec.image for task in "tu"] == ["/image", "/default"]  # type: ignore[union-attr]
            with pytest.raises(ConfigError, match=r"cannot override cwd; define sandbox_spec\(item\)"):
                register_task_env_overrides("t", {"cwd": "/app"})
            clear_task_env_overrides("t")

            async def clean() -> None:
                cleanup_vm("t")

            await bridged(clean())
            assert env.tools.session("t").spec.image == "/default"  # type: ignore[union-attr]


def test_what_our_design_does_not_need_does_nothing() -> None:
    apply_patches()
    resize_tool_pool(256)
    assert HermesAgentLoop.__module__ == "hermes_rl.agent.loop"
