"""A session keyring that holds a key, for attacks to read."""

import ctypes
import platform

DESCRIPTION = b"hermes-rl-redteam"
_SESSION = -3
_JOIN_SESSION = 1


def hold(secret: str) -> None:
    """Join a new session keyring and keep the secret there; children inherit it."""
    libc = ctypes.CDLL(None, use_errno=True)
    add_key, keyctl = (248, 250) if platform.machine() == "x86_64" else (217, 219)
    data = secret.encode()
    if (
        libc.syscall(keyctl, _JOIN_SESSION, None) < 0
        or libc.syscall(add_key, b"user", DESCRIPTION, data, ctypes.c_size_t(len(data)), _SESSION) < 0
    ):
        raise OSError(ctypes.get_errno(), "the kernel keeps no key for us")
