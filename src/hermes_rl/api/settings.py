"""How an API is run, as one value."""

from dataclasses import dataclass

from hermes_rl.store.database.groups import Retention

MEGABYTE = 2**20


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """`max_queued` is in rollouts; `max_body` and `max_bodies` are in bytes, of one request and of all at once.

    `hosts` are the names under which a server without a token may be called; None for any. A post that finds the queue
    full is held for `full_patience` seconds before it is refused.
    """

    token: str | None = None
    hosts: frozenset[str] | None = None
    max_queued: int = 1_000_000
    max_body: int = 256 * MEGABYTE
    max_bodies: int = 512 * MEGABYTE
    body_seconds: float = 120.0
    full_patience: float = 10.0
    retention: Retention | None = None
