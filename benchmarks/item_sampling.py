"""Item sampling with a simulated policy: how many groups have a signal, and how many it takes to master the items.

A quarter of the items is hopeless, a quarter mastered, and each of the others has a success probability that rises with
every group of it whose scores differ. When half of these are mastered, the hopeless ones become learnable as well.
Groups finish in order, some draws later, as with groups in flight. Nothing depends on the machine: the same seeds give
the same figures. `--sweep` tries other half-lives, memories and floors.
"""

import argparse
import json
import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean, stdev

from hermes_rl.rollout.item_rewards import HALF_LIFE, ItemRewards
from hermes_rl.rollout.sampler import ByDifficulty, Sampler, Uniform

ITEMS, GROUP, IN_FLIGHT = 100, 8, 16
# Of the log-odds of success: where learnable items begin, and the gain of a group with a signal.
FIRST_LOGITS, GAIN = (-3.5, -1.0), 0.25
MASTERED, SHARE_MASTERED = 0.9, 0.9
MAX_GROUPS = 20_000
# Parts of a graded reward, each solved with the item's probability.
PARTS = {"binary": 1, "graded": 5}
SIGNAL_GOAL, GROUPS_GOAL = 1.2, 0.9
# The defaults of the sampler were chosen with seeds below this.
FIRST_SEED = 100


@dataclass(frozen=True)
class LifetimePassRate:
    """By p(1 - p) of all rollouts of an item since the beginning; needs rewards without a half-life."""

    floor: float = 0.05

    def choose(self, number: int, ids: Sequence[str], rewards: ItemRewards, seed: int) -> int:
        return Random(f"{seed}/draw/{number}").choices(range(len(ids)), [self._weight(one, rewards) for one in ids])[0]

    def _weight(self, item_id: str, rewards: ItemRewards) -> float:
        seen = rewards.estimates.get(item_id)
        passed, scored = (seen.mean * seen.rollouts, seen.rollouts) if seen else (0.0, 0.0)
        rate = (passed + 1) / (scored + 2)
        return max(4 * rate * (1 - rate), self.floor)


class Policy:
    """Success probabilities of the items, and how they rise."""

    def __init__(self, random: Random, parts: int) -> None:
        self._random, self._parts = random, parts
        kinds = ["hopeless"] * (ITEMS // 4) + ["mastered"] * (ITEMS // 4) + ["learnable"] * (ITEMS // 2)
        random.shuffle(kinds)
        self._logits = [random.uniform(*FIRST_LOGITS) for _ in kinds]
        self._fixed = {index: float(kind == "mastered") for index, kind in enumerate(kinds) if kind != "learnable"}
        self._locked = [index for index, kind in enumerate(kinds) if kind == "hopeless"]
        self._mastered: set[int] = set()

    def probability(self, index: int) -> float:
        return self._fixed.get(index, 1 / (1 + math.exp(-self._logits[index])))

    def scores(self, index: int) -> list[float]:
        chance, parts = self.probability(index), self._parts
        return [sum(self._random.random() < chance for _ in range(parts)) / parts for _ in range(GROUP)]

    def learn(self, index: int) -> None:
        self._logits[index] += GAIN
        if self.probability(index) >= MASTERED:
            self._mastered.add(index)
        if self._locked and self._share_mastered() >= 0.5:
            for unlocked in self._locked:
                del self._fixed[unlocked]
            self._locked = []

    def done(self) -> bool:
        return not self._locked and self._share_mastered() >= SHARE_MASTERED

    def _share_mastered(self) -> float:
        return len(self._mastered) / (ITEMS - len(self._fixed))


def simulate(sampler: Sampler, parts: int, seed: int, half_life: float = HALF_LIFE) -> tuple[int, float]:
    """The groups drawn until the items are mastered, and the share of them with a signal."""
    policy, rewards = Policy(Random(seed), parts), ItemRewards(half_life)
    ids = [str(index) for index in range(ITEMS)]
    in_flight: deque[tuple[int, list[float]]] = deque()
    signals = 0
    for number in range(MAX_GROUPS):
        index = sampler.choose(number, ids, rewards, seed)
        in_flight.append((index, policy.scores(index)))
        if len(in_flight) <= IN_FLIGHT:
            continue
        index, scores = in_flight.popleft()
        rewards.add(ids[index], scores)
        if min(scores) < max(scores):
            signals += 1
            policy.learn(index)
            if policy.done():
                return number + 1, signals / (number + 1 - IN_FLIGHT)
    return MAX_GROUPS, signals / (MAX_GROUPS - IN_FLIGHT)


def measure(sampler: Sampler, parts: int, seeds: int, half_life: float = HALF_LIFE) -> dict[str, float]:
    groups, shares = zip(
        *(simulate(sampler, parts, seed, half_life) for seed in range(FIRST_SEED, FIRST_SEED + seeds)), strict=True
    )
    return {
        "groups_to_mastery": round(mean(groups)),
        "stdev": round(stdev(groups)),
        "signal_share": round(mean(shares), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each (5, at least 2)")
    parser.add_argument("--sweep", action="store_true", help="other settings too")
    given = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}

    def show(name: str, sampler: Sampler, parts: int, half_life: float = HALF_LIFE) -> None:
        rows[name] = measure(sampler, parts, given.seeds, half_life)
        print(f"{name}: {json.dumps(rows[name])}", flush=True)

    for kind, parts in PARTS.items():
        show(f"{kind} uniform", Uniform(), parts)
        show(f"{kind} lifetime pass rate", LifetimePassRate(), parts, math.inf)
        show(f"{kind} by_difficulty", ByDifficulty(), parts)
    if given.sweep:
        for half_life in (1.0, 1.5, 3.0, 4.5, 9.0):
            show(f"half-life {half_life:g}", ByDifficulty(), 1, half_life)
        for memory in (2.0, 4.0, 16.0, 64.0, math.inf):
            show(f"memory {memory:g}", ByDifficulty(memory=memory), 1)
        for floor in (0.02, 0.1, 0.2):
            show(f"floor {floor:g}", ByDifficulty(floor=floor), 1)
    pairs = [(rows[f"{kind} by_difficulty"], rows[f"{kind} uniform"]) for kind in PARTS]
    met = all(
        ours["signal_share"] >= SIGNAL_GOAL * uniform["signal_share"]
        and ours["groups_to_mastery"] <= GROUPS_GOAL * uniform["groups_to_mastery"]
        for ours, uniform in pairs
    )
    print(json.dumps({"benchmark": "item_sampling", "figures": rows, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
