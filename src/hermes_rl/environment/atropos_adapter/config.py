"""Combines atroposlib's configuration class with ours, and derives our settings from it.

The class has all fields of both, and each accepts text, as atroposlib's command line passes it. Fields that only
atroposlib's loop reads are validated by atroposlib's rules.
"""

from collections.abc import Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, create_model, model_validator

from hermes_rl.console.config_options import parse_flag
from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.ask_endpoint import endpoint_help
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rollout.config import HermesAgentEnvConfig

# Atropos gives 0 and -1 a special meaning in some of them, and its loop compares the last with its own enum.
LOOP_FIELDS = (
    "total_steps",
    "steps_per_eval",
    "max_batches_offpolicy",
    "min_items_sent_before_logging",
    "worker_timeout",
    "eval_handling",
)
# Rollout timeout when atroposlib has none.
NO_TIMEOUT = 30 * 86_400.0


def config_class(ours: type[HermesAgentEnvConfig], theirs: type[BaseModel]) -> type[Any]:
    """A subclass of both that works with pydantic-cli: no default factories, and every value may be text."""
    structured_fields = {
        name: field for name, field in ours.model_fields.items() if _is_structured_type(field.annotation)
    }

    def parse_text_values(values: Any) -> Any:
        return {
            name: parse_flag(structured_fields[name].annotation, value)
            if name in structured_fields and isinstance(value, str)
            else value
            for name, value in dict(values).items()
        }

    fields: dict[str, Any] = {
        name: (theirs.model_fields[name].annotation, _field_like(ours, name, theirs)) for name in LOOP_FIELDS
    }
    for name, field in structured_fields.items():
        # pydantic-cli checks a flag's text by this annotation before `read` sees it.
        fields[name] = (Union[field.annotation, str], _field_like(ours, name))  # noqa: UP007 (a value, not an annotation)
    validator: Any = model_validator(mode="before")(parse_text_values)
    return create_model(
        f"Atropos{ours.__name__}", __base__=(ours, theirs), __validators__={"read": validator}, **fields
    )


def rollout_settings(ours: type[HermesAgentEnvConfig], config: Any) -> HermesAgentEnvConfig:
    """The configuration of the wrapped environment; only atroposlib logs its metrics to wandb."""
    values = config.model_dump(exclude=set(LOOP_FIELDS)) | {"use_wandb": False}
    values["worker_timeout"] = config.worker_timeout if config.worker_timeout > 0 else NO_TIMEOUT
    return ours.model_validate(values)


def rollout_endpoints(given: Any, defaults: Sequence[APIServerConfig]) -> list[APIServerConfig]:
    """Atroposlib's endpoints as ours; fields its class lacks come from the environment's defaults."""
    endpoints = list(given) if isinstance(given, list | tuple) else [given]
    bases = defaults if len(defaults) == len(endpoints) else [APIServerConfig()] * len(endpoints)
    if not endpoints or not all(getattr(endpoint, "base_url", None) for endpoint in endpoints):
        raise ConfigError(endpoint_help())
    return [
        APIServerConfig.model_validate(base.model_dump() | endpoint_values(endpoint, APIServerConfig))
        for base, endpoint in zip(bases, endpoints, strict=True)
    ]


def endpoint_values(endpoint: BaseModel, target: type[BaseModel]) -> dict[str, Any]:
    """The endpoint's fields that `target` also has; atroposlib writes "" for None."""
    return {
        name: None if value == "" else value
        for name, value in endpoint.model_dump().items()
        if name in target.model_fields
    }


def _field_like(ours: type[BaseModel], name: str, theirs: type[BaseModel] | None = None) -> Any:
    """A field with our description and default; an enum default is converted to their enum."""
    field = ours.model_fields[name]
    default = field.get_default(call_default_factory=True, validated_data={})
    if theirs is not None and isinstance(default, str):
        default = type(theirs.model_fields[name].default)(str(default))
    return Field(default=default, description=field.description)


def _is_structured_type(annotation: Any) -> bool:
    """Whether a value is a list, dict or model."""
    if get_origin(annotation) in (list, dict):
        return True
    return (isinstance(annotation, type) and issubclass(annotation, BaseModel)) or any(
        _is_structured_type(inner) for inner in get_args(annotation)
    )
