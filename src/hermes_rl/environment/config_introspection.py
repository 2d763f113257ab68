"""Describes an environment's configuration: `python -m hermes_rl.environment.config_introspection REFERENCE`.

orchestration/configuration/introspect.py runs it in a subprocess. It reads JSON from standard input: changes of `env`
and `openai`, and under `defaults_below` values that config_init overrides. It writes one JSON object with
`description` or `error`. Standard output holds nothing else, whatever the environment's code prints, and literal
secrets are hidden.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, RootModel, ValidationError

from hermes_rl.console.live_display import warn
from hermes_rl.core import fast_json
from hermes_rl.core.author_code import describe_error
from hermes_rl.core.config_schema import describe_model
from hermes_rl.core.errors import HermesRLError
from hermes_rl.core.keys import load_keys
from hermes_rl.core.secrets import HIDDEN
from hermes_rl.core.validation import problem_text
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.resolve_config import config_defaults
from hermes_rl.extensions import SANDBOX_BACKENDS
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.parsers import get_parser, list_parsers
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.rollout.token_requirements import require_exact_tokens
from hermes_rl.sinks.serialize import public_config
from hermes_rl.tools.distributions import toolset_probabilities
from hermes_rl.tools.registry import get_toolset

Model = TypeVar("Model", bound=BaseModel)
Problem = dict[str, Any]
"""`section`, `field` (None when no single field is at fault) and `message`."""

# Never contacted: constructing an environment needs an endpoint, but only opening it connects.
UNUSED_URL = "http://localhost:8001/v1"
NOT_JSON = "a value that JSON cannot represent; only the environment's code can set it"


def main(arguments: Sequence[str]) -> int:
    request = sys.stdin.buffer.read()
    # The environment's code, including native code, may write to standard output: redirect it to standard error.
    answer = os.dup(1)
    os.dup2(2, 1)
    load_keys(warn)
    response = introspect_config(arguments[0] if arguments else "", request)
    with os.fdopen(answer, "wb") as out:
        out.write(fast_json.dumps(response) + b"\n")
    return 0 if "description" in response else 2


def introspect_config(reference: str, request: bytes) -> dict[str, Any]:
    try:
        changes = fast_json.loads(request or b"{}")
    except ValueError as error:
        return {"error": f"standard input must be JSON: {error}"}
    try:
        return {"description": describe_environment(reference, changes)}
    except HermesRLError as error:
        return {"error": str(error)}
    except SystemExit as error:
        return {"error": f"{reference} exits when it is loaded (exit status {error.code})"}
    except Exception as error:  # noqa: BLE001 (author code may raise anything)
        return {"error": f"{reference} failed: {describe_error(error)}"}


def describe_environment(reference: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the changes, field by field, and its problems."""
    environment = load_environment(reference)
    env_default, endpoints = config_defaults(environment)
    endpoint_default = endpoints[0] if endpoints else APIServerConfig()
    defaults_below = changes.get("defaults_below") or {}
    env, problems = _merge(env_default, defaults_below.get("env") or {}, changes.get("env") or {}, "env")
    endpoint, more = _merge(endpoint_default, defaults_below.get("openai") or {}, changes.get("openai") or {}, "openai")
    problems += more
    if not problems:
        problems += _find_problems(environment, env, endpoint)
    return {
        "name": environment.display_name(),
        "class_name": environment.__name__,
        "text": (environment.__doc__ or "").strip(),
        "env": _fields(env_default, env, HermesAgentEnvConfig),
        "openai": _fields(endpoint_default, endpoint, APIServerConfig),
        "problems": problems,
    }


def _merge(
    base: Model, defaults_below: Mapping[str, Any], over: Mapping[str, Any], section: str
) -> tuple[Model, list[Problem]]:
    """The model with the changes applied; the unchanged model and the problems if they are invalid."""
    explicit = base.model_dump(exclude_unset=True)
    known = {name: value for name, value in defaults_below.items() if name in type(base).model_fields}
    try:
        return type(base).model_validate({**known, **explicit, **over}), []
    except ValidationError as error:
        return base, [
            {
                "section": section,
                "field": str(detail["loc"][0]) if detail["loc"] else None,
                "message": "there is no such field" if detail["type"] == "extra_forbidden" else _message(detail),
            }
            for detail in error.errors(include_input=False, include_url=False)
        ]


def _message(problem: Mapping[str, Any]) -> str:
    path = ".".join(map(str, problem["loc"][1:]))
    text = problem_text(problem)
    return f"{path}: {text}" if path else text


def _fields(base: BaseModel, now: BaseModel, known: type[BaseModel]) -> list[dict[str, Any]]:
    """Each field with its type, its default from config_init and its current value."""
    before, after = _json_values(base), _json_values(now)
    choices: dict[str, Sequence[str]] = {
        "tool_call_parser": list_parsers(),
        "terminal_backend": ["auto", *SANDBOX_BACKENDS.names()],
    }
    return [
        {
            "name": name,
            "type": facts.type,
            "kinds": facts.kinds,
            "nullable": facts.nullable,
            "allowed": f"one of {', '.join(choices[name])}, or module:Class" if name in choices else facts.allowed,
            "description": facts.description,
            "default": before.get(name, NOT_JSON),
            "value": after.get(name, NOT_JSON),
            "set_by_config_init": name in base.model_fields_set,
            "own": name not in known.model_fields,
            "readable": name in before and name in after and not _contains_secret(after[name]),
        }
        for name, facts in describe_model(type(base)).items()
    ]


def _json_values(config: BaseModel) -> dict[str, Any]:
    """The values as JSON, without secrets; values that JSON cannot represent are left out."""
    try:
        return public_config(config)
    except Exception:  # noqa: BLE001 (an author's type may raise anything)
        shown: dict[str, Any] = {}
        for name in type(config).model_fields:
            try:
                shown |= config.model_dump(mode="json", include={name})
            except Exception:  # noqa: BLE001, S112 (the same)
                continue
        return public_config(RootModel(shown))


def _contains_secret(value: Any) -> bool:
    return HIDDEN.encode() in fast_json.dumps(value)


def _find_problems(
    environment: type[HermesAgentBaseEnv], env: HermesAgentEnvConfig, endpoint: APIServerConfig
) -> list[Problem]:
    """Problems the models cannot check: unknown names, and settings that `serve` would reject."""
    checks: list[tuple[str | None, Callable[[], object]]] = [
        ("tool_call_parser", lambda: get_parser(env.tool_call_parser)),
        ("terminal_backend", lambda: env.terminal_backend == "auto" or SANDBOX_BACKENDS.find(env.terminal_backend)),
        ("enabled_toolsets", lambda: [get_toolset(name) for name in env.enabled_toolsets or ()]),
        ("disabled_toolsets", lambda: [get_toolset(name) for name in env.disabled_toolsets or ()]),
        ("distribution", lambda: toolset_probabilities(env.distribution, env.toolset_distributions)),
    ]
    # These engines are used for training, so their tokens must be trainable.
    if endpoint.server_type in {ServerType.VLLM, ServerType.SGLANG}:
        checks.append((None, lambda: require_exact_tokens(env, [endpoint])))
    problems = []
    for field, check in checks:
        try:
            check()
        except HermesRLError as error:
            problems.append({"section": "env", "field": field, "message": str(error)})
    return problems or _construction_problems(environment, env, endpoint)


def _construction_problems(
    environment: type[HermesAgentBaseEnv], env: HermesAgentEnvConfig, endpoint: APIServerConfig
) -> list[Problem]:
    """Problems raised by constructing the author's class, as `serve` does first."""

    async def construct() -> None:
        environment(env, [endpoint.model_copy(update={"base_url": endpoint.base_url or UNUSED_URL})])

    try:
        asyncio.run(construct())
    except Exception as error:  # noqa: BLE001 (author code may raise anything)
        reason = str(error) if isinstance(error, HermesRLError) else f"{type(error).__name__}: {error}"
        return [{"section": "env", "field": None, "message": f"{environment.__name__} cannot be constructed: {reason}"}]
    return []


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Threads that the environment left running must not delay the reader.
    os._exit(code)
