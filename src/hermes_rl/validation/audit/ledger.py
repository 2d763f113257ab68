"""The results of an audit on disk: one JSON line a task, so that a killed audit goes on where it was.

Always true: a line counts only if it is whole and its key is that of the same task, settings and version.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.private_files import open_private, private_folder, write_private

FILE = "tasks.jsonl"


class Ledger:
    """The file of one audit. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE if folder else None
        if folder:
            try:
                private_folder(folder)
            except OSError as error:
                raise ConfigError(f"--out {folder}: {error.strerror}; name a folder that can be written") from error

    def finished(self) -> dict[str, dict[str, Any]]:
        """The kept results by their keys. A line that a killed audit left unfinished is cut off."""
        if self._path is None or not self._path.exists():
            return {}
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            write_private(self._path, whole)
        return {record["key"]: record for record in _records(whole)}

    def add(self, record: dict[str, Any]) -> None:
        """Append a result, in one write."""
        if self._path is not None:
            with open(self._path, "ab", opener=open_private) as file:
                file.write(fast_json.dumps(record) + b"\n")


def _records(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        try:
            record = fast_json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("key"), str):
            yield record
