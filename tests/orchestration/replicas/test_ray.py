"""Replicas as actors of a real Ray cluster on this machine, against a real trajectory API.

One node after another is killed, removed and added, the driver is killed too: no group is lost or doubled.
"""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.orchestration.replicas.ray_cluster import RayCluster
from tests.orchestration.replicas.stage import Command, Stage, staged, until
from tests.store.database.postgres_server import PostgresServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parts,
    pytest.mark.timeout(1200),
    # Of Ray's own processes, which it leaves to the system when a start of it fails.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
ITEMS = 120
ENDLESS = 1_000_000
# Below the time that a worker waits for an answer.
SLOW = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster(nodes=3, in_threads=True) as cluster:
        yield cluster


def replicas_on_nodes(stage: Stage) -> dict[str, str]:
    told = stage.standing() or {"replicas": {}}
    return {name: one["node"] for name, one in told["replicas"].items() if one["state"] == "open"}


def shards(stage: Stage, state: str) -> int:
    told = stage.standing() or {"shards": []}
    return sum(one["state"] == state for one in told["shards"])


def restarts(stage: Stage) -> int:
    told = stage.standing() or {"shards": []}
    return sum(one["restarts"] for one in told["shards"])


def on_ray(stage: Stage, cluster: RayCluster, replicas: int, items: int, home: Path | None = None) -> Command:
    options = ("--replicas", str(replicas), "--shards", "3", "--on", "ray", "--ray-address", cluster.address)
    return stage.serve(*options, items=items, home=home)


async def made(stage: Stage, command: Command, groups: int) -> None:
    await until(lambda: stage.groups() >= groups, 300, lambda: command.said)


async def finished(command: Command) -> int:
    await until(lambda: command.process.poll() is not None, 400, lambda: command.said)
    return command.ended()


async def test_nodes_are_killed_removed_and_added_and_every_item_is_made_once(
    tmp_path: Path, cluster: RayCluster
) -> None:
    async with staged(tmp_path, seconds_a_turn=0.2) as stage:
        command = on_ray(stage, cluster, 3, ITEMS)
        await until(lambda: shards(stage, "served") == 3, 300, lambda: command.said)
        assert len(set(replicas_on_nodes(stage).values())) == 3
        await made(stage, command, 6)
        # So that there is still work when Ray has noticed.
        stage.model.seconds_a_turn = SLOW
        # Beside the event loop, on which the model answers.
        await asyncio.to_thread(cluster.kill_node, next(iter(replicas_on_nodes(stage).values())))
        await until(lambda: restarts(stage) >= 1 and shards(stage, "served") == 3, 200, lambda: command.said)
        await asyncio.to_thread(cluster.add_node)
        await asyncio.to_thread(cluster.kill_node, next(iter(replicas_on_nodes(stage).values())), graceful=True)
        await until(lambda: restarts(stage) >= 2, 200, lambda: command.said)
        await asyncio.to_thread(cluster.add_node)
        stage.model.seconds_a_turn = 0.0
        assert await finished(command) == 0, command.said
        assert stage.draws() == dict.fromkeys(range(ITEMS), 1)


@pytest.mark.long
async def test_a_killed_driver_finds_its_workers_at_work_and_the_fleet_is_resized_and_a_node_drained(
    tmp_path: Path, cluster: RayCluster
) -> None:
    async with staged(tmp_path, seconds_a_turn=0.5) as stage:
        first = on_ray(stage, cluster, 2, ENDLESS)
        await until(lambda: shards(stage, "served") == 3, 300, lambda: first.said)
        # All of them at work, not only begun: what is shown is that they go on.
        await until(lambda: stage.model.open >= 6, 300, lambda: first.said)
        first.signal(signal.SIGKILL)
        first.ended()
        open_at = stage.model.requests
        await until(lambda: stage.model.requests > open_at + 4, 60)
        second = on_ray(stage, cluster, 2, ENDLESS)
        await until(lambda: "shards served" in second.said and shards(stage, "served") == 3, 200, lambda: second.said)
        assert "starting shard" not in second.said
        stage.replicas("resize", "numbers", "3")
        await until(lambda: len(replicas_on_nodes(stage)) == 3, 200, lambda: second.said)
        drained = next(iter(replicas_on_nodes(stage).values()))
        stage.replicas("drain", "numbers", drained)
        there = replicas_on_nodes(stage)
        await until(lambda: replicas_on_nodes(stage).keys() != there.keys(), 200, lambda: second.said)
        await until(lambda: len(replicas_on_nodes(stage)) == 3, 200, lambda: second.said)
        assert drained not in replicas_on_nodes(stage).values()
        second.signal(signal.SIGTERM)
        assert await finished(second) == 0, second.said
        assert set(stage.draws().values()) == {1}


@pytest.mark.long
async def test_of_two_drivers_that_begin_at_once_one_is_refused_and_one_that_was_away_gives_way(
    tmp_path: Path, cluster: RayCluster
) -> None:
    async with staged(tmp_path, seconds_a_turn=0.5) as stage:
        # As from two machines: no lock keeps them apart.
        both = [on_ray(stage, cluster, 2, ENDLESS, home=tmp_path / name) for name in ("one", "other")]
        await until(lambda: any(one.over for one in both), 300, lambda: both[0].said + both[1].said)
        [refused], [driver] = [one for one in both if one.over], [one for one in both if not one.over]
        assert refused.ended() == 2
        assert "another driver" in refused.said
        await made(stage, driver, 6)
        driver.signal(signal.SIGSTOP)
        heir = on_ray(stage, cluster, 2, ENDLESS)
        await until(lambda: shards(stage, "served") == 3, 200, lambda: heir.said)
        driver.signal(signal.SIGCONT)
        assert await finished(driver) == 2, driver.said
        assert shards(stage, "served") == 3 and restarts(stage) == 0
        heir.signal(signal.SIGTERM)
        assert await finished(heir) == 0, heir.said
        assert set(stage.draws().values()) == {1}


@pytest.mark.long
async def test_workers_post_to_apis_over_postgresql_while_one_after_the_other_is_killed(
    tmp_path: Path, cluster: RayCluster
) -> None:
    with PostgresServer() as server:
        async with staged(tmp_path, seconds_a_turn=0.5, database=server.new_schema(), apis=2) as stage:
            command = on_ray(stage, cluster, 3, ITEMS)
            await made(stage, command, 6)
            for number in range(2):
                stage.apis.kill(number)
                # By way of the other one.
                stage.model.seconds_a_turn = 0.5
                await made(stage, command, stage.groups() + 12)
                # So that there is still work for the next.
                stage.model.seconds_a_turn = SLOW
                await asyncio.to_thread(stage.apis.start, number)
            stage.model.seconds_a_turn = 0.0
            assert await finished(command) == 0, command.said
            assert stage.draws() == dict.fromkeys(range(ITEMS), 1)
