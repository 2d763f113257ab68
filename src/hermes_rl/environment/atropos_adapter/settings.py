"""One configuration for two loops: atroposlib's class, its fields and its flags, and from it the settings of ours.

Every field of ours and every field of theirs is in the class, and each can be given as text, as atroposlib's command
line gives it. What only atroposlib's loop reads is checked by atroposlib's rules.
"""

from collections.abc import Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, create_model, model_validator

from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.environment.endpoint_choice import explanation
from hermes_rl.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.terminal.sections import parse_flag

# Atropos gives 0 and -1 a meaning in some of them, and its loop compares the last with an enumeration of its own.
LOOP_FIELDS = (
    "total_steps",
    "steps_per_eval",
    "max_batches_offpolicy",
    "min_items_sent_before_logging",
    "worker_timeout",
    "eval_handling",
)
# What atroposlib's "no timeout" is to a rollout.
LONGEST_ROLLOUT = 30 * 86_400.0


def config_class(ours: type[HermesAgentEnvConfig], theirs: type[BaseModel]) -> type[Any]:
    """A subclass of both, fit for pydantic-cli: no default is made by a function, and any value may be text."""
    structured = {name: field for name, field in ours.model_fields.items() if _is_structured(field.annotation)}

    def read(values: Any) -> Any:
        return {
            name: parse_flag(structured[name].annotation, value)
            if name in structured and isinstance(value, str)
            else value
            for name, value in dict(values).items()
        }

    fields: dict[str, Any] = {
        name: (theirs.model_fields[name].annotation, _like(ours, name, theirs)) for name in LOOP_FIELDS
    }
    for name, field in structured.items():
        # pydantic-cli checks a flag's text by this annotation before `read` sees it.
        fields[name] = (Union[field.annotation, str], _like(ours, name))  # noqa: UP007 (a value, not an annotation)
    reading: Any = model_validator(mode="before")(read)
    return create_model(f"Atropos{ours.__name__}", __base__=(ours, theirs), __validators__={"read": reading}, **fields)


def rollout_settings(ours: type[HermesAgentEnvConfig], config: Any) -> HermesAgentEnvConfig:
    """The configuration of the environment inside, whose metrics go to wandb by way of atroposlib alone."""
    values = config.model_dump(exclude=set(LOOP_FIELDS)) | {"use_wandb": False}
    values["worker_timeout"] = config.worker_timeout if config.worker_timeout > 0 else LONGEST_ROLLOUT
    return ours.model_validate(values)


def rollout_endpoints(given: Any, defaults: Sequence[APIServerConfig]) -> list[APIServerConfig]:
    """The endpoints that atroposlib was told of, as ours; what its own class cannot hold is the environment's."""
    several = list(given) if isinstance(given, list | tuple) else [given]
    bases = defaults if len(defaults) == len(several) else [APIServerConfig()] * len(several)
    if not several or not all(getattr(one, "base_url", None) for one in several):
        raise ConfigError(explanation())
    return [
        APIServerConfig.model_validate(base.model_dump() | endpoint_values(one, APIServerConfig))
        for base, one in zip(bases, several, strict=True)
    ]


def endpoint_values(endpoint: BaseModel, wanted: type[BaseModel]) -> dict[str, Any]:
    """The fields of an endpoint that the other side's class has too; atroposlib writes "" for nothing."""
    return {
        name: None if value == "" else value
        for name, value in endpoint.model_dump().items()
        if name in wanted.model_fields
    }


def _like(ours: type[BaseModel], name: str, theirs: type[BaseModel] | None = None) -> Any:
    """A field with our words and default; an enumeration's default is the other side's of the same value."""
    field = ours.model_fields[name]
    default = field.get_default(call_default_factory=True, validated_data={})
    if theirs is not None and isinstance(default, str):
        default = type(theirs.model_fields[name].default)(str(default))
    return Field(default=default, description=field.description)


def _is_structured(annotation: Any) -> bool:
    """Whether a value has more in it than one word or number."""
    if get_origin(annotation) in (list, dict):
        return True
    return (isinstance(annotation, type) and issubclass(annotation, BaseModel)) or any(
        _is_structured(inner) for inner in get_args(annotation)
    )
