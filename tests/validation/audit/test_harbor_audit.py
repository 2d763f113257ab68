"""`hermes-rl audit FOLDER` on real Harbor tasks in bubblewrap."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.validation.audit.harbor_tasks import Planned, planted_tasks, sound_tasks, write_task

HARBOR_INIT = Planned(
    "template",
    "apt-get update\ncurl -LsSf https://astral.sh/uv/install.sh | sh\nuvx pytest /tests/test_outputs.py\n"
    'if [ $? -eq 0 ]; then echo 1 > "$logs/reward.txt"; else echo 0 > "$logs/reward.txt"; fi\n',
    tests={"test_outputs.py": "def test_outputs():\n    pass\n"},
)


def audit(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "hermes_rl", "audit", str(folder), "--json", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, json.loads(done.stdout or "{}") or {"stderr": done.stderr}


def defects(report: dict[str, Any]) -> dict[str, set[str]]:
    return {
        task["task"]: {one["check"] for one in task["checks"] if one["outcome"] == "defect"} for task in report["tasks"]
    }


def test_a_verifier_that_trusts_the_output_of_a_program_is_found(tmp_path: Path) -> None:
    task = next(task for task in planted_tasks() if task.defect == "cheats_fail")
    write_task(tmp_path, task)
    code, report = audit(tmp_path)
    assert (code, defects(report)) == (1, {task.name: {"cheats_fail"}})


def test_a_sound_task_is_certified(tmp_path: Path) -> None:
    task = write_task(tmp_path, sound_tasks(1)[0]).name
    code, report = audit(tmp_path)
    assert (code, defects(report)) == (0, {task: set()})
    assert len(report["tasks"][0]["certificate"]["passed"]) == len(report["tasks"][0]["checks"])


def test_a_test_that_does_nothing_is_found_though_its_task_may_be_refused(tmp_path: Path) -> None:
    write_task(tmp_path, HARBOR_INIT)
    code, report = audit(tmp_path)
    assert (code, "tests_can_fail" in defects(report)["template"]) == (1, True)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_every_planted_defect_is_found_without_a_false_alarm(tmp_path: Path) -> None:
    sound, planted = sound_tasks(), planted_tasks()
    for task in [*sound, *planted]:
        write_task(tmp_path, task)
    code, report = audit(tmp_path, "--jobs", "6")
    found = defects(report)
    assert code == 1
    assert [task.name for task in planted if task.defect not in found[task.name]] == []
    assert {task.name: found[task.name] for task in sound if found[task.name]} == {}
