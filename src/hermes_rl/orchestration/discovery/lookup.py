"""`find_environment(NAME)`: one environment by name, id, file, FILE.py:CLASS or MODULE:CLASS.

Always true: the error for an unknown environment suggests the closest names and the next step.
"""

from difflib import get_close_matches
from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import ENVIRONMENT_ALIASES, SUFFIX
from hermes_rl.environment.loading.import_resolution import file_reference
from hermes_rl.orchestration.discovery.allowed_files import AllowedFiles
from hermes_rl.orchestration.discovery.discover import discover
from hermes_rl.orchestration.discovery.inheritance import has_atroposlib
from hermes_rl.orchestration.discovery.types import BaseClassKind, DiscoveredEnvironment, Discovery

_NEXT = "`hermes-rl env list` shows all"


def find_environment(
    name: str, discovery: Discovery | None = None, *, allowed: AllowedFiles | None = None
) -> DiscoveredEnvironment:
    """Names and ids are looked up in `discovery`, by default in a new one; a file may be anywhere unless `allowed`."""
    file, _, class_name = file_reference(name).partition(":")
    if file.endswith(".py") or "/" in file:
        return _find_in_file(Path(file) if allowed is None else allowed.require(Path(file)), class_name)
    discovery = discovery or discover()
    known = known_environment(name, discovery)
    if known is not None:
        return known
    name_only, _, version = name.partition("@")
    if version and (current := known_environment(name_only, discovery)) is not None:
        raise ConfigError(
            f"{name_only!r} has no version {version!r}: its file {current.file} is now {current.id}; "
            f"use that id, or {name_only!r} for the current version"
        )
    raise ConfigError(_not_found_message(name_only, discovery))


def known_environment(name: str, discovery: Discovery) -> DiscoveredEnvironment | None:
    """None when no environment in the discovery has that name or id."""
    by_name = {env.name: env for env in discovery.found} | {env.id: env for env in discovery.found}
    name_only, at, version = name.partition("@")
    short = name_only.removesuffix(SUFFIX)
    spellings = (name_only, short, ENVIRONMENT_ALIASES.get(short, short))
    known = (by_name.get(spelling + at + version) for spelling in spellings)
    return next((env for env in known if env is not None), None)


def run_refusal(found: DiscoveredEnvironment) -> str | None:
    """Why a run cannot start this environment; None if it can. Without atroposlib, its BaseEnv is ours."""
    if found.kind is BaseClassKind.HERMES or not has_atroposlib():
        return None
    return (
        "derives from the installed atroposlib, which a run cannot start: derive it from HermesAgentBaseEnv, or run "
        "`python FILE serve` next to `hermes-rl api` (docs/migrating.md)"
    )


def _find_in_file(file: Path, class_name: str) -> DiscoveredEnvironment:
    if not file.is_file():
        raise ConfigError(f"there is no file {file}; give the path of a Python file, or a name: {_NEXT}")
    if file.suffix != ".py":
        raise ConfigError(f"{file} is not a Python file; an environment's file ends in .py")
    discovery = discover([file])
    found = [env for env in discovery.found if class_name in ("", env.class_name)]
    if len(found) == 1:
        return found[0]
    classes = ", ".join(env.class_name for env in discovery.found)
    if found:
        raise ConfigError(f"{file} has several environments: {classes}; name one as {file}:{found[0].class_name}")
    if discovery.broken:
        raise ConfigError(f"{file} has no usable environment: {'; '.join(map(str, discovery.broken))}")
    if classes:
        raise ConfigError(f"{file} has no environment class {class_name!r}; it has: {classes}")
    raise ConfigError(f"{file} has no subclass of HermesAgentBaseEnv, nor of atroposlib's BaseEnv; docs/authors.md")


def _not_found_message(name: str, discovery: Discovery) -> str:
    shared = [env for env in discovery.found if env.name.startswith(f"{name}.")]
    if len(shared) > 1:
        choices = ", ".join(f"{env.name} ({env.file})" for env in shared)
        return f"several environments are named {name!r}: choose one of {choices}"
    short = name.removesuffix(SUFFIX)
    broken = [problem for problem in discovery.broken if problem.file.stem.removesuffix(SUFFIX) == short]
    if broken:
        return f"the environment {name!r} cannot be used: {broken[0]}; fix that file"
    names = [env.name for env in discovery.found]
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(names) or 'none'}."
    return f"no environment is named {name!r}; {hint} {_NEXT}; give your own file by its path, such as my_env.py"
