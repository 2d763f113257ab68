"""The inference test on a real model: it answers, its tool calls are read, and some of them are right."""

from pathlib import Path

import pytest

from hermes_rl.orchestration.inference_test.runner import run_test
from tests.engines.conftest import Endpoint


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_small_model_shows_that_the_environment_works(
    small_model: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    # It is right in 28% of its rollouts: 32 of them without a right or without a wrong one happen once in 37,000 runs.
    report = await run_test(
        "terminal_test",
        "terminal_test",
        {"max_num_workers": 2},
        [{"model": small_model.model_name, "base_url": small_model.base_url}],
        num_steps=8,
        group_size=4,
        seconds_each=280.0,
    )
    [one] = report["models_tested"]
    assert (one["steps_tested"], one["scored"], one["failed_by_cause"]) == (8, 32, {}), one
    assert {
        name: one["checks"][name]["verdict"] for name in ("environment_loads", "prompt_construction", "scoring")
    } == {
        "environment_loads": "pass",
        "prompt_construction": "pass",
        "scoring": "pass",
    }
    assert report["summary"]["best_model"] == small_model.model_name
