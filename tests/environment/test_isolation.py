"""Settings that give up isolation are warned of once, in plain words."""

import re

import pytest

from hermes_rl.environment.isolation import warn_about_isolation
from hermes_rl.rollout.config import HermesAgentEnvConfig
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Text


@pytest.mark.parametrize(
    ("backend", "network", "said"),
    [
        ("local", None, "terminal_backend local does not isolate"),
        ("bubblewrap", True, "sandbox_network true: .*loopback"),
        ("docker", True, "sandbox_network true: .*without a filter$"),
    ],
)
def test_what_is_given_up_is_said(
    capsys: pytest.CaptureFixture[str], backend: str, network: bool | None, said: str
) -> None:
    warn_about_isolation(HermesAgentEnvConfig(sandbox_network=network), backend)
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(f"^warning: {said}", line)


@pytest.mark.parametrize(("backend", "network"), [("bubblewrap", None), ("docker", False), ("ssh", None)])
def test_nothing_is_said_otherwise(capsys: pytest.CaptureFixture[str], backend: str, network: bool | None) -> None:
    warn_about_isolation(HermesAgentEnvConfig(sandbox_network=network), backend)
    assert capsys.readouterr().err == ""


async def test_an_environment_warns_once_when_it_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    async with ScriptedModel(lambda _: Text("done")) as model, opened(FileEnv, model, terminal_backend="local"):
        pass
    assert capsys.readouterr().err.count("terminal_backend local does not isolate") == 1
