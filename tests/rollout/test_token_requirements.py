"""Whether settings give tokens that can be trained on: refused before the first rollout, with what to change."""

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.rollout.token_requirements import format_settings, require_exact_tokens, tokenizer_name


def server(**settings: object) -> APIServerConfig:
    return APIServerConfig.model_validate(
        {"base_url": "http://localhost:1/v1", "model_name": "m", "server_type": "vllm", **settings}
    )


def test_a_token_engine_with_plain_sampling_is_accepted() -> None:
    require_exact_tokens(HermesAgentEnvConfig(), [server(), server(server_type="sglang")])


@pytest.mark.parametrize("kind", [ServerType.OPENAI, ServerType.TRL])
def test_chat_mode_is_refused_and_told_what_to_pass(kind: ServerType) -> None:
    with pytest.raises(ConfigError, match=r"saved and evaluated, not trained on.*--openai\.server_type vllm"):
        require_exact_tokens(HermesAgentEnvConfig(), [server(), server(server_type=kind)])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"extra_body": {"top_p": 0.9}}, "top_p=0.9"),
        ({"extra_body": {"top_k": 40}}, "top_k=40"),
        ({"extra_body": {"min_p": 0.1}}, "min_p"),
        ({"extra_body": {"repetition_penalty": 1.1}}, "repetition_penalty"),
        ({"extra_body": {"logit_bias": {"5": -100}}}, "logit_bias"),
        ({"agent_temperature": 0.0}, "temperature 0"),
        ({"agent_temperature": 0.7}, "temperature 0.7 with raw logprobs"),
    ],
)
def test_sampling_that_the_loss_cannot_correct_is_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        require_exact_tokens(HermesAgentEnvConfig.model_validate(settings), [server()])


@pytest.mark.parametrize("settings", [{"reasoning_effort": "low"}, {"max_reasoning_tokens": 2000}])
def test_reasoning_settings_of_chat_requests_are_refused_with_exact_tokens(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="chat_template_kwargs"):
        require_exact_tokens(HermesAgentEnvConfig.model_validate(settings), [server()])


def test_another_temperature_can_be_corrected_with_processed_logprobs() -> None:
    require_exact_tokens(HermesAgentEnvConfig(agent_temperature=0.7), [server(logprobs_mode="processed")])


def test_a_field_that_no_engine_knows_is_named() -> None:
    with pytest.raises(ConfigError, match="tempreature"):
        require_exact_tokens(HermesAgentEnvConfig(extra_body={"tempreature": 1}), [server()])


def test_the_tokenizer_is_the_endpoints_then_the_environments_then_the_models() -> None:
    plain, named = HermesAgentEnvConfig(), HermesAgentEnvConfig(tokenizer_name="mine")
    assert tokenizer_name(plain, [server()]) == "m"
    assert tokenizer_name(named, [server()]) == "mine"
    assert tokenizer_name(named, [server(tokenizer_name="theirs")]) == "theirs"


def test_endpoints_with_different_tokenizers_are_refused() -> None:
    with pytest.raises(ConfigError, match="a, b"):
        require_exact_tokens(HermesAgentEnvConfig(), [server(tokenizer_name="a"), server(tokenizer_name="b")])


def test_the_settings_of_the_format_come_from_the_configuration() -> None:
    config = HermesAgentEnvConfig(
        tool_call_parser="glm45",
        renderer="template",
        tool_prompt=False,
        thinking_mode=True,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    settings = format_settings(config)
    assert (settings.parser, settings.renderer, settings.tool_prompt, settings.keep_reasoning) == (
        "glm45",
        "template",
        False,
        True,
    )
    assert settings.template == {"enable_thinking": False}
