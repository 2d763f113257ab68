"""The configuration of an adapted environment; tests/engines/atropos has it in atroposlib's own command line."""

from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from hermes_rl import APIServerConfig, ConfigError, HermesAgentEnvConfig
from hermes_rl.environment.atropos_adapter.config import (
    NO_TIMEOUT,
    config_class,
    rollout_endpoints,
    rollout_settings,
)


class TheirHandling(Enum):
    STOP_TRAIN = "STOP_TRAIN"
    NONE = "NONE"


class TheirConfig(BaseModel):
    """The fields of atroposlib's BaseEnvConfig that are checked by its rules, as it has them."""

    total_steps: int = 1000
    steps_per_eval: int = 100
    max_batches_offpolicy: int = 3
    min_items_sent_before_logging: int = 2
    worker_timeout: float = 600
    eval_handling: TheirHandling = TheirHandling.STOP_TRAIN


class OwnConfig(HermesAgentEnvConfig):
    """An author's: a default of Atropos' changed, and a field added."""

    total_steps: int = 7
    difficulty: str = "hard"


class TheirEndpoint(BaseModel):
    base_url: str | None = ""
    model_name: str = "default"
    api_key: str | None = ""
    timeout: int = 1200


Adapted = config_class(OwnConfig, TheirConfig)


def test_the_class_is_one_of_both_sides_with_the_authors_defaults() -> None:
    assert {OwnConfig, TheirConfig} <= set(Adapted.__mro__)
    config = Adapted()
    assert (config.total_steps, config.difficulty) == (7, "hard")


def test_the_loop_finds_its_own_enumeration() -> None:
    assert Adapted().eval_handling is TheirHandling.STOP_TRAIN
    assert Adapted(eval_handling="NONE").eval_handling is TheirHandling.NONE


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("enabled_toolsets", "terminal,file", ["terminal", "file"]),
        ("tool_settings", "{web: {provider: bm25}}", {"web": {"provider": "bm25"}}),
        ("extra_body", "None", None),
        ("user_endpoint", "{base_url: 'http://localhost:1/v1'}", APIServerConfig(base_url="http://localhost:1/v1")),
    ],
)
def test_a_value_with_parts_is_read_from_text(name: str, text: str, value: Any) -> None:
    assert getattr(rollout_settings(OwnConfig, Adapted(**{name: text})), name) == value


def test_every_field_has_a_default_that_argparse_can_hold() -> None:
    assert all(field.default_factory is None for field in Adapted.model_fields.values())


def test_values_that_only_atropos_gives_a_meaning_are_left_to_its_loop() -> None:
    config = Adapted(steps_per_eval=0, total_steps=-1, min_items_sent_before_logging=-1)
    settings = rollout_settings(OwnConfig, config)
    assert (config.steps_per_eval, config.total_steps) == (0, -1)
    assert (settings.steps_per_eval, settings.total_steps) == (100, 7)


def test_no_timeout_of_atropos_is_a_long_one_of_a_rollout() -> None:
    assert rollout_settings(OwnConfig, Adapted(worker_timeout=-1)).worker_timeout == NO_TIMEOUT
    assert rollout_settings(OwnConfig, Adapted(worker_timeout=30)).worker_timeout == 30


def test_the_environment_inside_sends_nothing_to_wandb_itself() -> None:
    assert not rollout_settings(OwnConfig, Adapted(use_wandb=True)).use_wandb


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="gruop_size"):
        Adapted(gruop_size=4)


def test_what_atropos_cannot_say_of_an_endpoint_is_the_environments() -> None:
    default = APIServerConfig(base_url="http://localhost:1/v1", max_retries=9, api_key="env:KEY")
    told = TheirEndpoint(base_url="http://localhost:2/v1", model_name="m")
    [endpoint] = rollout_endpoints([told], [default])
    assert (endpoint.base_url, endpoint.model_name, endpoint.max_retries) == ("http://localhost:2/v1", "m", 9)
    # "" is its word for none, and its command line begins with what the environment named.
    assert endpoint.api_key is None


@pytest.mark.parametrize("given", [[], [TheirEndpoint()], TheirConfig()])
def test_no_endpoint_is_assumed(given: Any) -> None:
    with pytest.raises(ConfigError, match="No inference endpoint is configured"):
        rollout_endpoints(given, [])
