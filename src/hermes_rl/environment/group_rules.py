"""Which groups and rollouts are fit for training: small rules, each with its statistical reason.

A rule looks at finished rollouts and names a reason to withhold, or None. What is withheld stays in the record and in
evaluation; it is only kept from the trainer, counted and shown. No rule ever changes a score.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from hermes_rl.errors import Failure, Whose
from hermes_rl.trajectory import Rollout

DEFAULT_SHARE = 0.75


class Withheld(StrEnum):
    TOO_FEW_SCORED = "too_few_scored"
    EQUAL_SCORES = "equal_scores"
    TOO_LONG = "too_long"
    NO_TOKENS = "no_tokens"
    """Its endpoint gives tokens, and none of its sequences held against them."""


class GroupRule(Protocol):
    def reason(self, rollouts: Sequence[Rollout]) -> str | None:
        """Why these rollouts of one group, as many as were started, are withheld together; None when they stand."""
        ...


@dataclass(frozen=True, slots=True)
class MinViableGroup:
    """A group stands with this share of its rollouts scored, and never with one alone unless it was to be one.

    What fails for reasons outside the policy falls out at random, so the survivors' mean is still an unbiased baseline;
    it only gets noisier, by 1/n. Dropping the whole group for one failure would throw away good samples, and drop long
    items most, since they meet more faults: that is a bias. Below the share the causes are rarely random any more.
    """

    share: float = DEFAULT_SHARE

    def needed(self, size: int) -> int:
        return max(math.ceil(self.share * size - 1e-9), min(size, 2))

    def reason(self, rollouts: Sequence[Rollout]) -> str | None:
        fit = sum(rollout.scored and rollout.withheld is None for rollout in rollouts)
        return None if fit >= self.needed(len(rollouts)) else Withheld.TOO_FEW_SCORED


@dataclass(frozen=True, slots=True)
class WholeGroup:
    """Every rollout must be scored: for estimators that need exactly n samples an item, as at the Atropos border."""

    def reason(self, rollouts: Sequence[Rollout]) -> str | None:
        return None if all(rollout.scored for rollout in rollouts) else Withheld.TOO_FEW_SCORED


@dataclass(frozen=True, slots=True)
class DistinctScores:
    """Scores that are all equal say nothing about which rollout was better: every advantage is zero.

    In a batch such a group adds no gradient but takes a place, and shrinks the mean of the others.
    """

    tolerance: float = 0.0

    def reason(self, rollouts: Sequence[Rollout]) -> str | None:
        scores = [rollout.score for rollout in rollouts if rollout.score is not None and rollout.withheld is None]
        equal = len(scores) > 1 and max(scores) - min(scores) <= self.tolerance
        return Withheld.EQUAL_SCORES if equal else None


@dataclass(frozen=True, slots=True)
class SequenceLimit:
    """A rollout with a sequence longer than the trainer takes is withheld whole.

    Cutting it would train the beginning of a work on the score of its end.
    """

    tokens: int

    def applied(self, rollout: Rollout) -> Rollout:
        longest = max((len(sequence.tokens) for sequence in rollout.sequences), default=0)
        return (
            replace(rollout, withheld=str(Withheld.TOO_LONG)) if rollout.scored and longest > self.tokens else rollout
        )


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a failed rollout is tried again, and for whose faults.

    A reward or prompt that raises does it again, so those are not tried twice: every try costs inference. Nor is one
    that has grown too old for the trainer: the others of its group are as old.
    """

    count: int = 1
    whose: Collection[Whose] = (Whose.ENDPOINT, Whose.SANDBOX, Whose.TOOL, Whose.JUDGE, Whose.FRAMEWORK)
    never: Collection[str] = ("stale",)
    """Causes that no second try helps."""

    def again(self, failure: Failure | None, tries: int) -> bool:
        if failure is None or failure.cause in self.never:
            return False
        return failure.whose in self.whose and tries <= self.count


@dataclass(frozen=True, slots=True)
class GroupRules:
    """All that decides about a group, in the order it is asked."""

    retries: Retries = Retries()
    sequence_limit: SequenceLimit | None = None
    rules: Sequence[GroupRule] = (MinViableGroup(), DistinctScores())

    def judged(self, rollouts: Sequence[Rollout]) -> tuple[tuple[Rollout, ...], str | None]:
        """The rollouts, over-long ones marked, and why the group is withheld, by the first rule that says so."""
        limit = self.sequence_limit
        kept = tuple(rollouts if limit is None else map(limit.applied, rollouts))
        reasons = (rule.reason(kept) for rule in self.rules)
        return kept, next((str(reason) for reason in reasons if reason is not None), None)
