"""A real run, traced: supervisor, API, trainer with its inference, and environment, in one trace."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes_rl.tracing.tracer import FLUSH_SECONDS, START_SECONDS
from tests.support.tiny_runs import RUN_SECONDS, STEPS, home_of_runs, tiny_changes
from tests.support.trace_collector import TraceCollector

pytestmark = pytest.mark.long


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_SECONDS)
def test_every_span_of_a_real_run_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in tiny_changes().items()
    ]
    words = ["train", "plain_text", "--preset", "laptop", "--json"]
    words += [word for change in changes for word in ("--set", change)]
    with TraceCollector() as collector, home_of_runs(tmp_path / "home", monkeypatch):
        command = [sys.executable, "-m", "hermes_rl", *words, "--trace", collector.url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS)
        # The supervisor sends the run's own span last, after `train` has said that the run is over.
        latest = time.monotonic() + FLUSH_SECONDS + START_SECONDS
        while not collector.roots and time.monotonic() < latest:
            time.sleep(0.1)
    assert done.returncode == 0, done.stderr
    assert ([root.name for root in collector.roots], collector.orphans) == (["run"], [])
    assert {"api", "trainer", "serve", "evaluate", "run"} == {span.part for span in collector.spans}
    names = collector.names()
    assert names["train_step"] == STEPS
    assert names["POST /inference/v1/generate"] == names["turn"] > 0
    assert names["POST /v1/environments/{environment}/groups"] == names["deliver_group"] > 0
