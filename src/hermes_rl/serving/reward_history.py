"""The scores of earlier groups, for a sampler that draws items by them: of this run, its past and its replicas.

Always true: after any restart the item rewards are what the finished groups give. `hermes-rl api` has the scores of all
replicas in its database, so nothing is written here. run-api keeps none: there they are appended to a file, which is
this process's own.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hermes_rl.api.client.connection import ApiUnavailableError
from hermes_rl.api.client.destination import Destination
from hermes_rl.core import fast_json
from hermes_rl.core.errors import HermesRLError
from hermes_rl.core.trajectory import Group
from hermes_rl.rollout.item_rewards import ItemRewards
from hermes_rl.store.records import RecordWriter

READ_EVERY = 3.0


class RewardHistory:
    """Keeps `rewards` current: call `update` before drawing items, and `add` with each group finished here."""

    def __init__(self, rewards: ItemRewards, destination: Destination, file: RecordWriter | None) -> None:
        self._rewards, self._destination, self._file = rewards, destination, file
        self._read_at: float | None = None

    async def update(self) -> None:
        """Read what was stored since, at most every few seconds; leaves it for later while the API is unavailable."""
        now = time.monotonic()
        if self._file is not None or (self._read_at is not None and now - self._read_at < READ_EVERY):
            return
        try:
            while groups := await self._destination.new_scores():
                for group in groups:
                    self._rewards.add(group.item_id, group.scores)
        except ApiUnavailableError:
            return
        self._read_at = now

    def add(self, group: Group) -> None:
        if self._file is None or not group.scores:
            return
        try:
            self._file.write({"item_id": group.item_id, "scores": group.scores})
        except OSError as error:
            raise HermesRLError(f"{self._file.path} cannot be written: {error.strerror}; free some space") from error
        self._rewards.add(group.item_id, group.scores)


@asynccontextmanager
async def reward_history(rewards: ItemRewards, destination: Destination, path: Path) -> AsyncIterator[RewardHistory]:
    """The history of a run; `path` is the file for an API that keeps no scores."""
    if destination.keeps_scores:
        yield RewardHistory(rewards, destination, None)
        return
    # Opened first, because this removes a line that a kill left incomplete.
    with RecordWriter(path) as file:
        await asyncio.to_thread(_read, path, rewards)
        yield RewardHistory(rewards, destination, file)


def _read(path: Path, rewards: ItemRewards) -> None:
    with path.open("rb") as lines:
        for line in lines:
            record = fast_json.loads(line)
            rewards.add(record["item_id"], record["scores"])
