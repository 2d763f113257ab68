"""Which sinks a run has: those asked for, and wandb where somebody has set it up; none is shown a secret."""

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import APIServerConfig, HermesAgentEnvConfig
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import HIDDEN
from hermes_rl.sinks import selection
from hermes_rl.sinks.run_sinks import open_sinks
from hermes_rl.sinks.selection import SinkConfig, select_sinks
from hermes_rl.sinks.serialize import public_config
from hermes_rl.sinks.wandb_sink import wandb_is_set_up
from tests.sinks.parts import KEY, run


def config(**fields: Any) -> HermesAgentEnvConfig:
    return HermesAgentEnvConfig(**fields)


def asked(**fields: Any) -> SinkConfig:
    return SinkConfig.from_config(config(**fields), "env")


def test_wandb_is_used_by_default_only_where_somebody_set_it_up(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    assert select_sinks(asked(), {"NETRC": str(netrc)}) == []
    assert select_sinks(asked(), {"WANDB_API_KEY": KEY}) == ["wandb"]
    assert select_sinks(asked(), {"WANDB_MODE": "offline"}) == ["wandb"]
    assert select_sinks(asked(use_wandb=False), {"WANDB_API_KEY": KEY}) == []
    assert select_sinks(asked(use_wandb=True), {"NETRC": str(netrc)}) == ["wandb"]
    assert select_sinks(asked(metric_sinks=["trackio", "wandb"]), {}) == ["trackio", "wandb"]
    assert select_sinks(asked(metric_sinks=["wandb"]), {"WANDB_MODE": "disabled"}) == []
    assert select_sinks(asked(metric_sinks=["wandb"], use_wandb=False), {}) == []


def test_a_key_is_found_where_wandb_login_puts_it(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    found = {"NETRC": str(netrc)}
    assert not wandb_is_set_up(found)
    netrc.write_text(f"machine github.com\n  login user\n  password {KEY}\n")
    assert not wandb_is_set_up(found)
    netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
    assert wandb_is_set_up(found)
    netrc.write_text(f"machine wandb.example:8080\n  login user\n  password {KEY}\n")
    assert not wandb_is_set_up(found)
    assert wandb_is_set_up(found | {"WANDB_BASE_URL": "http://wandb.example:8080"})
    netrc.write_text("machine")
    assert not wandb_is_set_up(found)


@pytest.mark.parametrize(
    ("fields", "package"), [({"metric_sinks": ["wandb"]}, "wandb"), ({"metric_sinks": ["trackio"]}, "trackio")]
)
async def test_a_sink_that_is_asked_for_and_not_installed_says_what_to_install(
    fields: dict[str, Any], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_installed", lambda name: False)
    with pytest.raises(ConfigError, match=rf"pip install 'hermes-rl\[{package}\]'"):
        async with open_sinks(run(tmp_path), asked(**fields)):
            pass
    async with open_sinks(run(tmp_path), asked()) as sinks:
        assert sinks.active == []


async def test_use_wandb_without_wandb_warns_once_and_keeps_the_local_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selection, "_installed", lambda name: False)
    async with open_sinks(run(tmp_path), asked(use_wandb=True)) as sinks:
        sinks.log({"score": 1.0})
        sinks.log({"score": 2.0})
        assert sinks.active == []
    assert len(sinks.path.read_text().splitlines()) == 2
    assert capsys.readouterr().err == (
        "warning: wandb is not installed, so metrics are only written to the local file; to log to wandb: "
        "pip install 'hermes-rl[wandb]'; to hide this warning: --env.use_wandb false\n"
    )


async def test_nothing_is_said_of_a_wandb_that_nobody_asked_for_or_that_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selection, "_installed", lambda name: False)
    select_sinks(asked(), {"WANDB_API_KEY": KEY})
    select_sinks(asked(use_wandb=True), {"WANDB_MODE": "disabled"})
    assert capsys.readouterr().err == ""


def test_no_secret_is_in_the_configuration_that_sinks_save() -> None:
    shown = public_config(
        config(
            user_endpoint=APIServerConfig(base_url="http://me:secret@host/v1", api_key="sk-secret"),
            tool_settings={"web": {"api_key": "env:TAVILY"}, "mcp": {"env": {"HF_TOKEN": "hf-secret"}}},
            extra_body={"headers": [{"Authorization": "Bearer secret"}], "top_k": 5},
        )
    )
    assert "secret" not in json.dumps(shown)
    assert shown["user_endpoint"]["base_url"] == f"http://{HIDDEN}@host/v1"
    assert shown["tool_settings"] == {"web": {"api_key": "env:TAVILY"}, "mcp": {"env": {"HF_TOKEN": HIDDEN}}}
    assert (shown["tokenizer_name"], shown["max_token_length"]) == (config().tokenizer_name, 2048)
