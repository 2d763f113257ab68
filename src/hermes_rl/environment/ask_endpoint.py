"""Asks for an inference endpoint when none is configured. No provider is ever assumed."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import click

from hermes_rl.console.output import echo
from hermes_rl.core.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig, ServerType


@dataclass(frozen=True, slots=True)
class EndpointChoice:
    title: str
    flags: str
    base_url: str | None
    server_type: ServerType
    health_check: bool
    key: str | None


CHOICES = (
    EndpointChoice(
        "OpenRouter, with the model of your choice",
        "--openai.base_url https://openrouter.ai/api/v1 --openai.model_name MODEL --openai.server_type openai "
        "--openai.health_check false --openai.api_key env:OPENROUTER_API_KEY",
        "https://openrouter.ai/api/v1",
        ServerType.OPENAI,
        health_check=False,
        key="env:OPENROUTER_API_KEY",
    ),
    EndpointChoice(
        "Your own vLLM server",
        "--openai.base_url http://localhost:8000/v1 --openai.model_name MODEL --openai.server_type vllm",
        None,
        ServerType.VLLM,
        health_check=True,
        key=None,
    ),
    EndpointChoice(
        "Another OpenAI-compatible API or local server (llama.cpp, SGLang …)",
        "--openai.base_url URL --openai.model_name MODEL --openai.server_type openai --openai.health_check false "
        "[--openai.api_key env:NAME]",
        None,
        ServerType.OPENAI,
        health_check=False,
        key=None,
    ),
    EndpointChoice(
        "The inference server of a local training run",
        "--openai.base_url http://localhost:8001/v1 --openai.model_name MODEL",
        "http://localhost:8001/v1",
        ServerType.OPENAI,
        health_check=True,
        key=None,
    ),
)


def endpoint_help() -> str:
    lines = ["No inference endpoint is configured, and none is assumed. Choose one of these:", ""]
    for number, choice in enumerate(CHOICES, 1):
        lines += [f"  {number}. {choice.title}", f"     {choice.flags}", ""]
    return "\n".join(
        [*lines, "To try things with a small local model: scripts/small_model.py in a checkout (see the README)."]
    )


def choose_endpoint() -> APIServerConfig:
    """Ask at the terminal; without one, ConfigError with the choices."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(endpoint_help())
    return ask_for_endpoint(lambda text, default: click.prompt(text, default=default, err=True))


def ask_for_endpoint(ask: Callable[[str, str | None], str]) -> APIServerConfig:
    echo(endpoint_help() + "\n", err=True)
    number = ask(f"Which one (1-{len(CHOICES)})", None)
    if number not in {str(index) for index in range(1, len(CHOICES) + 1)}:
        raise ConfigError(f"no choice {number!r}; enter a number from 1 to {len(CHOICES)}")
    choice = CHOICES[int(number) - 1]
    base_url = ask("Base URL", choice.base_url)
    model = ask("Model name", None)
    key = choice.key
    if choice.server_type is ServerType.OPENAI and key is None:
        key = ask("API key, as env:NAME or file:PATH (empty for none)", "") or None
    return APIServerConfig(
        base_url=base_url,
        model_name=model,
        api_key=key,
        server_type=choice.server_type,
        health_check=choice.health_check,
    )
