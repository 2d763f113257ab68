"""Keys kept out of logs: whatever a part prints, the keys that it was given are not in what is written down.

Always true: a key that comes in two pieces is hidden too; nothing else is changed or held back for long.
"""

from collections.abc import Iterable

HIDDEN = b"**********"
# What is shorter is no key, and would hide words.
SHORTEST = 8


class Hiding:
    def __init__(self, secrets: Iterable[str]) -> None:
        long = {secret.encode() for secret in secrets if len(secret) >= SHORTEST}
        self._secrets = sorted(long, key=len, reverse=True)
        self._held = b""

    def shown(self, said: bytes, *, last: bool = False) -> bytes:
        """What may be written now; the rest, which may be the beginning of a key, comes with the next or the `last`."""
        text = self._held + said
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        held = 0 if last else max((_begun(text, secret) for secret in self._secrets), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _begun(text: bytes, secret: bytes) -> int:
    """How much of the secret the text ends with."""
    most = min(len(text), len(secret) - 1)
    return next((length for length in range(most, 0, -1) if text.endswith(secret[:length])), 0)
