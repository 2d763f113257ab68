"""From a name or a file to an environment class: bundled ones by name, anybody's by path.

Loading runs the file once as a module of its own; it never edits sys.path, and files written to the seeds' guide load
unchanged.
"""

import builtins
import hashlib
import importlib.util
import sys
from pathlib import Path

from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.seed_names import aliasing_import
from hermes_rl.errors import ConfigError
from hermes_rl.rewards.cpu_process import LOADED_BY

PACKAGE = Path(__file__).resolve().parents[1]
SUFFIX = "_env"
# The seeds' names of bundled environments.
ALSO_KNOWN_AS = {"gsm8k_tinker": "gsm8k"}


def bundled_folder() -> Path:
    """Where the bundled environments are: in the package, or beside it in a checkout."""
    shipped = PACKAGE / "bundled"
    return shipped if any(shipped.glob(f"*{SUFFIX}.py")) else PACKAGE.parents[1] / "environments"


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
    found = environment_classes(path)
    if class_name:
        if class_name not in found:
            raise ConfigError(f"{path} has no environment class {class_name!r}; it has: {', '.join(found) or 'none'}")
        return found[class_name]
    if len(found) != 1:
        problem = "no subclass of HermesAgentBaseEnv" if not found else f"several environments: {', '.join(found)}"
        raise ConfigError(f"{path} has {problem}" + ("; name one as FILE:CLASS" if found else ""))
    return next(iter(found.values()))


def environment_classes(path: Path) -> dict[str, type[HermesAgentBaseEnv]]:
    """The environments a file defines itself, by class name; ones that still lack a method are left out."""
    place = path.resolve()
    # Two files of the same name in different folders are two modules.
    module_name = f"hermes_rl_environment_{path.stem}_{hashlib.sha256(bytes(place)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, place)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    vars(module)[LOADED_BY] = f"{__name__}:{environment_classes.__name__}"
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": aliasing_import()}
    # Pydantic and dataclasses look a class's module up by its name to resolve annotations.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, HermesAgentBaseEnv)
        and value.__module__ == module_name
        and not getattr(value, "__abstractmethods__", None)
    }


def _is_env(path: Path) -> bool:
    # The seeds' module names stand in the same folder as one-line forwards.
    return path.stem != "hermes_base_env"
