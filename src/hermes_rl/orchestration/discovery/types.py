"""The result of discovery: environments, and files that could not be used.

Always true: names are unique within one discovery.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class EnvironmentSource(StrEnum):
    BUNDLED = "bundled"
    USER = "user"
    INSTALLED = "installed"


class BaseClassKind(StrEnum):
    """The base class: ours or atroposlib's."""

    HERMES = "hermes"
    ATROPOS = "atropos"


@dataclass(frozen=True, slots=True)
class DiscoveredEnvironment:
    """`version` is a prefix of the file's SHA-256, so an id refers to one version of the source."""

    name: str
    version: str
    class_name: str
    file: Path
    source: EnvironmentSource
    kind: BaseClassKind
    description: str
    line: int = 1

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def reference(self) -> str:
        """The argument of `hermes-rl serve`."""
        return f"{self.file}:{self.class_name}"

    def as_json(self) -> dict[str, str | int]:
        return {
            "name": self.name,
            "id": self.id,
            "kind": self.kind.value,
            "source": self.source.value,
            "description": self.description,
            "class_name": self.class_name,
            "file_path": str(self.file),
            "line": self.line,
            "reference": self.reference,
        }


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A file or folder that may contain an environment, and why it cannot be used."""

    file: Path
    why: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: {self.why}"

    def as_json(self) -> dict[str, str | int | None]:
        return {"file_path": str(self.file), "line": self.line, "why": self.why}


@dataclass(frozen=True, slots=True)
class Discovery:
    found: tuple[DiscoveredEnvironment, ...]
    broken: tuple[BrokenFile, ...]
    notes: tuple[str, ...] = ()
    """Warnings for the user, such as names that several environments have."""
