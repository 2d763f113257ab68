"""Merges command line, YAML and config_init into one configuration; CLI overrides YAML overrides config_init.

Unknown keys are rejected with a suggestion, and every value is validated by its pydantic model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from hermes_rl.console.config_options import (
    ConfigSections,
    check_fields,
    describe_problems,
    merge_fields,
    parse_flags,
    unknown_fields,
)
from hermes_rl.core.author_code import author_line, describe_error
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.inference.config import APIServerConfig, ServerBaseline
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.rollout.environment_protocol import Environment


@dataclass(frozen=True, slots=True)
class Settings:
    env: HermesAgentEnvConfig
    endpoints: tuple[APIServerConfig, ...]

    @property
    def has_endpoint(self) -> bool:
        return bool(self.endpoints) and all(endpoint.base_url for endpoint in self.endpoints)


def resolve_settings(
    environment: type[Environment],
    config: ConfigSections,
    env_flags: Mapping[str, str],
    openai_flags: Mapping[str, str],
) -> Settings:
    """The settings of one command; ConfigError names the invalid field and where it was set."""
    env_default, endpoints_default = config_defaults(environment)
    env_values = check_fields(config.values.get("env") or {}, type(env_default), f"{config.source}, section env")
    env = merge_fields(env_default, env_values | parse_flags(type(env_default), env_flags), "env")
    from_yaml = config.values.get("openai") or {}
    yaml_endpoints = from_yaml if isinstance(from_yaml, list) else [from_yaml]
    for values in yaml_endpoints:
        check_fields(values, APIServerConfig, f"{config.source}, section openai")
    flags = parse_flags(APIServerConfig, openai_flags)
    if isinstance(from_yaml, list) and len(from_yaml) > 1:
        if flags:
            raise ConfigError(
                f"{config.source} lists {len(from_yaml)} endpoints, so --openai.* flags are ambiguous; change the file "
                "instead"
            )
        shared = next((one for one in endpoints_default if not one.base_url), APIServerConfig())
        return Settings(env, tuple(merge_fields(shared, values, "openai") for values in from_yaml))
    overrides = (yaml_endpoints[0] if yaml_endpoints else {}) | flags
    if not endpoints_default:
        return Settings(env, (merge_fields(APIServerConfig(), overrides, "openai"),) if overrides else ())
    return Settings(env, tuple(merge_fields(endpoint, overrides, "openai") for endpoint in endpoints_default))


def config_defaults(environment: type[Environment]) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
    """The defaults from config_init, with Atropos' classes converted to ours.

    A ServerBaseline becomes an endpoint without address: what the endpoints given elsewhere have in common.
    """
    try:
        env, endpoints = environment.config_init()
    except HermesRLError:
        raise
    except ValidationError as error:
        raise _invalid_defaults(environment, error) from error
    except Exception as error:
        raise ConfigError(f"config_init of {environment.__name__} raised {describe_error(error)}") from error
    if not isinstance(env, HermesAgentEnvConfig):
        raise ConfigError(f"{environment.__name__}.config_init must return (config, [APIServerConfig, …])")
    endpoint_list: Sequence[Any] = endpoints if isinstance(endpoints, list | tuple) else [endpoints]
    return env, [_endpoint(endpoint) for endpoint in endpoint_list if isinstance(endpoint, BaseModel)]


def _invalid_defaults(environment: type[Environment], error: ValidationError) -> ConfigError:
    where = f"config_init of {environment.__name__}{author_line(error)}"
    unknown = [str(problem["loc"][-1]) for problem in error.errors() if problem["type"] == "extra_forbidden"]
    if not unknown:
        return ConfigError(f"{where}: {describe_problems(error)}")
    models = (APIServerConfig, environment.env_config_cls)
    model = next((model for model in models if model.__name__ == error.title), HermesAgentEnvConfig)
    return unknown_fields(unknown, model, where, "hermes-rl env show terminal_test --all")


def _endpoint(config: BaseModel) -> APIServerConfig:
    if isinstance(config, APIServerConfig):
        return config
    fields = APIServerConfig.model_fields
    values = config.model_dump(exclude_unset=isinstance(config, ServerBaseline))
    return APIServerConfig.model_validate({name: value for name, value in values.items() if name in fields})
