"""The whole workflow as a person types it, with keys set; none of them is left anywhere."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.keys import key_file
from hermes_rl.orchestration.keys import set_key
from tests.support.tiny_runs import (
    RUN_SECONDS,
    STEPS,
    await_nothing_left,
    given_to_processes,
    home_of_runs,
    processes_in,
    tell_first_step,
    tiny_changes,
    trained_tensors,
)

pytestmark = pytest.mark.timeout(2 * RUN_SECONDS)
# The engine of the run is given the first one and takes any; the others are there and nobody's business.
CANARIES = {
    "OUR_ENGINE_KEY": "tml-canary-Kx81mQpZ77vR",
    "OPENROUTER_API_KEY": "canary-or-4Jd0sWq92LmN",
    "WANDB_API_KEY": "canary-wb-88aTzQk31xYp",
}
OBJECTIVE = Path(__file__).parents[3] / "examples" / "extensions" / "positive_only.py"
VARIABLE = "canary-var-0hGf53RrEe1Z"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with home_of_runs(tmp_path, monkeypatch) as folder:
        monkeypatch.setenv("ANTHROPIC_API_KEY", VARIABLE)
        for name, value in CANARIES.items():
            monkeypatch.delenv(name, raising=False)
            set_key(name, value)
        yield folder


def typed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hermes_rl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS)


def told(*arguments: str) -> Any:
    done = typed(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def holders(home: Path, secret: str) -> list[Path]:
    """The files that hold it, the key file aside."""
    return [
        path
        for path in home.rglob("*")
        if path.is_file() and path != key_file() and secret.encode() in path.read_bytes()
    ]


def test_a_run_is_started_watched_and_read_and_leaves_no_secret(home: Path) -> None:
    assert "plain_text" in [one["name"] for one in told("env", "list")["environments"]]
    fields = {one["name"] for one in told("run", "show", "plain_text", "--preset", "laptop")["configurable_fields"]}
    # An objective of a file, as an example of extensions in a whole run.
    changes = {**tiny_changes(), "tinker.api_key": "env:OUR_ENGINE_KEY", "loss": f"{OBJECTIVE}:positive_only"}
    assert changes.keys() <= fields
    options = [text for field, value in changes.items() for text in ("--set", f"{field}={json.dumps(value)}")]

    began = time.time()
    run_id = told("run", "start", "plain_text", "--preset", "laptop", *options)["run_id"]
    assert told("run", "status", run_id[:5])["status"] in {"starting", "running"}
    seen: set[str] = set()
    given = False
    end = time.monotonic() + RUN_SECONDS
    while not (now := told("run", "status", "last"))["ended"]:
        seen |= set(processes_in(home).values())
        given = given or given_to_processes(home, CANARIES["OUR_ENGINE_KEY"])
        assert time.monotonic() < end, now
        time.sleep(1)
    assert now["status"] == "finished", now
    tell_first_step(run_id, began)

    watched = typed("run", "status", run_id, "--watch")
    assert (watched.returncode, "finished" in watched.stderr) == (0, True)
    results = told("run", "results", run_id)
    assert results["metrics"]["step"] == STEPS
    # Before the first step, and with the last weights while the trainer still serves them.
    evaluations = {(one["moment"], one["decoding"]): one["items"] for one in results["held_out"]}
    assert evaluations == dict.fromkeys(product(("before", "after"), ("greedy", "sampled")), 2)
    assert [one["metrics"]["groups"] > 0 for one in results["environments"]] == [True]
    assert trained_tensors(results["weights_path"])
    assert [one["run_id"] for one in told("run", "list")] == [run_id]
    assert {"api", "trainer", "env", "engine"} <= told("run", "logs", run_id).keys()
    await_nothing_left(home)

    assert given and len(seen) > 4
    for secret in (*CANARIES.values(), VARIABLE):
        assert not [command for command in seen if secret in command]
        assert holders(home, secret) == []
