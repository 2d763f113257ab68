"""Rollouts that follow their engines, whole: two scripted engines over real sockets, one slow, one that refuses.

The bounds hold on a machine that is busy with other things; figures are benchmarks/pressure.py's.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, Reward, ToolContext
from hermes_rl.evaluation.output_folder import METRICS
from hermes_rl.rollout.generate import generate_groups
from tests.support.scripted_model import Reply, ScriptedModel, Status, Text, always

SLOW, QUICK = 0.4, 0.1
AT_ONCE = 8


class Talking(HermesAgentBaseEnv):
    """Three turns of talk and no tools; the reward is 1 when all of it was said."""

    own_tools = ()

    async def setup(self) -> None:
        self.taken = 0

    async def get_next_item(self) -> Any:
        self.taken += 1
        return {"number": self.taken}

    def eval_items(self) -> list[Any]:
        return [{"number": -number} for number in range(1, 41)]

    def format_prompt(self, item: Any) -> str:
        return f"number {item['number']}"

    async def next_user_message(self, item: Any, messages: list[Any], session: Any = None) -> str | None:
        return None if len(messages) >= 6 else "go on"

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        return float(result.turns_used == 3)


class Engine(ScriptedModel):
    """Computes `width` requests at once for `seconds` each; more wait for their turn, or are refused (429)."""

    def __init__(self, width: int, seconds: float, *, refuses: bool) -> None:
        super().__init__(always(Text("yes")))
        self.refuses, self.seconds, self.width = refuses, seconds, width
        self.computing = asyncio.Semaphore(width)
        self.refused = self.answered = 0
        self.users: dict[str, int] = {}

    async def _send(self, request: Any, body: dict[str, Any], reply: Reply) -> Any:
        if self.refuses and self.computing.locked():
            self.refused += 1
            return await super()._send(request, body, Status(429))
        async with self.computing:
            await asyncio.sleep(self.seconds)
        self.answered += 1
        asked = body["messages"][0]["content"]
        self.users[asked] = self.users.get(asked, 0) + 1
        return await super()._send(request, body, reply)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def answers_a_second(*models: Engine) -> float:
    """Of a client that knows the engines' sizes and keeps them exactly full, on this machine as it is now."""
    seconds, begun = 3.0, sum(one.answered for one in models)
    body = {"model": "scripted", "messages": [{"role": "user", "content": "go on"}]}
    async with aiohttp.ClientSession() as session:

        async def worker(url: str) -> None:
            while True:
                async with session.post(f"{url}/chat/completions", json=body) as response:
                    await response.read()

        workers = [asyncio.create_task(worker(one.base_url)) for one in models for _ in range(one.width)]
        await asyncio.sleep(seconds)
        answers = sum(one.answered for one in models) - begun
        for work in workers:
            work.cancel()
        await asyncio.wait(workers)
    # What was cancelled is still computed.
    await asyncio.sleep(max(one.seconds for one in models))
    for one in models:
        one.answered = one.refused = 0
        one.users.clear()
    return answers / seconds


@asynccontextmanager
async def engines() -> AsyncIterator[tuple[Engine, Engine]]:
    async with Engine(AT_ONCE, SLOW, refuses=False) as slow, Engine(AT_ONCE, QUICK, refuses=True) as refusing:
        yield slow, refusing


@asynccontextmanager
async def talking(models: tuple[Engine, Engine], folder: Path, **fields: Any) -> AsyncIterator[Talking]:
    configs = [APIServerConfig(base_url=model.base_url, model_name="scripted", timeout=60) for model in models]
    given = {"group_size": 4, "enabled_toolsets": [], "terminal_backend": "local", "use_wandb": False, **fields}
    env = Talking(HermesAgentEnvConfig.model_validate(given), configs)
    env.metrics_path = folder / "metrics.jsonl"
    async with env.opened():
        yield env


async def test_two_engines_are_kept_busy_with_few_refusals_and_no_rollout_fails(tmp_path: Path) -> None:
    async with (
        engines() as (slow, refusing),
        talking((slow, refusing), tmp_path, concurrency="auto", total_steps=80) as env,
    ):
        before = await answers_a_second(slow, refusing)
        began = time.monotonic()
        tally = await generate_groups(env, tmp_path / "groups.jsonl")
        seconds = time.monotonic() - began
        answered, refused = slow.answered + refusing.answered, refusing.refused
        assert refused <= 0.1 * refusing.answered
        after = await answers_a_second(slow, refusing)
    assert (tally.failures, tally.retried, tally.mean) == ({}, {}, 1.0)
    assert answered == 320 * 3
    # The first seconds of looking around are included, and the last of waiting for the slow one.
    assert answered / seconds >= 0.4 * min(before, after)
    [line] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert line["pressure/refusals"] == refused
    assert line["pressure/cuts"] > 0
    assert 0 < line["pressure/requests_limit"] < 200


async def test_rollouts_mostly_stay_at_one_engine(tmp_path: Path) -> None:
    async with (
        engines() as (slow, refusing),
        talking((slow, refusing), tmp_path, concurrency="auto", total_steps=40, group_size=1) as env,
    ):
        await generate_groups(env, tmp_path / "groups.jsonl")
    shared = slow.users.keys() & refusing.users.keys()
    assert len(shared) <= 10


async def test_an_evaluation_follows_the_engines_too(tmp_path: Path) -> None:
    async with (
        engines() as (slow, refusing),
        talking(
            (slow, refusing),
            tmp_path,
            concurrency="auto",
            eval_size=40,
            data_dir_to_save_evals=str(tmp_path / "evaluation"),
        ) as env,
    ):
        await env.run_evaluate()
    [report] = (tmp_path / "evaluation").rglob(METRICS)
    results = json.dumps(json.loads(report.read_text()))
    assert "pressure/requests_limit" in results
    assert env.last_evaluation is not None and env.last_evaluation["metrics"]["eval/mean_reward"] == 1.0


async def test_an_engine_that_leaves_and_comes_back_costs_no_rollout(tmp_path: Path) -> None:
    async with (
        engines() as (slow, refusing),
        talking((slow, refusing), tmp_path, concurrency="auto", total_steps=60) as env,
    ):
        making = asyncio.create_task(generate_groups(env, tmp_path / "groups.jsonl"))
        await until(lambda: refusing.answered >= 20)
        port = refusing.base_url
        refusing.script = always(Status(503))
        away = refusing.answered
        await until(lambda: refusing.answered >= away + 3)
        refusing.script, answered = always(Text("yes")), refusing.answered
        tally = await making
    assert refusing.base_url == port
    assert (tally.failures, tally.mean) == ({}, 1.0)
    assert refusing.answered > answered
