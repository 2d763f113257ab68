"""Items: where the next one comes from, what it is called, and how well the policy does on each.

A draw is the n-th call for an item. Its number fixes all that is random about its group, so a run repeats, resumes and
is split over shards by numbers alone. An item held out for evaluation is never drawn for training.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, Protocol

import orjson

from hermes_rl.errors import ConfigError
from hermes_rl.trajectory import Group


class Draw(NamedTuple):
    number: int
    item: Any
    item_id: str


@dataclass(slots=True)
class PassRates:
    """How many rollouts of each item were scored, and how many of them passed."""

    pass_score: float = 1.0
    scored: dict[str, int] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)

    def add(self, group: Group) -> None:
        scores = group.scores
        self.scored[group.item_id] = self.scored.get(group.item_id, 0) + len(scores)
        passed = sum(score >= self.pass_score for score in scores)
        self.passed[group.item_id] = self.passed.get(group.item_id, 0) + passed

    def estimate(self, item_id: str) -> float:
        """The pass rate, drawn toward one half while there is little to go by (Laplace's rule)."""
        return (self.passed.get(item_id, 0) + 1) / (self.scored.get(item_id, 0) + 2)


class Sampler(Protocol):
    """Chooses a training item by its place. A value: all it may depend on is what it is given."""

    def choose(self, number: int, ids: Sequence[str], rates: PassRates, seed: int) -> int: ...


@dataclass(frozen=True, slots=True)
class InOrder:
    """The items as they stand, again and again."""

    def choose(self, number: int, ids: Sequence[str], rates: PassRates, seed: int) -> int:
        return number % len(ids)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every item once in each epoch, in an order of that epoch's own.

    Without replacement: the same expectation as independent draws, with less variance in how often an item comes.
    """

    def choose(self, number: int, ids: Sequence[str], rates: PassRates, seed: int) -> int:
        epoch, place = divmod(number, len(ids))
        order = list(range(len(ids)))
        Random(f"{seed}/epoch/{epoch}").shuffle(order)
        return order[place]


@dataclass(frozen=True, slots=True)
class ByDifficulty:
    """Items in proportion to the variance p(1 - p) of their score, which is what a group's advantages live on.

    A mastered or hopeless item gives equal scores and no gradient. It keeps `floor` of the greatest weight, so it
    returns now and then: a policy forgets, and what was hopeless becomes possible.
    """

    floor: float = 0.05

    def choose(self, number: int, ids: Sequence[str], rates: PassRates, seed: int) -> int:
        weights = [max(4 * p * (1 - p), self.floor) for p in map(rates.estimate, ids)]
        return Random(f"{seed}/draw/{number}").choices(range(len(ids)), weights)[0]


SAMPLERS: Mapping[str, Sampler] = {"in_order": InOrder(), "uniform": Uniform(), "by_difficulty": ByDifficulty()}


@dataclass(slots=True)
class ItemStream:
    """The draws of one shard of a run.

    From a sequence of items through a sampler, else from an author's `next_item`, which is called for the draws of
    other shards too, so that all shards see the same stream.
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
    _ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.items is not None:
            if not self.items:
                raise ConfigError("train_items() gave no items; return at least one, or define get_next_item()")
            self._ids = [self.item_id(item) for item in self.items]

    async def next(self, done: Mapping[int, str | None] | None = None) -> Draw | None:
        """The next draw of this shard, or None when there are no more.

        Those in `done` are past. Where their item ids are known, `next_item` must give the same items again.
        """
        done = done or {}
        while True:
            number = self.number
            mine = number % self.shards == self.shard
            if self.items is not None:
                self.number += 1
                if mine and number not in done:
                    return self._checked(number, self.items[self._chosen(number)])
                continue
            item = await self.next_item()
            self.number += 1
            if item is None:
                return None
            if not mine:
                continue
            draw = self._checked(number, item)
            if number not in done:
                return draw
            if done[number] not in (None, draw.item_id):
                raise ConfigError(
                    f"draw {number} was item {done[number]} when the groups were written and is item {draw.item_id} "
                    "now: get_next_item does not repeat, so the run cannot be resumed; start it anew with --overwrite"
                )

    def _chosen(self, number: int) -> int:
        place = self.sampler.choose(number, self._ids, self.rates, self.seed)
        if not 0 <= place < len(self._ids):
            raise ConfigError(f"the sampler chose place {place} of {len(self._ids)} items")
        return place

    def _checked(self, number: int, item: Any) -> Draw:
        item_id = self.item_id(item)
        if item_id in self.held_out:
            raise ConfigError(
                f"draw {number}, item {item_id}, is held out for evaluation; keep eval_items() and the training items "
                "apart, or the evaluation measures memory"
            )
        return Draw(number, item, item_id)


def content_id(value: Any) -> str:
    """The hash of a value's canonical JSON; an item's id unless its environment names it otherwise."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return hashlib.sha256(orjson.dumps(value, default=str, option=options)).hexdigest()[:16]


def dataset_hash(train_ids: Iterable[str], eval_ids: Iterable[str]) -> str:
    """Names the items of a run and how they are split, whatever order they come in."""
    return content_id([sorted(train_ids), sorted(eval_ids)])
