"""Every test here has a home of its own. `described_here` spares the process, where what it tells is not the matter."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core import fast_json
from hermes_rl.environment import config_introspection
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.orchestration.configuration import introspect
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.edit import edit_field, new_draft
from hermes_rl.orchestration.configuration.introspect import Description, parse_description
from tests.orchestration.configuration.environments import model_folder, written


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


@pytest.fixture(scope="module")
def described_here() -> Iterator[None]:
    def describe(reference: str, changes: Mapping[str, Any]) -> Description:
        sent = fast_json.loads(fast_json.dumps(changes))
        return parse_description(
            fast_json.loads(fast_json.dumps(config_introspection.describe_environment(reference, sent))), sent
        )

    @cache
    def loaded(reference: str, text: str) -> Any:
        return load_environment(reference)

    def load(reference: str) -> Any:
        return loaded(reference, Path(reference.rpartition(":")[0]).read_text())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(introspect, "describe", describe)
        patch.setattr(config_introspection, "load_environment", load)
        yield


@pytest.fixture
def draft(described_here: None, tmp_path: Path) -> Draft:
    """With the default preset, in which all that matters to the engine is locked."""
    return new_draft(written(tmp_path))


@pytest.fixture
def laptop(described_here: None, tmp_path: Path) -> Draft:
    return edit_field(new_draft(written(tmp_path), "laptop"), "base_model", model_folder(tmp_path))
