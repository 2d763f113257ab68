"""The keys that hermes-rl uses: stored, masked, and passed to the processes of a run.

Always true: a key's value goes into the key file or into the environment of a process that needs it, and nowhere else;
displayed values are masked.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes_rl.core.key_file import change_keys, check_name, check_value
from hermes_rl.core.keys import key_file, lookup_key

KEY_NAMES = {
    "TINKER_API_KEY": "training with hosted Tinker; a self-hosted engine needs none",
    "WANDB_API_KEY": "metrics on Weights & Biases; they are always in local files too",
    "OPENROUTER_API_KEY": "OpenRouter models, the defaults of the inference test",
    "OPENAI_API_KEY": "OpenAI models, with --openai.api_key env:OPENAI_API_KEY",
    "ANTHROPIC_API_KEY": "Anthropic models, with --openai.api_key env:ANTHROPIC_API_KEY",
    "HF_TOKEN": "gated or private models and datasets on Hugging Face",
    "DAYTONA_API_KEY": "the sandbox backend daytona",
    "MODAL_TOKEN_ID": "the sandbox backend modal, with MODAL_TOKEN_SECRET",
    "MODAL_TOKEN_SECRET": "the sandbox backend modal, with MODAL_TOKEN_ID",
    "TAVILY_API_KEY": "web search with the provider tavily",
    "EXA_API_KEY": "web search with the provider exa",
    "BRAVE_API_KEY": "web search with the provider brave",
    "HERMES_RL_RUN_TOKEN": "authentication between the parts of a multi-machine run; any long random text",
}
_MIN_LENGTH_TO_SHOW_END = 16
_END_LENGTH = 4


def key_names() -> dict[str, str]:
    """The keys that hermes-rl uses, and what each is for. Other keys may be set too."""
    return dict(KEY_NAMES)


def set_key(name: str, value: str) -> Path:
    """Store a key in the file and return the file's path."""
    change_keys(key_file(), check_name(name), check_value(name, value))
    return key_file()


def unset_key(name: str) -> bool:
    """Remove a key from the file. Returns whether it was there. Environment variables are not changed."""
    return change_keys(key_file(), check_name(name), None)


def mask_value(value: str) -> str:
    """What may be displayed: the end of a long value, nothing of a short one, never the length."""
    return f"…{value[-_END_LENGTH:]}" if len(value) >= _MIN_LENGTH_TO_SHOW_END else "…"


def key_variables(names: Iterable[str]) -> dict[str, str]:
    """The keys that are set, as environment variables for a process."""
    return {found.name: found.value for name in dict.fromkeys(names) if (found := lookup_key(name))}


def referenced_keys(settings: Any) -> tuple[str, ...]:
    """The names in all `env:NAME` references of a configuration."""
    return tuple(dict.fromkeys(_references(settings)))


def _references(settings: Any) -> Iterator[str]:
    if isinstance(settings, str):
        if settings.startswith("env:"):
            yield settings.removeprefix("env:")
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from _references(value)
    elif isinstance(settings, Sequence) and not isinstance(settings, bytes | bytearray):
        for value in settings:
            yield from _references(value)
