"""Passes: the keys by which agents are known, one for each rollout.

Always true: a key opens its own rollout and nothing else, and nothing at all once that is closed. Keys are looked up
by their digest, so that how long a wrong one takes says nothing of the right ones.
"""

import secrets
import uuid
from dataclasses import dataclass, field
from hashlib import sha256
from types import TracebackType
from typing import Self

from hermes_rl.gateway.rollout import GatewayRollout

KEY_BYTES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One agent's way in. `path` goes before a path of the gateway's where the URL is to be the rollout's own too."""

    id: str
    key: str = field(repr=False)
    rollout: GatewayRollout
    passes: "Passes" = field(repr=False)

    @property
    def path(self) -> str:
        return f"/rollouts/{self.id}"

    def close(self) -> None:
        """The key is worth nothing from here on; calls under way are given up."""
        self.passes.withdraw(self)
        self.rollout.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()
        await self.rollout.ended()


class Passes:
    """All that are valid in one gateway."""

    def __init__(self) -> None:
        self._valid: dict[bytes, Pass] = {}

    def open(self, rollout: GatewayRollout) -> Pass:
        """A pass for a rollout; close it when that ends."""
        # Programs look at how a key begins; this one is like nobody else's.
        opened = Pass(uuid.uuid4().hex, f"sk-rl-{secrets.token_urlsafe(KEY_BYTES)}", rollout, self)
        self._valid[_digest(opened.key)] = opened
        return opened

    def find(self, key: str | None) -> Pass | None:
        return self._valid.get(_digest(key)) if key else None

    def withdraw(self, one: Pass) -> None:
        self._valid.pop(_digest(one.key), None)

    def __len__(self) -> int:
        return len(self._valid)


def _digest(key: str) -> bytes:
    return sha256(key.encode(errors="surrogatepass")).digest()
