"""TrainingBatch: what a step takes of a leased batch, and the account of what it leaves out.

Always true: whatever is not trained on is counted under its cause.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hermes_rl.training.engine import Example


class LeftOut(StrEnum):
    """Why something is not trained on, counted in what its name begins with."""

    UNREADABLE = "groups/unreadable"
    GROUP_WITHHELD = "groups/withheld"
    ZERO_SIGNAL = "groups/zero_signal"
    """Nothing in it is better than anything else."""
    OVERFLOW = "groups/overflow"
    """Scores so far apart that no step could be computed."""
    BEYOND_BATCH = "groups/beyond_batch_tokens"
    UNSCORED = "rollouts/unscored"
    WITHHELD = "rollouts/withheld"
    UNMATCHED_TURNS = "rollouts/unmatched_turns"
    """More scores of turns than turns were recorded, and turns are what is compared."""
    TOO_LONG = "sequences/too_long"
    UNSAMPLED = "sequences/unsampled"
    NO_LOGPROBS = "sequences/no_logprobs"
    NO_VERSIONS = "sequences/no_versions"
    STALE = "sequences/stale"
    UNCORRECTABLE = "sequences/uncorrectable"
    """Sampled in a way that no importance weight makes up for."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A rollout that was scored and not withheld, trained on or not. `group` is its group's place in the batch."""

    environment: str
    group: int
    rollout: int
    score: float
    components: Mapping[str, float]
    turns: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an example comes from, and how many versions the policy is beyond its oldest token."""

    outcome: Outcome
    sequence: int
    staleness: int


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """`origins` has one for each of `examples`."""

    groups: int
    examples: tuple[Example, ...]
    origins: tuple[Origin, ...]
    outcomes: tuple[Outcome, ...]
    left_out: Mapping[LeftOut, int]

    @property
    def groups_used(self) -> int:
        return len({origin.outcome.group for origin in self.origins})
