"""Tells an environment's real configuration: `python -m hermes_rl.environment.describing REFERENCE`.

It takes JSON by standard input: changes of `env` and `openai`, and under `beneath` values that stand below what the
environment's own config_init says. It answers with one JSON object: `description`, or `error` when there is none.

Always true: whatever the environment's code prints, the answer alone is on standard output; a literal secret is hidden.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, RootModel, ValidationError

from hermes_rl import jsontext
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.environment.exactness import require_exact_tokens
from hermes_rl.environment.loader import load_environment
from hermes_rl.environment.settings import defaults
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.model_fields import facts_of_model
from hermes_rl.parsers import get_parser, list_parsers
from hermes_rl.sandbox.backends import NAMES
from hermes_rl.secrets import HIDDEN
from hermes_rl.sinks.values import saved_config
from hermes_rl.tools.distributions import chances_of
from hermes_rl.tools.toolsets import toolset_named

Model = TypeVar("Model", bound=BaseModel)
Problem = dict[str, Any]
"""`section`, `field` (None for what is not of one field) and `message`."""

# Nothing is asked there: an environment is made with an endpoint, and reaches for it only when it is opened.
ANYWHERE = "http://localhost:8001/v1"
UNREADABLE = "a value that JSON cannot hold; only the environment's own code can set it"


def main(arguments: Sequence[str]) -> int:
    asked = sys.stdin.buffer.read()
    # The environment's code may write to standard output as it likes, in other languages than Python too.
    answer = os.dup(1)
    os.dup2(2, 1)
    told = answered(arguments[0] if arguments else "", asked)
    with os.fdopen(answer, "wb") as out:
        out.write(jsontext.dumps(told) + b"\n")
    return 0 if "description" in told else 2


def answered(reference: str, asked: bytes) -> dict[str, Any]:
    """The description, or why there is none."""
    try:
        changes = jsontext.loads(asked or b"{}")
    except ValueError as error:
        return {"error": f"standard input must be JSON: {error}"}
    try:
        return {"description": described(reference, changes)}
    except HermesRLError as error:
        return {"error": str(error)}
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False))
        return {"error": f"{reference}: config_init failed: {'; '.join(faults)}"}
    except SystemExit as error:
        return {"error": f"{reference} ends the program when it is loaded (exit status {error.code})"}
    except Exception as error:  # noqa: BLE001 (an author's code may raise anything)
        return {"error": f"{reference}: config_init failed: {type(error).__name__}: {error}"}


def described(reference: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the changes, field by field, and what is wrong with it."""
    environment = load_environment(reference)
    env_default, endpoints = defaults(environment)
    endpoint_default = endpoints[0] if endpoints else APIServerConfig()
    beneath = changes.get("beneath") or {}
    env, problems = _merged(env_default, beneath.get("env") or {}, changes.get("env") or {}, "env")
    endpoint, more = _merged(endpoint_default, beneath.get("openai") or {}, changes.get("openai") or {}, "openai")
    problems += more
    if not problems:
        problems += _faults(environment, env, endpoint)
    return {
        "name": environment.display_name(),
        "class_name": environment.__name__,
        "text": (environment.__doc__ or "").strip(),
        "env": _fields(env_default, env, HermesAgentEnvConfig),
        "openai": _fields(endpoint_default, endpoint, APIServerConfig),
        "problems": problems,
    }


def _merged(
    base: Model, beneath: Mapping[str, Any], over: Mapping[str, Any], section: str
) -> tuple[Model, list[Problem]]:
    """The model with the changes; without them, and with problems, where they do not fit."""
    said = base.model_dump(exclude_unset=True)
    known = {name: value for name, value in beneath.items() if name in type(base).model_fields}
    try:
        return type(base).model_validate({**known, **said, **over}), []
    except ValidationError as error:
        return base, [
            {
                "section": section,
                "field": str(one["loc"][0]) if one["loc"] else None,
                "message": "there is no such field" if one["type"] == "extra_forbidden" else _message(one),
            }
            for one in error.errors(include_input=False, include_url=False)
        ]


def _message(problem: Mapping[str, Any]) -> str:
    place = ".".join(map(str, problem["loc"][1:]))
    text = str(problem["msg"]).removeprefix("Value error, ")
    return f"{place}: {text}" if place else text


def _fields(base: BaseModel, now: BaseModel, known: type[BaseModel]) -> list[dict[str, Any]]:
    """Each field: what it takes, what config_init gives it, and its value now."""
    before, after = _shown(base), _shown(now)
    choices: dict[str, Sequence[str]] = {"tool_call_parser": list_parsers(), "terminal_backend": ["auto", *NAMES]}
    return [
        {
            "name": name,
            "type": facts.type,
            "kinds": facts.kinds,
            "nullable": facts.nullable,
            "allowed": f"one of {', '.join(choices[name])}" if name in choices else facts.allowed,
            "description": facts.description,
            "default": before.get(name, UNREADABLE),
            "value": after.get(name, UNREADABLE),
            "said": name in base.model_fields_set,
            "own": name not in known.model_fields,
            "readable": name in before and name in after and not _has_hidden(after[name]),
        }
        for name, facts in facts_of_model(type(base)).items()
    ]


def _shown(config: BaseModel) -> dict[str, Any]:
    """Its values as JSON holds them, without secrets; what JSON cannot hold is left out."""
    try:
        return saved_config(config)
    except Exception:  # noqa: BLE001 (an author's own type may refuse in any way)
        shown: dict[str, Any] = {}
        for name in type(config).model_fields:
            try:
                shown |= config.model_dump(mode="json", include={name})
            except Exception:  # noqa: BLE001, S112 (the same)
                continue
        return saved_config(RootModel(shown))


def _has_hidden(value: Any) -> bool:
    return HIDDEN.encode() in jsontext.dumps(value)


def _faults(
    environment: type[HermesAgentBaseEnv], env: HermesAgentEnvConfig, endpoint: APIServerConfig
) -> list[Problem]:
    """What the models cannot know: names that other parts give, and what `serve` would refuse."""
    checks: list[tuple[str | None, Callable[[], object]]] = [
        ("tool_call_parser", lambda: get_parser(env.tool_call_parser)),
        ("terminal_backend", lambda: _known_backend(env.terminal_backend)),
        ("enabled_toolsets", lambda: [toolset_named(name) for name in env.enabled_toolsets or ()]),
        ("disabled_toolsets", lambda: [toolset_named(name) for name in env.disabled_toolsets or ()]),
        ("distribution", lambda: chances_of(env.distribution, env.toolset_distributions)),
    ]
    # Whoever names such an engine means to train on what it samples.
    if endpoint.server_type in {ServerType.VLLM, ServerType.SGLANG}:
        checks.append((None, lambda: require_exact_tokens(env, [endpoint])))
    problems = []
    for field, check in checks:
        try:
            check()
        except HermesRLError as error:
            problems.append({"section": "env", "field": field, "message": str(error)})
    return problems or _made(environment, env, endpoint)


def _made(environment: type[HermesAgentBaseEnv], env: HermesAgentEnvConfig, endpoint: APIServerConfig) -> list[Problem]:
    """Whether the author's class can be made with it, as `serve` does first."""

    async def make() -> None:
        environment(env, [endpoint.model_copy(update={"base_url": endpoint.base_url or ANYWHERE})])

    try:
        asyncio.run(make())
    except Exception as error:  # noqa: BLE001 (an author's code may raise anything)
        why = str(error) if isinstance(error, HermesRLError) else f"{type(error).__name__}: {error}"
        return [{"section": "env", "field": None, "message": f"{environment.__name__} cannot be made: {why}"}]
    return []


def _known_backend(name: str) -> None:
    if name not in {"auto", *NAMES}:
        raise ConfigError(f"no sandbox backend is named {name!r}; known: auto, {', '.join(NAMES)}")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Threads that the environment left behind must not keep the answer's reader waiting.
    os._exit(code)
