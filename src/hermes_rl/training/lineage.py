"""The lineage of a run's weights: which checkpoint came after which, and the batches that each one learned from.

Always true: a checkpoint is in the file, on the disk, before its batches are acknowledged; steps and versions only
rise; a line that a crash tore is no checkpoint, and is cut off by the next one. Who only reads changes nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.store.records import RecordWriter


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights at the engine after `step`. `batches` are those it learned from since the checkpoint before.

    `state` goes on training, optimizer too; `sampler` can be drawn from.
    """

    step: int
    version: int
    batches: tuple[int, ...]
    state: str
    sampler: str
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    final: bool = False


class Lineage:
    """The checkpoints of one run, in a file that only grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.checkpoints: list[Checkpoint] = []
        self.deleted: set[int] = set()
        """Steps whose checkpoints the engine no longer has."""
        for line in _whole_lines(path):
            self._take(line)

    @property
    def last(self) -> Checkpoint | None:
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def batches(self) -> set[int]:
        """All that the weights learned from."""
        return {batch for checkpoint in self.checkpoints for batch in checkpoint.batches}

    def add(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint; on the disk when it returns."""
        last = self.last
        if last is not None and (checkpoint.step, checkpoint.version) < (last.step, last.version):
            raise ValueError(f"step {checkpoint.step} cannot follow step {last.step}")
        if doubled := self.batches.intersection(checkpoint.batches):
            raise ValueError(f"the weights have learned from batches {sorted(doubled)} before")
        self._write(asdict(checkpoint))
        self.checkpoints.append(checkpoint)

    def note_deleted(self, checkpoint: Checkpoint) -> None:
        self._write({"deleted": checkpoint.step})
        self.deleted.add(checkpoint.step)

    def surplus(self, keep: int) -> list[Checkpoint]:
        """The checkpoints that may go when only the newest `keep` stay; final ones always do."""
        present = [one for one in self.checkpoints if one.step not in self.deleted and not one.final]
        return present[:-keep]

    def _take(self, line: dict[str, Any]) -> None:
        if "deleted" in line:
            self.deleted.add(int(line["deleted"]))
            return
        self.checkpoints.append(Checkpoint(**{**line, "batches": tuple(line["batches"])}))

    def _write(self, line: dict[str, Any]) -> None:
        with RecordWriter(self._path) as writer:
            writer.write(line)
            writer.sync()


def _whole_lines(path: Path) -> Sequence[dict[str, Any]]:
    """What stands in the file, without a last line that was never finished."""
    if not path.exists():
        return ()
    data = path.read_bytes()
    try:
        return [jsontext.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    except ValueError as error:
        raise ConfigError(f"{path} is no lineage of a run: {error}; name another run with --run") from error
