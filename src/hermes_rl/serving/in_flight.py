"""The groups in flight: generated from their draws, spooled, counted.

A group is on disk before its draw counts as finished; a cancelled group is not counted.
"""

import asyncio
from typing import Any

from hermes_rl.api.client.delivery import Delivery
from hermes_rl.core.trajectory import Group
from hermes_rl.rollout.concurrency import Slots
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.generate import report_group
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.rollout.sampler import Draw
from hermes_rl.serving.cursor import DrawCursor
from hermes_rl.serving.display import ServeStats
from hermes_rl.serving.reward_history import RewardHistory
from hermes_rl.store.codec import encode
from hermes_rl.store.records import atropos_columns


class InFlightGroups:
    """`changed` is set when a group ends; `window` counts since the last `take_window`.

    `cancelled` counts cancelled groups; `errors` holds errors outside any rollout: a full disk, a failed author's hook.
    """

    def __init__(
        self,
        env: Environment,
        delivery: Delivery,
        cursor: DrawCursor,
        stats: ServeStats,
        slots: Slots,
        history: RewardHistory | None,
    ) -> None:
        self.changed = asyncio.Event()
        self.errors: list[Exception] = []
        self.cancelled = 0
        self.window = RolloutCounts(pass_score=env.config.pass_score)
        self._env, self._delivery, self._cursor, self._stats, self._slots = env, delivery, cursor, stats, slots
        self._history = history
        self._groups: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._groups)

    def begin(self, draw: Draw) -> None:
        self._cursor.begin(draw.number)
        self._slots.start()
        task = asyncio.create_task(self._make(draw))
        self._groups.add(task)
        task.add_done_callback(self._ended)
        self._stats.groups_begun += 1
        self._stats.groups_running = len(self._groups)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for all groups, up to `seconds`."""
        if self._groups:
            await asyncio.wait(self._groups, timeout=seconds)

    async def cancel_all(self) -> None:
        """Cancel the remaining groups; their sandboxes are closed when this returns."""
        for task in self._groups:
            task.cancel()
        await self.wait()

    def take_window(self) -> RolloutCounts:
        window, self.window = self.window, RolloutCounts(pass_score=self._env.config.pass_score)
        return window

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._groups.discard(task)
        self._slots.release()
        self.cancelled += task.cancelled()
        self._stats.groups_running = len(self._groups)
        self.changed.set()

    async def _make(self, draw: Draw) -> None:
        try:
            groups = await self._env.collect_groups(draw.item, draw.number)
            encoded = [await asyncio.to_thread(_encode, group) for group in groups]
            for data, _ in encoded:
                await self._delivery.put(data, draw.number)
            self._cursor.finish(draw.number)
            self._stats.finished()
            for group, (_, columns) in zip(groups, encoded, strict=True):
                self._stats.tally.add(group)
                self.window.add(group)
                if self._history is not None:
                    self._history.add(group)
                await report_group(self._env, group, columns)
            self._env.tools.check()
        except Exception as error:  # noqa: BLE001 (other groups in flight must survive any error)
            self.errors.append(error)


def _encode(group: Group) -> tuple[bytes, dict[str, Any] | None]:
    """A group in its binary form, and as columns for authors' hooks. Takes tens of milliseconds for a large group."""
    return encode(group), atropos_columns(group) if group.scored else None
