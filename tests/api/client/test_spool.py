import asyncio
import os
import resource
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.api.client.spool import Spool, SpoolError
from hermes_rl.core.errors import ConfigError

PROGRAM = Path(__file__).parent / "spooling.py"
KILLS = 6


async def draws_in_order(spool: Spool) -> list[int]:
    """All that is in the spool, taken out oldest first."""
    taken = []
    while len(spool):
        group = await spool.oldest()
        taken.append(group.draw)
        await spool.remove(group)
    return taken


async def test_groups_come_out_as_they_were_put(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        await spool.put(7, b"seven")
        assert await spool.read(await spool.oldest()) == b"seven"


async def test_a_later_process_finds_what_an_earlier_one_put(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        for draw in (3, 1, 2):
            await spool.put(draw, b"x")
    async with Spool(tmp_path) as spool:
        assert spool.draws == {1, 2, 3}
        assert spool.bytes == 3
        assert await draws_in_order(spool) == [3, 1, 2]


async def test_puts_at_once_keep_the_order_of_the_calls(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        await asyncio.gather(*(spool.put(draw, b"x" * (50 - draw)) for draw in range(50)))
        assert await draws_in_order(spool) == list(range(50))


Step = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 99)),
    st.tuples(st.sampled_from(["remove", "refuse", "reopen"]), st.just(0)),
)


@given(steps=st.lists(Step, max_size=30))
@settings(max_examples=60, deadline=None)
def test_what_is_left_is_what_was_put_and_not_taken_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    directory = tmp_path_factory.mktemp("spool")

    async def live() -> None:
        expected: list[tuple[int, bytes]] = []
        spool = await Spool(directory).__aenter__()
        for number, (act, draw) in enumerate(steps):
            if act == "put":
                data = f"{number}".encode()
                await spool.put(draw, data)
                expected.append((draw, data))
            elif act == "reopen":
                await spool.__aexit__(None, None, None)
                spool = await Spool(directory).__aenter__()
            elif expected:
                group = await spool.oldest()
                await (spool.remove(group) if act == "remove" else spool.refuse(group, "no"))
                expected.pop(0)
        held = []
        while len(spool):
            group = await spool.oldest()
            held.append((group.draw, await spool.read(group)))
            await spool.remove(group)
        await spool.__aexit__(None, None, None)
        assert held == expected

    asyncio.run(live())


async def spooling(directory: Path, begin: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, PROGRAM, directory, str(begin), "400000"), stdout=asyncio.subprocess.PIPE
    )


async def test_a_process_killed_again_and_again_loses_no_group_that_was_kept(tmp_path: Path) -> None:
    said: list[int] = []
    for kill in range(KILLS):
        process = await spooling(tmp_path, 1000 * kill)
        assert process.stdout is not None
        said += [int(await process.stdout.readline()) for _ in range(10)]
        await asyncio.sleep(0.003 * kill)
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in (await process.stdout.read()).splitlines(keepends=True) if line.endswith(b"\n")]
        await process.wait()
    async with Spool(tmp_path) as spool:
        held = []
        while len(spool):
            group = await spool.oldest()
            assert await spool.read(group) == group.draw.to_bytes(8, "big") * 50_000
            held.append(group.draw)
            await spool.remove(group)
    # One more a life may be kept, whose answer the kill came before.
    assert held == sorted(held)
    assert set(said) <= set(held)
    assert len(held) <= len(said) + KILLS


async def test_what_a_crash_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "000000000001-0.part").write_bytes(b"half")
    async with Spool(tmp_path) as spool:
        assert len(spool) == 0
    assert list(tmp_path.iterdir()) == []


async def test_a_second_owner_is_told_what_to_do(tmp_path: Path) -> None:
    async with Spool(tmp_path):
        with pytest.raises(ConfigError, match="already being served; stop that process, or use another name or shard"):
            async with Spool(tmp_path):
                pass


async def test_a_second_process_is_no_owner_until_the_first_is_dead(tmp_path: Path) -> None:
    process = await spooling(tmp_path, 0)
    assert process.stdout is not None
    await process.stdout.readline()
    with pytest.raises(ConfigError, match="another process owns the spool"):
        async with Spool(tmp_path):
            pass
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    async with Spool(tmp_path) as spool:
        assert 0 in spool.draws


async def test_a_strange_file_is_named_and_not_posted(tmp_path: Path) -> None:
    (tmp_path / "notes.group").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.group is not a spooled group"):
        async with Spool(tmp_path):
            pass


async def test_a_full_spool_makes_the_next_group_wait_for_room(tmp_path: Path) -> None:
    async with Spool(tmp_path, limit=100) as spool:
        await spool.put(0, bytes(100))
        assert spool.full
        waiting = asyncio.create_task(spool.put(1, bytes(10)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await spool.remove(await spool.oldest())
        await asyncio.wait_for(waiting, 5)
        assert spool.draws == {1}


async def test_a_group_beyond_the_limit_goes_into_an_empty_spool(tmp_path: Path) -> None:
    async with Spool(tmp_path, limit=10) as spool:
        await asyncio.wait_for(spool.put(0, bytes(100)), 5)
        assert spool.draws == {0}


async def test_a_group_whose_owner_was_cancelled_while_it_waited_for_room_is_not_kept(tmp_path: Path) -> None:
    async with Spool(tmp_path, limit=10) as spool:
        await spool.put(0, bytes(10))
        waiting = asyncio.create_task(spool.put(1, bytes(10)))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        await spool.remove(await spool.oldest())
        await asyncio.sleep(0.01)
        assert len(spool) == 0


async def test_a_group_whose_owner_was_cancelled_while_it_was_written_is_known(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        writing = asyncio.create_task(spool.put(0, bytes(4_000_000)))
        while not list(tmp_path.glob("*.part")):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        assert (await asyncio.wait_for(spool.oldest(), 5)).draw == 0


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Stands for a full disk: the kernel takes so much of a file and refuses the rest."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_says_what_to_do(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        await spool.put(0, bytes(1000))
        with files_no_larger_than(5000), pytest.raises(SpoolError, match=r"holds 1 groups .*: free disk space"):
            await spool.put(1, bytes(50_000))


async def test_after_a_full_disk_nothing_of_the_group_is_left_and_the_next_is_kept(tmp_path: Path) -> None:
    async with Spool(tmp_path, limit=60_000) as spool:
        with files_no_larger_than(5000), suppress(SpoolError):
            await spool.put(1, bytes(50_000))
        assert os.listdir(tmp_path) == []
        await asyncio.wait_for(spool.put(1, bytes(50_000)), 5)
        assert spool.draws == {1}


async def test_a_refused_group_lies_aside_with_its_reason(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        await spool.put(4, b"bad")
        await spool.refuse(await spool.oldest(), "400 bad_group: no")
    (group,) = (tmp_path / "refused").glob("*.group")
    assert group.read_bytes() == b"bad"
    assert group.with_name(f"{group.name}.reason").read_text() == "400 bad_group: no\n"


async def test_a_refused_group_is_never_overwritten_by_a_later_life(tmp_path: Path) -> None:
    for data in (b"one", b"two"):
        async with Spool(tmp_path) as spool:
            await spool.put(4, data)
            await spool.refuse(await spool.oldest(), "no")
    assert {path.read_bytes() for path in (tmp_path / "refused").glob("*.group")} == {b"one", b"two"}


async def test_the_event_loop_is_free_while_a_group_is_written(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        writing = asyncio.create_task(spool.put(0, bytes(30_000_000)))
        turns = 0
        while not writing.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 10
