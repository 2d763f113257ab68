"""Which models are tested, and that a key is never an argument."""

from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.inference_test.candidates import OPENROUTER, parse_candidates
from hermes_rl.orchestration.keys import set_key

LOCAL = {"model": "mine", "base_url": "http://127.0.0.1:1/v1"}


def test_the_seeds_models_are_the_defaults() -> None:
    chosen = parse_candidates(None)
    assert [(one.model, one.scale) for one in chosen] == [
        ("qwen/qwen3-8b", "small"),
        ("z-ai/glm-4.7-flash", "medium"),
        ("minimax/minimax-m2.7", "large"),
    ]
    assert {(one.endpoint["base_url"], one.endpoint["api_key"]) for one in chosen} == {
        (OPENROUTER, "env:OPENROUTER_API_KEY")
    }


def test_a_name_that_is_no_default_is_tested_beside_them() -> None:
    assert [one.model for one in parse_candidates(["qwen/qwen3-8b", "another/model"])] == [
        "qwen/qwen3-8b",
        "another/model",
    ]


def test_an_endpoint_of_ones_own_needs_no_key() -> None:
    [own] = parse_candidates([LOCAL])
    assert (own.endpoint["api_key"], own.endpoint["health_check"], own.missing_key()) == (None, False, None)


def test_a_missing_key_is_told_with_the_line_that_sets_it() -> None:
    [first, *_] = parse_candidates(None)
    assert "hermes-rl config set OPENROUTER_API_KEY" in str(first.missing_key())


def test_a_key_of_the_key_file_counts() -> None:
    set_key("OPENROUTER_API_KEY", "sk-or-1234567890")
    assert [one.missing_key() for one in parse_candidates(None)] == [None, None, None]


def test_a_password_in_the_base_url_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError, match="contains a password") as caught:
        parse_candidates([{**LOCAL, "base_url": "http://me:hunter2@127.0.0.1:1/v1"}])
    assert "hunter2" not in str(caught.value)


def test_a_key_in_clear_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError, match="env:NAME") as refused:
        parse_candidates([{**LOCAL, "api_key": "sk-secret"}])
    assert "sk-secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "empty list"),
        ([7], "has no model name"),
        ([{"base_url": "http://127.0.0.1:1/v1"}], "has no model name"),
        ([{**LOCAL, "base_ulr": "x"}], "did you mean 'base_url'"),
        ([{**LOCAL, "base_url": "localhost:1"}], "http://"),
        ([{**LOCAL, "server_type": "vlm"}], "server_type"),
    ],
)
def test_what_is_no_model_is_refused_with_the_next_step(given: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_candidates(given)
