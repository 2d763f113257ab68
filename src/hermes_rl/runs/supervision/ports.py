"""Ports for the parts of a run: any that is free, and the same again for a part that is started again."""

import errno
import socket

HOST = "127.0.0.1"


def free_port(last: int | None = None, host: str = HOST) -> int:
    """The last one if nobody took it meanwhile, else another."""
    return last if last is not None and not is_taken(last, host) else _bound(0, host)


def is_taken(port: int, host: str = HOST) -> bool:
    try:
        _bound(port, host)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return True
    return False


def _bound(port: int, host: str) -> int:
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((host, port))
        return int(door.getsockname()[1])
