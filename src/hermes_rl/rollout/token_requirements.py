"""Checks that a run's settings produce tokens that can be trained on, with errors that say what to change."""

from collections.abc import Sequence
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.inference.token_engines import SamplingRequest, logprobs_mode, uncorrectable_reason
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.inference.tokens.tokenizer import load_tokenizer
from hermes_rl.rollout.config import BaseEnvConfig, HermesAgentEnvConfig

UNSET_TOKENIZER = "none"


def require_exact_tokens(config: HermesAgentEnvConfig, servers: Sequence[APIServerConfig]) -> None:
    """ConfigError, with what to change, unless rollouts with these settings can be trained on."""
    request = _sampling_request(config)
    for server in servers:
        logprobs = logprobs_mode(server)
        if logprobs is None:
            raise ConfigError(
                f"{server.base_url} is a server of type {server.server_type}: its rollouts can be saved and evaluated, "
                "not trained on, since it does not return the tokens it sampled. Serve the model with vLLM or SGLang, "
                "or train with `hermes-rl trainer`, and pass --openai.server_type vllm (or sglang)"
            )
        reason = uncorrectable_reason(request, logprobs)
        if reason is not None:
            raise ConfigError(f"rollouts with these sampling settings cannot be trained on: {reason}")
    tokenizer_name(config, servers)


def load_run_tokenizer(config: HermesAgentEnvConfig, server: ServerManager) -> Any:
    """Load the run's tokenizer, and reject unsupported format or sampling settings before the first rollout.

    In chat mode only author code needs one, so it is loaded if the settings name it; else None.
    """
    if not server.returns_tokens and not _configured_names(config, server.configs):
        return None
    tokenizer = load_tokenizer(tokenizer_name(config, server.configs))
    if server.returns_tokens:
        server.get_format(tokenizer, format_settings(config))
        _sampling_request(config)
    return tokenizer


def tokenizer_name(config: BaseEnvConfig, servers: Sequence[APIServerConfig]) -> str:
    """The run's tokenizer: from the endpoints' settings, else the environment's, else the model name."""
    names = _configured_names(config, servers) or sorted({server.model_name for server in servers})
    if len(names) != 1:
        raise ConfigError(
            f"the endpoints have different tokenizers: {', '.join(names)}; one run samples from one model, "
            "so set one with --env.tokenizer_name"
        )
    return names[0]


def _configured_names(config: BaseEnvConfig, servers: Sequence[APIServerConfig]) -> list[str]:
    names = sorted({server.tokenizer_name for server in servers} - {UNSET_TOKENIZER})
    if not names and config.tokenizer_name != BaseEnvConfig.model_fields["tokenizer_name"].default:
        names = [config.tokenizer_name]
    return names


def format_settings(config: HermesAgentEnvConfig) -> FormatSettings:
    return FormatSettings(
        parser=config.tool_call_parser,
        renderer=config.renderer,
        tool_prompt=config.tool_prompt,
        keep_reasoning=config.thinking_mode,
        template=(config.extra_body or {}).get("chat_template_kwargs") or {},
    )


def _sampling_request(config: HermesAgentEnvConfig) -> SamplingRequest:
    if config.reasoning_effort or config.max_reasoning_tokens:
        raise ConfigError(
            "reasoning_effort and max_reasoning_tokens are fields of chat requests; with exact tokens the model's "
            "template decides: --env.extra_body '{chat_template_kwargs: {enable_thinking: true}}'"
        )
    return SamplingRequest.from_parameters({"temperature": config.agent_temperature, **(config.extra_body or {})})
