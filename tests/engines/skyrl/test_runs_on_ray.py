"""A run whose environment is served by replicas on Ray: watched, resized and drained by the run's own commands."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.keys import key_file
from hermes_rl.orchestration.keys import set_key
from hermes_rl.orchestration.run_file import RUN_KEY
from tests.orchestration.replicas.ray_cluster import RayCluster
from tests.support.tiny_runs import (
    ENVIRONMENT,
    RUN_SECONDS,
    await_nothing_left,
    home_of_runs,
    tiny_changes,
    trained_tensors,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(2 * RUN_SECONDS),
    # Of Ray's own processes, which it leaves to the system when a start of it fails.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
STEPS = 10
# Two groups a step: the run waits for the file before its last two steps, however slow who watches it is.
GATED = """
    async def get_next_item(self) -> str:
        self.taken = getattr(self, "taken", 0) + 1
        while self.taken > 16 and not Path(os.environ["HERMES_HOME"], "go").exists():
            await asyncio.sleep(0.1)
        return PROMPTS[self.taken % len(PROMPTS)]
"""
SECRET = "canary-run-7uYt20WqPz5L"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with home_of_runs(tmp_path, monkeypatch) as folder:
        set_key(RUN_KEY, SECRET)
        yield folder


def write_gated(folder: Path) -> None:
    """plain_text as a stream of items with a gate in it."""
    text = ENVIRONMENT.read_text()
    listed = "    def train_items(self) -> list[str]:\n        return PROMPTS\n"
    assert listed in text
    gated = text.replace(listed, GATED).replace(
        "import string", "import asyncio\nimport os\nimport string\nfrom pathlib import Path"
    )
    (folder / "rl" / "environments" / "plain_text_env.py").write_text(gated)


def told(*arguments: str) -> Any:
    command = [sys.executable, "-m", "hermes_rl", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def status(run_id: str, true: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The run's status, once this is true of it."""
    end = time.monotonic() + RUN_SECONDS
    while not true(now := told("run", "status", run_id)):
        assert time.monotonic() < end and now["status"] in {"starting", "running", "stopping"}, now
        time.sleep(0.5)
    seen: dict[str, Any] = now
    return seen


def at_work(now: dict[str, Any]) -> dict[str, list[int]]:
    """The shards that are served from each replica."""
    fleet = now["processes"]["env"].get("replicas") or {"replicas": {}, "shards": []}
    served = {one["shard"] for one in fleet["shards"] if one["state"] == "served"}
    return {name: sorted(served & set(one["shards"])) for name, one in fleet["replicas"].items()}


def holders(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and path != key_file() and SECRET.encode() in path.read_bytes()
    ]


def test_a_run_on_ray_is_watched_resized_and_drained_and_finishes(home: Path) -> None:
    changes = {**tiny_changes(), "total_steps": STEPS}
    options = [text for field, value in changes.items() for text in ("--set", f"{field}={json.dumps(value)}")]
    write_gated(home)
    with RayCluster(nodes=1) as cluster:
        machines = ["--on", "ray", "--ray-address", cluster.address, "--replicas", "1", "--shards", "2"]
        started = told("run", "start", "plain_text", "--preset", "laptop", *options, *machines, "--reach", "127.0.0.1")
        run_id = started["run_id"]
        status(run_id, lambda now: at_work(now) == {"replica-1": [0, 1]})
        assert told("replicas", "resize", run_id, "2")["wanted"] == 2
        # A shard is moved to the new one, once it has finished what is in flight.
        status(run_id, lambda now: sorted(map(len, at_work(now).values())) == [1, 1])
        assert told("replicas", "drain", run_id, "replica-1")["leaving"] == ["replica-1"]
        status(run_id, lambda now: "replica-1" not in at_work(now) and sum(map(len, at_work(now).values())) == 2)
        log = told("run", "logs", run_id, "--part", "env", "--lines", "1000")["env"]["text"]
        assert "replicas: draining shard 1 on replica-1" in log
        (home / "go").touch()
        now = status(run_id, lambda now: now["ended"])
        assert now["status"] == "finished", now
        results = told("run", "results", run_id)
        assert results["metrics"]["step"] == STEPS
        assert trained_tensors(results["weights_path"])
        assert not holders(cluster.folder)
    await_nothing_left(home)
    assert not holders(home)
