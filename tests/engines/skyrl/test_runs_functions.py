"""The whole workflow by the ten functions: a real engine, two runs at once, and weights at the end of each."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.orchestration.rl_tools.functions import (
    rl_check_status,
    rl_edit_config,
    rl_get_current_config,
    rl_get_results,
    rl_list_environments,
    rl_list_runs,
    rl_select_environment,
    rl_start_training,
    rl_stop_training,
)
from tests.support.tiny_runs import (
    RUN_SECONDS,
    STEPS,
    await_nothing_left,
    home_of_runs,
    tell_first_step,
    tiny_changes,
    trained_tensors,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * RUN_SECONDS)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with home_of_runs(tmp_path, monkeypatch) as folder:
        yield folder


def sound(text: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(text)
    assert "error" not in answer, answer
    return answer


async def finished(run_id: str) -> list[dict[str, Any]]:
    """Every status until the run has ended."""
    told = []
    async with asyncio.timeout(RUN_SECONDS):
        while True:
            told.append(sound(await rl_check_status(run_id)))
            if told[-1]["ended"]:
                return told
            await asyncio.sleep(1)


async def test_two_runs_at_once_go_from_the_list_to_the_results_and_never_meet(home: Path) -> None:
    listed = sound(await rl_list_environments())
    assert "plain_text" in [one["name"] for one in listed["environments"]]
    sound(await rl_select_environment("plain_text", preset="laptop"))
    for field, value in tiny_changes().items():
        sound(await rl_edit_config(field, value))
    fields = {one["name"]: one["current_value"] for one in sound(await rl_get_current_config())["configurable_fields"]}
    assert fields["total_steps"] == STEPS

    began = time.time()
    first = sound(await rl_start_training())["run_id"]
    assert sound(await rl_start_training())["run_id"] == first
    second = sound(await rl_start_training(again=True))["run_id"]
    assert {one["run_id"] for one in sound(await rl_list_runs())["runs"]} == {first, second}

    told = await asyncio.gather(finished(first), finished(second))
    assert [one[-1]["status"] for one in told] == ["finished", "finished"]
    addresses = [{part["url"] for one in seen for part in one["processes"].values() if part["url"]} for seen in told]
    assert all(addresses) and not addresses[0] & addresses[1]
    tell_first_step(first, began)

    for run_id in (first, second):
        results = sound(await rl_get_results(run_id))
        assert results["metrics"]["step"] == STEPS
        assert len(results["history"]) == STEPS
        assert Path(results["curve_path"]).read_bytes().startswith(b"\x89PNG")
        assert str(home / "rl" / "runs" / run_id) in results["weights_path"]
        assert trained_tensors(results["weights_path"])
    assert sound(await rl_stop_training(first))["status"] == "finished"
    await_nothing_left(home)
