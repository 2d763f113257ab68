import asyncio
import sys

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.store.database import groups
from hermes_rl.store.database.errors import StoreError, StoreUnavailableError
from hermes_rl.store.database.store import open_store
from tests.store.database.making import make_group, with_trainer
from tests.store.database.postgres_server import PostgresServer
from tests.support.ports import free_port

pytestmark = pytest.mark.parts


async def test_without_psycopg_the_line_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'hermes-rl\[postgres\]'"):
        async with open_store("postgresql://nobody@127.0.0.1/none"):
            pass


async def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(StoreUnavailableError, match="is unreachable"):
        async with open_store(f"postgresql://nobody@127.0.0.1:{free_port()}/none"):
            pass


async def test_stores_in_two_schemas_of_one_database_do_not_meet(postgres: PostgresServer) -> None:
    async with open_store(postgres.new_schema()) as one, open_store(postgres.new_schema()) as other:
        await one.add(await with_trainer(one), make_group())
        assert (await other.status()).total.waiting_groups == 0


async def test_a_closed_store_says_so(postgres: PostgresServer) -> None:
    async with open_store(postgres.new_schema()) as store:
        pass
    with pytest.raises(StoreError, match="closed"):
        await store.status()


async def test_a_caller_that_gives_up_leaves_the_store_working(postgres: PostgresServer) -> None:
    async with open_store(postgres.new_schema()) as store:
        environment = await with_trainer(store)
        posts = [asyncio.create_task(store.add(environment, make_group())) for _ in range(32)]
        await asyncio.sleep(0.01)
        for post in posts:
            post.cancel()
        await asyncio.gather(*posts, return_exceptions=True)
        assert (await store.add(environment, make_group())).new


async def test_three_replicas_lease_and_acknowledge_every_group_once(postgres: PostgresServer) -> None:
    address = postgres.new_schema()
    async with open_store(address) as one, open_store(address) as two, open_store(address) as three:
        replicas = (one, two, three)
        environment = await with_trainer(one, batch_size=8)
        posts = [make_group(id=str(number)) for number in range(60)]
        await asyncio.gather(*(store.add(environment, data) for store in replicas for data in posts))
        trained: list[str] = []

        async def train(number: int) -> None:
            while batch := await replicas[number].lease("trainer", seconds=60):
                await replicas[(number + 1) % 3].ack(batch.id)
                trained.extend(group.id for group in batch.groups)

        await asyncio.gather(*(train(number) for number in range(3)))
        assert sorted(trained, key=int) == [str(number) for number in range(60)]


async def test_scores_wait_until_places_are_in_order(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions commit out of order, and a reader that has seen a place never goes back."""
    async with open_store(postgres.new_schema()) as store:
        environment = await with_trainer(store)
        await store.add(environment, make_group())
        assert await store.group_scores(environment) == []
        monkeypatch.setattr(groups, "SETTLE_SECONDS", 0.0)
        assert len(await store.group_scores(environment)) == 1
