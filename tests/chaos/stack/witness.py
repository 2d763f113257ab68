"""A witness of the spool: every group that an environment finished, told by the kernel and not by the environment.

Always true: a file that came to stand in the folder under a group's name was seen, however soon it was gone again.
"""

import ctypes
import os
import struct
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

MOVED_TO, CREATED = 0x80, 0x100
HEADER = struct.Struct("iIII")
SUFFIX = ".group"


class Witness:
    """`draws` are those whose groups were seen, in the order in which they were finished."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.draws: list[int] = []
        self._descriptor = -1
        self._thread = threading.Thread(target=self._listen, name="witness", daemon=True)
        self._over = threading.Event()

    def __enter__(self) -> Self:
        kernel = ctypes.CDLL(None, use_errno=True)
        self._descriptor = kernel.inotify_init1(os.O_CLOEXEC)
        watch = kernel.inotify_add_watch(self._descriptor, os.fsencode(self.folder), MOVED_TO | CREATED)
        if self._descriptor < 0 or watch < 0:
            raise OSError(ctypes.get_errno(), "the spool cannot be watched", str(self.folder))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        # An event of our own ends the wait for the next.
        last = self.folder / "witness.over"
        last.touch()
        self._thread.join(10)
        last.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _listen(self) -> None:
        while not self._over.is_set():
            data = os.read(self._descriptor, 64 * 1024)
            place = 0
            while place < len(data):
                *_, length = HEADER.unpack_from(data, place)
                name = data[place + HEADER.size : place + HEADER.size + length].rstrip(b"\0").decode()
                place += HEADER.size + length
                if name.endswith(SUFFIX):
                    self.draws.append(int(name.removesuffix(SUFFIX).partition("-")[2]))
