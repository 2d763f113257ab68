"""The pictures of the docs are taken of any records: each page of the viewer, in light and dark."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from scripts.screenshots import PAGES, main
from tests.support.recorded_runs import make_run, write_steps
from tests.viewer.pages import write_everything

SCRIPT = Path(__file__).parents[2] / "scripts" / "screenshots.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parts
async def test_every_page_has_a_picture_in_light_and_one_in_dark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    records, pictures = tmp_path / "records", tmp_path / "pictures"
    records.mkdir()
    pictures.mkdir()
    write_everything(records)
    # A second run, for the page that lays several over each other.
    write_steps(make_run("r2"), 20)
    targets = ["r1", "r2", *(str(records / name) for name in ("words.jsonl", "first", "second"))]
    assert await main(targets, pictures, set()) == 0
    assert {path.stem for path in pictures.iterdir()} == {
        f"viewer-{page}-{theme}" for page in PAGES for theme in ("light", "dark")
    }
    for page in PAGES:
        light, dark = (_brightness(pictures / f"viewer-{page}-{theme}.png") for theme in ("light", "dark"))
        assert light > 200 and dark < 80


def test_a_folder_without_rollouts_says_what_to_name_instead(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"time": 1.0, "step": 1, "reward/mean": 0.5}\n')
    done = run_script(str(tmp_path), "--output", str(tmp_path / "pictures"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "pass a file or folder that does, or the id of a run" in done.stderr


def test_a_page_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = run_script(str(tmp_path), "--pages", "run,grops")
    assert done.returncode == 2
    assert "there is no page grops" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parts
async def test_a_run_that_only_has_a_trainer_is_shown_and_what_is_left_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    write_steps(make_run("r1"), 20)
    assert await main(["r1"], tmp_path, {"run", "rollout"}) == 0
    assert {path.stem for path in tmp_path.glob("*.png")} == {"viewer-run-light", "viewer-run-dark"}
    assert "skipped, no source has anything to show: rollout\n" in capsys.readouterr().err


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _brightness(path: Path) -> int:
    """Of most of a picture, from 0 to 255."""
    with Image.open(path) as picture:
        counts = picture.convert("L").histogram()
    return counts.index(max(counts))
