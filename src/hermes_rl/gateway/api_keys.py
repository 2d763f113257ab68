"""API keys by which the gateway knows agents, one per rollout.

A key gives access to its own rollout only, and to nothing once that is closed. Keys are looked up by their digest, so
that the time to reject a wrong key says nothing about the valid ones.
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
class ApiKey:
    """One agent's access. Put `path` before a path of the gateway to make the URL specific to the rollout too."""

    id: str
    key: str = field(repr=False)
    rollout: GatewayRollout
    keys: "ApiKeys" = field(repr=False)

    @property
    def path(self) -> str:
        return f"/rollouts/{self.id}"

    def close(self) -> None:
        """Revoke the key and cancel running calls."""
        self.keys.revoke(self)
        self.rollout.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()
        await self.rollout.wait_closed()


class ApiKeys:
    """All valid keys of one gateway."""

    def __init__(self) -> None:
        self._valid: dict[bytes, ApiKey] = {}

    def open(self, rollout: GatewayRollout) -> ApiKey:
        """Issue a key for a rollout; close it when the rollout ends."""
        # Some programs check a key's prefix; this prefix belongs to no provider.
        api_key = ApiKey(uuid.uuid4().hex, f"sk-rl-{secrets.token_urlsafe(KEY_BYTES)}", rollout, self)
        self._valid[_digest(api_key.key)] = api_key
        return api_key

    def find(self, key: str | None) -> ApiKey | None:
        return self._valid.get(_digest(key)) if key else None

    def revoke(self, api_key: ApiKey) -> None:
        self._valid.pop(_digest(api_key.key), None)

    def __len__(self) -> int:
        return len(self._valid)


def _digest(key: str) -> bytes:
    return sha256(key.encode(errors="surrogatepass")).digest()
