"""A trajectory database in the viewer, on SQLite and on PostgreSQL: the same questions, the same answers."""

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from hermes_rl.core.trajectory import StopReason
from hermes_rl.store.database.groups import Retention
from hermes_rl.store.database.store import Store
from hermes_rl.store.records import FORMAT
from hermes_rl.viewer.report.builder import write_report
from hermes_rl.viewer.sources.source import no_runs
from tests.store.database.making import (
    add_groups,
    make_failed,
    make_group,
    make_rollout,
    make_sequence,
    with_trainer,
)
from tests.viewer.recording import Asking, until, viewing


async def filled(store: Store) -> int:
    number = (await store.register_environment("e")).id
    await store.add(number, make_group(rollouts=(make_rollout(0, text="a banana"), make_failed(1)), id="first"))
    two = replace(
        make_rollout(0, score=1.0, text="an apple", stop_reason=StopReason.MAX_TURNS),
        sequences=(make_sequence(1), make_sequence(2)),
    )
    await store.add(number, make_group(rollouts=(two, make_rollout(1, version=7)), id="second"))
    return number


async def looked(address: str, look: "object") -> None:
    """In a thread: the store's own loop goes on."""

    def work() -> None:
        with viewing(address) as ask:
            ask.whole()
            look(ask)  # type: ignore[operator]

    await asyncio.to_thread(work)


async def test_groups_and_rollouts_are_listed_and_found(store: Store, address: str) -> None:
    await filled(store)

    def look(ask: Asking) -> None:
        name = ask.source()
        told = ask(f"/api/s/{name}")
        assert (told["kind"], told["counts"]["rollouts"], told["counts"]["failed"]) == ("database", 4, 1)
        assert [row["record_id"] for row in ask(f"/api/s/{name}/groups")["rows"]] == ["first", "second"]
        [found] = ask(f"/api/s/{name}/rollouts?q=banana")["rows"]
        assert "banana" in found["snippet"]
        assert ask(f"/api/s/{name}/rollouts?stop_reason=max_turns")["total"] == 1

    await looked(address, look)


async def test_a_group_says_what_became_of_it(store: Store, address: str) -> None:
    number = await with_trainer(store, batch_size=4)
    await add_groups(store, number, 3)
    first = await store.lease("trainer", seconds=60)
    assert first is not None
    await store.ack(first.id)
    second = await store.lease("trainer", seconds=60)
    assert second is not None

    def look(ask: Asking) -> None:
        rows = ask(f"/api/s/{ask.source()}/groups")["rows"]
        assert [(row["use"]["state"], row["use"]["batch"]) for row in rows] == [
            ("trained", first.id),
            ("leased", second.id),
            ("queued", None),
        ]
        told = ask(f"/api/s/{ask.source()}/groups/{rows[0]['id']}")
        assert told["use"] == {"state": "trained", "cause": None, "batch": first.id, "step": None}

    await looked(address, look)


async def test_a_rollout_is_read_with_its_conversation_and_tokens(store: Store, address: str) -> None:
    await filled(store)

    def look(ask: Asking) -> None:
        name = ask.source()
        [row] = ask(f"/api/s/{name}/rollouts?q=apple")["rows"]
        told = ask(f"/api/s/{name}/rollouts/{row['id']}")
        assert [one["versions"] for one in told["sequences"]] == [[1, 1], [2, 2]]
        assert told["version"] == {"low": 1, "high": 2}
        [message] = ask(f"/api/s/{name}/rollouts/{row['id']}/messages")["rows"]
        assert message["content"]["text"] == "an apple"
        page = ask(f"/api/s/{name}/rollouts/{row['id']}/tokens?sequence=1")
        assert (page["ids"], page["mask"]) == ([5, 6, 7], [0, 1, 1])
        assert (page["logprobs"], page["versions"]) == ([None, -0.5, -0.5], [None, 2, 2])

    await looked(address, look)


async def test_records_are_copied_as_jsonl(store: Store, address: str) -> None:
    await filled(store)

    def look(ask: Asking) -> None:
        name = ask.source()
        [row] = ask(f"/api/s/{name}/rollouts?q=apple")["rows"]
        line = ask.client.get(f"/api/s/{name}/rollouts/{row['id']}.jsonl").content
        assert len(json.loads(line)["sequences"]) == 2
        record = json.loads(ask.client.get(f"/api/s/{name}/groups/{row['group_id']}.jsonl").content)
        assert (record["format"], record["id"]) == (FORMAT, "second")

    await looked(address, look)


async def test_what_comes_later_is_shown_too(store: Store, address: str) -> None:
    environment = await filled(store)
    loop = asyncio.get_running_loop()

    def look(ask: Asking) -> None:
        name = ask.source()
        adding = store.add(environment, make_group(id="third"))
        asyncio.run_coroutine_threadsafe(adding, loop).result(60)
        until(lambda: ask(f"/api/s/{name}/groups")["total"] == 3)

    await looked(address, look)


async def test_a_group_whose_bytes_were_let_go_is_told_as_such(store: Store, address: str) -> None:
    environment = await filled(store)
    await store.add(environment, make_group(split="eval", id="used"))
    await store.index_texts()
    assert await store.discard(Retention(seconds=-1.0)) == 1

    def look(ask: Asking) -> None:
        name = ask.source()
        assert ask(f"/api/s/{name}")["problem"] == "1 group could not be read"

    await looked(address, look)


def test_a_database_that_cannot_be_reached_is_told_and_makes_nobody_wait_twice() -> None:
    with viewing("postgresql://nobody:secret@127.0.0.1:1/none") as ask:
        [source] = ask("/api/home")["sources"]
        assert "cannot be read" in source["problem"]
        error = ask(f"/api/s/{source['id']}", 409)["error"]
        assert "secret" not in error["message"] + source["problem"] + source["name"]


def test_a_file_that_is_no_trajectory_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE groups (n)")
    with viewing(path) as ask:
        [source] = ask("/api/home")["sources"]
        assert "not a trajectory database" in source["problem"]


async def test_a_report_is_made_of_it(store: Store, address: str, tmp_path: Path) -> None:
    await filled(store)
    made = await asyncio.to_thread(write_report, [address], no_runs(), tmp_path / "page.html")
    assert (made.groups_held, made.rollouts_held) == (2, 4)
    page = made.path.read_text()
    assert "a banana" in page
    assert '/tokens?sequence=1":' in page


async def test_looking_writes_nothing_into_the_store(store: Store, address: str) -> None:
    await filled(store)
    before = await store.tallies(), await store.status()

    def look(ask: Asking) -> None:
        ask(f"/api/s/{ask.source()}/groups")

    await looked(address, look)
    assert (await store.tallies(), (await store.status()).total) == (before[0], before[1].total)
