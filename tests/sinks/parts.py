"""What the tests of sinks share: runs, a sink that keeps what it is given, and programs of their own."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hermes_rl.sinks.run_sinks import MetricsRun, Sinks
from hermes_rl.sinks.worker import Row, Sink, Worker
from hermes_rl.store.records import RecordWriter

# A key of the right form, so that wandb takes it for one.
KEY = "0123456789abcdef" * 3


def run(folder: Path, **fields: Any) -> MetricsRun:
    return MetricsRun(group="env", folder=folder, **fields)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Recorded:
    """A sink that keeps what it is given."""

    package: ClassVar[str] = "recorded"

    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, Any]]] = []
        self.tables: list[tuple[int, list[Row]]] = []
        self.finished: bool | None = None

    def start(self) -> str:
        return "is on"

    def next_step(self) -> int:
        return 0

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.calls.append((step, dict(metrics)))

    def rollouts(self, rows: Sequence[Row], step: int) -> None:
        self.tables.append((step, list(rows)))

    def finish(self, *, failed: bool) -> None:
        self.finished = not failed


@asynccontextmanager
async def with_sinks(path: Path, *sinks: Sink, resumed_from: int | None = None) -> AsyncIterator[Sinks]:
    workers = [Worker(sink) for sink in sinks]
    with RecordWriter(path) as file:
        opened = Sinks(file, workers, resumed_from)
        for one in workers:
            await one.start()
        yield opened
        await opened.close()


def run_program(program: str, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {"WANDB_DATA_DIR": str(folder.parent), "WANDB_CACHE_DIR": str(folder.parent)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, folder, *arguments],
        env={**os.environ, **kept, **variables}, capture_output=True, check=False, text=True, timeout=60,
    )  # fmt: skip


@dataclass(frozen=True)
class OfflineRun:
    """What wandb has of a run."""

    run_id: str
    display_name: str
    group: str
    project: str
    config: dict[str, Any]
    history: list[dict[str, Any]]


def offline_run(folder: Path) -> OfflineRun:
    """The latest run that wandb kept offline, as it would upload it."""
    *_, latest = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    records = _transaction_log(latest)
    (about,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    return OfflineRun(
        about.run_id,
        about.display_name,
        about.run_group,
        about.project,
        {item.key: json.loads(item.value_json) for item in about.config.update},
        [
            {"/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for record in records
            if record.WhichOneof("record_type") == "history"
        ],
    )


def _transaction_log(path: Path) -> list[Any]:
    """Protobuf messages in LevelDB's log format, after a header of wandb's own."""
    from wandb.proto import wandb_internal_pb2 as messages

    data, at, parts, found = path.read_bytes(), 7, b"", []
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        chunk = data[at + 7 : at + 7 + size]
        at += 7 + size
        parts = chunk if kind in {1, 2} else parts + chunk
        if kind in {1, 4}:
            found.append(messages.Record.FromString(parts))  # type: ignore[attr-defined]
    return found
