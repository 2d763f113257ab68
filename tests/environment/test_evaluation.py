"""`evaluate`: held-out items, one rollout each, failures apart from scores, files always written."""

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.errors import ConfigError
from tests.environment.test_rollouts import writes_the_number
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Status


async def evaluated(script: Any, folder: Path | None, environment: type[FileEnv] = FileEnv, **config: Any) -> FileEnv:
    config["data_dir_to_save_evals"] = str(folder) if folder else None
    async with ScriptedModel(script) as model, opened(environment, model, **config) as env:
        await env.run_evaluate()
        return env


async def test_metrics_and_samples_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await evaluated(writes_the_number, tmp_path)
    report = json.loads((tmp_path / "metrics.json").read_text())
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert report["metrics"]["eval/mean_reward"] == 1.0
    assert (report["metrics"]["eval/rollouts"], len(samples)) == (5, 5)
    assert {sample["prompt"] for sample in samples} == {f"write {number}" for number in range(100, 105)}
    assert all(sample["response"] == "done" and sample["reward"] == 1.0 for sample in samples)
    shown = capsys.readouterr().err
    assert "eval/mean_reward" in shown
    assert "1.0000" in shown
    assert "evaluate 5/5" in shown


async def test_failures_stand_apart_from_scores(tmp_path: Path) -> None:
    def one_fails(request: dict[str, Any]) -> Any:
        return Status(500) if "104" in request["messages"][0]["content"] else writes_the_number(request)

    await evaluated(one_fails, tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())["metrics"]
    assert metrics["eval/mean_reward"] == 1.0
    assert (metrics["eval/scored"], metrics["eval/failure/endpoint/http_500"]) == (4, 1)


async def test_evaluation_is_greedy_and_uses_the_eval_items_up_to_its_size(tmp_path: Path) -> None:
    async with ScriptedModel(writes_the_number) as model, opened(FileEnv, model, eval_size=2) as env:
        env.config.data_dir_to_save_evals = str(tmp_path)
        await env.run_evaluate()
    assert {body["temperature"] for body in model.bodies} == {0.0}
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 2


async def test_without_a_folder_results_go_under_hermes_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    env = await evaluated(writes_the_number, None)
    assert env.last_evaluation is not None
    assert Path(env.last_evaluation["folder"]).is_relative_to(tmp_path / "rl" / "evals")
    assert len(list((tmp_path / "rl" / "evals").glob("*/metrics.json"))) == 1


async def test_no_eval_items_is_an_error_that_says_what_to_define(tmp_path: Path) -> None:
    class Itemless(FileEnv):
        async def setup(self) -> None:
            self.taken = 0

    with pytest.raises(ConfigError, match=r"define eval_items\(\)"):
        await evaluated(writes_the_number, tmp_path, Itemless)
