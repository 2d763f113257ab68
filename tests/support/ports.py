"""Ports for servers that are told theirs."""

import random
import socket
from contextlib import suppress


def free_port(host: str = "127.0.0.1") -> int:
    """One below those that the kernel hands to others by itself, so that it is still free when the server starts."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port
