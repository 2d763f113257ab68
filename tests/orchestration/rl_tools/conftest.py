"""A home of its own for each test, with one environment in it, and runs that need no process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.config_introspection import introspect_config
from hermes_rl.orchestration.configuration import introspect
from hermes_rl.orchestration.configuration.introspect import Description, parse_description
from hermes_rl.orchestration.rl_tools.context import CallerContext
from tests.support.stand_in_runs import StandInRuns

KEYS = ("TINKER_API_KEY", "OPENROUTER_API_KEY", "HERMES_RL_ENVIRONMENTS")
ENVIRONMENT = Path(__file__).parents[3] / "examples" / "plain_text_env.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "rl" / "environments"
    folder.mkdir(parents=True)
    (folder / "plain_text_env.py").write_text(ENVIRONMENT.read_text())
    return tmp_path


@pytest.fixture(autouse=True)
def _described_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment tells its configuration in this process, and not in one of its own, which takes a second each."""

    def describe(reference: str, changes: Mapping[str, Any]) -> Description:
        told = introspect_config(reference, fast_json.dumps(changes))
        if "error" in told:
            raise ConfigError(told["error"])
        return parse_description(fast_json.loads(fast_json.dumps(told["description"])), changes)

    monkeypatch.setattr(introspect, "describe", describe)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder that passes for a model's."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return str(folder)


@pytest.fixture
def runs() -> StandInRuns:
    return StandInRuns()


@pytest.fixture
def desk(runs: StandInRuns) -> CallerContext:
    return CallerContext("test", runs.functions)
