"""A trainer that does what Atropos asks of one: it registers, then asks for batches, and keeps what it is given."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

import aiohttp

# atroposlib takes a quarter of a minute until its first group; on a busy machine several times that.
PATIENCE_S = 240.0
# Of one rollout: tokens, mask, logprobs, score.
Columns: TypeAlias = tuple[list[int], list[int], list[float], float]
REGISTRATION = {
    "wandb_group": "group",
    "wandb_project": "project",
    "batch_size": 8,
    "max_token_len": 2048,
    "checkpoint_dir": "checkpoints",
    "save_checkpoint_interval": 100,
    "starting_step": 0,
    "num_steps": 100,
}


class Trainer:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def batches(self, count: int, seconds: float = PATIENCE_S) -> list[list[dict[str, Any]]]:
        """So many batches, each a list of groups in Atropos' form."""
        batches: list[list[dict[str, Any]]] = []
        async with asyncio.timeout(seconds):
            while len(batches) < count:
                async with self._session.get("/batch") as answer:
                    assert answer.status == 200, await answer.text()
                    batch = (await answer.json())["batch"]
                if batch is None:
                    await asyncio.sleep(0.2)
                else:
                    batches.append(batch)
        return batches


@contextlib.asynccontextmanager
async def registered_trainer(url: str, **wishes: Any) -> AsyncIterator[Trainer]:
    async with aiohttp.ClientSession(url) as session:
        async with session.post("/register", json=REGISTRATION | wishes) as answer:
            assert answer.status == 200, await answer.text()
        yield Trainer(session)


def rollouts_of(groups: Sequence[dict[str, Any]]) -> list[Columns]:
    names = ("tokens", "masks", "inference_logprobs", "scores")
    return [rollout for group in groups for rollout in zip(*(group[name] for name in names), strict=True)]
