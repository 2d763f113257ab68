import math
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Sampling
from hermes_rl.inference.token_engines import SamplingRequest, uncorrectable_reason


def test_what_nobody_set_is_the_models_own_distribution() -> None:
    plain = SamplingRequest.from_parameters({})
    assert (plain.temperature, plain.top_p, plain.top_k, plain.min_p, plain.repetition_penalty) == (1, 1, -1, 0, 1)


def test_a_parameter_that_is_none_is_as_if_not_given() -> None:
    assert SamplingRequest.from_parameters({"temperature": None, "whatever": None}) == SamplingRequest.from_parameters(
        {}
    )


def test_max_completion_tokens_is_max_tokens() -> None:
    assert SamplingRequest.from_parameters({"max_completion_tokens": 7}).max_tokens == 7


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingRequest.from_parameters({"stop": "END"}).stop == ("END",)


def test_the_formats_stop_tokens_join_those_asked_for_once_each() -> None:
    assert SamplingRequest.from_parameters({"stop_token_ids": [9, 2]}, (2, 3)).stop_token_ids == (9, 2, 3)


@pytest.mark.parametrize(
    "parameters",
    [
        {"tools": [{"type": "function"}]},
        {"tool_choice": "auto"},
        {"parallel_tool_calls": True},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"logprobs": True, "top_logprobs": 3},
        {"stream": False},
        {"response_format": {"type": "text"}},
        {"user": "me"},
    ],
)
def test_fields_of_a_chat_call_that_are_not_about_sampling_are_taken(parameters: dict[str, Any]) -> None:
    assert SamplingRequest.from_parameters(parameters) == SamplingRequest.from_parameters({})


@pytest.mark.parametrize(
    "parameters",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"parallel_tool_calls": False},
        {"stream": True},
        {"response_format": {"type": "json_object"}},
        {"guided_json": {}},
        {"structured_outputs": {"regex": "a"}},
        {"best_of": 2},
        {"temprature": 1.0},
    ],
)
def test_a_field_that_cannot_be_had_is_named(parameters: dict[str, Any]) -> None:
    [name] = parameters
    with pytest.raises(ConfigError, match=f"{name}.*leave it out"):
        SamplingRequest.from_parameters(parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": -2},
        {"max_tokens": 0},
        {"n": 0},
        {"logit_bias": {"no id": 1}},
        {"stop": 3},
    ],
)
def test_a_value_that_cannot_be_is_named(parameters: dict[str, Any]) -> None:
    [(name, value)] = parameters.items()
    with pytest.raises(ConfigError, match=f"^{name}={value!r}: "):
        SamplingRequest.from_parameters(parameters)


def test_filters_that_are_off_are_recorded_as_none() -> None:
    recorded = SamplingRequest.from_parameters({"temperature": 0.7, "top_p": 1.0, "top_k": 0}).sampling("raw")
    assert recorded == Sampling(0.7, None, None, "raw")


def test_filters_that_are_on_are_recorded() -> None:
    assert SamplingRequest.from_parameters({"top_p": 0.9, "top_k": 20}).sampling("processed") == Sampling(
        1.0, 0.9, 20, "processed"
    )


@pytest.mark.parametrize("logprobs", ["raw", "processed"])
@pytest.mark.parametrize(
    "parameters", [{}, {"top_p": 1.0, "top_k": 0}, {"stop": ["\n"]}, {"seed": 1, "n": 4}, {"ignore_eos": True}]
)
def test_the_models_own_distribution_can_be_corrected(parameters: dict[str, Any], logprobs: str) -> None:
    assert uncorrectable_reason(SamplingRequest.from_parameters(parameters), logprobs) is None


@pytest.mark.parametrize("logprobs", ["raw", "processed"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"top_p": 0.9},
        {"top_k": 20},
        {"min_p": 0.05},
        {"min_tokens": 5},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {"5": -100}},
        {"temperature": 0},
    ],
)
def test_a_filter_is_named_with_what_to_change(parameters: dict[str, Any], logprobs: str) -> None:
    reason = uncorrectable_reason(SamplingRequest.from_parameters(parameters), logprobs)
    [name] = parameters
    assert reason is not None and name in reason
    assert "leave it out" in reason or "set temperature to 1" in reason


def test_a_temperature_under_raw_logprobs_is_refused() -> None:
    reason = uncorrectable_reason(SamplingRequest.from_parameters({"temperature": 0.7}), "raw")
    assert reason is not None and "--logprobs-mode processed_logprobs" in reason


def test_a_temperature_under_processed_logprobs_can_be_corrected() -> None:
    assert uncorrectable_reason(SamplingRequest.from_parameters({"temperature": 0.7}), "processed") is None
