"""`rescore` and `replay` as a person and as a program meet them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_command import hermes_rl, on_model, writes_the_word
from tests.support.scripted_model import Text

CHANGED = """
from hermes_rl.environment.loading.loader import load_environment

class Harsh(load_environment("terminal_test")):
    async def compute_reward(self, item, result, ctx):
        return 0.5 * await super().compute_reward(item, result, ctx)
"""


def sometimes_wrong(request: dict[str, Any]) -> Text:
    right = writes_the_word(request)
    return right if request["seed"] % 2 else Text(right.content.replace("out.txt", "elsewhere.txt"))


@pytest.fixture
async def groups(tmp_path: Path) -> Path:
    path = tmp_path / "groups.jsonl"
    flags = ("--env.total_steps", "4", "--env.group_size", "4", "--env.data_path_to_save_groups", str(path))
    done = await on_model(sometimes_wrong, "process", "terminal_test", *flags)
    assert done.returncode == 0, done.stderr
    return path


async def test_a_file_is_rescored_and_what_moved_is_told(groups: Path, tmp_path: Path) -> None:
    same = hermes_rl("rescore", str(groups), "--json")
    assert same.returncode == 0, same.stderr
    told = json.loads(same.stdout)
    assert told["rollouts"]["same"] == 16
    assert Path(told["path"]) == tmp_path / "groups.rescored.jsonl"
    assert hermes_rl("rescore", str(groups)).returncode == 2, "the output is there already"

    (tmp_path / "harsh_env.py").write_text(CHANGED)
    moved = hermes_rl("rescore", str(groups), "--env", str(tmp_path / "harsh_env.py"), "--overwrite", "--json")
    counts = json.loads(moved.stdout)["rollouts"]
    assert 0 < counts["down"] < 16
    assert counts["down"] + counts["same"] == 16
    assert "mean score" in moved.stderr


async def test_one_rollout_is_replayed_step_by_step(groups: Path) -> None:
    shown = hermes_rl("replay", str(groups), "--group", "2", "--rollout", "1")
    assert shown.returncode == 0, shown.stderr
    for part in ("── prompt", "── turn 1", "terminal: same", "── reward", "recorded"):
        assert part in shown.stdout
    outcome = json.loads(hermes_rl("replay", str(groups), "--json").stdout)
    assert (outcome["calls"], outcome["carried_out"], outcome["differ"]) == (1, 1, 0)
    assert outcome["score"] == outcome["recorded_score"]


@pytest.mark.parametrize("verb", ["rescore", "replay"])
def test_a_wrong_call_says_the_next_step(verb: str, tmp_path: Path) -> None:
    assert "hermes-rl process" in hermes_rl(verb, "nowhere.jsonl").stderr
    assert "must be a file of groups" in hermes_rl(verb).stderr
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert "has no groups" in hermes_rl(verb, str(empty)).stderr
    assert "needs a value" in hermes_rl(verb, str(empty), "--env").stderr


async def test_a_group_or_rollout_that_is_not_there_is_told(groups: Path) -> None:
    assert "no group 99" in hermes_rl("replay", str(groups), "--group", "99").stderr
    assert "rollouts 0 to 3" in hermes_rl("replay", str(groups), "--rollout", "9").stderr
