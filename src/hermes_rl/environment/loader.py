"""From a name or a file to an environment class: bundled ones by name, anybody's by path.

Loading runs the file once as a module of its own, and the modules near it likewise; it never edits sys.path, and files
written to the seeds' guide load unchanged.
"""

import inspect
from pathlib import Path
from types import ModuleType

from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.private_modules import PrivateModules
from hermes_rl.errors import ConfigError
from hermes_rl.rewards.cpu_process import LOADED_BY
from hermes_rl.shipped import ALSO_KNOWN_AS, SUFFIX, bundled_folder


def bundled_environments() -> dict[str, Path]:
    """The bundled environments by name."""
    return {
        path.stem.removesuffix(SUFFIX): path for path in sorted(bundled_folder().glob(f"*{SUFFIX}.py")) if _is_env(path)
    }


def load_environment(reference: str) -> type[HermesAgentBaseEnv]:
    """The class behind `terminal_test`, `my_env.py` or `my_env.py:MyEnv`; ConfigError says what was looked for."""
    place, _, class_name = reference.partition(":")
    bundled = bundled_environments()
    name = place.removesuffix(SUFFIX)
    path = bundled.get(ALSO_KNOWN_AS.get(name, name)) or Path(place)
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(
            f"no environment {place!r}: it is neither a Python file nor one of the bundled ones "
            f"({', '.join(bundled) or 'none'})"
        )
    module = _loaded(path)
    found = _finished(module)
    if class_name:
        if class_name not in found:
            raise ConfigError(_no_such_class(path, class_name, module))
        return found[class_name]
    if len(set(found.values())) != 1:
        problem = "no subclass of HermesAgentBaseEnv" if not found else f"several environments: {', '.join(found)}"
        raise ConfigError(f"{path} has {problem}" + ("; name one as FILE:CLASS" if found else ""))
    return next(iter(found.values()))


def environment_classes(path: Path) -> dict[str, type[HermesAgentBaseEnv]]:
    """The environments a file defines itself, by class name; ones that still lack a method are left out."""
    return _finished(_loaded(path))


def _loaded(path: Path) -> ModuleType:
    modules = PrivateModules({LOADED_BY: f"{__name__}:{environment_classes.__name__}"})
    try:
        return modules.load(path)
    except Exception as error:
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error


def _finished(module: ModuleType) -> dict[str, type[HermesAgentBaseEnv]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, HermesAgentBaseEnv)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    }


def _no_such_class(path: Path, class_name: str, module: ModuleType) -> str:
    found = ", ".join(_finished(module)) or "none"
    meant = vars(module).get(class_name)
    bases = meant.__mro__ if isinstance(meant, type) else ()
    if HermesAgentBaseEnv in bases and inspect.isabstract(meant):
        lacks = ", ".join(sorted(getattr(meant, "__abstractmethods__", ())))
        return f"{class_name} of {path} still lacks {lacks}; define that. Environments of that file: {found}"
    if any(base.__module__.startswith("atroposlib.") for base in bases):
        return (
            f"{class_name} of {path} is an environment of atroposlib: start it as `python {path} serve`; "
            "to run it by hermes-rl, derive it from HermesAgentBaseEnv"
        )
    return f"{path} has no environment class {class_name!r}; it has: {found}"


def _is_env(path: Path) -> bool:
    # The seeds' module names stand in the same folder as one-line forwards.
    return path.stem != "hermes_base_env"
