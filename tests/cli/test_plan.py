"""`hermes-rl plan`."""

import json

import pytest

from hermes_rl.cli.main import hermes_rl
from hermes_rl.console.run_command import run_click

ASKED = ("--model", "32B", "--gpus", "8", "--context", "32k", "--rollouts", "512")


def plan(*words: str) -> int:
    return run_click(hermes_rl, ["plan", *words], prog_name="hermes-rl")


def test_a_plan_for_people_says_that_it_never_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(*ASKED) == 0
    said = capsys.readouterr().out
    assert "Qwen/Qwen3-32B: 32.8B parameters" in said
    assert "hermes-rl engine start --cuda" in said
    assert "never run on a GPU" in said


def test_a_plan_for_programs_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(*ASKED, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["training"]["gpus"] + made["sampling"]["gpus"] == 8
    assert "--max-length 32768" in made["training"]["options"]
    # 512 rollouts of half of the context.
    assert made["training"]["tokens_per_second"] * made["training"]["seconds"] == pytest.approx(512 * 16_384)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "7B", "--gpus", "8"), "nor one of Qwen/Qwen3-0.6B"),
        (("--model", "8B", "--gpus", "8", "--context", "many"), "write 32768 or 32k"),
        (("--model", "8B", "--gpus", "8", "--context", "8k", "--tokens", "9k"), "--tokens 9216 is more than --context"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(*words) == 2
    assert said in capsys.readouterr().err
