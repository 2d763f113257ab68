"""The models of a test: those the seed names, any of OpenRouter, any OpenAI-compatible endpoint.

Always true: a candidate holds references to keys, never a key.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic import ValidationError

from hermes_rl.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.runs.keys import find_key
from hermes_rl.secrets import is_literal

OPENROUTER = "https://openrouter.ai/api/v1"
OPENROUTER_KEY = "env:OPENROUTER_API_KEY"
SCALES = {"qwen/qwen3-8b": "small", "z-ai/glm-4.7-flash": "medium", "minimax/minimax-m2.7": "large"}

Model: TypeAlias = str | Mapping[str, Any]
"""A name at OpenRouter, or an endpoint: {"model": NAME, "base_url": URL, "api_key": "env:NAME", …}."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """`endpoint` is the `openai` section of its configuration."""

    model: str
    endpoint: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scale(self) -> str | None:
        return SCALES.get(self.model)

    def lacking(self) -> str | None:
        """What keeps it from being asked, and the next step."""
        kind, _, name = (self.endpoint["api_key"] or "").partition(":")
        if kind != "env" or find_key(name):
            return None
        elsewhere = (
            ', or test other models: models=[{"model": NAME, "base_url": URL, "api_key": "env:NAME"}]'
            if self.endpoint["base_url"] == OPENROUTER
            else ""
        )
        return f"the key {name} is not set; run `hermes-rl config set {name}`{elsewhere}"


def candidates(models: Sequence[Model] | None) -> tuple[Candidate, ...]:
    """The models to test, the seed's when none are named. ConfigError for what is no model, or for a key in clear."""
    if isinstance(models, str | Mapping):
        models = [models]
    if models is not None and not models:
        raise ConfigError("models is an empty list; leave it out for the defaults, or name at least one model")
    return tuple(_candidate(one) for one in (SCALES if models is None else models))


def _candidate(given: Model) -> Candidate:
    values: dict[str, Any] = {"model": given} if isinstance(given, str) else {}
    # What a program read from JSON may be anything.
    told: object = given
    if isinstance(told, Mapping):
        values = dict(told)
    name = values.pop("model", None) or values.pop("model_name", None)
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(
            f'{_shown(given)} names no model; give a name of OpenRouter such as "qwen/qwen3-8b", or '
            '{"model": NAME, "base_url": URL, "api_key": "env:NAME"}'
        )
    for unknown in values.keys() - APIServerConfig.model_fields.keys():
        [near, *_] = [*difflib.get_close_matches(unknown, APIServerConfig.model_fields, n=1), "base_url"]
        raise ConfigError(f"model {name!r} has an unknown field {unknown!r}; did you mean {near!r}?")
    if not values.get("base_url"):
        values |= {"base_url": OPENROUTER, "api_key": values.get("api_key") or OPENROUTER_KEY}
    key = values.get("api_key")
    if key is not None and (not isinstance(key, str) or is_literal(key)):
        raise ConfigError(
            f"the api_key of model {name!r} is a key itself, and keys do not go into arguments; keep it with "
            '`hermes-rl config set NAME` and pass "api_key": "env:NAME", or "file:PATH" for a file that holds it'
        )
    # An endpoint that is away is to fail rollouts, by cause, and not the start of the environment.
    standing = {"server_type": ServerType.OPENAI, "health_check": False, "api_key": None}
    try:
        checked = APIServerConfig.model_validate({**standing, **values, "model_name": name})
    except ValidationError as error:
        [first, *_] = error.errors()
        raise ConfigError(f"model {name!r}, {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    wanted = {"base_url", "model_name", *standing, *values}
    return Candidate(name, checked.model_dump(mode="json", include=wanted))


def _shown(given: object) -> str:
    """What is no model, without what might be a key in it."""
    return f"an entry with {sorted(map(str, given))}" if isinstance(given, Mapping) else repr(given)
