"""`run_audit` on environments without a sandbox: what it observes, keeps and reports."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.console.config_options import ConfigSections
from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.resolve_config import resolve_settings
from hermes_rl.validation.audit.badge import badge
from hermes_rl.validation.audit.html_report import html_report
from hermes_rl.validation.audit.report import AuditReport, Status
from hermes_rl.validation.audit.runner import run_audit

ENVIRONMENT = '''
import asyncio

from hermes_rl import HermesAgentBaseEnv, HermesAgentEnvConfig

TRAIN = ["zanzibar", "quixotic", "ephemeral", "labyrinth", "serendipity", "gossamer"]


class Echo(HermesAgentBaseEnv):
    """Say a word."""

    name = "echo"

    @classmethod
    def config_init(cls):
        return HermesAgentEnvConfig(enabled_toolsets=[]), []

    def train_items(self):
        return TRAIN

    def eval_items(self):
        return EVAL

    def format_prompt(self, item):
        return f"Say {item.lower()[::-1]} backwards."

    async def compute_reward(self, item, result, ctx):
        await asyncio.sleep(SECONDS)
        return float(REWARD)

    def oracle(self, item):
        return [item]
'''
SOUND = "result.final_response == item"


def written(folder: Path, reward: str = SOUND, held_out: str = '["petrichor"]', seconds: float = 0.0) -> Path:
    file = folder / "echo_env.py"
    text = ENVIRONMENT.replace("REWARD", reward).replace("EVAL", held_out).replace("SECONDS", str(seconds))
    file.write_text(text)
    return file


async def audited(file: Path, **options: Any) -> AuditReport:
    environment = load_environment(str(file))
    return await run_audit(environment, resolve_settings(environment, ConfigSections(), {}, {}), **options)


def defects(report: AuditReport) -> dict[str, list[str]]:
    failed = {
        record["task"]: [one["check"] for one in record["checks"] if one["outcome"] == "defect"]
        for record in report.records
    }
    return {task: checks for task, checks in failed.items() if checks}


def audit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hermes_rl", "audit", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL)


async def test_every_task_of_every_split_is_audited(tmp_path: Path) -> None:
    report = await audited(written(tmp_path))
    assert [record["split"] for record in report.records] == ["train"] * 6 + ["eval"]
    assert (defects(report), report.status, report.exit_code) == ({}, Status.SOUND, 0)


async def test_a_forgeable_reward_is_a_defect_of_each_task(tmp_path: Path) -> None:
    report = await audited(written(tmp_path, "'PASS' in result.final_response or result.final_response == item"))
    assert set(map(tuple, defects(report).values())) == {("cheats_fail",)}
    assert (len(defects(report)), report.exit_code) == (7, 1)


async def test_a_reward_that_changes_between_calls_is_a_defect(tmp_path: Path) -> None:
    counted = (
        "self.__dict__.update(calls=vars(self).get('calls', 0) + 1) or (result.final_response == item) / self.calls"
    )
    report = await audited(written(tmp_path, counted), items=1)
    assert "repeatable" in next(iter(defects(report).values()))


async def test_a_reward_that_closes_its_sandbox_is_repeated_by_other_rollouts(tmp_path: Path) -> None:
    file = written(tmp_path)
    text = file.read_text().replace("enabled_toolsets=[]", 'enabled_toolsets=["terminal"]')
    file.write_text(text.replace("await asyncio.sleep(0.0)", 'ctx.terminal("true"); ctx.cleanup()'))
    report = await audited(file, items=1)
    assert {len(one["scores"]) for one in report.records[0]["agents"] if one["kind"] in {"null", "oracle"}} == {3}


async def test_a_duplicate_in_another_split_is_a_defect_of_both(tmp_path: Path) -> None:
    report = await audited(written(tmp_path, held_out='["Zanzibar"]'))
    assert list(defects(report).values()) == [["not_in_other_split"]] * 2


async def test_what_was_audited_is_not_audited_again(tmp_path: Path) -> None:
    first = await audited(written(tmp_path), out=tmp_path / "out")
    second = await audited(tmp_path / "echo_env.py", out=tmp_path / "out")
    assert (first.resumed, second.resumed) == (0, 7)
    assert second.records == first.records


async def test_a_changed_environment_is_audited_again(tmp_path: Path) -> None:
    await audited(written(tmp_path), out=tmp_path / "out")
    assert (await audited(written(tmp_path, "1.0"), out=tmp_path / "out")).resumed == 0


async def test_an_environment_that_cannot_be_opened_is_a_config_error(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_text(file.read_text().replace("return TRAIN", "return 1 / 0"))
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        await audited(file)


def test_a_killed_audit_goes_on(tmp_path: Path) -> None:
    file, out = written(tmp_path, seconds=0.05), tmp_path / "out"
    command = [sys.executable, "-m", "hermes_rl", "audit", str(file), "--out", str(out), "--jobs", "1"]
    ledger = out / "tasks.jsonl"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (ledger.exists() and ledger.read_bytes().count(b"\n") >= 2):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    before = ledger.read_bytes()
    with ledger.open("ab") as torn:
        torn.write(b'{"key": "abc", "ta')
    done = audit(str(file), "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert 2 <= report["resumed"] < 7
    assert ledger.read_bytes().startswith(before)
    tasks = [json.loads(line)["task"] for line in ledger.read_bytes().splitlines()]
    assert len(tasks) == len(set(tasks)) == 7


def test_the_folder_has_a_report_and_a_badge_and_the_exit_code_tells_of_defects(tmp_path: Path) -> None:
    done = audit(str(written(tmp_path, "1.0")), "--out", str(tmp_path / "out"), "--items", "2")
    assert done.returncode == 1, done.stderr
    assert "0 of 2 tasks sound, 2 with defects" in done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "audit.html",
        "audit.json",
        "badge.svg",
        "tasks.jsonl",
    }


def test_an_empty_folder_cannot_be_audited(tmp_path: Path) -> None:
    done = audit(str(tmp_path))
    assert (done.returncode, "no folder with a task.toml" in done.stderr) == (2, True)


async def test_hostile_names_are_only_text_in_the_page(tmp_path: Path) -> None:
    report = await audited(written(tmp_path), items=1)
    record = {**report.records[0], "task": "<script>alert(1)</script>", "why": "<b>"}
    page = html_report(AuditReport("echo", "<i>", [record], notes=["<u>"]))
    assert not {"<script>alert", "<i>", "<u>"} & {text for text in ("<script>alert", "<i>", "<u>") if text in page}


@pytest.mark.parametrize(
    ("statuses", "text"),
    [
        (["sound"] * 3, "3 sound"),
        (["sound", "defect", "cannot"], "1 of 3 with defects"),
        (["sound", "cannot"], "1 of 2 not audited"),
    ],
)
def test_the_badge_tells_the_worst(statuses: list[str], text: str) -> None:
    image = badge(AuditReport("echo", "", [{"status": status, "checks": []} for status in statuses]))
    assert f"reward audit: {text}" in image
