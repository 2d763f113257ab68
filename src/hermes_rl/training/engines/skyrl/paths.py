"""Engine paths on disk: a folder and a record per engine name, in `engines/` of the hermes-rl home.

Always true: the paths depend only on the name, so a restarted engine uses the same database and checkpoints.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home

ENVIRONMENT_PREFIX = "skyrl-"


@dataclass(frozen=True, slots=True)
class EnginePaths:
    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", self.name) or self.name.startswith(ENVIRONMENT_PREFIX):
            raise ConfigError(
                f"invalid engine name {self.name!r}: use up to 64 letters, digits, `.`, `_` and `-`, not starting with "
                f"{ENVIRONMENT_PREFIX!r}"
            )

    @property
    def record(self) -> Path:
        return engines_home() / f"{self.name}.json"

    @property
    def folder(self) -> Path:
        return engines_home() / self.name

    @property
    def lock(self) -> Path:
        """Held by the engine's API process while it runs."""
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


def find_sampler_archive(sampler: str) -> Path | None:
    """The adapter archive of a sampler path, in the folder of any engine of this machine."""
    parts = sampler.removeprefix("tinker://").split("/")
    if len(parts) != 3 or not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in parts):
        return None
    model, kind, name = parts
    return next(engines_home().glob(f"*/checkpoints/{model}/{kind}/{name}.tar.gz"), None)
