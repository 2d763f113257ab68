#!/usr/bin/env python3
"""A trainer of your own: lease a batch, train on it, acknowledge it, say that there are new weights."""

import asyncio
import sys

from hermes_rl.api.client.connection import ApiConnection
from hermes_rl.api.client.trainer import TrainerClient
from hermes_rl.core.trajectory import Group


def train(groups: list[Group]) -> None:
    """Your own step: tokens, mask, logprobs and versions of every sequence, and what its rollout scored."""


async def main(url: str, steps: int) -> None:
    async with ApiConnection(url) as connection:
        trainer = TrainerClient(connection, "my-trainer")
        await trainer.register(batch_size=32, max_staleness=2)
        await trainer.release(*await trainer.on_loan())  # what an earlier life did not finish
        version = await trainer.version()
        while version < steps:
            batch = await trainer.lease(wait=60)
            if batch is None:
                continue
            async with trainer.held(batch):
                groups = [group async for group in trainer.decoded(batch)]
                await asyncio.to_thread(train, groups)
            version += 1
            await trainer.acknowledge(batch)
            await trainer.set_version(version)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
