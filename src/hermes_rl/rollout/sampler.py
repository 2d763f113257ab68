"""Item sampling: the stream of training items, their ids and their pass rates.

A draw is the n-th request for an item. Its number determines everything random about its group, so runs can be
repeated, resumed and sharded by draw number. An item held out for evaluation is never drawn for training.
"""

import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, Protocol

import orjson

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Group
from hermes_rl.extensions import SAMPLERS


class Draw(NamedTuple):
    number: int
    item: Any
    item_id: str


@dataclass(slots=True)
class PassRates:
    """Scored and passed rollouts of each item."""

    pass_score: float = 1.0
    scored: dict[str, int] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)

    def add(self, group: Group) -> None:
        scores = group.scores
        self.scored[group.item_id] = self.scored.get(group.item_id, 0) + len(scores)
        passed = sum(score >= self.pass_score for score in scores)
        self.passed[group.item_id] = self.passed.get(group.item_id, 0) + passed

    def estimate(self, item_id: str) -> float:
        """The pass rate with Laplace smoothing, so it starts at one half."""
        return (self.passed.get(item_id, 0) + 1) / (self.scored.get(item_id, 0) + 2)


class Sampler(Protocol):
    """Chooses the index of a training item. Stateless: it may depend only on its arguments."""

    def choose(self, number: int, ids: Sequence[str], rates: PassRates, seed: int) -> int: ...


@dataclass(frozen=True, slots=True)
class InOrder:
    """Cycle through the items in order."""

    def choose(self, number: int, ids: Sequence[str], rates: PassRates, seed: int) -> int:
        return number % len(ids)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every item once per epoch, shuffled for each epoch.

    Sampling without replacement has the same expectation as independent draws, with less variance in item counts.
    """

    def choose(self, number: int, ids: Sequence[str], rates: PassRates, seed: int) -> int:
        epoch, index = divmod(number, len(ids))
        order = list(range(len(ids)))
        Random(f"{seed}/epoch/{epoch}").shuffle(order)
        return order[index]


@dataclass(frozen=True, slots=True)
class ByDifficulty:
    """Sample items in proportion to the variance p(1 - p) of their score, the source of a group's advantages.

    An item the policy always or never solves gives equal scores and no gradient. It keeps `floor` of the maximum
    weight, so it is still sampled occasionally: policies forget, and hopeless items become solvable.
    """

    floor: float = 0.05

    def choose(self, number: int, ids: Sequence[str], rates: PassRates, seed: int) -> int:
        weights = [max(4 * p * (1 - p), self.floor) for p in map(rates.estimate, ids)]
        return Random(f"{seed}/draw/{number}").choices(range(len(ids)), weights)[0]


def get_sampler(name: str) -> Sampler:
    """A built-in sampler, an installed one, or `module:Class`; ConfigError for anything else."""
    made = SAMPLERS.resolve(name)
    sampler: Sampler = made() if isinstance(made, type) else made
    if not callable(getattr(sampler, "choose", None)):
        raise ConfigError(f"{name} is not an item sampler: it needs choose(number, ids, rates, seed)")
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
    rates: PassRates
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

    def _choose(self, number: int) -> int:
        index = self.sampler.choose(number, self._ids, self.rates, self.seed)
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
