"""Whether a run's settings give tokens that can be trained on, and what to change when they do not."""

from collections.abc import Sequence
from typing import Any

from hermes_rl.environment.config import BaseEnvConfig, HermesAgentEnvConfig
from hermes_rl.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.inference.token_engines import SamplingRequest, cannot_correct, logprobs_of
from hermes_rl.tokens.chat_format import FormatSettings
from hermes_rl.tokens.tokenizer import load_tokenizer

NO_NAME = "none"


def require_exact_tokens(config: HermesAgentEnvConfig, servers: Sequence[APIServerConfig]) -> None:
    """Raise a ConfigError that says what to change, unless rollouts with these settings can be trained on."""
    request = _sampling(config)
    for server in servers:
        logprobs = logprobs_of(server)
        if logprobs is None:
            raise ConfigError(
                f"{server.base_url} is a server of type {server.server_type}: its rollouts can be saved and evaluated, "
                "not trained on, since it does not give the tokens it sampled. Serve the model with vLLM or SGLang, or "
                "train with `hermes-rl trainer`, and pass --openai.server_type vllm (or sglang)"
            )
        reason = cannot_correct(request, logprobs)
        if reason is not None:
            raise ConfigError(f"rollouts sampled like this cannot be trained on: {reason}")
    tokenizer_name(config, servers)


def ready_tokenizer(config: HermesAgentEnvConfig, server: ServerManager) -> Any:
    """The run's tokenizer. What cannot be written or sampled with these settings is refused here, not in a rollout."""
    tokenizer = load_tokenizer(tokenizer_name(config, server.configs))
    server.format_for(tokenizer, format_settings(config))
    _sampling(config)
    return tokenizer


def tokenizer_name(config: BaseEnvConfig, servers: Sequence[APIServerConfig]) -> str:
    """The tokenizer of the run: what an endpoint's settings name, else the environment's, else the model's own."""
    named = sorted({server.tokenizer_name for server in servers} - {NO_NAME})
    if not named and config.tokenizer_name != BaseEnvConfig.model_fields["tokenizer_name"].default:
        named = [config.tokenizer_name]
    named = named or sorted({server.model_name for server in servers})
    if len(named) != 1:
        raise ConfigError(
            f"the endpoints have different tokenizers: {', '.join(named)}; one run samples from one model, "
            "so name one with --env.tokenizer_name"
        )
    return named[0]


def format_settings(config: HermesAgentEnvConfig) -> FormatSettings:
    """How the run's conversations are written as tokens."""
    return FormatSettings(
        parser=config.tool_call_parser,
        renderer=config.renderer,
        tool_prompt=config.tool_prompt,
        keep_thinking=config.thinking_mode,
        template=(config.extra_body or {}).get("chat_template_kwargs") or {},
    )


def _sampling(config: HermesAgentEnvConfig) -> SamplingRequest:
    return SamplingRequest.of({"temperature": config.agent_temperature, **(config.extra_body or {})})
