"""The extra `postgres`: a group into a real PostgreSQL, and out again byte for byte."""

import asyncio
import json
import sys
from typing import Any

from hermes_rl.core.trajectory import Group, Provenance, Rollout, StopReason
from hermes_rl.store.codec import encode
from hermes_rl.store.database.registrations import TrainerRow
from hermes_rl.store.database.store import open_store


def main(given: dict[str, Any]) -> str:
    return asyncio.run(stored(given["address"]))


async def stored(address: str) -> str:
    said: list[Any] = [{"role": "user", "content": "hello"}]
    rollout = Rollout(item_id="item", index=0, seed=0, messages=said, score=0.5, stop_reason=StopReason.NATURAL)
    data = encode(Group(item_id="item", item={}, rollouts=(rollout,), provenance=Provenance("e", "h", "m", {}), id="a"))
    async with open_store(address) as store:
        await store.register_trainer(TrainerRow("trainer", 1, needs=()))
        environment = await store.register_environment("smoke")
        added = await store.add(environment.id, data)
    async with open_store(address) as store:
        found = await store.group(added.place)
        assert found is not None and found.data == data
    return "a group stored in a real PostgreSQL and read back"


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
