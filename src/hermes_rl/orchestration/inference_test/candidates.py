"""The models of a test: the seed's defaults, any OpenRouter model, or any OpenAI-compatible endpoint.

Always true: a candidate contains references to keys, never a key.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic import ValidationError

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.keys import find_key
from hermes_rl.core.redaction import has_password
from hermes_rl.core.secrets import is_literal
from hermes_rl.core.validation import problem_text
from hermes_rl.inference.config import APIServerConfig, ServerType

OPENROUTER = "https://openrouter.ai/api/v1"
OPENROUTER_KEY = "env:OPENROUTER_API_KEY"
SCALES = {"qwen/qwen3-8b": "small", "z-ai/glm-4.7-flash": "medium", "minimax/minimax-m2.7": "large"}

Model: TypeAlias = str | Mapping[str, Any]
"""An OpenRouter model name, or an endpoint: {"model": NAME, "base_url": URL, "api_key": "env:NAME", …}."""


@dataclass(frozen=True, slots=True)
class CandidateModel:
    """`endpoint` is the `openai` section of its configuration."""

    model: str
    endpoint: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scale(self) -> str | None:
        return SCALES.get(self.model)

    def missing_key(self) -> str | None:
        """The error for a key that is not set, with the next step."""
        kind, _, name = (self.endpoint["api_key"] or "").partition(":")
        if kind != "env" or find_key(name):
            return None
        alternative = (
            ', or test other models: models=[{"model": NAME, "base_url": URL, "api_key": "env:NAME"}]'
            if self.endpoint["base_url"] == OPENROUTER
            else ""
        )
        return f"the key {name} is not set; run `hermes-rl config set {name}`{alternative}"


def parse_candidates(models: Sequence[Model] | None) -> tuple[CandidateModel, ...]:
    """The models to test, by default the seed's. ConfigError for an invalid model or a literal key."""
    if isinstance(models, str | Mapping):
        models = [models]
    if models is not None and not models:
        raise ConfigError("models is an empty list; leave it out for the defaults, or name at least one model")
    return tuple(map(_candidate, SCALES if models is None else models))


def _candidate(given: Model) -> CandidateModel:
    values: dict[str, Any] = {"model": given} if isinstance(given, str) else {}
    # Input from JSON may have any type.
    untyped: object = given
    if isinstance(untyped, Mapping):
        values = dict(untyped)
    name = values.pop("model", None) or values.pop("model_name", None)
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(
            f'{_describe_entry(given)} has no model name; give an OpenRouter model such as "qwen/qwen3-8b", or '
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
            f"the api_key of model {name!r} is a literal key; store it with `hermes-rl config set NAME` and pass "
            '"api_key": "env:NAME", or "file:PATH" for a file that contains it'
        )
    if isinstance(values["base_url"], str) and has_password(values["base_url"]):
        raise ConfigError(
            f"the base_url of model {name!r} contains a password, which would be saved with the results; pass it as "
            '"api_key": "env:NAME"'
        )
    # An unreachable endpoint should fail rollouts, with a cause, not the start of the environment.
    defaults = {"server_type": ServerType.OPENAI, "health_check": False, "api_key": None}
    try:
        checked = APIServerConfig.model_validate({**defaults, **values, "model_name": name})
    except ValidationError as error:
        [first, *_] = error.errors()
        raise ConfigError(f"model {name!r}, {'.'.join(map(str, first['loc']))}: {problem_text(first)}") from None
    fields = {"base_url", "model_name", *defaults, *values}
    return CandidateModel(name, checked.model_dump(mode="json", include=fields))


def _describe_entry(given: object) -> str:
    """An invalid entry, without values that might be keys."""
    return f"an entry with {sorted(map(str, given))}" if isinstance(given, Mapping) else repr(given)
