"""The lineage of a run's weights: its checkpoints in order, and the batches that each one trained on.

Always true: a checkpoint is synced to disk before its batches are acknowledged; steps and versions never decrease; a
line torn by a crash is ignored, and truncated by the next write. Reading never changes the file.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.store.records import RecordWriter


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights at the engine after `step`. `batches` are those consumed since the previous checkpoint.

    `state` resumes training, including the optimizer; `sampler` can be sampled from. After batches with nothing to
    train on, both are those of an earlier checkpoint.
    """

    step: int
    version: int
    batches: tuple[int, ...]
    state: str
    sampler: str
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    final: bool = False


class Lineage:
    """The checkpoints of one run, in an append-only file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.checkpoints: list[Checkpoint] = []
        self.deleted: set[int] = set()
        """Steps of checkpoints that were deleted at the engine."""
        for line in _complete_lines(path):
            self._apply(line)

    @property
    def last(self) -> Checkpoint | None:
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def batches(self) -> set[int]:
        """All batches that the steps so far consumed."""
        return {batch for checkpoint in self.checkpoints for batch in checkpoint.batches}

    def add(self, checkpoint: Checkpoint) -> None:
        """Append a checkpoint; it is on disk when this returns."""
        last = self.last
        if last is not None and (checkpoint.step, checkpoint.version) < (last.step, last.version):
            raise ValueError(f"step {checkpoint.step} cannot follow step {last.step}")
        if duplicates := self.batches.intersection(checkpoint.batches):
            raise ValueError(f"the weights were already trained on batches {sorted(duplicates)}")
        self._write(asdict(checkpoint))
        self.checkpoints.append(checkpoint)

    def mark_deleted(self, checkpoint: Checkpoint) -> None:
        self._write({"deleted": checkpoint.step})
        self.deleted.add(checkpoint.step)

    def surplus(self, keep: int) -> list[Checkpoint]:
        """Checkpoints to delete so that the newest `keep` different weights remain; final ones are never deleted."""
        present = [each for each in self.checkpoints if each.step not in self.deleted and not each.final]
        old = set(list(dict.fromkeys(each.state for each in present))[:-keep])
        old -= {each.state for each in self.checkpoints if each.final}
        return [each for each in present if each.state in old]

    def _apply(self, line: dict[str, Any]) -> None:
        if "deleted" in line:
            self.deleted.add(int(line["deleted"]))
            return
        self.checkpoints.append(Checkpoint(**{**line, "batches": tuple(line["batches"])}))

    def _write(self, line: dict[str, Any]) -> None:
        with RecordWriter(self._path) as writer:
            writer.write(line)
            writer.sync()


def _complete_lines(path: Path) -> Sequence[dict[str, Any]]:
    """The lines of the file, without an incomplete last one."""
    if not path.exists():
        return ()
    data = path.read_bytes()
    try:
        return [fast_json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    except ValueError as error:
        raise ConfigError(f"{path} is not a lineage file: {error}; choose another run with --run") from error
