"""The viewer on 100,000 rollouts: the first rows of a file it has never seen, and any page once it is indexed.

Each question is put over HTTP to a real `hermes-rl view`; some of them beside a bare `SELECT` by sqlite3 of the same
rows of the same index, in turns, and a search beside a reading of the whole file for the word, as grep would. The same
again from the SQLite store and from PostgreSQL, when a server of it is installed. Memory is that of the server and of
its indexer, told apart. The goal of 300 ms is of 99 in 100 answers of all kinds; the slowest is printed beside it.
"""

import argparse
import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import mkdtemp
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.viewer_records import GROUP_SIZE, groups, words, write_lines  # noqa: E402
from hermes_rl.store.codec import encode  # noqa: E402
from hermes_rl.store.database.store import Store, open_engine  # noqa: E402

ROLLOUTS, QUICK = 100_000, 4_000
FIRST_ROWS_MS, PAGE_MS, MEMORY_MB = 1_000.0, 300.0, 300.0
INDEXED_SECONDS = 1_800.0
ADDED_TOGETHER = 64
FOUND = "SELECT * FROM rollouts WHERE n IN (SELECT rowid FROM words WHERE words MATCH :word)"
# The same rows as the question of that name, by SQLite alone.
BARE = {
    "groups": "SELECT * FROM groups ORDER BY n LIMIT 50",
    "rollouts_by_score": "SELECT * FROM rollouts ORDER BY score DESC LIMIT 50",
    "search_common_word": f"{FOUND} ORDER BY n LIMIT 50",
    "search_by_score": f"{FOUND} AND score >= 0.2 ORDER BY score DESC LIMIT 50",
}


class Viewer:
    """A `hermes-rl view` of its own, with a home of its own."""

    def __init__(self, target: str, home: Path) -> None:
        environment = os.environ | {"HERMES_HOME": str(home)}
        command = [sys.executable, "-m", "hermes_rl", "view", target, "--json", "--no-open"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        assert self.process.stdout
        url = json.loads(self.process.stdout.readline())["url"]
        self.base, _, self.token = url.partition("/?token=")

    def ask(self, path: str) -> tuple[Any, float]:
        """The answer, and the milliseconds it took."""
        request = urllib.request.Request(f"{self.base}{path}", headers={"Authorization": f"Bearer {self.token}"})
        began = time.perf_counter()
        with urllib.request.urlopen(request, timeout=120) as response:
            data = response.read()
        return json.loads(data), (time.perf_counter() - began) * 1000

    def memory(self) -> tuple[float, float]:
        """Megabytes at most so far: of the server, and of its indexers."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        children = [child for thread in threads for child in thread.read_text().split()]
        return _peak(self.process.pid), sum(_peak(int(child)) for child in children)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def _peak(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def measure(target: str, folder: Path, rollouts: int, repeats: int) -> dict[str, float]:
    home = folder / "home"
    shutil.rmtree(home, ignore_errors=True)
    viewer = Viewer(target, home)
    try:
        figures, source = first_rows(viewer)
        figures |= indexed(viewer, source, rollouts)
        [index] = (home / "rl" / "view").glob("*.db")
        figures |= asked(viewer, source, rollouts, repeats, index)
        figures["server_memory_mb"] = viewer.memory()[0]
        figures["index_mb"] = sum(path.stat().st_size for path in (home / "rl" / "view").iterdir()) / 2**20
        return figures
    finally:
        viewer.close()


def first_rows(viewer: Viewer) -> tuple[dict[str, float], str]:
    began = time.perf_counter()
    [source] = viewer.ask("/api/home")[0]["sources"]
    rows, _ = viewer.ask(f"/api/s/{source['id']}/groups?limit=50")
    taken = (time.perf_counter() - began) * 1000
    assert rows["rows"]
    building = viewer.ask(f"/api/s/{source['id']}")[0]["indexing"] is not None
    return {"first_rows_ms": taken, "first_rows_while_indexing": float(building)}, source["id"]


def indexed(viewer: Viewer, source: str, rollouts: int) -> dict[str, float]:
    """Wait for the index, and ask for a page all the while."""
    began, during, indexer = time.perf_counter(), [], 0.0
    while True:
        told, taken = viewer.ask(f"/api/s/{source}/rollouts?limit=50")
        during.append(taken)
        indexer = max(indexer, viewer.memory()[1])
        if told["total"] >= rollouts:
            break
        if time.perf_counter() - began > INDEXED_SECONDS:
            raise SystemExit(f"the index has {told['total']} of {rollouts} after {INDEXED_SECONDS:.0f} s")
        time.sleep(0.5)
    return {
        "index_seconds": time.perf_counter() - began,
        "page_while_indexing_ms": median(during),
        "slowest_page_while_indexing_ms": max(during),
        "indexer_memory_mb": indexer,
    }


def questions(rollouts: int) -> dict[str, str]:
    known = words()
    common, usual, rare = known[3], known[300], known[-7]
    group = rollouts // GROUP_SIZE // 2
    return {
        "summary": "",
        "groups": "/groups?limit=50",
        "groups_newest": "/groups?limit=50&sort=-n",
        "groups_by_spread": "/groups?limit=50&sort=-spread",
        "group": f"/groups/{group}",
        "rollouts": "/rollouts?limit=50",
        "rollouts_by_score": "/rollouts?limit=50&sort=-score",
        "rollouts_by_seconds": "/rollouts?limit=50&sort=-seconds",
        "filtered": "/rollouts?limit=50&min_score=0.4&max_score=0.5&stop_reason=max_turns&tool=read_file",
        "failed": "/rollouts?limit=50&failure=any&sort=-n",
        "search_common_word": f"/rollouts?limit=50&q={common}",
        "search_usual_word": f"/rollouts?limit=50&q={usual}",
        "search_rare_word": f"/rollouts?limit=50&q={rare}",
        "search_two_words": f"/rollouts?limit=50&q={common}+{usual}",
        "search_prefix": f"/rollouts?limit=50&q={usual[:3]}*",
        "search_nothing": "/rollouts?limit=50&q=zzzzzzzzzzzz",
        "search_by_score": f"/rollouts?limit=50&q={common}&sort=-score&min_score=0.2",
        "rollout": f"/rollouts/{group}-3",
        "messages": f"/rollouts/{group}-3/messages",
        "tokens": f"/rollouts/{group}-3/tokens",
    }


def asked(viewer: Viewer, source: str, rollouts: int, repeats: int, index: Path) -> dict[str, float]:
    figures: dict[str, float] = {}
    every: list[float] = []
    for name, path in questions(rollouts).items():
        taken, bare = [], []
        for _ in range(repeats):
            taken.append(viewer.ask(f"/api/s/{source}{path}")[1])
            bare.append(selected(index, BARE[name]) if name in BARE else 0.0)
        figures[f"{name}_ms"] = median(taken)
        if name in BARE:
            figures[f"{name}_bare_ms"] = median(bare)
        every += taken
    deep = list(paged(viewer, source))
    figures["deep_page_ms"] = median(deep)
    every += deep
    figures["slowest_kind_ms"] = max(figures[f"{name}_ms"] for name in [*questions(rollouts), "deep_page"])
    figures["p99_ms"] = quantiles(every, n=100, method="inclusive")[-1]
    figures["slowest_ms"] = max(every)
    figures["answers"] = len(every)
    return figures


def selected(index: Path, sql: str) -> float:
    word = f'"{words()[3]}"'
    began = time.perf_counter()
    with closing(sqlite3.connect(f"file:{index}?mode=ro", uri=True)) as connection:
        connection.execute(sql, {"word": word}).fetchall()
    return (time.perf_counter() - began) * 1000


def paged(viewer: Viewer, source: str, pages: int = 20) -> Iterator[float]:
    """From page to page by score, as a person would go through all."""
    after = ""
    for _ in range(pages):
        told, taken = viewer.ask(f"/api/s/{source}/rollouts?limit=200&sort=-score&after={after}")
        yield taken
        if (after := told["next"]) is None:
            return


async def fill(address: str, count: int) -> None:
    """Without the store's own index of words, which the viewer does not ask."""
    async with open_engine(address) as engine:
        store = Store(engine)
        environment = (await store.register_environment("terminal_words")).id
        waiting: list[asyncio.Task[Any]] = []
        for group in groups(count):
            waiting.append(asyncio.create_task(store.add(environment, encode(group))))
            if len(waiting) >= ADDED_TOGETHER:
                await asyncio.gather(*waiting)
                waiting.clear()
        await asyncio.gather(*waiting)
        store.close()


def bare_search(path: Path, word: str) -> float:
    """Reading the whole file for a word, as grep would: the milliseconds."""
    began = time.perf_counter()
    wanted, found = word.encode(), 0
    with path.open("rb") as lines:
        for line in lines:
            found += wanted in line
    return (time.perf_counter() - began) * 1000


@contextmanager
def postgres() -> Iterator[str | None]:
    from tests.store.database.postgres_server import PostgresServer

    try:
        server = PostgresServer().__enter__()
    except (OSError, RuntimeError, StopIteration, IndexError):
        yield None
        return
    try:
        yield server.new_schema()
    finally:
        server.__exit__(None, None, None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} rollouts, within a minute")
    parser.add_argument("--rollouts", type=int, help="how many, instead")
    parser.add_argument("--folder", type=Path, help="where the records are made, and kept for the next time")
    parser.add_argument("--only", choices=("jsonl", "sqlite", "postgresql"), help="one kind of source")
    options = parser.parse_args()
    rollouts = (options.rollouts or (QUICK if options.quick else ROLLOUTS)) // GROUP_SIZE * GROUP_SIZE
    folder = options.folder or Path(mkdtemp(prefix="viewer-benchmark-"))
    folder.mkdir(parents=True, exist_ok=True)
    repeats = 3 if options.quick else 15
    measured: dict[str, dict[str, float]] = {}
    try:
        path = folder / f"{rollouts}.jsonl"
        if options.only in {None, "jsonl"}:
            if not path.exists():
                part = folder / "part.jsonl"
                part.unlink(missing_ok=True)
                write_lines(part, rollouts // GROUP_SIZE)
                part.rename(path)
            measured["jsonl"] = measure(str(path), folder, rollouts, repeats)
            measured["jsonl"]["bare_reading_ms"] = median(bare_search(path, words()[-7]) for _ in range(3))
            measured["jsonl"]["megabytes"] = path.stat().st_size / 10**6
        if options.only in {None, "sqlite"}:
            database = folder / f"{rollouts}.db"
            if not database.exists():
                part = folder / "part.db"
                part.unlink(missing_ok=True)
                asyncio.run(fill(str(part), rollouts // GROUP_SIZE))
                part.rename(database)
            measured["sqlite"] = measure(str(database), folder, rollouts, repeats)
        if options.only in {None, "postgresql"}:
            with postgres() as address:
                if address is not None:
                    asyncio.run(fill(address, rollouts // GROUP_SIZE))
                    measured["postgresql"] = measure(address, folder, rollouts, repeats)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    goals = {}
    for kind, figures in measured.items():
        for name, goal in (
            ("first_rows_ms", FIRST_ROWS_MS),
            ("p99_ms", PAGE_MS),
            ("server_memory_mb", MEMORY_MB),
            ("indexer_memory_mb", MEMORY_MB),
        ):
            goals[f"{kind}_{name}"] = {"goal": goal, "measured": round(figures[name], 1), "met": figures[name] < goal}
    shown = {kind: {name: round(value, 1) for name, value in figures.items()} for kind, figures in measured.items()}
    print(json.dumps({"benchmark": "viewer", "figures": {"rollouts": rollouts, **shown}, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
