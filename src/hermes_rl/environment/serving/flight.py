"""The groups in flight: begun from their draws, made, put into the spool, counted.

Always true: a finished group is on the disk before its draw counts as made; one that was given up counts as nothing.
"""

import asyncio
from typing import Any

from hermes_rl.api.client.delivery import Delivery
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.generation import note_group
from hermes_rl.environment.items import Draw
from hermes_rl.environment.metrics import Tally
from hermes_rl.environment.serve_display import Board
from hermes_rl.environment.serving.place import Place
from hermes_rl.environment.slots import Slots
from hermes_rl.store.codec import encode
from hermes_rl.store.records import atropos_columns
from hermes_rl.trajectory import Group


class Flight:
    """`changed` is set when a group ends; `window` counts since it was taken last, `given_up` what was cancelled.

    `errors` are no rollout's own: a full disk, a hook of the author's that raised.
    """

    def __init__(self, env: Environment, delivery: Delivery, place: Place, board: Board, slots: Slots) -> None:
        self.changed = asyncio.Event()
        self.errors: list[Exception] = []
        self.given_up = 0
        self.window = Tally(pass_score=env.config.pass_score)
        self._env, self._delivery, self._place, self._board, self._slots = env, delivery, place, board, slots
        self._groups: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._groups)

    def begin(self, draw: Draw) -> None:
        self._place.begin(draw.number)
        self._slots.began()
        task = asyncio.create_task(self._make(draw))
        self._groups.add(task)
        task.add_done_callback(self._ended)
        self._board.groups_begun += 1
        self._board.groups_running = len(self._groups)

    async def landed(self, seconds: float | None = None) -> None:
        """Wait for all of them, for so long at most."""
        if self._groups:
            await asyncio.wait(self._groups, timeout=seconds)

    async def give_up(self) -> None:
        """Cancel what is left; its sandboxes are closed when this returns."""
        for task in self._groups:
            task.cancel()
        await self.landed()

    def take_window(self) -> Tally:
        window, self.window = self.window, Tally(pass_score=self._env.config.pass_score)
        return window

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._groups.discard(task)
        self._slots.release()
        self.given_up += task.cancelled()
        self._board.groups_running = len(self._groups)
        self.changed.set()

    async def _make(self, draw: Draw) -> None:
        try:
            group = await self._env.collect_group(draw.item, draw.number)
            data, columns = await asyncio.to_thread(_written, group)
            await self._delivery.put(data, draw.number)
            self._place.finish(draw.number)
            self._board.tally.add(group)
            self.window.add(group)
            self._board.finished()
            await note_group(self._env, group, columns)
        except Exception as error:  # noqa: BLE001 (whatever it is, the groups in flight are kept)
            self.errors.append(error)


def _written(group: Group) -> tuple[bytes, dict[str, Any] | None]:
    """A group as it travels, and as the hooks of authors see it: tens of milliseconds for a large one."""
    return encode(group), atropos_columns(group) if group.scored else None
