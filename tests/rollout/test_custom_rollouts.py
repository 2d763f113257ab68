"""An environment's own `collect_trajectory` and `collect_trajectories` make the rollouts of every command.

The promises are those of our own rollouts: failures by cause, deadlines, sandboxes closed, exact tokens or no training.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import AgentResult, APIServerConfig, HermesAgentEnvConfig, Reward, ToolContext
from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Group, StopReason
from hermes_rl.environment.compat.base_env import BaseEnv
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.rollout.group import run_group
from hermes_rl.sandbox.spec import Limits, SandboxSpec
from hermes_rl.store.records import read_groups
from tests.environment.test_exact_rollouts import MODEL, call, ids
from tests.environment.test_exact_rollouts import writes_the_number as writes_tokens
from tests.rollout.test_rollout import causes, writes_the_number
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Status, Text
from tests.support.token_servers import Asked, Tokens, VLLMServer

ITEM = {"number": 7}


class AddsHalf(FileEnv):
    async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
        scored, backlog = await super().collect_trajectory(item)
        if scored is not None:
            scored["scores"] += 0.5
        return scored, backlog


class OwnLoop(FileEnv):
    """Runs the agent and the reward itself, as the second seed does, errors caught and scored 0.0 included."""

    async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
        task_id = str(uuid.uuid4())
        tools, names = self._resolve_tools_for_group()
        messages = [{"role": "user", "content": self.format_prompt(item)}]

        async def run(server: Any) -> AgentResult:
            loop = HermesAgentLoop(server=server, tool_schemas=tools, valid_tool_names=names, task_id=task_id)
            return await loop.run(messages)

        try:
            async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
                result = await run(managed)
        except NotImplementedError:
            result = await run(self.server)
        reward: float | Reward = 0.0
        if result.turns_used > 0:
            ctx = ToolContext(task_id)
            try:
                reward = await self.compute_reward(item, result, ctx)
            except Exception:  # noqa: BLE001 (as the seed does)
                reward = 0.0
            finally:
                ctx.cleanup()
        nodes = (result.managed_state or {}).get("nodes", [])
        tokens, masks = (nodes[-1].tokens, nodes[-1].masked_tokens) if nodes else ([0, 1, 2], [-100, 1, 2])
        return {"tokens": tokens, "masks": masks, "scores": reward, "messages": result.messages}, []


class Counting(BaseEnv):
    """The third seed's recipe: samples a whole group with one request, and scores the answers."""

    async def load_dataset(self) -> None:
        self.numbers = iter(range(1000))
        self._eval_items = [{"number": 2000}]

    async def get_next_item(self) -> dict[str, int]:
        return {"number": next(self.numbers)}

    def score_answer(self, answer: str | None, item: dict[str, int]) -> float:
        return float((answer or "").strip() == str(item["number"]))

    async def collect_trajectories(self, item: dict[str, int]) -> tuple[Any, list[Any]]:
        group: dict[str, Any] = {"tokens": [], "masks": [], "scores": [], "inference_logprobs": []}
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            answers = await managed.chat_completion(
                messages=[{"role": "user", "content": f"write {item['number']}"}], n=self.config.group_size
            )
            nodes = managed.get_state()["nodes"]
        for choice, node in zip(answers.choices, nodes, strict=True):
            group["tokens"].append(node.tokens)
            group["masks"].append(node.masked_tokens)
            group["inference_logprobs"].append(node.logprobs)
            group["scores"].append(self.score_answer(choice.message.content, item))
        return group, []


async def chat(script: Any, environment: type[FileEnv], size: int = 2, **config: Any) -> Group:
    async with ScriptedModel(script) as model, opened(environment, model, **config) as env:
        group = await run_group(env, ITEM, size=size)
        assert env.tools.pool.live == 0
        return group


@asynccontextmanager
async def exact(server: VLLMServer, tmp_path: Path, environment: type[Any], **config: Any) -> AsyncIterator[Any]:
    endpoint = APIServerConfig.model_validate(
        {"base_url": server.base_url, "model_name": "scripted", "server_type": "vllm", "max_retries": 0}
    )
    settings = {"tokenizer_name": str(MODEL.save(tmp_path / "tokenizer")), "group_size": 2, **config}
    env = environment(HermesAgentEnvConfig.model_validate(settings), [endpoint])
    async with env.opened():
        yield env
        assert env.tools.pool.live == 0


def sampled_ids(group: Group) -> list[tuple[int, ...]]:
    return [
        tuple(token for token, sampled in zip(sequence.tokens, sequence.mask, strict=True) if sampled)
        for rollout in group.rollouts
        for sequence in rollout.sequences
    ]


async def test_a_score_changed_after_super_is_the_score_and_the_rest_of_the_rollout_stays() -> None:
    plain, changed = await chat(writes_the_number, FileEnv), await chat(writes_the_number, AddsHalf)
    assert changed.scores == [1.5, 1.5]
    for before, after in zip(plain.rollouts, changed.rollouts, strict=True):
        assert (after.seed, after.stop_reason, after.turns_used) == (before.seed, StopReason.NATURAL, 2)
        assert [use.name for use in after.tool_uses] == ["terminal"]
        assert after.usage == before.usage
        assert [message["role"] for message in after.messages] == ["user", "assistant", "tool", "assistant"]


async def test_process_and_evaluate_use_it(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    folder: dict[str, Any] = {"data_dir_to_save_evals": str(tmp_path / "evals")}
    async with ScriptedModel(writes_the_number) as model, opened(AddsHalf, model, total_steps=2, **folder) as env:
        await generate_groups(env, path)
        await env.run_evaluate()
        assert env.last_evaluation is not None
        assert env.last_evaluation["metrics"]["eval/mean_reward"] == 1.5
    assert [score for group in read_groups(path) for score in group.scores] == [1.5] * 8


async def test_an_own_agent_loop_keeps_its_score_and_its_agents_work() -> None:
    group = await chat(writes_the_number, OwnLoop)
    assert group.scores == [1.0, 1.0]
    for rollout in group.rollouts:
        assert (rollout.stop_reason, rollout.turns_used) == (StopReason.NATURAL, 2)
        assert [use.name for use in rollout.tool_uses] == ["terminal"]
        assert rollout.usage.prompt_tokens is not None
        # Placeholder tokens are not kept.
        assert rollout.sequences == ()


async def test_its_tokens_are_those_the_managed_server_recorded(tmp_path: Path) -> None:
    for environment in (AddsHalf, OwnLoop):
        async with VLLMServer(writes_tokens) as server, exact(server, tmp_path, environment) as env:
            group = await env.collect_group(ITEM)
        expected = (*ids(call("echo 7 > answer")), *ids("Done."))
        assert sampled_ids(group) == [expected, expected]
        assert [rollout.withheld for rollout in group.rollouts] == [None, None]


@pytest.mark.parametrize("change", ["placeholder", "prompt", "length"])
async def test_a_row_without_recorded_tokens_keeps_its_score_and_is_not_trained_on(tmp_path: Path, change: str) -> None:
    class Changed(OwnLoop):
        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            scored, backlog = await super().collect_trajectory(item)
            if change == "placeholder":
                scored |= {"tokens": [0, 1, 2], "masks": [-100, 1, 2]}
            elif change == "prompt":
                scored["masks"] = list(scored["tokens"])
            else:
                scored["masks"] = scored["masks"][:-1]
            return scored, backlog

    async with VLLMServer(writes_tokens) as server, exact(server, tmp_path, Changed) as env:
        group = await env.collect_group(ITEM)
    assert group.scores == [1.0, 1.0]
    assert [(rollout.sequences, rollout.withheld) for rollout in group.rollouts] == [((), "no_tokens")] * 2


async def test_a_narrower_mask_is_kept(tmp_path: Path) -> None:
    class LastTurnOnly(OwnLoop):
        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            scored, backlog = await super().collect_trajectory(item)
            first = ids(call("echo 7 > answer"))
            start = next(at for at, mask in enumerate(scored["masks"]) if mask != -100)
            scored["masks"][start : start + len(first)] = [-100] * len(first)
            return scored, backlog

    async with VLLMServer(writes_tokens) as server, exact(server, tmp_path, LastTurnOnly) as env:
        group = await env.collect_group(ITEM)
    assert sampled_ids(group) == [ids("Done."), ids("Done.")]
    for rollout in group.rollouts:
        [sequence] = rollout.sequences
        assert [value is not None for value in sequence.logprobs] == [bool(kept) for kept in sequence.mask]


async def test_a_dead_endpoint_is_a_failure_although_the_code_scores_it_zero() -> None:
    group = await chat(lambda _: Status(500), OwnLoop)
    assert (group.scores, causes(group)) == ([], {"endpoint/http_500": 2})


async def test_a_failed_sandbox_is_a_failure_although_the_code_scores_it_zero() -> None:
    class BreaksInReward(OwnLoop):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
            await self.tools.session(ctx.task_id).close()
            return await super().compute_reward(item, result, ctx)

    group = await chat(writes_the_number, BreaksInReward)
    assert (group.scores, causes(group)) == ([], {"sandbox/closed": 2})


async def test_an_exception_and_a_deadline_are_failures_with_their_causes_and_leave_no_sandbox() -> None:
    class Raises(OwnLoop):
        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            await super().collect_trajectory(item)
            raise KeyError("answer")

    class Hangs(FileEnv):
        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            ToolContext("left-open").terminal("true")
            await asyncio.sleep(60)
            return None, []

    raised = await chat(writes_the_number, Raises)
    assert causes(raised) == {"environment/collect_trajectory": 2}
    assert "KeyError at test_custom_rollouts.py:" in str(
        raised.rollouts[0].failure.message if raised.rollouts[0].failure else None
    )
    late = await chat(writes_the_number, Hangs, size=1, worker_timeout=1, rollout_retries=0)
    assert causes(late) == {"framework/worker_timeout": 1}


async def test_what_is_not_returned_is_kept_and_not_trained_on() -> None:
    class DropsAll(FileEnv):
        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            await super().collect_trajectory(item)
            return None, []

    class Nothing(FileEnv):
        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            return None, []

    dropped = await chat(writes_the_number, DropsAll)
    assert [(rollout.score, rollout.withheld) for rollout in dropped.rollouts] == [(1.0, "not_returned")] * 2
    assert causes(await chat(writes_the_number, Nothing)) == {"environment/returned_nothing": 2}


async def test_the_wrong_form_is_named() -> None:
    class NoBacklog(FileEnv):
        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            return {"scores": 1.0}  # type: ignore[return-value]

    group = await chat(writes_the_number, NoBacklog, size=1)
    assert group.rollouts[0].failure is not None
    assert "return (scored data, list of items to run later)" in group.rollouts[0].failure.message


async def test_an_own_group_may_change_scores_drop_rows_and_fail_partly() -> None:
    class Ranks(FileEnv):
        async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
            group, backlog = await super().collect_trajectories(item)
            keep = range(1, len(group["scores"]))
            columns = {name: [group[name][at] for at in keep] for name in ("scores", "messages")}
            columns["scores"] = [score + at for at, score in enumerate(columns["scores"])]
            return columns, backlog

    group = await chat(writes_the_number, Ranks, size=3)
    assert [(rollout.index, rollout.score, rollout.withheld) for rollout in group.rollouts] == [
        (0, 1.0, None),
        (1, 2.0, None),
        (2, 1.0, "not_returned"),
    ]
    # Its code is not written for a group without scores, which is None.
    broken = await chat(lambda _: Status(500), Ranks, size=3)
    assert causes(broken) == {"endpoint/http_500": 3}
    assert broken.rollouts[0].failure is not None
    assert "then collect_trajectories raised TypeError" in broken.rollouts[0].failure.message


async def test_own_groups_may_call_collect_trajectory_themselves_with_different_seeds() -> None:
    class Gathers(FileEnv):
        async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
            scored = await asyncio.gather(*(self.collect_trajectory(item) for _ in range(self.config.group_size)))
            return [one for one, _ in scored if one is not None], []

    plain = await chat(writes_the_number, FileEnv, size=3)
    group = await chat(writes_the_number, Gathers, size=3, group_size=3)
    assert group.scores == [1.0, 1.0, 1.0]
    assert sorted(rollout.seed for rollout in group.rollouts) == sorted(rollout.seed for rollout in plain.rollouts)


def answers_the_number(asked: Asked) -> Tokens:
    text = MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False)
    return Tokens(ids(text.split("write ")[1].partition("<|im_end|>")[0]))


async def test_the_custom_baseenv_recipe_has_exact_tokens(tmp_path: Path) -> None:
    async with VLLMServer(answers_the_number) as server, exact(server, tmp_path, Counting) as env:
        draw = await env.next_draw()
        assert draw.item == {"number": 0}
        [group] = await env.collect_groups(draw.item, draw.number)
    assert group.scores == [1.0, 1.0]
    assert sampled_ids(group) == [ids("0"), ids("0")]
    assert group.withheld == "equal_scores"
    assert sum(rollout.usage.completion_tokens or 0 for rollout in group.rollouts) == 2 * len(ids("0"))


async def test_an_evaluation_asks_an_own_group_for_its_samples(tmp_path: Path) -> None:
    settings = {"eval_samples": 3, "group_size": 2, "data_dir_to_save_evals": str(tmp_path / "evals")}
    async with VLLMServer(answers_the_number) as server, exact(server, tmp_path, Counting, **settings) as env:
        await env.run_evaluate()
        assert env.last_evaluation["metrics"]["eval/mean_reward"] == 1.0
        assert env.config.group_size == 2
    [group] = read_groups(next((tmp_path / "evals").rglob("groups.jsonl")))
    assert len(group.rollouts) == 3


async def test_an_own_group_sees_its_tools_in_evaluations_too(tmp_path: Path) -> None:
    seen: list[set[str] | None] = []

    class Looks(FileEnv):
        async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
            seen.append(self._current_group_tools and self._current_group_tools[1])
            return {"scores": [1.0]}, []

    folder = str(tmp_path)
    async with ScriptedModel(lambda _: Text("")) as model, opened(Looks, model, data_dir_to_save_evals=folder) as env:
        await env.collect_groups({"number": 1})
        await env.run_evaluate()
    assert len(seen) == 6
    assert all(names is not None and "terminal" in names for names in seen)


async def test_several_groups_and_a_backlog(tmp_path: Path) -> None:
    class TwoGroups(FileEnv):
        async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
            later = [{"number": item["number"] + 1000}] if item["number"] < 1000 else []
            rows = {"scores": [0.0, 1.0], "messages": [[{"role": "assistant", "content": str(at)}] for at in "ab"]}
            return [rows, {**rows, "scores": [2.0, 3.0], "group_overrides": {"weight": 2}}], later

    path = tmp_path / "groups.jsonl"
    config: dict[str, Any] = {"total_steps": 4, "max_num_workers": 1, "concurrency": "fixed"}
    async with ScriptedModel(lambda _: Text("")) as model, opened(TwoGroups, model, **config) as env:
        await generate_groups(env, path)
    groups = list(read_groups(path))
    assert [(group.draw, group.item["number"], group.scores) for group in groups] == [
        (draw, number, scores) for draw, number in enumerate([1, 1001, 2, 1002]) for scores in ([0.0, 1.0], [2.0, 3.0])
    ]
    assert len({group.id for group in groups}) == 8
    assert [group.overrides for group in groups[:2]] == [{}, {"weight": 2}]
    # A run that goes on draws the same items, although half of them came from the backlog.
    async with (
        ScriptedModel(lambda _: Text("")) as model,
        opened(TwoGroups, model, **config | {"total_steps": 6}) as env,
    ):
        await generate_groups(env, path, resume=True)
    assert [group.item["number"] for group in read_groups(path)][8::2] == [3, 1003]


async def test_a_backlog_of_an_evaluation_is_not_trained_on(tmp_path: Path) -> None:
    class Postpones(FileEnv):
        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            return {"scores": 1.0}, [item]

        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            await super().evaluate(*args, **kwargs)
            assert not self.has_backlog

    folder = str(tmp_path)
    async with (
        ScriptedModel(lambda _: Text("")) as model,
        opened(Postpones, model, data_dir_to_save_evals=folder) as env,
    ):
        await env.run_evaluate()
        await env.collect_groups({"number": 1})
        assert env.has_backlog


async def test_values_the_trainer_does_not_use_stay_in_the_record() -> None:
    class Advantages(FileEnv):
        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            return {"scores": 1.0, "messages": [], "overrides": {"set_advantage_to_zero": True}}, []

    group = await chat(writes_the_number, Advantages, size=1)
    assert json.loads(json.dumps(group.rollouts[0].metadata["returned"])) == {
        "overrides": {"set_advantage_to_zero": True}
    }


async def test_a_baseenv_without_rollouts_is_refused() -> None:
    class Empty(BaseEnv):
        pass

    async with ScriptedModel(lambda _: Text("")) as model:
        with pytest.raises(ConfigError, match="define collect_trajectories or collect_trajectory"):
            async with opened(Empty, model):
                pass


async def test_sandboxes_of_author_code_have_the_items_spec_or_else_the_configured_one() -> None:
    seen: list[int | None] = []

    class PerItem(FileEnv):
        def sandbox_spec(self, item: Any) -> SandboxSpec:
            return SandboxSpec(limits=Limits(memory_mb=100 + item["number"]))

        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            spec = self.tools.session("mine").spec
            seen.append(spec.limits.memory_mb if spec else None)
            return {"scores": 1.0}, []

    await chat(writes_the_number, PerItem, size=1)
    async with ScriptedModel(writes_the_number) as model, opened(FileEnv, model, sandbox_memory_mb=321) as env:
        spec = env.tools.session("in-evaluate").spec
        seen.append(spec.limits.memory_mb if spec else None)
    assert seen == [107, 321]
