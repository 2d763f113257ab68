"""A home of its own for each test, with one environment in it."""

from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parents[3] / "examples" / "plain_text_env.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    folder = tmp_path / "rl" / "environments"
    folder.mkdir(parents=True)
    (folder / "plain_text_env.py").write_text(ENVIRONMENT.read_text())
    return tmp_path
