"""`hermes-rl compare`: a paired test on common items, and all that differs between two evaluations besides."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.cli.compare import compare
from hermes_rl.console.run_command import run_click
from hermes_rl.evaluation.compare import differences, read_evaluation
from hermes_rl.rollout.sampler import content_id
from tests.test_evaluation import SaidEnv, cut_short, evaluated, passing

ITEMS = 8


class Eight(SaidEnv):
    numbers = tuple(range(ITEMS))


async def evaluation(folder: Path, *passes: int, **config: Any) -> Path:
    await evaluated(passing(*passes), folder, Eight, **config)
    return folder


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The report of an evaluation with something else in it."""
    report = json.loads((folder / "metrics.json").read_text())
    change(report)
    (folder / "metrics.json").write_text(json.dumps(report))
    return folder


def compared(*arguments: str | Path) -> int:
    return run_click(compare, [str(argument) for argument in arguments], prog_name="compare")


async def test_the_better_one_is_named_with_difference_and_p_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = await evaluation(tmp_path / "before", *[0] * ITEMS)
    after = await evaluation(tmp_path / "after", *[1] * ITEMS)
    capsys.readouterr()
    assert compared(before, after) == 0
    shown = capsys.readouterr().err
    assert "The second is better" in shown
    # Eight wins and no loss: 2 / 2^8.
    assert "0.0078 (exact McNemar, paired by item)" in shown
    assert "+1.00 [" in shown
    assert "note" not in shown


async def test_what_may_be_chance_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = await evaluation(tmp_path / "before", 1, 1, 1, 1, 0, 0, 0, 0)
    after = await evaluation(tmp_path / "after", 0, 1, 1, 1, 1, 1, 0, 0)
    capsys.readouterr()
    assert compared(before, after, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["wins"], result["losses"], result["ties"], result["common_items"]) == (2, 1, 5, 8)
    assert result["p_value"] == 1.0
    assert result["difference"]["estimate"] == pytest.approx(1 / 8)
    assert (result["first"]["mean"], result["second"]["mean"]) == (0.5, 0.625)
    assert compared(before, after) == 0
    assert "No significant difference" in capsys.readouterr().err


async def test_what_differs_besides_the_scores_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = await evaluation(tmp_path / "before", *[1] * ITEMS)
    after = await evaluation(
        tmp_path / "after", *[2] * ITEMS, eval_samples=2, agent_temperature=0.5, max_agent_turns=3, eval_size=7,
        system_prompt="other",
    )  # fmt: skip
    changed(after, lambda report: report["provenance"].update(environment_hash="other", dataset_hash="other"))
    changed(after, lambda report: report.update(limit="token_limit: 9 of 8 tokens"))
    changed(after, lambda report: report["items"][0].update(unscored=1, scores=[1.0]))
    mixed = {"version": None, "low": 4, "high": 6, "mixed": True, "due": 4}
    changed(after, lambda report: report.update(policy=mixed))
    capsys.readouterr()
    assert compared(before, after, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    said = "\n".join(result["warnings"])
    for part in (
        "the environment's file differs",
        "the datasets differ",
        "the samples per item differ: 1 and 2",
        "the temperature differs: 0 and 0.5",
        "the setting max_agent_turns differs: 30 and 3",
        "the setting system_prompt differs: None and other",
        f"1 scored item is only in {before}",
        f"1 rollout has no score in {after}",
        "stopped early by token_limit",
        "was sampled from versions 4 to 6 (mixed)",
    ):
        assert part in said
    assert len(result["only_in_first"]) == 1
    assert "agent_temperature" not in said


async def test_a_report_with_hashed_settings_is_compared_by_the_hash(tmp_path: Path) -> None:
    before = await evaluation(tmp_path / "before", *[1] * ITEMS, system_prompt="be short")
    after = await evaluation(tmp_path / "after", *[1] * ITEMS, system_prompt="be short")
    changed(before, lambda report: report["settings"].update(system_prompt=content_id("be short")))
    assert list(differences(read_evaluation(before), read_evaluation(after))) == []
    changed(before, lambda report: report["settings"].update(system_prompt=content_id("be long")))
    [found] = differences(read_evaluation(before), read_evaluation(after))
    assert (found.name, found.second) == ("system_prompt", "be short")


async def test_unfinished_evaluations_and_files_of_groups_can_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = await evaluation(tmp_path / "before", *[0] * ITEMS)
    after = await evaluation(tmp_path / "after", *[1] * ITEMS)
    cut_short(after, 3)
    capsys.readouterr()
    assert compared(before / "groups.jsonl", after, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["common_items"], len(result["only_in_first"])) == (3, 5)
    assert any("unfinished evaluation" in warning for warning in result["warnings"])


async def test_a_report_without_scores_by_item_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = await evaluation(tmp_path / "before", *[1] * ITEMS)
    own = tmp_path / "own"
    own.mkdir()
    (own / "metrics.json").write_text(json.dumps({"metrics": {"eval/mean_reward": 1.0}}))
    assert compared(before, own) == 2
    assert "a custom evaluate()" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ({}, "contains neither metrics.json nor groups.jsonl"),
        ({"metrics.json": "[]"}, "is not"),
    ],
)
def test_what_is_no_evaluation_is_refused(
    content: dict[str, str] | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    assert compared(folder, folder) == 2
    assert message in capsys.readouterr().err


async def test_evaluations_without_a_common_item_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = await evaluation(tmp_path / "before", *[1] * ITEMS)
    after = await evaluation(tmp_path / "after", *[1] * ITEMS)
    changed(after, lambda report: [item.update(item_id=f"other {item['item_id']}") for item in report["items"]])
    assert compared(before, after) == 2
    assert "no scored item in common" in capsys.readouterr().err
