"""`python -m hermes_rl.viewer.index`: the process that brings one index up to its source, and follows it for a while.

Always true: it ends when the viewer that started it is gone; of two that are started for one index, one works. What to
do stands on standard input, since an address may hold a password.
"""

import os
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import HermesRLError
from hermes_rl.store.database.reading import StoreReader
from hermes_rl.viewer.index.building import index_file, index_store
from hermes_rl.viewer.index.locking import HELD_BY_ANOTHER, held
from hermes_rl.viewer.index.schema import open_writing

PAUSE = 0.3
NICENESS = 5


def main() -> int:
    job = jsontext.loads(sys.stdin.buffer.readline())
    Thread(target=_end_with_the_viewer, daemon=True).start()
    os.nice(NICENESS)
    index = Path(job["index"])
    with held(index.with_suffix(".lock")) as mine:
        return _work(index, job) if mine else HELD_BY_ANOTHER


def _work(index: Path, job: dict[str, Any]) -> int:
    reader = StoreReader(job["store"]) if "store" in job else None
    followed = float(job["followed"])
    try:
        with closing(open_writing(index)) as connection:
            quiet = time.monotonic()
            while True:
                if index_store(connection, reader) if reader else index_file(connection, Path(job["file"])):
                    quiet = time.monotonic()
                elif time.monotonic() - quiet >= followed:
                    break
                else:
                    time.sleep(PAUSE)
    except (HermesRLError, OSError, sqlite3.Error) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    finally:
        if reader:
            reader.close()
    return 0


def _end_with_the_viewer() -> None:
    # Not by sys.stdin: its lock, held by a thread that waits, would abort the interpreter's end.
    while os.read(0, 1):
        pass
    # What was not committed is made again by the next.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
