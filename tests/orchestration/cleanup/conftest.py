from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a cache of its own: nothing of this machine is found, let alone removed."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for engine in ("DOCKER_HOST", "CONTAINER_HOST"):
        monkeypatch.setenv(engine, f"unix://{tmp_path}/no.sock")
    return tmp_path / "home"
