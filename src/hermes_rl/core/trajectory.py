"""The vocabulary page: Sequence, Reward, Rollout, Group.

Always true: a rollout has either a finite score and a StopReason, or a Failure and no score; the columns of a sequence
have the same length. Building anything else raises.
"""

import math
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from numbers import Real
from typing import Any, NamedTuple

from hermes_rl.core.errors import Failure, VerifierError
from hermes_rl.core.messages import Message, tool_name

# Why a rollout is withheld that has a sequence longer than the trainer accepts.
TOO_LONG = "too_long"


# Where a rollout's metadata has the tools that an external agent offered in it, if its group's are not the same.
TOOL_SCHEMAS = "tool_schemas"
# Where a rollout's metadata says why it is an independent one in the place of a branch: `{reason, …}`.
NOT_BRANCHED = "not_branched"


class StopReason(StrEnum):
    """Why the policy's work on an item ended. Each of these is scored."""

    NATURAL = "natural"
    MAX_TURNS = "max_turns"
    CONTEXT_FULL = "context_full"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    DEADLINE = "deadline"
    TOOL_BUDGET = "tool_budget"
    UNPARSED_TOOL_CALL = "unparsed_tool_call"
    REPEATED_CALL = "repeated_call"
    CRASHED = "crashed"
    ENDED = "ended"
    """The environment ended the episode: a tool or the simulated user called `session.end()`."""


class Span(StrEnum):
    """What a part of a rollout's time was spent on."""

    MODEL = "model"
    TOOL = "tool"
    SANDBOX = "sandbox"
    VERIFIER = "verifier"
    USER = "user"


class TurnState(NamedTuple):
    """The environment's state after a turn, as JSON; recorded where it changed. Turns count from 1.

    Turn 0 is the state before the first answer.
    """

    turn: int
    value: Any


class Branch(NamedTuple):
    """Where a rollout leaves another one of its group: it has the turns of `rollout` before `turn`, counted from 1."""

    rollout: int
    turn: int


class StepReward(NamedTuple):
    """A reward that a tool or the simulated user gave in a turn. Turns count from 1."""

    turn: int
    value: float
    note: str = ""


class Timing(NamedTuple):
    """One interval: its start in seconds since the rollout began, and its duration."""

    span: Span
    name: str
    start: float
    seconds: float


class ToolUse(NamedTuple):
    """One executed tool call: the arguments as the model wrote them, and the full result."""

    turn: int
    call_id: str
    name: str
    arguments: str
    result: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts reported by the endpoint; None where it reported none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            _sum(self.prompt_tokens, other.prompt_tokens), _sum(self.completion_tokens, other.completion_tokens)
        )

    def __sub__(self, other: "Usage") -> "Usage":
        """What was used since `other`, of the same endpoint."""
        return self + Usage(
            *(None if count is None else -count for count in (other.prompt_tokens, other.completion_tokens))
        )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a sequence was sampled. `logprobs` says whether they are raw or computed after these filters."""

    temperature: float
    top_p: float | None = None
    top_k: int | None = None
    logprobs: str | None = None


class SampledCall(NamedTuple):
    """A model call with sampled tokens in a sequence: its number, and the position of its first token.

    Calls are numbered from 0 over the whole rollout, in the order the model answered: the number of a call is the index
    of its turn score.
    """

    call: int
    begin: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """Token ids of one contiguous context. `mask` is 1 on the tokens the policy sampled, 0 on all others.

    `logprobs` and `versions` (the policy version that sampled the token) hold None where the mask is 0. A sampled token
    belongs to the last of `calls` that begins at or before it; `calls` is empty where the source did not record them.
    """

    tokens: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int | None, ...]
    sampling: Sampling
    calls: tuple[SampledCall, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.tokens), len(self.mask), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"the columns of a sequence must have the same length, got {sorted(lengths)}")
        if self.calls:
            check_calls(self.calls, len(self.tokens))

    def atropos_mask(self) -> list[int]:
        """Sampled tokens, and Atropos' -100 for all others."""
        return [token if sampled else -100 for token, sampled in zip(self.tokens, self.mask, strict=True)]

    def atropos_logprobs(self) -> list[float]:
        """Logprobs of sampled tokens, and Atropos' 1.0 (an impossible logprob) for all others."""
        return [1.0 if logprob is None else logprob for logprob in self.logprobs]


@dataclass(frozen=True, slots=True)
class Reward:
    """A rollout's score, with named components, per-turn rewards, and notes.

    Components and notes are recorded only; a note is text, such as a judge's reason or the output of a checker.
    `turns` has one entry for each answer of the model, in order: `turns[0]` is the reward of its first answer, the one
    that tool uses and step rewards call turn 1. It is in addition to the score; the trainer uses it with `per_turn`.
    """

    score: float
    components: Mapping[str, float] = field(default_factory=dict)
    turns: SequenceOf[float] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditedReward:
    """What the withheld verifier made of a rollout: a score, or the error it ended with. Never trained on."""

    score: float | None
    components: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One agent's work on one item. `withheld` says why a scored rollout is excluded from training.

    `seat` names the agent in an environment with several; its rollout has the messages and the score of that seat only.
    `audit` is None for a rollout that was not audited.
    A rollout with a `branch` has the whole conversation, but the mask, usage and timings of its own turns only.
    """

    item_id: str
    index: int
    seed: int
    messages: list[Message]
    score: float | None = None
    stop_reason: StopReason | None = None
    failure: Failure | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    turn_scores: tuple[float, ...] = ()
    turns_used: int = 0
    tool_uses: tuple[ToolUse, ...] = ()
    usage: Usage = Usage()
    timings: tuple[Timing, ...] = ()
    seconds: float = 0.0
    sequences: tuple[Sequence, ...] = ()
    withheld: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    states: SequenceOf[TurnState] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    seat: str | None = None
    audit: AuditedReward | None = None
    branch: Branch | None = None

    def __post_init__(self) -> None:
        if (self.score is None) == (self.failure is None):
            raise ValueError(f"a rollout has either a score or a failure, got {self.score!r} and {self.failure!r}")
        if self.score is not None and (type(self.score) is not float or not math.isfinite(self.score)):
            raise ValueError(f"a score is a finite float, got {self.score!r}")
        if self.score is not None and self.stop_reason is None:
            raise ValueError("a scored rollout says why it stopped")

    @property
    def scored(self) -> bool:
        """Whether it has a score; only scored rollouts enter a batch."""
        return self.score is not None

    @property
    def audit_gap(self) -> float | None:
        """Trained minus audited reward; None without both."""
        audited = None if self.audit is None else self.audit.score
        return None if audited is None or self.score is None else self.score - audited

    @property
    def in_baseline(self) -> bool:
        """Whether its score counts in the baseline of its group, also if it is not trained on itself."""
        return in_baseline(self.score, self.withheld)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a group came from, enough to reproduce it."""

    environment: str
    environment_hash: str
    model: str
    versions: Mapping[str, str]
    config_hash: str = ""
    dataset_hash: str | None = None
    image_digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """The rollouts of one item, compared with each other; unscored ones are kept but never trained on.

    `draw` is the position in the run's stream of items. `id` hashes the group's inputs: two runs with the same settings
    produce the same ids. `withheld` says why the whole group is excluded from training.
    """

    item_id: str
    item: Any
    rollouts: tuple[Rollout, ...]
    provenance: Provenance
    tools: tuple[str, ...] = ()
    split: str = "train"
    id: str = ""
    draw: int = 0
    withheld: str | None = None
    tool_schemas: tuple[Mapping[str, Any], ...] = ()
    created_at: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def schemas_of(self, rollout: Rollout) -> list[Mapping[str, Any]]:
        """The tools that the model was offered in a rollout of this group."""
        return list(rollout.metadata.get(TOOL_SCHEMAS, self.tool_schemas))

    @cached_property
    def scored(self) -> tuple[Rollout, ...]:
        return tuple(rollout for rollout in self.rollouts if rollout.scored)

    @property
    def scores(self) -> list[float]:
        """Scores of the scored rollouts, in order."""
        return [rollout.score for rollout in self.rollouts if rollout.score is not None]


def merge_schemas(
    known: SequenceOf[Mapping[str, Any]], rollouts: SequenceOf[Rollout]
) -> tuple[list[Mapping[str, Any]], list[Rollout]]:
    """The tools of a group, with those that external agents offered, and the rollouts that keep only what differs."""
    by_name: dict[str, Mapping[str, Any]] = {tool_name(schema): schema for schema in known}
    for rollout in rollouts:
        for schema in rollout.metadata.get(TOOL_SCHEMAS, ()):
            by_name.setdefault(tool_name(schema), schema)
    schemas = list(by_name.values())
    return schemas, [_without_schemas(rollout, schemas) for rollout in rollouts]


def _without_schemas(rollout: Rollout, schemas: list[Mapping[str, Any]]) -> Rollout:
    if rollout.metadata.get(TOOL_SCHEMAS) != schemas:
        return rollout
    return replace(rollout, metadata={name: value for name, value in rollout.metadata.items() if name != TOOL_SCHEMAS})


def in_baseline(score: float | None, withheld: str | None) -> bool:
    """Whether a rollout's score counts in the baseline of its group.

    Every rollout that was scored and came from the policy counts, also one that is too long to be trained on: a
    baseline without it would be the mean of the short rollouts, and its error would depend on length. Excluded are
    rollouts without a recorded token (`no_tokens`: nothing shows that the policy wrote them), rollouts that the
    environment took out of the group (`not_returned`), and unknown reasons.
    """
    return score is not None and withheld in (None, TOO_LONG)


def check_calls(calls: SequenceOf[tuple[int, int]], length: int) -> None:
    """ValueError unless the calls of a sequence of this length have numbers from 0 and begin one after the other."""
    begins = [begin for _, begin in calls]
    ordered = all(before < after for before, after in pairwise(begins))
    if not ordered or begins[0] < 0 or begins[-1] >= length or min(call for call, _ in calls) < 0:
        raise ValueError(f"the model calls of a sequence of {length} tokens are out of order: {list(calls)[:8]}")


def validate_reward(value: object) -> Reward:
    """The return value of a reward function as a Reward of finite numbers; VerifierError for anything else."""
    if not isinstance(value, Reward):
        return Reward(validate_score(value))
    return Reward(
        validate_score(value.score),
        {str(name): validate_score(part) for name, part in value.components.items()},
        tuple(validate_score(turn) for turn in value.turns),
        {str(name): str(note) for name, note in value.notes.items()},
    )


def validate_score(value: object) -> float:
    """A score as a finite float; VerifierError for anything else."""
    if not isinstance(value, Real):
        raise VerifierError(
            "not_a_number",
            f"the reward returned {value!r} ({type(value).__name__}); return a finite float or a Reward",
        )
    try:
        score = float(value)
    except OverflowError:
        score = math.inf
    if not math.isfinite(score):
        raise VerifierError("not_finite", f"the reward returned {score!r}; return a finite float")
    return score


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
