"""Writes an environment as a package that verifiers 0.4, `vf-eval` and prime-rl find by its name.

Always true: the package holds no code of the environment, only its name, so both come from the installed hermes-rl or
from the file that the name gives.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.version import __version__

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MODULE = '''"""{environment} of hermes-rl, as a taskset and a harness of verifiers. Written by `export_taskset`."""

import json

from hermes_rl.interop.trainers.verifiers_taskset import HermesHarness, HermesTaskset

ENVIRONMENT = {environment}
SETTINGS = json.loads({settings})


class Taskset(HermesTaskset):
    environment = ENVIRONMENT
    settings = SETTINGS


class Harness(HermesHarness):
    environment = ENVIRONMENT
    settings = SETTINGS


__all__ = ["Harness", "Taskset"]
'''
PROJECT = """[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["hermes-rl>={version}", "verifiers>=0.4.0"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{module}"]
"""


def export_taskset(folder: Path, name: str, environment: str, settings: Mapping[str, Any] | None = None) -> Path:
    """Write the package `name` into `folder`, and return its folder. ConfigError if it exists or the name is invalid.

    `environment` is a bundled name, FILE.py or FILE.py:CLASS; `settings` are fields of its configuration.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no package name; use lower-case words with hyphens, such as plain-text-v1")
    file, colon, kind = environment.partition(":")
    if file.endswith(".py"):
        # verifiers runs it from other folders.
        environment = f"{Path(file).resolve()}{colon}{kind}"
    home, module = folder / name, name.replace("-", "_")
    if home.exists():
        raise ConfigError(f"{home} exists; remove it or choose another name")
    (home / module).mkdir(parents=True)
    source = MODULE.format(environment=repr(environment), settings=repr(json.dumps(dict(settings or {}))))
    (home / module / "__init__.py").write_text(source)
    (home / "pyproject.toml").write_text(PROJECT.format(name=name, module=module, version=__version__))
    return home
