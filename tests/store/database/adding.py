"""A program that adds groups and says the id of each on its own line once it was answered, to be killed in the middle.

python adding.py ADDRESS NAME COUNT IDS: COUNT at once; ids are `IDS number`, so that two of the same IDS post the same.
"""

import asyncio
import sys
from itertools import count

from hermes_rl.store.database.store import open_store
from tests.store.database.making import make_group


async def add(address: str, name: str, together: int, ids: str) -> None:
    async with open_store(address) as store:
        environment = (await store.register_environment(name)).id
        numbers = count()

        async def post() -> None:
            for number in numbers:
                added = await store.add(environment, make_group(2, id=f"{ids} {number}", draw=number))
                print(f"{int(added.new)} {ids} {number}", flush=True)

        async with asyncio.TaskGroup() as posts:
            for _ in range(together):
                posts.create_task(post())


if __name__ == "__main__":
    asyncio.run(add(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
