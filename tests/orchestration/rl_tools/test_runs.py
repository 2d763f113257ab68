"""The tools that start, watch and stop, over runs that need no process."""

from typing import Any

import pytest

from hermes_rl.orchestration.keys import set_key
from hermes_rl.orchestration.rl_tools.context import CallerContext
from hermes_rl.orchestration.rl_tools.dispatch import call_rl_tool
from tests.support.stand_in_runs import StandInRuns


async def drafted(desk: CallerContext, model: str, **changes: Any) -> None:
    await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text", "preset": "self-hosted"})
    for field, value in {"base_model": model, **changes}.items():
        answer = await call_rl_tool(desk, "rl_edit_config", {"field": field, "value": value})
        assert "error" not in answer, answer


async def test_a_started_run_answers_at_once_with_its_id_files_and_logs(desk: CallerContext, model: str) -> None:
    await drafted(desk, model)
    answer = await call_rl_tool(desk, "rl_start_training")
    assert answer["status"] == "starting"
    assert answer["config_path"].endswith("run.yaml")
    assert {"engine", "api", "trainer", "env"} == answer["logs"].keys()


async def test_starting_twice_answers_with_the_run_that_is_there(
    desk: CallerContext, runs: StandInRuns, model: str
) -> None:
    await drafted(desk, model)
    first, second = await call_rl_tool(desk, "rl_start_training"), await call_rl_tool(desk, "rl_start_training")
    assert (first["run_id"], True) == (second["run_id"], second["already_started"])
    assert len(runs.files) == 1
    assert "again=true" in second["next"]


async def test_again_starts_another_run_of_the_same_draft(desk: CallerContext, runs: StandInRuns, model: str) -> None:
    await drafted(desk, model)
    await call_rl_tool(desk, "rl_start_training")
    assert "already_started" not in await call_rl_tool(desk, "rl_start_training", {"again": True})
    assert len(runs.files) == 2


async def test_a_changed_draft_starts_a_run_of_its_own(desk: CallerContext, runs: StandInRuns, model: str) -> None:
    await drafted(desk, model)
    await call_rl_tool(desk, "rl_start_training")
    await call_rl_tool(desk, "rl_edit_config", {"field": "total_steps", "value": 9})
    await call_rl_tool(desk, "rl_start_training")
    assert len(runs.files) == 2


async def test_a_dry_run_shows_the_run_and_starts_nothing(desk: CallerContext, runs: StandInRuns, model: str) -> None:
    await drafted(desk, model, total_steps=3)
    answer = await call_rl_tool(desk, "rl_start_training", {"dry_run": True})
    shown = (answer["config"], answer["run"]["environments"][0]["env"], answer["run"]["tinker"])
    assert [one["total_steps"] for one in shown] == [3, 3, 3]
    assert answer["run"]["preset"] == "self-hosted"
    assert not runs.files


async def test_hosted_training_without_its_key_is_refused_with_the_line_that_sets_it(
    desk: CallerContext, runs: StandInRuns
) -> None:
    await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text"})
    answer = await call_rl_tool(desk, "rl_start_training")
    assert "hermes-rl config set TINKER_API_KEY" in answer["error"]
    assert "value='self-hosted'" in answer["next"]
    assert not runs.files


async def test_hosted_training_with_its_key_starts(desk: CallerContext) -> None:
    set_key("TINKER_API_KEY", "tml-0123456789abcdef0123")
    await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text"})
    answer = await call_rl_tool(desk, "rl_start_training")
    assert answer["status"] == "starting", answer


async def test_stopping_twice_is_fine(desk: CallerContext, runs: StandInRuns, model: str) -> None:
    await drafted(desk, model)
    run_id = (await call_rl_tool(desk, "rl_start_training"))["run_id"]
    first = await call_rl_tool(desk, "rl_stop_training", {"run_id": run_id})
    second = await call_rl_tool(desk, "rl_stop_training", {"run_id": run_id})
    assert (first["status"], second["status"]) == ("stopping", "stopped")
    assert runs.stops == [run_id]


async def test_a_stopped_run_goes_on_when_it_is_resumed(desk: CallerContext, model: str) -> None:
    await drafted(desk, model)
    run_id = (await call_rl_tool(desk, "rl_start_training"))["run_id"]
    await call_rl_tool(desk, "rl_stop_training", {"run_id": run_id})
    assert (await call_rl_tool(desk, "rl_start_training", {"resume": run_id}))["status"] == "starting"


@pytest.mark.parametrize("name", ["rl_check_status", "rl_stop_training", "rl_get_results"])
async def test_an_unknown_run_is_refused_with_those_there_are(desk: CallerContext, model: str, name: str) -> None:
    await drafted(desk, model)
    run_id = (await call_rl_tool(desk, "rl_start_training"))["run_id"]
    answer = await call_rl_tool(desk, name, {"run_id": "nothing"})
    assert answer["runs"] == [run_id]
    assert "rl_list_runs" in answer["next"]


async def test_the_inference_test_needs_no_model_to_train_and_reports_progress(desk: CallerContext) -> None:
    await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text", "preset": "self-hosted"})
    await call_rl_tool(desk, "rl_edit_config", {"field": "max_token_length", "value": 12})
    heard: list[tuple[float, float, str]] = []

    async def hear(done: float, total: float, message: str) -> None:
        heard.append((done, total, message))

    answer = await call_rl_tool(desk, "rl_test_inference", {"num_steps": 1, "group_size": 2}, hear)
    assert answer["environment"] == "plain_text"
    assert answer["asked"][2]["max_token_length"] == 12
    assert (answer["num_steps"], answer["group_size"]) == (1, 2)
    assert heard
