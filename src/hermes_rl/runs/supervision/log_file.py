"""A part's log: written as it comes, moved aside by size.

Always true: writing never fails; what there was no room for is counted, and the log says so when there is room again.
"""

import os
from contextlib import suppress
from pathlib import Path


class LogFile:
    """`path`, and the older ones as path.1, path.2 …, `files` of them in all, each of about `most` bytes."""

    def __init__(self, path: Path, most: int, files: int) -> None:
        self._path, self._most, self._files = path, most, files
        self._file: int | None = None
        self._size = 0
        self.dropped = 0
        self._untold = 0

    def write(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._open()
            if self._untold:
                self._put(f"[{self._untold} lines were not written: the disk was full]\n".encode())
                self._untold = 0
            self._put(data)
        except OSError:
            lines = max(1, data.count(b"\n"))
            self.dropped += lines
            self._untold += lines
            self.close()

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

    def _open(self) -> None:
        if self._file is not None and self._size >= self._most:
            self.close()
            self._move_aside()
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._size = os.fstat(self._file).st_size

    def _put(self, data: bytes) -> None:
        if self._file is None:
            raise AssertionError("it is open")
        left = memoryview(data)
        while left:
            written = os.write(self._file, left)
            self._size += written
            left = left[written:]

    def _move_aside(self) -> None:
        for number in range(self._files - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            with suppress(FileNotFoundError):
                newer.replace(older)
