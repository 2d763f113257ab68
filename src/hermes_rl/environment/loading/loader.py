"""Loads environment classes: bundled ones by name, others by path.

The file and its local imports run once each, as private modules. sys.path is never edited, and files written for the
seeds load unchanged.
"""

import inspect
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import ENVIRONMENT_ALIASES, SUFFIX, bundled_environments_dir
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.loading.import_resolution import file_reference
from hermes_rl.environment.loading.private_modules import PrivateModules
from hermes_rl.rewards.cpu_reward import LOADED_BY


def bundled_environments() -> dict[str, Path]:
    return {path.stem.removesuffix(SUFFIX): path for path in sorted(bundled_environments_dir().glob(f"*{SUFFIX}.py"))}


def load_environment(reference: str) -> type[HermesAgentBaseEnv]:
    """The class of `terminal_test`, `my_env.py`, `my_env.py:MyEnv` or `package.module:MyEnv`; else ConfigError."""
    location, _, class_name = reference.partition(":")
    bundled = bundled_environments()
    name = location.removesuffix(SUFFIX)
    path = bundled.get(ENVIRONMENT_ALIASES.get(name, name))
    if path is None:
        location, _, class_name = file_reference(reference).partition(":")
        path = Path(location)
    if path.suffix != ".py" or not path.is_file():
        close = get_close_matches(name, bundled, n=1)
        raise ConfigError(
            f"no environment {location!r}: not a Python file and not a bundled environment "
            f"({', '.join(bundled) or 'none'})" + (f"; did you mean {close[0]!r}?" if close else "")
        )
    module = _load_module(path)
    found = _concrete_environments(module)
    if class_name:
        if class_name not in found:
            raise ConfigError(_missing_class_message(path, class_name, module))
        return found[class_name]
    if len(set(found.values())) != 1:
        problem = "no subclass of HermesAgentBaseEnv" if not found else f"several environments: {', '.join(found)}"
        raise ConfigError(f"{path} has {problem}" + ("; select one with FILE:CLASS" if found else ""))
    return next(iter(found.values()))


def environment_classes(path: Path) -> dict[str, type[HermesAgentBaseEnv]]:
    """The concrete environments that a file defines, by class name."""
    return _concrete_environments(_load_module(path))


def _load_module(path: Path) -> ModuleType:
    modules = PrivateModules({LOADED_BY: f"{__name__}:{environment_classes.__name__}"})
    try:
        return modules.load(path)
    except Exception as error:
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error


def _concrete_environments(module: ModuleType) -> dict[str, type[HermesAgentBaseEnv]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, HermesAgentBaseEnv)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    }


def _missing_class_message(path: Path, class_name: str, module: ModuleType) -> str:
    found = ", ".join(_concrete_environments(module)) or "none"
    candidate = vars(module).get(class_name)
    bases = candidate.__mro__ if isinstance(candidate, type) else ()
    if HermesAgentBaseEnv in bases and inspect.isabstract(candidate):
        missing = ", ".join(sorted(getattr(candidate, "__abstractmethods__", ())))
        return f"{class_name} of {path} does not define {missing}. Environments in that file: {found}"
    if any(base.__module__.startswith("atroposlib.") for base in bases):
        return (
            f"{class_name} of {path} is an atroposlib environment: start it with `python {path} serve`, "
            "or derive it from HermesAgentBaseEnv to run it with hermes-rl"
        )
    return f"{path} has no environment class {class_name!r}; it has: {found}"
