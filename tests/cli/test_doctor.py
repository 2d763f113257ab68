"""`hermes-rl doctor` as a person and as a program meet it."""

import json
from pathlib import Path

import pytest

from hermes_rl.core.keys import key_file
from hermes_rl.orchestration.keys import set_key
from tests.cli.test_command import hermes_rl


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))


def test_a_machine_that_has_all_it_needs_is_healthy() -> None:
    done = hermes_rl("doctor", "--json")
    told = json.loads(done.stdout)
    assert [one for one in told["findings"] if one["state"] == "missing"] == []
    assert (done.returncode, told["healthy"]) == (0, True)
    assert all(set(one) == {"check", "state", "what", "fix"} for one in told["findings"])


def test_what_is_missing_is_told_last_with_the_line_that_mends_it_and_status_1() -> None:
    set_key("HF_TOKEN", "0123456789abcdefgh")
    key_file().chmod(0o644)
    done = hermes_rl("doctor")
    assert done.returncode == 1
    assert done.stdout.index("MISSING") > done.stdout.index("clock")
    assert "chmod 600" in done.stdout
    assert "hermes-rl doctor again" in done.stdout
