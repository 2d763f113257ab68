"""The base class of the second seed by its own names: tools of a group, display, metrics."""

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import AgentResult, APIServerConfig, HermesAgentEnvConfig, ToolContext
from hermes_rl.extensions import SANDBOX_BACKENDS, TOOLSETS
from hermes_rl.rollout.group import run_group
from hermes_rl.store.records import group_to_record
from tests.seeds.parts import records
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Calls, ScriptedModel, Text, always


def made(**config: Any) -> FileEnv:
    """An environment that is not open."""
    return FileEnv(HermesAgentEnvConfig(**config), [APIServerConfig(base_url="http://127.0.0.1:9/v1")])


async def test_a_managed_server_without_tokens_is_not_implemented() -> None:
    with pytest.raises(NotImplementedError, match=r"--openai\.server_type vllm"):
        async with made().server.managed_server(tokenizer=None):
            pass


def test_the_parser_of_the_configuration_is_the_servers() -> None:
    assert made(tool_call_parser="mistral").server.tool_parser == "mistral"


def test_without_a_name_an_environment_has_that_of_its_class() -> None:
    assert FileEnv.name is None
    assert FileEnv.display_name() == "FileEnv"


def test_the_toolsets_that_the_seed_names_are_there() -> None:
    assert {"terminal", "file", "web", "browser", "vision"} <= set(TOOLSETS.names())


def test_the_backends_that_the_seed_names_are_there() -> None:
    assert {"local", "docker", "modal", "daytona", "ssh", "singularity"} <= set(SANDBOX_BACKENDS.names())


async def test_an_item_may_be_a_tuple() -> None:
    class Pairs(FileEnv):
        def format_prompt(self, item: Any) -> str:
            return f"add {item[0]} and {item[1]}"

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return float(result.final_response == str(sum(item)))

    async with ScriptedModel(always(Text("7"))) as model, opened(Pairs, model) as env:
        group = await run_group(env, (3, 4), size=1)
    assert group.scores == [1.0]
    assert json.loads(json.dumps(group_to_record(group)))["item"] == [3, 4]


def test_before_the_first_group_there_are_no_group_tools() -> None:
    assert made()._current_group_tools is None


async def test_the_tools_of_a_group_are_schemas_and_their_names() -> None:
    config: dict[str, Any] = {"enabled_toolsets": ["terminal", "file"], "disabled_toolsets": ["file"]}
    async with ScriptedModel(always(Text("x"))) as model, opened(FileEnv, model, **config) as env:
        schemas, names = env._resolve_tools_for_group()
    assert names == {schema["function"]["name"] for schema in schemas} == {"terminal", "process"}


@pytest.mark.parametrize(("keep", "shown"), [(1, 1), (2, 2), (-1, 3)])
async def test_so_many_rollouts_of_a_group_are_shown(keep: int, shown: int) -> None:
    env = made(num_rollouts_per_group_for_logging=keep, group_size=3)
    messages = [[{"role": "user", "content": str(index)}] for index in range(3)]
    await env.add_rollouts_for_wandb({"scores": [0.0, 0.5, 1.0], "messages": messages})
    [group] = env.rollouts_for_wandb
    assert group == [("[USER]\n0", 0.0), ("[USER]\n1", 0.5), ("[USER]\n2", 1.0)][:shown]


async def test_the_oldest_group_makes_room_for_the_newest() -> None:
    env = made(num_rollouts_to_keep=2)
    for score in (1.0, 2.0, 3.0):
        await env.add_rollouts_for_wandb({"scores": [score], "messages": [[{"role": "user", "content": "x"}]]})
    assert [group[0][1] for group in env.rollouts_for_wandb] == [2.0, 3.0]


async def test_rollouts_without_messages_are_shown_by_their_tokens() -> None:
    class Letters:
        def decode(self, tokens: list[int]) -> str:
            return "".join(map(chr, tokens))

    env = made()
    env.tokenizer = Letters()
    await env.add_rollouts_for_wandb({"scores": [1.0], "tokens": [[104, 105]]})
    await env.add_rollouts_for_wandb({"scores": [1.0]})
    assert [group[0][0] for group in env.rollouts_for_wandb] == ["hi", "(no data)"]


async def test_tool_errors_are_counted_and_named_once(tmp_path: Path) -> None:
    def calls_an_unknown_tool(request: dict[str, Any]) -> Calls | Text:
        return Text("done") if request["messages"][-1]["role"] == "tool" else Calls([("nothing", json.dumps({"a": 1}))])

    metrics = tmp_path / "metrics.jsonl"
    async with ScriptedModel(calls_an_unknown_tool) as model, opened(FileEnv, model, metrics_path=metrics) as env:
        env.note_tool_errors(await run_group(env, {"number": 1}, size=1))
        [error] = env._tool_error_buffer
        await env.wandb_log({"train/mine": 1})
        await env.wandb_log()
    assert {name: error[name] for name in ("turn", "tool", "args")} == {
        "turn": 1,
        "tool": "nothing",
        "args": '{"a": 1}',
    }
    assert "unknown tool" in error["error"] and "unknown tool" in error["result"]
    first, second = records(metrics)
    assert (first["train/mine"], first["train/tool_errors_count"], second["train/tool_errors_count"]) == (1, 1, 0)
    assert first["train/tool_error_details"].startswith('[turn 1] nothing({"a": 1}) -> unknown tool')
