"""Look up keys by name: an environment variable of this process, else the user's key file.

Always true: a key's value goes into the file or into the environment of a process that needs it, and nowhere else;
displayed values are masked. A part of a run gets the keys that its run names, never the whole file.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hermes_rl.core.paths import rl_home
from hermes_rl.orchestration.key_file import change_keys, check_name, check_value, read_keys

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


@dataclass(frozen=True, slots=True)
class FoundKey:
    name: str
    value: str = field(repr=False)
    source: Literal["variable", "file"]


def key_names() -> dict[str, str]:
    """The keys that hermes-rl uses, and what each is for. Other keys may be set too."""
    return dict(KEY_NAMES)


def key_file() -> Path:
    return rl_home() / "keys.env"


def find_key(name: str) -> str | None:
    """The value of a key. A variable takes precedence over the file; an empty one counts as unset."""
    found = lookup_key(name)
    return None if found is None else found.value


def lookup_key(name: str) -> FoundKey | None:
    """A key and its source. ConfigError when the file is needed and other users can read it."""
    if value := os.environ.get(name, "").strip():
        return FoundKey(name, value, "variable")
    if value := read_keys(key_file()).get(name, ""):
        return FoundKey(name, value, "file")
    return None


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
