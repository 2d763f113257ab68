"""The serve loop: request work and start it, until there is none left or a stop is requested.

Nothing starts without a grant; the API gets a heartbeat every few seconds until the end; groups still in flight at the
end are finished as far as time allows.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.api.client.connection import ApiError
from hermes_rl.api.client.delivery import Delivery
from hermes_rl.api.client.destination import Destination
from hermes_rl.api.client.spool import Spool
from hermes_rl.api.schemas import WorkGrant
from hermes_rl.core.shutdown import Stopped, StopSignal
from hermes_rl.evaluation.audit_gap import gap_interval
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.generate import log_metrics, training_slots
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.serving.cursor import DrawCursor
from hermes_rl.serving.display import ServeStats
from hermes_rl.serving.eval_scheduler import EvalScheduler
from hermes_rl.serving.in_flight import InFlightGroups
from hermes_rl.serving.reward_history import RewardHistory

HEARTBEAT = 3.0
# Wait before the next request when the grant was smaller than requested, or the API did not answer.
RETRY_SECONDS = 0.5
# Groups that end together are replaced by one request.
COALESCE_SECONDS = 0.05
LEAVE_TIMEOUT = 2.0
# The share of the stop timeout reserved to deliver the last groups, and its maximum in seconds.
DELIVERY_SHARE, MAX_DELIVERY_SECONDS = 0.2, 5.0
NO_MORE_ITEMS = "there are no more items"


@dataclass(frozen=True, slots=True)
class ServeResult:
    """The result of a run. `cancelled` counts groups cancelled at its end, `left` those left in `spool`."""

    ended: str
    tally: RolloutCounts
    spool: Path
    left: int
    version: int | None = None
    cancelled: int = 0
    posted: int = 0
    refused: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Groups that this API does not accept, by cause."""

    def summary(self) -> dict[str, Any]:
        return {
            **self.tally.summary(),
            "ended": self.ended,
            "version": self.version,
            "given_up": self.cancelled,
            "posted": self.posted,
            "refused": self.refused,
            "left_out": dict(self.left_out),
            "left_in_spool": self.left,
            "spool": str(self.spool),
        }


class ServeLoop:
    """Runs from the first work request to the leave request."""

    def __init__(
        self,
        env: Environment,
        destination: Destination,
        delivery: Delivery,
        spool: Spool,
        cursor: DrawCursor,
        stats: ServeStats,
        stop: StopSignal,
        history: RewardHistory | None,
    ) -> None:
        self._env, self._stop, self._stats, self._history = env, stop, stats, history
        self._destination, self._delivery, self._spool, self._cursor = destination, delivery, spool, cursor
        self._size = env.config.group_size
        self._slots = training_slots(env)
        self._in_flight = InFlightGroups(env, delivery, cursor, stats, self._slots, history)
        self._evaluations = EvalScheduler(env, stats)
        self._asking = asyncio.Lock()
        self._last_contact = 0.0
        self._granted = 0
        """Groups that may start once their items arrive."""
        stats.delivery, stats.withheld_by_api = delivery, destination.withheld
        stats.tally.budget.start(env.server.meter)

    async def run(self) -> ServeResult:
        stats, flight = self._stats, self._in_flight
        stats.state = "serving"
        heartbeats = asyncio.create_task(self._send_heartbeats())
        try:
            async with self._slots.adjusting(flight.changed.set):
                ended = await self._take_work_until_stopped()
                await self._evaluations.close()
                await self._finish_groups()
        finally:
            await flight.cancel_all()
            await self._evaluations.close()
            heartbeats.cancel()
        # From here on a run that ended by itself has a deadline too.
        self._stop.request(ended)
        stats.state, stats.waiting = f"stopping ({ended})", "delivering the last groups"
        if flight.window.groups:
            await self._log()
        left = await self._delivery.flush(self._stop.remaining())
        await self._leave()
        stats.state, stats.waiting = f"ended ({ended})", None
        if flight.errors:
            raise flight.errors[0]
        return ServeResult(
            ended=ended,
            tally=stats.tally,
            spool=self._spool.directory,
            left=left,
            version=stats.version,
            cancelled=flight.cancelled,
            posted=self._delivery.posted,
            refused=self._delivery.refused,
            left_out=self._destination.withheld,
        )

    async def _take_work_until_stopped(self) -> str:
        """Returns why no more work is taken."""
        try:
            return await self._stop.run_until_stopped(self._take_work())
        except Stopped:
            return str(self._stop.reason)
        except Exception as error:  # noqa: BLE001 (groups in flight must survive any error)
            self._in_flight.errors.append(error)
            return "an error"

    async def _take_work(self) -> str:
        stats, tally, total = self._stats, self._stats.tally, self._env.config.total_steps
        while not self._in_flight.errors:
            tally.limit = tally.budget.reached_limit()
            if tally.limit:
                return tally.limit
            free = self._free()
            grant = await self._ask(free)
            if grant is not None and (finished := training_finished(grant, total)):
                stats.version, stats.steps = grant.version, grant.steps
                # Nothing will train on the groups in flight, so wait for them no longer than after a signal.
                self._stop.request(finished)
                return str(self._stop.reason)
            if grant is not None:
                await self._on_grant(grant)
                # The version may have started an evaluation; the next request returns the unused part of the grant.
                if not await self._begin(min(groups_for_grant(grant.granted, self._size), self._free())):
                    return NO_MORE_ITEMS
            short = grant is None or grant.granted < free * self._size or self._evaluations.running
            await self._wait_for_group(RETRY_SECONDS if short else HEARTBEAT)
        return "an error"

    def _free(self) -> int:
        """How many more groups may start now."""
        if self._env.config.evaluation_only:
            return 0
        self._stats.max_groups, self._stats.engines = self._slots.limit, self._slots.describe()
        return max(0, self._evaluations.allowed(self._stats.max_groups) - len(self._in_flight))

    async def _begin(self, groups: int) -> bool:
        """Start groups; False when there are no more items."""
        self._granted = groups
        try:
            if groups and self._history is not None:
                await self._history.update()
            while self._granted:
                draw = await self._env.next_draw(self._cursor.past)
                if draw is None:
                    return False
                self._granted -= 1
                self._in_flight.begin(draw)
        finally:
            self._granted = 0
        return True

    async def _ask(self, groups: int) -> WorkGrant | None:
        """Report what is running and request more groups; None while the API does not answer."""
        async with self._asking:
            self._last_contact = time.monotonic()
            # Spooled groups count as running: the API will have them soon, but does not see them yet.
            running = (len(self._in_flight) + self._granted + len(self._spool)) * self._size
            try:
                return await self._destination.work(
                    running=running, wanted=groups * self._size, cursor=self._cursor.cursor(self._spool.draws)
                )
            except ApiError as error:
                if 400 <= error.status < 500 and error.status != 429:
                    raise
                self._stats.waiting = error.message
                return None

    async def _on_grant(self, grant: WorkGrant) -> None:
        stats, evaluations = self._stats, self._evaluations
        moved, stats.version, stats.waiting = stats.version != grant.version, grant.version, grant.waiting
        stats.steps = grant.steps
        self._env.server.oldest_trainable = grant.oldest
        # An evaluation-only environment is asked to wait only while there is no trainer, so no policy to evaluate.
        if not (self._env.config.evaluation_only and grant.waiting):
            evaluations.on_version(grant.version)
        if evaluations.running and not evaluations.allowed(stats.max_groups):
            stats.waiting = "an evaluation runs"
        if moved and self._in_flight.window.groups >= max(1, self._env.config.min_items_sent_before_logging):
            await self._log()

    async def _wait_for_group(self, seconds: float) -> None:
        """Wait until a group ends, up to `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._in_flight.changed.wait()
                await asyncio.sleep(COALESCE_SECONDS)
        self._in_flight.changed.clear()

    async def _finish_groups(self) -> None:
        """Finish the groups in flight: without a limit, or until the deadline once a stop is requested."""
        stats, flight = self._stats, self._in_flight
        with suppress(Stopped):
            await self._stop.run_until_stopped(flight.wait())
        if flight:
            stats.state, stats.waiting = f"stopping ({self._stop.reason})", "finishing groups in flight"
            reserved = min(DELIVERY_SHARE * self._env.config.stop_timeout, MAX_DELIVERY_SECONDS)
            await flight.wait(max(0.0, self._stop.remaining() - reserved))

    async def _send_heartbeats(self) -> None:
        """Keep the registration alive while nothing else contacts the API, such as while waiting for an item."""
        while True:
            await asyncio.sleep(HEARTBEAT)
            if time.monotonic() - self._last_contact >= HEARTBEAT:
                with suppress(ApiError):
                    await self._ask(0)

    async def _leave(self) -> None:
        """Report the cursor and leave. An API that cannot be reached notices the missing heartbeats."""
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT):
                await self._ask(0)
                await self._destination.leave()

    async def _log(self) -> None:
        """Log metrics: counts since the last call, and the state of the delivery."""
        stats, delivery = self._stats, self._delivery
        serve_figures = {
            "version": stats.version,
            "groups": stats.tally.groups,
            "groups_a_second": stats.rate(),
            "posted": delivery.posted,
            "refused": delivery.refused,
            "spooled": delivery.spooled,
        }
        window = self._in_flight.take_window()
        counts = window.summary() | gap_interval(window.audit_gaps)
        train = {f"train/{name}": value for name, value in counts.items()}
        served = {f"serve/{name}": value for name, value in serve_figures.items()}
        await log_metrics(self._env, train | served | self._slots.metrics())


def training_finished(grant: WorkGrant, total: int) -> str | None:
    """Why no more groups are needed; None while they are. A step with nothing to train on makes no version."""
    if grant.version >= total:
        return f"the policy is at version {grant.version} of {total}"
    return f"the trainer has taken {grant.steps} of {total} steps" if grant.steps >= total else None


def groups_for_grant(rollouts: int, size: int) -> int:
    """How many groups to start for a grant, rounded up.

    Otherwise a batch might never fill: a batch of 32 needs a third group of 12, but only 8 rollouts are ever granted.
    """
    return -(-rollouts // size)
