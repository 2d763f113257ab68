"""Item sampling: the stream of training items and their ids.

A draw is the n-th request for an item. Its number determines everything random about its group, so runs can be
repeated, resumed and sharded by draw number. An item held out for evaluation is never drawn for training.
"""

import hashlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, Protocol

import orjson

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import SAMPLERS
from hermes_rl.rollout.item_rewards import ItemRewards


class Draw(NamedTuple):
    number: int
    item: Any
    item_id: str


class Sampler(Protocol):
    """Chooses the index of a training item. Stateless: it may depend only on its arguments."""

    def choose(self, number: int, ids: Sequence[str], rewards: ItemRewards, seed: int) -> int: ...


@dataclass(frozen=True, slots=True)
class InOrder:
    """Cycle through the items in order."""

    def choose(self, number: int, ids: Sequence[str], rewards: ItemRewards, seed: int) -> int:
        return number % len(ids)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every item once per epoch, shuffled for each epoch.

    Sampling without replacement has the same expectation as independent draws, with less variance in item counts.
    """

    def choose(self, number: int, ids: Sequence[str], rewards: ItemRewards, seed: int) -> int:
        epoch, index = divmod(number, len(ids))
        order = list(range(len(ids)))
        Random(f"{seed}/epoch/{epoch}").shuffle(order)
        return order[index]


@dataclass(frozen=True, slots=True)
class ByDifficulty:
    """Sample items in proportion to the variance of their score within a group, the source of a group's advantages.

    Weights are relative to the largest variance, so the scale of the rewards does not matter. An item starts with
    weight 1, as if `prior` degrees of freedom with the largest variance had been seen; its own groups outweigh that.
    They count half after `memory` epochs without a group of the item: the policy has changed, so what it always or
    never solved is worth another try. No weight is below `floor`.
    """

    floor: float = 0.05
    prior: float = 1.0
    memory: float = 8.0

    def choose(self, number: int, ids: Sequence[str], rewards: ItemRewards, seed: int) -> int:
        random = Random(f"{seed}/draw/{number}")
        while True:
            # Rejection sampling: no weight is above 1, and only a few of the items' weights are computed.
            index = random.randrange(len(ids))
            if random.random() < self.weight(ids[index], rewards, epoch=len(ids)):
                return index

    def weight(self, item_id: str, rewards: ItemRewards, *, epoch: int) -> float:
        """The relative probability of an item, up to 1, in a dataset of `epoch` items."""
        estimate = rewards.estimates.get(item_id)
        if estimate is None:
            return 1.0
        degrees = estimate.degrees * math.pow(0.5, (rewards.groups - estimate.last) / (self.memory * epoch))
        largest = rewards.largest_variance
        relative = estimate.variance / largest if largest else 0.0
        return max((self.prior + degrees * relative) / (self.prior + degrees), self.floor)


def get_sampler(name: str) -> Sampler:
    """A built-in sampler, an installed one, or `module:Class`; ConfigError for anything else."""
    made = SAMPLERS.resolve(name)
    sampler: Sampler = made() if isinstance(made, type) else made
    if not callable(getattr(sampler, "choose", None)):
        raise ConfigError(f"{name} is not an item sampler: it needs choose(number, ids, rewards, seed)")
    return sampler


@dataclass(slots=True)
class ItemStream:
    """The draws of one shard of a run, from `items` through the sampler, or else from the author's `next_item`.

    `next_item` is also called for the draws of other shards, so that all shards see the same stream.
    """

    item_id: Callable[[Any], str]
    next_item: Callable[[], Awaitable[Any]]
    items: Sequence[Any] | None
    sampler: Sampler
    seed: int
    rewards: ItemRewards
    held_out: frozenset[str]
    shard: int = 0
    shards: int = 1
    number: int = 0
    allows_backlog: bool = False
    """Whether a draw may be an item that an earlier draw added, so that `next_item` was not called for it."""
    _ids: list[str] = field(default_factory=list)
    _backlog: deque[Any] = field(default_factory=deque)
    _unread: deque[Any] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if self.items is not None:
            if not self.items:
                raise ConfigError("train_items() returned no items; return at least one, or define get_next_item()")
            self._ids = [self.item_id(item) for item in self.items]

    async def next(self, done: Mapping[int, str | None] | None = None) -> Draw | None:
        """The next draw of this shard, or None when there are no more.

        Draws in `done` are skipped. If their item ids are known, `next_item` must return the same items again.
        """
        done = done or {}
        while True:
            number = self.number
            ours = number % self.shards == self.shard
            if self._backlog and number not in done:
                self.number += 1
                return self._make_draw(number, self._backlog.popleft())
            if self.items is not None:
                self.number += 1
                if ours and number not in done:
                    return self._make_draw(number, self.items[self._choose(number)])
                continue
            item = self._unread.popleft() if self._unread else await self.next_item()
            self.number += 1
            if item is None:
                return None
            if not ours:
                continue
            draw = self._make_draw(number, item)
            if number not in done:
                return draw
            if done[number] not in (None, draw.item_id):
                if self.allows_backlog:
                    self._unread.append(item)
                    continue
                raise ConfigError(
                    f"draw {number} was item {done[number]} when the groups were written and is item {draw.item_id} "
                    "now: get_next_item is not deterministic, so the run cannot be resumed; start over with --overwrite"
                )

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    def add_to_backlog(self, items: Iterable[Any]) -> None:
        """Draw these items next. They take the place of the draws that would have come."""
        if self.shards > 1:
            raise ConfigError("items of a backlog cannot be drawn in several shards; run with --env.shards 1")
        self._backlog.extend(items)

    @property
    def uses_rewards(self) -> bool:
        """Whether draws depend on the scores of earlier groups; unknown samplers may."""
        return self.items is not None and type(self.sampler) not in (InOrder, Uniform)

    def _choose(self, number: int) -> int:
        index = self.sampler.choose(number, self._ids, self.rewards, self.seed)
        if not 0 <= index < len(self._ids):
            raise ConfigError(f"the sampler returned index {index} for {len(self._ids)} items")
        return index

    def _make_draw(self, number: int, item: Any) -> Draw:
        item_id = self.item_id(item)
        if item_id in self.held_out:
            raise ConfigError(
                f"draw {number}, item {item_id}, is held out for evaluation; keep eval_items() and the training items "
                "apart, or the evaluation measures memorization"
            )
        return Draw(number, item, item_id)


def content_id(value: Any) -> str:
    """Hash of a value's canonical JSON: the default item id."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return hashlib.sha256(orjson.dumps(value, default=str, option=options)).hexdigest()[:16]


def dataset_hash(train_ids: Iterable[str], eval_ids: Iterable[str]) -> str:
    """Hash of a run's items and their split, independent of order."""
    return content_id([sorted(train_ids), sorted(eval_ids)])
