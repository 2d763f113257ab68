"""`python -m hermes_rl.viewer.index`: the process that updates one index from its source, and follows it for a while.

Always true: it exits with the viewer that started it; only one process works on an index. Its job comes on standard
input, since an address may hold a password.
"""

import os
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import HermesRLError
from hermes_rl.store.database.reader import StoreReader
from hermes_rl.viewer.index.lock import EXIT_LOCKED, try_lock
from hermes_rl.viewer.index.schema import open_for_writing
from hermes_rl.viewer.index.update import index_file, index_store

POLL_SECONDS = 0.3
NICENESS = 5


def main() -> int:
    job = fast_json.loads(sys.stdin.buffer.readline())
    Thread(target=_exit_with_viewer, daemon=True).start()
    os.nice(NICENESS)
    index = Path(job["index"])
    with try_lock(index.with_suffix(".lock")) as mine:
        return _work(index, job) if mine else EXIT_LOCKED


def _work(index: Path, job: dict[str, Any]) -> int:
    reader = StoreReader(job["store"]) if "store" in job else None
    followed = float(job["followed"])
    try:
        with closing(open_for_writing(index)) as connection:
            quiet = time.monotonic()
            while True:
                if index_store(connection, reader) if reader else index_file(connection, Path(job["file"])):
                    quiet = time.monotonic()
                elif time.monotonic() - quiet >= followed:
                    break
                else:
                    time.sleep(POLL_SECONDS)
    except (HermesRLError, OSError, sqlite3.Error) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")  # noqa: TID251 (read by the viewer)
        return 1
    finally:
        if reader:
            reader.close()
    return 0


def _exit_with_viewer() -> None:
    # Not sys.stdin: a thread that waits in it holds its lock, which aborts interpreter shutdown.
    while os.read(0, 1):
        pass
    # The next process redoes what was not committed.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
