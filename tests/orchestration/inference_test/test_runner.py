"""The whole test, with processes: what it reports, that models do not touch each other, and what it leaves behind."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.store.records import read_groups
from tests.orchestration.inference_test.parts import FILE, answers, at, processes_of, report_of
from tests.support.scripted_model import Hang, ScriptedModel, Status

CALLER = """
import asyncio, sys
from tests.orchestration.inference_test.parts import report_of
asyncio.run(report_of({"model": "some/model", "base_url": sys.argv[1]}))
"""


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {name: check["verdict"] for name, check in report["checks"].items()}


async def until(true: Callable[[], Any], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.05)


async def test_an_environment_that_works_passes_every_check(home: Path) -> None:
    told: list[tuple[int, int, str]] = []
    async with ScriptedModel(answers) as model:
        report = await report_of(at(model), group_size=4, progress=lambda *said: told.append(said))
    [one] = report["models_tested"]
    assert verdicts(one) == dict.fromkeys(
        ("environment_loads", "prompt_construction", "response_parsing", "scoring"), "pass"
    ), one
    assert (one["steps_tested"], one["total_completions"], one["scored"]) == (2, 8, 8)
    assert "error" not in one
    assert len(list(read_groups(Path(one["output_file"])))) == 2
    assert Path(one["log_file"]).parent == home / "logs" / "rl_training" / "inference_tests"
    summary = report["summary"]
    assert (summary["models_succeeded"], summary["best_model"]) == (1, "some/model")
    assert summary["environment_working"] is True
    assert told[-1] == (2, 2, "some/model: 2 groups")


@pytest.mark.parametrize(
    ("name", "check", "why"),
    [
        ("BrokenSetup", "environment_loads", "items.json is not there"),
        ("BrokenPrompt", "prompt_construction", "question"),
        ("BrokenReward", "scoring", "nan"),
    ],
)
async def test_what_is_broken_fails_its_check_by_name(name: str, check: str, why: str) -> None:
    async with ScriptedModel(answers) as model:
        report = await report_of(at(model), name=name, num_steps=1)
    [one] = report["models_tested"]
    assert one["checks"][check]["verdict"] == "fail", one
    assert why in one["checks"][check]["why"]
    assert report["summary"]["environment_working"] is False


async def test_models_that_fail_stop_no_other_and_say_why() -> None:
    async with ScriptedModel(answers) as model, ScriptedModel(lambda request: Status(401)) as closed:
        report = await report_of("qwen/qwen3-8b", at(closed, "closed"), at(model, "open"), num_steps=1)
    keyless, refused, fine = report["models_tested"]
    assert "OPENROUTER_API_KEY is not set" in keyless["error"]
    assert refused["failed_by_cause"] == {"endpoint/http_401": 2}
    assert "http_401" in refused["error"]
    assert fine["scored"] == 2
    assert report["summary"]["models_succeeded"] == 1


async def test_the_same_model_twice_at_once_does_not_mix_and_the_next_test_reads_nothing_old() -> None:
    async with ScriptedModel(answers) as model:
        report = await report_of(at(model), at(model), num_steps=1)
        files = {one["output_file"] for one in report["models_tested"]}
        again = await report_of(at(model), num_steps=1, group_size=1)
    assert len(files) == 2
    assert [one["total_completions"] for one in report["models_tested"]] == [2, 2]
    assert again["models_tested"][0]["total_completions"] == 1


@pytest.mark.slow
async def test_at_its_time_limit_a_model_is_ended_and_what_it_made_counts(home: Path) -> None:
    def hangs_at_the_second(request: dict[str, Any]) -> Any:
        return Hang() if "say 2" in request["messages"][0]["content"] else answers(request)

    async with ScriptedModel(hangs_at_the_second) as model:
        report = await report_of(at(model, timeout=600), seconds_each=40.0)
    [one] = report["models_tested"]
    assert one["steps_tested"] == 1
    assert "timed out after 40 s with 1 groups" in one["error"]
    assert processes_of(home) == []


async def test_a_caller_that_is_killed_leaves_no_process(home: Path) -> None:
    async with ScriptedModel(lambda request: Hang()) as model:
        caller = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CALLER, model.base_url),
            env={**os.environ, "PYTHONPATH": str(FILE.parents[3]), "HERMES_HOME": str(home)},
        )
        await until(lambda: model.open)
        assert len(processes_of(home)) >= 3
        caller.send_signal(signal.SIGKILL)
        await caller.wait()
        await until(lambda: not processes_of(home))


@pytest.mark.parametrize("name", ["Trial", "StartsADaemon"])
async def test_a_cancelled_test_leaves_no_process(name: str, home: Path) -> None:
    async with ScriptedModel(lambda request: Hang()) as model:
        running = asyncio.create_task(report_of(at(model), name=name))
        await until(lambda: model.open)
        running.cancel()
        began = time.monotonic()
        await asyncio.wait([running])
        assert running.cancelled()
        assert processes_of(home) == []
        assert time.monotonic() - began < 30


async def test_a_key_reaches_the_endpoint_and_no_file_or_command_line(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-or-v1-0123456789abcdef"
    monkeypatch.setenv("TRIAL_KEY", secret)
    lines: list[bytes] = []

    def looks(request: dict[str, Any]) -> Any:
        lines.extend(Path(f"/proc/{number}/cmdline").read_bytes() for number in processes_of(home))
        return answers(request)

    async with ScriptedModel(looks) as model:
        report = await report_of(at(model, api_key="env:TRIAL_KEY"), num_steps=1, group_size=1)
    assert report["models_tested"][0]["scored"] == 1
    assert lines
    assert not any(secret.encode() in line for line in lines)
    files = [path for path in home.rglob("*") if path.is_file()]
    assert files
    assert not any(secret.encode() in path.read_bytes() for path in files)
    assert secret not in str(report)


async def test_arguments_that_make_no_test_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_steps must be an integer"):
        await report_of("qwen/qwen3-8b", num_steps=0)
