"""Exits this process when its parent exits, for whatever reason."""

import os
import threading
import time

POLL_INTERVAL_S = 0.25


def exit_with_parent(parent: int) -> None:
    """Poll the parent id in a thread; the kernel reparents an orphan."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_INTERVAL_S)
        # Nothing to finish: the client is gone, and all writes to disk are atomic.
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
