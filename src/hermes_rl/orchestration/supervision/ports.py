"""Ports for the components of a run: any free one, and the same one again after a restart."""

import errno
import socket

HOST = "127.0.0.1"


def free_port(last: int | None = None, host: str = HOST) -> int:
    """The last port if it is still free, else another."""
    return last if last is not None and not is_taken(last, host) else _bind(0, host)


def is_taken(port: int, host: str = HOST) -> bool:
    try:
        _bind(port, host)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return True
    return False


def _bind(port: int, host: str) -> int:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        return int(listener.getsockname()[1])
