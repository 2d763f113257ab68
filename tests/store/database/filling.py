"""A program that fills a SQLite store up to a limit of its files' size, goes on without it, and says how it went."""

import asyncio
import json
import resource
import sys

from hermes_rl.store.database.errors import StoreFullError
from hermes_rl.store.database.store import open_store
from tests.store.database.making import make_large_group

LIMIT = 4 * 2**20


async def fill(path: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    answered, refused = [], []
    async with open_store(path) as store:
        environment = (await store.register_environment("e")).id

        async def post(name: str) -> None:
            try:
                await store.add(environment, make_large_group(name))
                answered.append(name)
            except StoreFullError:
                refused.append(name)

        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
        for batch in range(100):
            await asyncio.gather(*(post(f"{batch} {number}") for number in range(4)))
            if refused:
                break
        still_there = [name for name in answered if await store.group(name)]
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        late = list(refused)
        refused.clear()
        for name in late:
            await post(name)
        found = [name for name in answered if await store.group(name)]
    print(json.dumps({"late": late, "refused": refused, "lost": len(answered) - len(found), "read": len(still_there)}))


if __name__ == "__main__":
    asyncio.run(fill(sys.argv[1]))
