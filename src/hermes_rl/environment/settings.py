"""From command line, YAML and config_init to one configuration: CLI over YAML over config_init.

Unknown keys are refused with the nearest known one, and every value is checked by the model that owns it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.environment.contract import Environment
from hermes_rl.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig, ServerBaseline
from hermes_rl.terminal.sections import known, merged, parsed, read_yaml


@dataclass(frozen=True, slots=True)
class Settings:
    env: HermesAgentEnvConfig
    endpoints: tuple[APIServerConfig, ...]

    @property
    def has_endpoint(self) -> bool:
        return bool(self.endpoints) and all(endpoint.base_url for endpoint in self.endpoints)


def resolve(
    environment: type[Environment],
    file: Path | None,
    env_flags: Mapping[str, str],
    openai_flags: Mapping[str, str],
) -> Settings:
    """The settings of one command; ConfigError names the field and the source at fault."""
    env_default, endpoints_default = defaults(environment)
    sections = read_yaml(file) if file else {}
    env_values = known(sections.get("env") or {}, type(env_default), f"{file}, section env")
    env = merged(env_default, env_values | parsed(type(env_default), env_flags), "env")
    from_yaml = sections.get("openai") or {}
    yaml_endpoints = from_yaml if isinstance(from_yaml, list) else [from_yaml]
    for values in yaml_endpoints:
        known(values, APIServerConfig, f"{file}, section openai")
    flags = parsed(APIServerConfig, openai_flags)
    if isinstance(from_yaml, list) and len(from_yaml) > 1:
        if flags:
            raise ConfigError(
                f"{file} lists {len(from_yaml)} endpoints, so --openai.* flags are ambiguous; change the file instead"
            )
        return Settings(env, tuple(merged(APIServerConfig(), values, "openai") for values in from_yaml))
    over = (yaml_endpoints[0] if yaml_endpoints else {}) | flags
    if not endpoints_default:
        return Settings(env, (merged(APIServerConfig(), over, "openai"),) if over else ())
    return Settings(env, tuple(merged(endpoint, over, "openai") for endpoint in endpoints_default))


def defaults(environment: type[Environment]) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
    """What config_init gives, as our own models. Atropos' classes are taken by their values."""
    env, endpoints = environment.config_init()
    if not isinstance(env, HermesAgentEnvConfig):
        raise ConfigError(f"{environment.__name__}.config_init must return (config, [APIServerConfig, …])")
    given: Sequence[Any] = endpoints if isinstance(endpoints, list | tuple) else [endpoints]
    return env, [_endpoint(one) for one in given if isinstance(one, BaseModel) and type(one) is not ServerBaseline]


def _endpoint(config: BaseModel) -> APIServerConfig:
    if isinstance(config, APIServerConfig):
        return config
    fields = APIServerConfig.model_fields
    return APIServerConfig.model_validate({k: v for k, v in config.model_dump().items() if k in fields})
