"""Sandboxes of this machine, with programs that answer, fail and hang."""

from pathlib import Path

import pytest

from hermes_rl.orchestration.doctor import sandboxes
from hermes_rl.orchestration.doctor.finding import FindingState

WORKS = None


def program(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Only `docker` is there, and does this."""
    file = folder / "docker"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(sandboxes, "PROGRAMS", {"docker": ("docker",), "singularity": ("no-such-program",)})


def started(monkeypatch: pytest.MonkeyPatch, **faults: str | None) -> None:
    async def fault(name: str) -> str | None:
        return faults[name]

    monkeypatch.setattr(sandboxes, "_start_problem", fault)


async def test_bubblewrap_is_really_started() -> None:
    assert await sandboxes._start_problem("bubblewrap") is None


async def test_a_backend_that_lacks_a_setting_is_told_why() -> None:
    assert "needs the setting host" in str(await sandboxes._start_problem("ssh"))


async def test_where_bubblewrap_works_the_others_are_only_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(monkeypatch, tmp_path, "echo 1.0")
    started(monkeypatch, bubblewrap=WORKS)
    found = await sandboxes.sandboxes()
    assert [(one.check, one.state) for one in found] == [
        ("sandbox bubblewrap", FindingState.OK),
        ("sandbox docker", FindingState.OK),
        ("sandbox singularity", FindingState.ABSENT),
    ]


async def test_docker_alone_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(monkeypatch, tmp_path, "echo 1.0")
    started(monkeypatch, bubblewrap="not installed", docker=WORKS)
    found = await sandboxes.sandboxes()
    assert FindingState.MISSING not in {one.state for one in found}
    assert [one.what for one in found if one.check == "sandbox docker"] == ["a sandbox started and ran a command"]


async def test_without_any_sandbox_one_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(monkeypatch, tmp_path, "echo no daemon >&2; exit 1")
    started(monkeypatch, bubblewrap="not installed", docker="no daemon")
    found = await sandboxes.sandboxes()
    assert [(one.check, one.state) for one in found][-1] == ("sandbox", FindingState.MISSING)
    assert next(one.what for one in found if one.check == "sandbox docker").endswith("does not work: no daemon")


async def test_a_program_that_hangs_is_ended_and_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(monkeypatch, tmp_path, "exec sleep 600")
    started(monkeypatch, bubblewrap=WORKS)
    monkeypatch.setattr(sandboxes, "_VERSION_S", 0.2)
    (found,) = [one for one in await sandboxes.sandboxes() if one.check == "sandbox docker"]
    assert found.state is FindingState.WARN
    assert "did not respond" in found.what


async def test_no_sandbox_is_left_in_a_new_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    assert [one.state for one in await sandboxes.leftover_sandboxes()] == [FindingState.OK]
