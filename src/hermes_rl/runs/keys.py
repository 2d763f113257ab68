"""Keys by name: a variable of this process, else the user's key file. Runs and the rl tools find them here.

Always true: a key's value goes into the file or into the environment of a process that needs it, and nowhere else;
what is shown is masked. A part of a run is given the keys that its run names, never the whole file.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hermes_rl.home import rl_home
from hermes_rl.runs.key_file import change_keys, check_name, check_value, read_keys

KEY_NAMES = {
    "TINKER_API_KEY": "training with hosted Tinker; a self-hosted engine needs none",
    "WANDB_API_KEY": "metrics on Weights & Biases; they are always in local files too",
    "OPENROUTER_API_KEY": "models of OpenRouter: the inference test's defaults",
    "OPENAI_API_KEY": "models of OpenAI, by --openai.api_key env:OPENAI_API_KEY",
    "ANTHROPIC_API_KEY": "models of Anthropic, by --openai.api_key env:ANTHROPIC_API_KEY",
    "HF_TOKEN": "closed or private models and datasets of Hugging Face",
    "DAYTONA_API_KEY": "sandboxes of the backend daytona",
    "MODAL_TOKEN_ID": "sandboxes of the backend modal, with MODAL_TOKEN_SECRET",
    "MODAL_TOKEN_SECRET": "sandboxes of the backend modal, with MODAL_TOKEN_ID",
    "TAVILY_API_KEY": "web search with the provider tavily",
    "EXA_API_KEY": "web search with the provider exa",
    "BRAVE_API_KEY": "web search with the provider brave",
    "HERMES_RL_RUN_TOKEN": "what the parts of a run on many machines show each other; any long random text",
}
_LONG = 16
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class FoundKey:
    name: str
    value: str = field(repr=False)
    source: Literal["variable", "file"]


def key_names() -> dict[str, str]:
    """The keys that hermes-rl knows of, and what each is for. Others may be set too."""
    return dict(KEY_NAMES)


def key_file() -> Path:
    return rl_home() / "keys.env"


def find_key(name: str) -> str | None:
    """Its value; a variable goes before the file, and an empty one counts as none."""
    found = found_key(name)
    return None if found is None else found.value


def found_key(name: str) -> FoundKey | None:
    """A key and where it was found. ConfigError when it takes the file, and others can read that."""
    if value := os.environ.get(name, "").strip():
        return FoundKey(name, value, "variable")
    if value := read_keys(key_file()).get(name, ""):
        return FoundKey(name, value, "file")
    return None


def set_key(name: str, value: str) -> Path:
    """Keep a key in the file; where that is. ConfigError for what can be no key, without repeating it."""
    change_keys(key_file(), check_name(name), check_value(name, value))
    return key_file()


def unset_key(name: str) -> bool:
    """Take a key out of the file; whether it was there. Variables are left as they are."""
    return change_keys(key_file(), check_name(name), None)


def masked(value: str) -> str:
    """What may be shown of a value: the end of a long one, nothing of a short one, of none its length."""
    return f"…{value[-_SHOWN:]}" if len(value) >= _LONG else "…"


def key_variables(names: Iterable[str]) -> dict[str, str]:
    """Those of the keys that are set, as the variables of a process that needs them."""
    return {found.name: found.value for name in dict.fromkeys(names) if (found := found_key(name))}


def referenced_keys(settings: Any) -> tuple[str, ...]:
    """The names in all `env:NAME` of a configuration: what its process must be given."""
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
