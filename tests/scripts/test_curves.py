"""scripts/curves.py draws whatever a run has measured, in few enough bytes for the docs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from hermes_rl.training.batch import ExclusionReason

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "curves.py"


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matplotlib's list of fonts, which it would make anew for each test's home."""
    return tmp_path_factory.mktemp("fonts")


def draw(fonts: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        env={**os.environ, "MPLCONFIGDIR": str(fonts)}, capture_output=True, check=False, text=True, timeout=100,
    )  # fmt: skip


def write_run(folder: Path, steps: int, *names: str) -> Path:
    folder.mkdir(parents=True)
    metrics = ((step, dict.fromkeys(names, step * 7 % 11 / 11)) for step in range(1, steps + 1))
    lines = [json.dumps({"time": step, "step": step, **values}) for step, values in metrics]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    return folder


EVERYTHING = (
    "reward/mean reward/std reward/min reward/max rollouts/scored reward/component/a reward/component/b entropy "
    "kl/sample_train_k3 kl/reference_k3 staleness/mean staleness/max groups/used groups/zero_signal "
    "tokens/per_second time/engine_idle_share time/trainer_idle_share"
).split()


def test_a_long_run_with_every_metric_takes_under_200_kb(tmp_path: Path, fonts: Path) -> None:
    run = write_run(tmp_path / "run", 200, *EVERYTHING)
    done = draw(fonts, run, "-o", tmp_path / "out.png", "--title", "A run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.png").stat().st_size < 200_000
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (1196, 1248)


def test_a_first_step_with_nothing_but_a_reward_is_drawn(tmp_path: Path, fonts: Path) -> None:
    done = draw(fonts, write_run(tmp_path / "run", 1, "reward/mean"), "-o", tmp_path / "out.png")
    assert done.returncode == 0 and (tmp_path / "out.png").exists(), done.stderr


def test_runs_are_compared_under_their_labels(tmp_path: Path, fonts: Path) -> None:
    runs = [f"{write_run(tmp_path / name, 5, *EVERYTHING)}=seed {name}" for name in "01"]
    done = draw(fonts, *runs, "-o", tmp_path / "out.svg")
    assert done.returncode == 0, done.stderr
    picture = (tmp_path / "out.svg").read_text()
    assert "<!-- seed 0 -->" in picture and "<!-- seed 1 -->" in picture


def test_a_run_is_found_by_its_name(tmp_path: Path, fonts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    write_run(tmp_path / "rl" / "runs" / "words-1", 3, "reward/mean")
    done = draw(fonts, "words-1", "-o", tmp_path / "out.png")
    assert done.returncode == 0, done.stderr


def test_a_run_that_is_not_there_is_named(tmp_path: Path, fonts: Path) -> None:
    done = draw(fonts, tmp_path / "nowhere" / "metrics.jsonl", "-o", tmp_path / "out.png")
    assert done.returncode == 1
    assert f"{tmp_path}/nowhere/metrics.jsonl" in done.stderr and "Traceback" not in done.stderr


def test_every_name_that_is_drawn_or_counted_is_explained() -> None:
    page = (ROOT / "docs" / "curves.md").read_text()
    drawn = re.findall(r'Curve\("[^"]+", "([^"]+)"\)', SCRIPT.read_text())
    assert len(drawn) > 8
    assert [name for name in (*drawn, *ExclusionReason) if f"`{name}`" not in page] == []
