"""Settings of an API server."""

from dataclasses import dataclass

from hermes_rl.store.database.groups import Retention

MEGABYTE = 2**20


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """`max_queued` is in rollouts; `max_body` and `max_bodies` are in bytes, per request and for all requests at once.

    `hosts` are the Host names accepted by a server without a token; None for any. A post to a full queue waits
    `full_patience` seconds before it is refused.
    """

    token: str | None = None
    hosts: frozenset[str] | None = None
    max_queued: int = 1_000_000
    max_body: int = 256 * MEGABYTE
    max_bodies: int = 512 * MEGABYTE
    body_seconds: float = 120.0
    full_patience: float = 10.0
    retention: Retention | None = None
