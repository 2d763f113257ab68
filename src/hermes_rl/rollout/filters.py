"""Rules that decide which groups and rollouts are trained on, each with its statistical reason.

A rule looks at finished rollouts and returns a reason to withhold them, or None. Withheld rollouts stay in records and
evaluations and are counted; they are not trained on. No rule changes a score. Rules compare the scores that the trainer
compares: those of `Rollout.in_baseline`, which include a rollout that is too long.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.tolerance import same_score
from hermes_rl.core.trajectory import TOO_LONG, Rollout

DEFAULT_SHARE = 0.75


class Withheld(StrEnum):
    TOO_FEW_SCORED = "too_few_scored"
    EQUAL_SCORES = "equal_scores"
    TOO_LONG = TOO_LONG
    NO_TOKENS = "no_tokens"
    """The endpoint returns tokens, but none of the rollout's sequences passed the token check."""
    NOT_RETURNED = "not_returned"
    """The environment's own `collect_trajectory` or `collect_trajectories` did not return it."""


class GroupRule(Protocol):
    def reason(self, rollouts: Sequence[Rollout]) -> str | None:
        """Why this group is withheld, given all of its rollouts; None when it is trained on."""
        ...


@dataclass(frozen=True, slots=True)
class MinViableGroup:
    """Require this share of a group's rollouts to be scored, and at least two unless the group size is one.

    Failures outside the policy are random, so the mean of the remaining rollouts is still an unbiased baseline, only
    noisier by 1/n. Dropping the whole group for one failure wastes good samples and is biased against long items, which
    meet more failures. Below the share, failures are rarely random.

    A rollout that is too long counts: it has a score, and the baseline includes it. But two rollouts must be short
    enough to be trained on, since a trainer that gets only those has to compare them with each other.
    """

    share: float = DEFAULT_SHARE

    def needed(self, size: int) -> int:
        return max(math.ceil(self.share * size - 1e-9), min(size, 2))

    def reason(self, rollouts: Sequence[Rollout]) -> str | None:
        compared = sum(rollout.in_baseline for rollout in rollouts)
        trained = sum(rollout.scored and rollout.withheld is None for rollout in rollouts)
        enough = compared >= self.needed(len(rollouts)) and trained >= min(len(rollouts), 2)
        return None if enough else Withheld.TOO_FEW_SCORED


@dataclass(frozen=True, slots=True)
class WholeGroup:
    """Require every rollout to be scored, for estimators that need exactly n samples per item, such as Atropos'."""

    def reason(self, rollouts: Sequence[Rollout]) -> str | None:
        return None if all(rollout.scored for rollout in rollouts) else Withheld.TOO_FEW_SCORED


@dataclass(frozen=True, slots=True)
class DistinctScores:
    """Withhold groups with equal scores: every advantage is zero.

    Such a group adds no gradient, but it takes a place in the batch and shrinks the mean over the others. Scores that
    differ by rounding are equal: dividing by their deviation would make advantages of the rounding.
    """

    tolerance: float = 0.0

    def reason(self, rollouts: Sequence[Rollout]) -> str | None:
        scores = [rollout.score for rollout in rollouts if rollout.score is not None and rollout.in_baseline]
        if len(scores) < 2:
            return None
        lowest, highest = min(scores), max(scores)
        equal = highest - lowest <= self.tolerance or same_score(lowest, highest)
        return Withheld.EQUAL_SCORES if equal else None


@dataclass(frozen=True, slots=True)
class SequenceLimit:
    """Withhold a rollout that has a sequence longer than the trainer accepts.

    Truncating it would train the beginning of a rollout on the score of its end. Its score stays in the baseline: if it
    did not, the others would be compared with the short rollouts only (see `in_baseline`).
    """

    tokens: int

    def mark(self, rollout: Rollout) -> Rollout:
        longest = max((len(sequence.tokens) for sequence in rollout.sequences), default=0)
        return (
            replace(rollout, withheld=str(Withheld.TOO_LONG)) if rollout.scored and longest > self.tokens else rollout
        )


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a failed rollout is retried, and for which failure sources.

    Author code that raises will raise again, so it is not retried: every attempt costs inference. A stale rollout is
    not retried either, since the rest of its group is just as old.
    """

    count: int = 1
    sources: Collection[FailureSource] = (
        FailureSource.ENDPOINT,
        FailureSource.SANDBOX,
        FailureSource.TOOL,
        FailureSource.JUDGE,
        FailureSource.FRAMEWORK,
    )
    permanent_causes: Collection[str] = ("stale",)
    """Causes that a retry cannot fix."""

    def should_retry(self, failure: Failure | None, tries: int) -> bool:
        return tries <= self.count and self.may_pass(failure)

    def may_pass(self, failure: Failure | None) -> bool:
        """Whether the same rollout may succeed at another time."""
        if failure is None or failure.cause in self.permanent_causes:
            return False
        return failure.whose in self.sources


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Everything that decides about a group, in the order applied."""

    retries: Retries = Retries()
    sequence_limit: SequenceLimit | None = None
    rules: Sequence[GroupRule] = (MinViableGroup(), DistinctScores())

    def apply(self, rollouts: Sequence[Rollout]) -> tuple[tuple[Rollout, ...], str | None]:
        """The rollouts with over-long ones marked as withheld, and the first rule's reason to withhold the group."""
        limit = self.sequence_limit
        marked = tuple(rollouts if limit is None else map(limit.mark, rollouts))
        reasons = (rule.reason(marked) for rule in self.rules)
        return marked, next((str(reason) for reason in reasons if reason is not None), None)
