"""What discovery tells: the environments it found, and the files it could not read.

Always true: the names of the environments of one discovery are all different.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Source(StrEnum):
    BUNDLED = "bundled"
    USER = "user"
    INSTALLED = "installed"


class Kind(StrEnum):
    """Whose base class it derives from: ours, or atroposlib's."""

    HERMES = "hermes"
    ATROPOS = "atropos"


@dataclass(frozen=True, slots=True)
class Found:
    """An environment. `version` begins the SHA-256 of its file, so an id means one text of it."""

    name: str
    version: str
    class_name: str
    file: Path
    source: Source
    kind: Kind
    description: str
    line: int = 1

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def reference(self) -> str:
        """What `hermes-rl serve` takes."""
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
class Broken:
    """A file or folder that may have an environment, and why it has none that can be used."""

    file: Path
    why: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: {self.why}"

    def as_json(self) -> dict[str, str | int | None]:
        return {"file_path": str(self.file), "line": self.line, "why": self.why}


@dataclass(frozen=True, slots=True)
class Discovery:
    found: tuple[Found, ...]
    broken: tuple[Broken, ...]
    notes: tuple[str, ...] = ()
    """What a person should know besides: names that several environments have."""
