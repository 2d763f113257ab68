"""A served environment with everything around it: a model, an API over a store, and a trainer that takes batches."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl import APIServerConfig, HermesAgentBaseEnv
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.core.trajectory import Group
from hermes_rl.serving.serve import initial_stats, serve
from hermes_rl.serving.serve_loop import ServeResult
from hermes_rl.store.codec import decode
from hermes_rl.store.database.registrations import TrainerRow
from hermes_rl.store.database.store import Store
from tests.serving.counting_env import MODEL, Streamed

SETTINGS: dict[str, Any] = {
    "group_size": 2,
    "terminal_backend": "bubblewrap",
    "ensure_scores_are_not_same": False,
    "max_num_workers": 3,
    "stop_timeout": 10.0,
    "use_wandb": False,
}


@dataclass
class Running:
    """A run of `serve` under way."""

    env: Any
    stop: StopSignal
    board: Any
    task: asyncio.Task[ServeResult]

    async def stopped(self, reason: str = "told") -> ServeResult:
        self.stop.request(reason)
        return await self.ended()

    async def ended(self, seconds: float = 30.0) -> ServeResult:
        async with asyncio.timeout(seconds):
            return await self.task


@asynccontextmanager
async def serving(
    api: str, model: str, folder: Path, environment: type[HermesAgentBaseEnv] = Streamed, **settings: Any
) -> AsyncIterator[Running]:
    """An environment that serves until it is stopped, or the block ends."""
    endpoint = APIServerConfig.model_validate(
        {"base_url": model, "model_name": "scripted", "server_type": "vllm", "max_retries": 0, "timeout": 20}
    )
    # Ports are used again, and the spool of another test must not be found.
    kept = {"serve_dir": str(folder / "kept")}
    given = {**SETTINGS, "tokenizer_name": str(tokenizer(folder)), "rollout_server_url": api, **kept, **settings}
    env = environment(environment.env_config_cls.model_validate(given), [endpoint])
    env.metrics_path = folder / "serve.metrics.jsonl"
    stop = StopSignal(env.config.stop_timeout)
    async with env.opened():
        board = initial_stats(env)
        task = asyncio.create_task(serve(env, stop, board))
        try:
            yield Running(env, stop, board, task)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])


def tokenizer(folder: Path) -> Path:
    place = folder / "tokenizer"
    return place if place.exists() else MODEL.save(place)


async def trainer(store: Store, *, batch_size: int = 4, max_staleness: int | None = 3) -> None:
    await store.register_trainer(TrainerRow("trainer", batch_size, max_staleness))


async def train(store: Store, version: int) -> None:
    """Take a batch if there is one, and set the policy's next version.

    Acknowledged last: between the two more would be granted for the old version.
    """
    batch = await store.lease("trainer", seconds=60)
    await store.set_version(version, by="trainer")
    if batch is not None:
        await store.ack(batch.id)


async def until(true: Callable[[], Any], seconds: float = 90.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            answer = true()
            if await answer if asyncio.iscoroutine(answer) else answer:
                return
            await asyncio.sleep(0.02)


async def groups(store: Store) -> list[Group]:
    """All groups in the store, whichever environment's, in the order they came."""
    places = {row.place for row in (await store.rollouts(limit=100_000)).rollouts}
    stored = [await store.group(place) for place in sorted(places)]
    return [decode(one.data) for one in stored if one is not None and one.data is not None]


async def draws(store: Store) -> list[int]:
    """Their draws, each as often as it is there."""
    return sorted(group.draw for group in await groups(store))
