"""The real parts of tests/engines, each started once a session; one that does not start fails its tests."""

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "small_model.py"
# The first start downloads 93 MB.
READY_DEADLINE_S = 110.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model answers, and its name there."""

    base_url: str
    model_name: str


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    errors = tmp_path_factory.mktemp("small_model") / "stderr.txt"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--port", "0"], stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert process.stdout is not None
        line = first_line(process.stdout, READY_DEADLINE_S)
        if not line.startswith("ready: "):
            pytest.fail(f"{SCRIPT.name} said {line!r} within {READY_DEADLINE_S:g} s; stderr: {errors.read_text()}")
        url, name = line.removeprefix("ready: ").split(" model=")
        yield Endpoint(url, name.strip())
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
    assert process.returncode == 0


def first_line(stream: IO[str], deadline: float) -> str:
    """The stream's first line, or nothing when it does not come in time."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=lambda: lines.put(stream.readline()), daemon=True).start()
    try:
        return lines.get(timeout=deadline)
    except queue.Empty:
        return ""
