"""`evaluate`: k rollouts of each held-out item, failures apart from scores, kept as they finish, always written."""

import asyncio
import errno
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hermes_rl import AgentResult, HermesAgentBaseEnv, Reward, ToolContext
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.trajectory import Rollout, Span, StopReason, Timing
from hermes_rl.evaluation.metrics import sample_counts, time_by_span
from hermes_rl.evaluation.output_folder import evaluation_folder
from hermes_rl.evaluation.table import estimate_text, evaluation_table
from hermes_rl.store.records import RecordWriter, read_groups
from tests.rollout.test_rollout import writes_the_number
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Reply, ScriptedModel, Status, Text, delayed


class SaidEnv(HermesAgentBaseEnv):
    """Items are numbers; the reward is what the model says. No rollout starts a sandbox."""

    default_toolsets: ClassVar[tuple[str, ...]] = ("terminal",)
    numbers: ClassVar[tuple[int, ...]] = (0, 1, 2, 3, 4)

    def eval_items(self) -> list[dict[str, int]]:
        return [{"number": number} for number in self.numbers]

    def format_prompt(self, item: dict[str, int]) -> str:
        return f"item {item['number']}"

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        return float(result.final_response)


def number_of(request: dict[str, Any]) -> int:
    return int(request["messages"][-1]["content"].split()[-1])


def passing(*passes: int) -> Callable[[dict[str, Any]], Reply]:
    """A model that passes the n-th item in its first `passes[n]` rollouts, and in none after."""
    asked: Counter[int] = Counter()

    def script(request: dict[str, Any]) -> Reply:
        number = number_of(request)
        asked[number] += 1
        return Text("1" if asked[number] <= passes[number] else "0")

    return script


async def evaluated(
    script: Any,
    folder: Path | None,
    environment: type[HermesAgentBaseEnv] = SaidEnv,
    *,
    resume: bool = False,
    **config: Any,
) -> tuple[dict[str, Any], ScriptedModel]:
    """The report, and the model as the evaluation left it."""
    config["data_dir_to_save_evals"] = str(folder) if folder else None
    async with ScriptedModel(script) as model, opened(environment, model, **config) as env:
        env.resume_evaluation = resume
        await env.run_evaluate()
        assert env.last_evaluation is not None
        report: dict[str, Any] = json.loads((Path(env.last_evaluation["folder"]) / "metrics.json").read_text())
        return report, model


def was_requested(model: ScriptedModel) -> Counter[int]:
    return Counter(number_of(body) for body in model.bodies)


def samples_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def passes_by_item(report: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Passes and rollouts; which of an item's rollouts passes is up to the order they reach a model in."""
    return {item["item_id"]: (item["scores"].count(1.0), len(item["scores"])) for item in report["items"]}


# --- what is measured ---


async def test_metrics_and_samples_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, _ = await evaluated(writes_the_number, tmp_path, FileEnv)
    samples = samples_in(tmp_path)
    assert report["metrics"]["eval/mean_reward"] == 1.0
    assert (report["metrics"]["eval/rollouts"], len(samples)) == (5, 5)
    assert [sample["prompt"] for sample in samples] == [f"write {number}" for number in range(100, 105)]
    assert all(sample["response"] == "done" and sample["reward"] == 1.0 for sample in samples)
    shown = capsys.readouterr().err
    assert "eval/mean_reward" in shown
    assert "1.00 [0.48, 1.00]" in shown
    assert "evaluate 5/5" in shown
    assert max(map(len, shown.partition("FileEnv")[2].partition("In brackets")[0].splitlines())) <= 80


async def test_one_sample_is_greedy_and_the_size_bounds_the_items(tmp_path: Path) -> None:
    report, model = await evaluated(passing(1, 1, 1, 1, 1), tmp_path, eval_size=2, agent_temperature=0.7)
    assert {body["temperature"] for body in model.bodies} == {0.0}
    assert was_requested(model) == {0: 1, 1: 1}
    assert report["generation_parameters"]["temperature"] == 0.0


async def test_the_temperature_of_one_sample_can_be_set(tmp_path: Path) -> None:
    report, model = await evaluated(passing(1, 1, 1, 1, 1), tmp_path, eval_temperature=1.0)
    assert {body["temperature"] for body in model.bodies} == {1.0}
    assert report["metrics"]["eval/temperature"] == 1.0


async def test_several_samples_are_drawn_at_the_agents_temperature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, model = await evaluated(passing(4, 2, 1, 0, 0), tmp_path, eval_samples=4, agent_temperature=0.7)
    assert {body["temperature"] for body in model.bodies} == {0.7}
    assert report["generation_parameters"]["temperature"] == report["metrics"]["eval/temperature"] == 0.7
    assert "sampled at temperature 0.7" in capsys.readouterr().err
    assert list(passes_by_item(report).values()) == [(4, 4), (2, 4), (1, 4), (0, 4), (0, 4)]
    metrics = report["metrics"]
    assert metrics["eval/mean_reward"] == pytest.approx(7 / 20)
    # By hand from 1 - C(n - c, k) / C(n, k) and C(c, k) / C(n, k), over five items.
    assert metrics["eval/pass@1"] == pytest.approx(7 / 20)
    assert metrics["eval/pass@2"] == pytest.approx((1 + 5 / 6 + 1 / 2) / 5)
    assert metrics["eval/pass@4"] == pytest.approx(3 / 5)
    assert metrics["eval/pass^2"] == pytest.approx((1 + 1 / 6) / 5)
    assert metrics["eval/pass^4"] == pytest.approx(1 / 5)
    for name in report["methods"]:
        assert metrics[f"{name}/low"] <= metrics[name] <= metrics[f"{name}/high"]


def test_pass_rates_are_reported_for_powers_of_two_and_for_all_samples() -> None:
    assert [sample_counts(samples) for samples in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


async def test_a_score_that_rounding_put_below_the_pass_score_passes(tmp_path: Path) -> None:
    report, _ = await evaluated(lambda _: Text(repr(0.1 + 0.7)), tmp_path, eval_size=1, pass_score=0.8)
    metrics = report["metrics"]
    assert (metrics["eval/mean_reward"], metrics["eval/pass@1"], metrics["eval/model_failures"]) == (0.1 + 0.7, 1.0, 0)


async def test_failures_of_the_model_stand_apart_from_failures_by_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(request: dict[str, Any]) -> Reply:
        replies: dict[int, Reply] = {0: Status(500), 1: Text("0"), 2: Text("0", "length")}
        return replies.get(number_of(request), Text("1"))

    report, _ = await evaluated(script, tmp_path, rollout_retries=0)
    metrics = report["metrics"]
    assert metrics["eval/mean_reward"] == 0.5
    assert (metrics["eval/items"], metrics["eval/items_scored"], metrics["eval/scored"]) == (5, 4, 4)
    assert (metrics["eval/failures"], metrics["eval/failure/endpoint/http_500"]) == (1, 1)
    assert (metrics["eval/unscored_share"], metrics["eval/pass@1/unscored_as_0"]) == (0.2, 0.4)
    assert metrics["eval/model_failures"] == 2
    assert (metrics["eval/model_failure/natural"], metrics["eval/model_failure/length"]) == (1, 1)
    assert metrics["eval/stop_reason/natural"] == 3
    shown = capsys.readouterr().err
    assert "not scored: endpoint/http_500" in shown
    assert "20% of the rollouts have no score" in shown
    assert re.search(r"eval/pass@1 +│ 0\.50.*\n│ +with unscored as 0 +│ 0\.40", shown)
    assert "The interval is wide" in shown


async def test_when_nothing_was_scored_the_table_says_that_it_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, _ = await evaluated(lambda _: Status(500), tmp_path, eval_samples=2, rollout_retries=0)
    assert report["metrics"]["eval/mean_reward"] is None
    assert (report["metrics"]["eval/scored"], report["metrics"]["eval/failures"]) == (0, 10)
    shown = capsys.readouterr().err
    assert "no rollout was scored" in shown
    assert "this says nothing about the model" in shown


async def test_components_have_means_of_their_own(tmp_path: Path) -> None:
    class Parts(SaidEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Reward:
            return Reward(0.5, {"style": item["number"] / 4, "[odd]": float(item["number"] % 2)})

    metrics = (await evaluated(lambda _: Text("x"), tmp_path, Parts))[0]["metrics"]
    assert (metrics["eval/component/style"], metrics["eval/component/[odd]"]) == (0.5, 0.4)
    assert metrics["eval/component/style/low"] < 0.5 < metrics["eval/component/style/high"]


async def test_tokens_time_and_cost_are_reported(tmp_path: Path) -> None:
    async with ScriptedModel(passing(1, 1, 1, 1, 1)) as model, opened(SaidEnv, model) as env:
        env.config.data_dir_to_save_evals = str(tmp_path)
        env.server.configs[0].prompt_price, env.server.configs[0].completion_price = 1.0, 2.0
        await env.run_evaluate()
    metrics = json.loads((tmp_path / "metrics.json").read_text())["metrics"]
    prompt, completion = metrics["eval/tokens/prompt"], metrics["eval/tokens/completion"]
    assert prompt > 0 and completion > 0
    assert metrics["eval/tokens/per_rollout"] == (prompt + completion) / 5
    assert metrics["eval/cost"] == pytest.approx((prompt + 2 * completion) / 1_000_000)
    assert 0 < metrics["eval/seconds/rollout_median"] <= metrics["eval/seconds/rollout_p95"]
    assert metrics["eval/seconds/rollout_p95"] <= metrics["eval/seconds/wall"]
    assert 0 < metrics["eval/time_share/model"] <= 1


def test_what_happens_while_the_verifier_works_is_the_verifiers_time() -> None:
    timings = (
        Timing(Span.SANDBOX, "start", 0.0, 1.0),
        Timing(Span.TOOL, "terminal", 1.0, 2.0),
        Timing(Span.VERIFIER, "compute_reward", 3.0, 4.0),
        Timing(Span.TOOL, "read_file", 3.5, 3.0),
    )
    rollout = Rollout(
        item_id="a", index=0, seed=0, messages=[], score=1.0, stop_reason=StopReason.NATURAL, timings=timings
    )
    assert time_by_span(rollout) == {"sandbox": 1.0, "tool": 2.0, "verifier": 4.0}


def test_an_estimate_is_shown_with_as_many_digits_as_its_interval_needs() -> None:
    assert estimate_text(0.62, 0.55, 0.69) == "0.62 [0.55, 0.69]"
    assert estimate_text(0.62, 0.619, 0.621) == "0.6200 [0.6190, 0.6210]"
    assert estimate_text(3.0, None, None) == "3.00 [unknown]"


# --- which items ---


async def test_no_eval_items_is_an_error_that_says_what_to_define(tmp_path: Path) -> None:
    class Itemless(SaidEnv):
        numbers = ()

    with pytest.raises(ConfigError, match=r"define eval_items\(\)"):
        await evaluated(passing(), tmp_path, Itemless)


async def test_an_item_that_comes_twice_is_counted_once_and_said_to_be_left_out(tmp_path: Path) -> None:
    class Twice(SaidEnv):
        numbers = (0, 1, 0, 2, 1, 0)

    report, model = await evaluated(passing(1, 1, 0), tmp_path, Twice)
    assert was_requested(model) == {0: 1, 1: 1, 2: 1}
    assert report["metrics"]["eval/items_left_out/same_as_another"] == 3
    assert report["metrics"]["eval/mean_reward"] == pytest.approx(2 / 3)


async def test_different_items_of_one_id_are_refused(tmp_path: Path) -> None:
    class Nameless(SaidEnv):
        def item_id(self, item: Any) -> str:
            return "same"

    with pytest.raises(ConfigError, match="two different evaluation items have the id 'same'"):
        await evaluated(passing(1, 1, 1, 1, 1), tmp_path, Nameless)


async def test_a_prompt_that_cannot_be_made_costs_its_item_and_no_other(tmp_path: Path) -> None:
    class Unpromptable(SaidEnv):
        def format_prompt(self, item: Any) -> str:
            if item["number"] == 3:
                raise KeyError("question")
            return super().format_prompt(item)

    report, _ = await evaluated(passing(1, 1, 1, 1, 1), tmp_path, Unpromptable)
    assert (report["metrics"]["eval/scored"], report["metrics"]["eval/failure/environment/prompt"]) == (4, 1)
    samples = samples_in(tmp_path)
    assert [sample["prompt"] for sample in samples] == ["item 0", "item 1", "item 2", None, "item 4"]


async def test_rollouts_in_flight_are_bounded(tmp_path: Path) -> None:
    script = delayed(0.1, passing(2, 2, 2, 2, 2))
    _, model = await evaluated(script, tmp_path, eval_samples=2, max_eval_workers=5)
    assert model.peak == 4


# --- what is kept ---


async def test_without_a_folder_each_evaluation_has_one_of_its_own_under_hermes_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    for _ in range(2):
        await evaluated(passing(1, 1, 1, 1, 1), None)
    assert len(list((tmp_path / "rl" / "evals").glob("SaidEnv-*/metrics.json"))) == 2


def cut_short(folder: Path, groups: int) -> None:
    """Leave a folder as a kill does: some whole groups, one torn, no report."""
    lines = (folder / "groups.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "groups.jsonl").write_bytes(b"".join(lines[:groups]) + lines[groups][:100])
    for name in ("metrics.json", "samples.jsonl"):
        (folder / name).unlink()


async def test_resume_makes_the_items_that_are_missing_and_the_numbers_cover_all(tmp_path: Path) -> None:
    whole, _ = await evaluated(passing(2, 1, 0, 2, 1), tmp_path, eval_samples=2)
    samples = [(sample["item_id"], sample["seed"]) for sample in samples_in(tmp_path)]
    kept = {group.item["number"] for group in list(read_groups(tmp_path / "groups.jsonl"))[:2]}
    cut_short(tmp_path, 2)
    resumed, model = await evaluated(passing(2, 1, 0, 2, 1), tmp_path, eval_samples=2, resume=True)
    assert was_requested(model) == {number: 2 for number in range(5) if number not in kept}
    assert passes_by_item(resumed) == passes_by_item(whole)
    assert resumed["resumed_items"] == 2
    timeless = [name for name in whole["metrics"] if "seconds" not in name and "time_share" not in name]
    assert {name: resumed["metrics"][name] for name in timeless} == {name: whole["metrics"][name] for name in timeless}
    assert [(sample["item_id"], sample["seed"]) for sample in samples_in(tmp_path)] == samples


async def test_resume_of_a_finished_evaluation_asks_the_model_nothing(tmp_path: Path) -> None:
    whole, _ = await evaluated(passing(1, 0, 1, 0, 1), tmp_path)
    resumed, model = await evaluated(passing(0, 0, 0, 0, 0), tmp_path, resume=True)
    assert model.requests == 0
    assert resumed["items"] == whole["items"]


async def test_resume_runs_an_item_again_whose_endpoint_failed_with_all_its_samples(tmp_path: Path) -> None:
    asked: Counter[int] = Counter()

    def fails_once(request: dict[str, Any]) -> Reply:
        asked[number := number_of(request)] += 1
        return Status(500) if number == 2 and asked[2] == 1 else Text("1")

    first, _ = await evaluated(fails_once, tmp_path, eval_samples=2, rollout_retries=0)
    assert first["metrics"]["eval/unscored_share"] == 0.1
    resumed, model = await evaluated(fails_once, tmp_path, eval_samples=2, rollout_retries=0, resume=True)
    assert was_requested(model) == {2: 2}
    assert (resumed["metrics"]["eval/unscored_share"], resumed["metrics"]["eval/rollouts"]) == (0.0, 10)
    assert len(list(read_groups(tmp_path / "groups.failed.jsonl"))) == 1


async def test_resume_with_other_settings_is_refused(tmp_path: Path) -> None:
    await evaluated(passing(1, 1, 1, 1, 1), tmp_path)
    with pytest.raises(ConfigError, match="settings or the model changed"):
        await evaluated(passing(1, 1, 1, 1, 1), tmp_path, resume=True, max_token_length=7)


async def test_resume_without_a_folder_finds_the_unfinished_evaluation_of_these_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    everything = passing(9, 9, 9, 9, 9)
    await evaluated(everything, None, max_token_length=7)
    await evaluated(everything, None)
    for path in (tmp_path / "rl" / "evals").glob("*/groups.jsonl"):
        cut_short(path.parent, 3)
    _, model = await evaluated(everything, None, resume=True, max_token_length=7)
    assert len(model.bodies) == 2
    with pytest.raises(ConfigError, match="no unfinished evaluation of SaidEnv with these settings"):
        await evaluated(everything, None, resume=True, max_token_length=7)


async def test_a_new_evaluation_is_never_mixed_with_the_one_before(tmp_path: Path) -> None:
    await evaluated(passing(0, 0, 0, 0, 0), tmp_path)
    report, model = await evaluated(passing(1, 1, 1, 1, 1), tmp_path)
    assert (report["metrics"]["eval/mean_reward"], len(model.bodies)) == (1.0, 5)
    assert [group.scores for group in read_groups(tmp_path / "groups.jsonl")] == [[1.0]] * 5
    assert [group.scores for group in read_groups(tmp_path / "groups.previous.jsonl")] == [[0.0]] * 5


async def test_an_interrupted_evaluation_keeps_its_items_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow_at_the_end(request: dict[str, Any]) -> Reply:
        return delayed(60 if number_of(request) > 2 else 0, lambda _: Text("1"))(request)

    async with ScriptedModel(slow_at_the_end) as model, opened(SaidEnv, model) as env:
        env.config.data_dir_to_save_evals = str(tmp_path)
        running = asyncio.create_task(env.run_evaluate())
        path = tmp_path / "groups.jsonl"
        async with asyncio.timeout(20):
            while not path.exists() or path.read_bytes().count(b"\n") < 3:
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert len(list(read_groups(path))) == 3
    assert not (tmp_path / "metrics.json").exists()
    assert "3 of 5 items are saved" in capsys.readouterr().err


async def test_a_limit_ends_it_early_and_resume_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything = passing(1, 1, 1, 1, 1)
    report, _ = await evaluated(everything, tmp_path, token_limit=1, max_eval_workers=1)
    assert report["metrics"]["eval/items_left_out/limit_reached"] == 4
    assert report["limit"].startswith("token_limit")
    assert "stopped early by token_limit" in capsys.readouterr().err
    report, model = await evaluated(everything, tmp_path, resume=True)
    assert (report["limit"], len(model.bodies), report["metrics"]["eval/scored"]) == (None, 4, 5)


async def test_a_full_disk_ends_it_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = RecordWriter.write
    written: list[None] = []

    def until_full(self: RecordWriter, record: Any) -> None:
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, record)
        written.append(None)

    monkeypatch.setattr(RecordWriter, "write", until_full)
    with pytest.raises(HermesRLError, match=r"groups.jsonl cannot be written: No space left.*--resume"):
        await evaluated(passing(1, 1, 1, 1, 1), tmp_path)
    assert len(list(read_groups(tmp_path / "groups.jsonl"))) == 2


async def test_a_folder_takes_one_evaluation_at_a_time(tmp_path: Path) -> None:
    async with ScriptedModel(passing(1, 1, 1, 1, 1)) as model, opened(SaidEnv, model) as env:
        env.config.data_dir_to_save_evals = str(tmp_path)
        with evaluation_folder(env), pytest.raises(ConfigError, match="another process is writing"):
            await env.run_evaluate()


async def test_an_authors_own_evaluation_is_written_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Own(SaidEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            await self.evaluate_log(metrics={"eval/mine": 0.25}, samples=[{"prompt": "a", "reward": 0.25}])

    report, _ = await evaluated(passing(), tmp_path, Own)
    assert (report["metrics"], report["samples"]) == ({"eval/mine": 0.25}, 1)
    assert json.loads((tmp_path / "samples.jsonl").read_text()) == {"prompt": "a", "reward": 0.25}
    assert "0.2500" in capsys.readouterr().err


async def test_what_an_author_adds_to_the_default_evaluation_is_written_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Adding(SaidEnv):
        async def evaluate_log(self, metrics: dict[str, Any], **kwargs: Any) -> None:  # type: ignore[override]
            await super().evaluate_log({**metrics, "eval/cleverness": 0.75}, **kwargs)

    class Replacing(SaidEnv):
        async def evaluate_log(self, metrics: dict[str, Any], **kwargs: Any) -> None:  # type: ignore[override]
            await super().evaluate_log({"eval/cleverness": 0.25}, **kwargs)

    for environment, value in ((Adding, 0.75), (Replacing, 0.25)):
        report, _ = await evaluated(passing(1, 1, 1, 1, 1), tmp_path, environment)
        assert report["metrics"]["eval/cleverness"] == value
        shown = capsys.readouterr().err
        assert "eval/cleverness" in shown and f"{value:.4f}" in shown


async def test_the_numbers_go_to_the_runs_metrics_too(tmp_path: Path) -> None:
    path, folder = tmp_path / "run.metrics.jsonl", str(tmp_path / "evals")
    async with (
        ScriptedModel(passing(1, 0, 1, 0, 1)) as model,
        opened(SaidEnv, model, metrics_path=path, data_dir_to_save_evals=folder) as env,
    ):
        await env.run_evaluate()
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["eval/mean_reward"], line["eval/failures"]) == (0.6, 0)


async def test_items_with_too_few_scored_samples_are_left_out_and_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: Counter[int] = Counter()

    def script(request: dict[str, Any]) -> Reply:
        number = number_of(request)
        asked[number] += 1
        return Status(500) if number == 0 or (number == 1 and asked[number] == 2) else Text("1")

    metrics = (await evaluated(script, tmp_path, eval_samples=2, rollout_retries=0))[0]["metrics"]
    assert (metrics["eval/pass@1/items_left_out"], metrics["eval/pass@2/items_left_out"]) == (1, 2)
    assert (metrics["eval/items_left_out/no_rollout_scored"], metrics["eval/items_scored"]) == (1, 4)
    assert "2 items have too few scored samples for eval/pass@2" in capsys.readouterr().err


async def test_the_report_shows_settings_as_values_but_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = {"headers": {"authorization": "sk-a-very-secret-key"}, "note": "signed by a-key-of-this-machine"}
    monkeypatch.setattr("hermes_rl.evaluation.evaluate.stored_secrets", lambda: {"a-key-of-this-machine"})
    report, _ = await evaluated(passing(1, 1, 1, 1, 1), tmp_path, extra_body=secret, system_prompt="be short")
    text = (tmp_path / "metrics.json").read_text()
    assert "sk-a-very-secret-key" not in text and "a-key-of-this-machine" not in text
    assert (report["settings"]["max_agent_turns"], report["settings"]["system_prompt"]) == (30, "be short")
    evaluation_table(report, tmp_path)
