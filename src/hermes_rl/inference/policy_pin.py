"""PolicyPin: the one policy version that an evaluation asks for, and the versions that its answers came from.

Always true: what is reported as sampled comes from the answers, never from what was asked for. The trainer's inference
server holds the version until the evaluation releases it or stops renewing the hold.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core.errors import EndpointError
from hermes_rl.inference.endpoint import Endpoint, RetryableEndpointError

VERSION_HEADER = "X-Policy-Version"
# A dead evaluator's hold ends after this many seconds.
HOLD_SECONDS, RENEW_SECONDS = 300.0, 60.0
REQUEST_TIMEOUT = 10.0
# A version is announced before it can be sampled from; loading it can take this long.
PUBLISH_SECONDS, PUBLISH_PAUSE = 60.0, 0.5


@dataclass(slots=True)
class SampledVersions:
    """The oldest and newest version among the answers; `unknown` if one did not name its version."""

    low: int | None = None
    high: int | None = None
    unknown: bool = False

    def note(self, *versions: int | None) -> None:
        for version in versions:
            if version is None:
                self.unknown = True
                continue
            self.low = version if self.low is None else min(self.low, version)
            self.high = version if self.high is None else max(self.high, version)

    @property
    def only(self) -> int | None:
        """The version that everything was sampled from; None if there were several or one is unknown."""
        return self.low if self.low == self.high and not self.unknown else None

    @property
    def mixed(self) -> bool:
        return self.low != self.high


@dataclass(slots=True)
class PolicyPin:
    """`version` is the one that is held; None where the endpoints cannot hold one."""

    version: int | None = None
    sampled: SampledVersions = field(default_factory=SampledVersions)

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self.version is None else {VERSION_HEADER: str(self.version)}


@asynccontextmanager
async def pin_policy(endpoints: Sequence[Endpoint], at_least: int | None) -> AsyncIterator[PolicyPin]:
    """Hold the newest policy version while the block runs. `at_least` is a version that is about to be published.

    Without effect unless every endpoint is a trainer's inference server, and all have the same version.
    """
    holder = uuid.uuid4().hex
    pin = PolicyPin(await _hold_newest(endpoints, holder, at_least))
    if pin.version is None:
        yield pin
        return
    renewing = asyncio.create_task(_renew(endpoints, holder, pin.version))
    try:
        yield pin
    finally:
        renewing.cancel()
        with suppress(EndpointError):
            await _hold_everywhere(endpoints, holder, pin.version, 0.0)


async def _hold_newest(endpoints: Sequence[Endpoint], holder: str, at_least: int | None) -> int | None:
    """The version held everywhere; None if an endpoint has no versions or cannot hold one, or if they differ."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PUBLISH_SECONDS
    while True:
        version = None
        try:
            if not all([await _has_versions(endpoint) for endpoint in endpoints]):
                return None
            held = set(await _hold_everywhere(endpoints, holder, None, HOLD_SECONDS))
            version = held.pop() if len(held) == 1 else None
            if version is None:
                return None
        except RetryableEndpointError:
            # There are no weights to sample from, as while the engine restarts.
            pass
        except EndpointError:
            return None
        if loop.time() > deadline or (version is not None and version >= (at_least or 0)):
            return version
        await asyncio.sleep(PUBLISH_PAUSE)


async def _has_versions(endpoint: Endpoint) -> bool:
    """Whether the endpoint is a trainer's inference server."""
    if not endpoint.config.health_check:
        return False
    models = await endpoint.get("/models", timeout=REQUEST_TIMEOUT)
    rows = models.get("data") if isinstance(models, Mapping) else None
    return isinstance(rows, list) and any(isinstance(row, Mapping) and "policy_version" in row for row in rows)


async def _hold_everywhere(
    endpoints: Sequence[Endpoint], holder: str, version: int | None, seconds: float
) -> list[int | None]:
    body: dict[str, Any] = {"holder": holder, "seconds": seconds, "version": version}
    answers = [await endpoint.ask("/policy/hold", body, timeout=REQUEST_TIMEOUT) for endpoint in endpoints]
    held = [answer.get("policy_version") if isinstance(answer, Mapping) else None for answer in answers]
    return [number if isinstance(number, int) else None for number in held]


async def _renew(endpoints: Sequence[Endpoint], holder: str, version: int) -> None:
    """Renew the hold. One that is lost is noticed by the versions of later answers."""
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        with suppress(EndpointError):
            await _hold_everywhere(endpoints, holder, version, HOLD_SECONDS)
