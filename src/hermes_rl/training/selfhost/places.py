"""Where engines live on disk: `engines/` in the home of hermes-rl, a folder and a record for each name.

Always true: a name's paths never change, so that the same command goes on with the same database and checkpoints.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.errors import ConfigError
from hermes_rl.home import rl_home

ENVIRONMENT_PREFIX = "skyrl-"


@dataclass(frozen=True, slots=True)
class EnginePlaces:
    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", self.name) or self.name.startswith(ENVIRONMENT_PREFIX):
            raise ConfigError(
                f"{self.name!r} cannot name an engine: letters, digits, `.`, `_` and `-`, at most 64, not beginning "
                f"with {ENVIRONMENT_PREFIX!r}"
            )

    @property
    def record(self) -> Path:
        return engines_home() / f"{self.name}.json"

    @property
    def folder(self) -> Path:
        return engines_home() / self.name

    @property
    def lock(self) -> Path:
        """Held by the engine's API for as long as it lives."""
        return self.folder / "lock"

    @property
    def database(self) -> Path:
        return self.folder / "tinker.db"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def log(self) -> Path:
        return self.folder / "engine.log"


def engines_home() -> Path:
    return rl_home() / "engines"
