from pathlib import Path

import pytest

from hermes_rl.training.engines.skyrl.paths import engines_home


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own for every test: names of engines are few."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    engines_home().mkdir(parents=True)
