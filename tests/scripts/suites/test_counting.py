"""A count of covered lines is recorded only if it reaches the limit: else the next run would not count, and pass."""

from pathlib import Path

import pytest

from scripts.suites import __main__ as suites
from scripts.suites import coverage
from scripts.suites import record as records


@pytest.mark.parametrize(("status", "recorded"), [(0, 96.4), (2, 0.0)])
def test_a_count_below_the_limit_fails_and_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, recorded: float
) -> None:
    monkeypatch.setattr(coverage, "report", lambda _: (status, 96.4))
    assert suites.run([], counted=tmp_path / "record.json")[0] == status
    assert records.load(tmp_path / "record.json").coverage.percent == recorded
