"""Builds training examples from the groups of a leased batch.

Always true: each example is one sequence with at least one sampled token, and its logprobs and advantages are 0 at
tokens that were not sampled. A baseline includes every rollout that was scored and came from the policy (`in_baseline`,
the rule of the environment), even if its own tokens cannot be trained on: what is left out by length, truncation or age
would otherwise bias it. Whatever is not trained on is counted under its exclusion reason.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Branch, StopReason, check_calls, in_baseline
from hermes_rl.inference.token_engines import SamplingRequest, uncorrectable_reason
from hermes_rl.store.codec import Columns, GroupView, model_calls, open_group
from hermes_rl.training.advantages import ScoredTurns, get_advantage, group_advantages
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import Example
from hermes_rl.training.tree_advantages import tree_advantages


class ExclusionReason(StrEnum):
    """Why something is not trained on; the value is a metric name that begins with the counted unit."""

    UNREADABLE = "groups/unreadable"
    GROUP_WITHHELD = "groups/withheld"
    ZERO_SIGNAL = "groups/zero_signal"
    """All advantages are 0, and there is no teacher."""
    OVERFLOW = "groups/overflow"
    """An advantage exceeds MAX_ADVANTAGE."""
    BEYOND_BATCH = "groups/beyond_batch_tokens"
    UNSCORED = "rollouts/unscored"
    WITHHELD = "rollouts/withheld"
    TRUNCATED = "rollouts/truncated"
    """`mask_truncated` is set, and a token or turn limit ended it."""
    UNMATCHED_TURNS = "rollouts/unmatched_turns"
    """The group has a value for each turn, and those of this rollout cannot be matched with its tokens.

    That is so with `per_turn`, if there are turn scores, and where rollouts branch.
    """
    TOO_LONG = "sequences/too_long"
    UNSAMPLED = "sequences/unsampled"
    NO_LOGPROBS = "sequences/no_logprobs"
    NO_VERSIONS = "sequences/no_versions"
    STALE = "sequences/stale"
    UNCORRECTABLE = "sequences/uncorrectable"
    """Sampled with parameters that importance weights cannot correct for."""


@dataclass(frozen=True, slots=True, eq=False)
class RolloutOutcome:
    """A rollout that counts in the baseline, trained on or not. `group` is the group's index in the batch.

    `seat` is the agent it belongs to, in environments with several. `audited` is the score of the withheld verifier,
    NaN if that failed, and None for a rollout that was not audited.
    """

    environment: str
    group: int
    rollout: int
    score: float
    components: Mapping[str, float]
    turns: int
    seat: str | None = None
    audited: float | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of an example; `staleness` is the policy version minus the version of its oldest token."""

    outcome: RolloutOutcome
    sequence: int
    staleness: int


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """`origins` runs parallel to `examples`."""

    groups: int
    examples: tuple[Example, ...]
    origins: tuple[Origin, ...]
    outcomes: tuple[RolloutOutcome, ...]
    excluded: Mapping[ExclusionReason, int]

    @property
    def groups_used(self) -> int:
        return len({origin.outcome.group for origin in self.origins})


class SequenceColumns(NamedTuple):
    """The token columns of one stored sequence.

    `logprobs` and `versions` are NaN where the record has none; float64 holds every version exactly. `calls` has a row
    (number, first token) for each model call, and none if the record does not say.
    """

    tokens: NDArray[np.int64]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.float64]
    calls: NDArray[np.int64]

    @property
    def targets(self) -> NDArray[np.bool_]:
        """Mask of the sampled tokens after the first, which has no context to be predicted from."""
        return self.sampled[1:]

    @property
    def oldest_version(self) -> float:
        """Minimum over all targets; NaN if any target has none."""
        return float(self.versions[1:][self.targets].min(initial=np.inf))

    @property
    def turns(self) -> int:
        """Number of contiguous sampled spans: the chat template puts at least one token between two turns."""
        return int(_turn_starts(self.sampled).sum())

    @property
    def turn_of_each(self) -> NDArray[np.int64]:
        """The turn of each sampled token: the number of its model call, or without calls that of its sampled span."""
        if not len(self.calls):
            return np.asarray(np.cumsum(_turn_starts(self.sampled)) - 1)
        numbers, begins = self.calls.T
        return np.asarray(numbers[np.searchsorted(begins, np.arange(len(self.tokens)), side="right") - 1])


def rollout_scores(columns: Columns) -> list[float | None]:
    scores = iter(columns.scores.tolist())
    return [next(scores) if scored else None for scored in _flags(columns.scored, len(columns.sequences))]


def rollout_sequences(view: GroupView) -> list[list[SequenceColumns]]:
    """The sequences of each rollout."""
    columns = view.columns
    count = len(columns.tokens)
    tokens = np.asarray(columns.tokens, np.int64)
    sampled = _flags(columns.masks, count)
    logprobs = np.full(count, np.nan, np.float32)
    logprobs[_flags(columns.logprobs_at, count)] = columns.logprobs
    versions = np.full(count, np.nan)
    versions[_flags(columns.versions_at, count)] = np.repeat(
        np.asarray(columns.versions), np.asarray(columns.version_runs)
    )
    calls = [spans for rollout in view.rollouts for spans in model_calls(rollout)]
    sequences = [
        SequenceColumns(
            tokens[begin:end],
            sampled[begin:end],
            logprobs[begin:end],
            versions[begin:end],
            _call_rows(spans, sampled[begin:end]),
        )
        for (begin, end), spans in zip(pairwise(accumulate(columns.lengths, initial=0)), calls, strict=True)
    ]
    return [sequences[begin:end] for begin, end in pairwise(accumulate(columns.sequences, initial=0))]


def _call_rows(calls: list[list[int]], sampled: NDArray[np.bool_]) -> NDArray[np.int64]:
    if calls:
        check_calls([(call, begin) for call, begin in calls], len(sampled))
        if sampled[: calls[0][1]].any():
            raise ValueError("a sampled token is before the first model call of its sequence")
    return np.array(calls, np.int64).reshape(-1, 2)


def _flags(bits: "memoryview[int]", count: int) -> NDArray[np.bool_]:
    return np.unpackbits(np.asarray(bits, np.uint8), count=count).astype(np.bool_)


def _turn_starts(sampled: NDArray[np.bool_]) -> NDArray[np.bool_]:
    previous = np.concatenate(([False], sampled[:-1]))
    return sampled & ~previous


log = logging.getLogger(__name__)

# Adam squares gradients, and the squares must fit in float32.
MAX_ADVANTAGE = 1e19
# Provenance key of groups that arrived over the Atropos protocol.
ATROPOS = "atropos-protocol"
ZEROED = "set_advantage_to_zero"
# What cut a generation off: the tokens of an answer, the tokens of the context, the turns of a rollout.
TRUNCATIONS = (StopReason.LENGTH, StopReason.CONTEXT_FULL, StopReason.MAX_TURNS)


@dataclass(slots=True)
class _GroupExamples:
    """The examples of one group, and what was excluded."""

    examples: list[tuple[Example, Origin]] = field(default_factory=list)
    outcomes: list[RolloutOutcome] = field(default_factory=list)
    excluded: Counter[ExclusionReason] = field(default_factory=Counter)

    @property
    def tokens(self) -> int:
        return sum(len(example.tokens) + 1 for example, _ in self.examples)


def training_batch(groups: Iterable[bytes], settings: TrainerSettings, version: int) -> TrainingBatch:
    """Select what to train on from `groups`, oldest first. `version` is the current policy version.

    Whole groups are taken until one does not fit into `max_batch_tokens`; a group larger than that is skipped.
    """
    parts = [_read_group(data, number, settings, version) for number, data in enumerate(groups)]
    examples: list[tuple[Example, Origin]] = []
    excluded: Counter[ExclusionReason] = Counter()
    limit, used, full = settings.max_batch_tokens or float("inf"), 0, False
    for part in parts:
        excluded.update(part.excluded)
        full = full or used + part.tokens > limit >= part.tokens
        if part.examples and (full or part.tokens > limit):
            excluded[ExclusionReason.BEYOND_BATCH] += 1
        else:
            examples += part.examples
            used += part.tokens
    return TrainingBatch(
        groups=len(parts),
        examples=tuple(example for example, _ in examples),
        origins=tuple(origin for _, origin in examples),
        outcomes=tuple(outcome for part in parts for outcome in part.outcomes),
        excluded=excluded,
    )


def _read_group(data: bytes, number: int, settings: TrainerSettings, version: int) -> _GroupExamples:
    try:
        return _group_examples(open_group(data), number, settings, version)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        # The API does not validate everything, and one bad group must not fail the run each time it is leased.
        log.warning("group %d of the batch cannot be read: %s: %s", number, type(error).__name__, error)
        return _GroupExamples(excluded=Counter({ExclusionReason.UNREADABLE: 1}))


def _group_examples(view: GroupView, number: int, settings: TrainerSettings, version: int) -> _GroupExamples:
    result = _GroupExamples()
    if view.group["withheld"] is not None:
        result.excluded[ExclusionReason.GROUP_WITHHELD] += 1
        return result
    sequences = rollout_sequences(view)
    result.outcomes = list(_outcomes(view, number, sequences, result.excluded))
    advantages = _advantages(view, result.outcomes, sequences, settings)
    trained: list[tuple[RolloutOutcome, list[NDArray[np.float64]]]] = []
    for outcome, by_turn in zip(result.outcomes, advantages, strict=True):
        own = sequences[outcome.rollout]
        excluded = _rollout_exclusion(view.rollouts[outcome.rollout], own, settings, turns=len(by_turn))
        if excluded is None:
            trained.append((outcome, [_token_advantages(sequence, by_turn) for sequence in own]))
        else:
            result.excluded[excluded] += 1
    largest = float(
        np.max([np.abs(values).max(initial=0.0) for _, columns in trained for values in columns], initial=0)
    )
    if (largest == 0 and settings.teacher is None) or not largest <= MAX_ADVANTAGE:
        result.excluded[ExclusionReason.ZERO_SIGNAL if largest == 0 else ExclusionReason.OVERFLOW] += 1
        return result
    for outcome, columns in trained:
        samplings = view.rollouts[outcome.rollout]["sampling"]
        rows = zip(sequences[outcome.rollout], columns, samplings, strict=True)
        for index, (sequence, values, sampling) in enumerate(rows):
            reason = _sequence_exclusion(sequence, sampling, settings, version)
            if reason is None:
                origin = Origin(outcome, index, int(version - sequence.oldest_version))
                result.examples.append((_example(sequence, values), origin))
            else:
                result.excluded[reason] += 1
    return result


def _outcomes(
    view: GroupView, number: int, sequences: list[list[SequenceColumns]], excluded: Counter[ExclusionReason]
) -> Iterator[RolloutOutcome]:
    environment = str(view.group["provenance"].get("environment"))
    for index, (score, rollout) in enumerate(zip(rollout_scores(view.columns), view.rollouts, strict=True)):
        if score is None:
            excluded[ExclusionReason.UNSCORED] += 1
        elif not in_baseline(score, rollout["withheld"]):
            excluded[ExclusionReason.WITHHELD] += 1
        else:
            # A branch has the turns of another rollout before its own.
            turns = sum(sequence.turns for sequence in sequences[index]) + _shared_turns(rollout)
            components = {name: float(value) for name, value in rollout["components"].items()}
            seat, audited = rollout.get("seat"), _audited(rollout.get("audit"))
            yield RolloutOutcome(environment, number, index, score, components, turns, seat, audited)


def _audited(audit: Mapping[str, Any] | None) -> float | None:
    if not audit:
        return None
    return float("nan") if audit["score"] is None else float(audit["score"])


def _advantages(
    view: GroupView, outcomes: list[RolloutOutcome], sequences: list[list[SequenceColumns]], settings: TrainerSettings
) -> NDArray[np.float64]:
    """A row for each outcome and a column for each turn; 0 for rollouts with an override."""
    branches = _branches(view, sequences)
    compared = {}
    for outcome in outcomes:
        sampled = _sampled_tokens(outcome.rollout, sequences, branches)
        turn_scores = tuple(map(float, view.rollouts[outcome.rollout]["turn_scores"]))
        penalized = outcome.score - settings.length_penalty * sampled / 1000
        compared[outcome.rollout] = ScoredTurns(penalized, turn_scores)
    advantage = get_advantage(settings.advantage, epsilon=settings.advantage_epsilon, sample_std=settings.sample_std)
    if any(branches):
        advantages = tree_advantages(compared, branches, advantage, per_turn=settings.per_turn)
    else:
        advantages = group_advantages(list(compared.values()), advantage, per_turn=settings.per_turn)
    zeroed = _zeroed(view)
    advantages[[outcome.rollout in zeroed for outcome in outcomes]] = 0.0
    return advantages


def _shared_turns(rollout: Mapping[str, Any]) -> int:
    """How many of a rollout's turns are those of the rollout that it branches from."""
    branch = rollout.get("branch")
    return int(branch["turn"]) - 1 if branch else 0


def _branches(view: GroupView, sequences: list[list[SequenceColumns]]) -> list[Branch | None]:
    """Where each rollout branches; ValueError for a turn that the other rollout cannot have."""
    found = [Branch(**branch) if (branch := rollout.get("branch")) else None for rollout in view.rollouts]
    longest = max((sum(len(one.tokens) for one in own) for own in sequences), default=0)
    for branch in filter(None, found):
        if not 0 < branch.turn <= longest + 1:
            raise ValueError(f"{branch} is not a turn of a rollout in this group")
    return found


def _sampled_tokens(
    rollout: int, sequences: list[list[SequenceColumns]], branches: list[Branch | None], turn: int | None = None
) -> int:
    """The sampled tokens of a rollout before `turn`, counted from 1, with those that it shares; None for all."""
    masks = (one.sampled if turn is None else one.sampled & (one.turn_of_each < turn - 1) for one in sequences[rollout])
    own = sum(int(mask.sum()) for mask in masks)
    branch = branches[rollout]
    if branch is None:
        return own
    if not 0 <= branch.rollout < rollout:
        raise ValueError(f"rollout {rollout} of a group cannot branch from {branch}")
    before = branch.turn if turn is None else min(turn, branch.turn)
    return own + _sampled_tokens(branch.rollout, sequences, branches, before)


def _rollout_exclusion(
    rollout: Mapping[str, Any], sequences: list[SequenceColumns], settings: TrainerSettings, *, turns: int
) -> ExclusionReason | None:
    """Why a rollout of the baseline is not trained on; None when it is. `turns` is the number of turns compared."""
    if rollout["withheld"] is not None:
        return ExclusionReason.WITHHELD
    if settings.mask_truncated and rollout["stop_reason"] in TRUNCATIONS:
        return ExclusionReason.TRUNCATED
    return ExclusionReason.UNMATCHED_TURNS if turns > 1 and not _turns_known(rollout, sequences) else None


def _turns_known(rollout: Mapping[str, Any], sequences: list[SequenceColumns]) -> bool:
    """Whether each sampled token, and each turn score, can be matched with a turn of the rollout.

    A record without model calls is from an older version or from other software. Then a sampled span is the turn of its
    position only if no turn is missing: there is one sequence, and it has as many spans as the rollout had turns.
    """
    turns = int(rollout["turns_used"])
    if all(len(sequence.calls) or not sequence.sampled.any() for sequence in sequences):
        answered = (1 + int(sequence.calls[:, 0].max(initial=-1)) for sequence in sequences)
        return len(rollout["turn_scores"]) <= max(turns, *answered, 0)
    return len(sequences) == 1 and sequences[0].turns == turns >= len(rollout["turn_scores"])


def _sequence_exclusion(
    sequence: SequenceColumns, sampling: Mapping[str, Any], settings: TrainerSettings, version: int
) -> ExclusionReason | None:
    """Why a sequence cannot be trained on; None when it can."""
    checks = (
        (len(sequence.tokens) > settings.max_token_trainer_length, ExclusionReason.TOO_LONG),
        (not sequence.targets.any(), ExclusionReason.UNSAMPLED),
        (np.isnan(sequence.logprobs[1:][sequence.targets]).any(), ExclusionReason.NO_LOGPROBS),
        (np.isnan(sequence.oldest_version), ExclusionReason.NO_VERSIONS),
        (version - sequence.oldest_version > settings.max_staleness, ExclusionReason.STALE),
        (not _correctable(sampling), ExclusionReason.UNCORRECTABLE),
    )
    return next((reason for holds, reason in checks if holds), None)


def _correctable(sampling: Mapping[str, Any]) -> bool:
    try:
        request = SamplingRequest.from_parameters({name: sampling[name] for name in ("temperature", "top_p", "top_k")})
    except ConfigError:
        return False
    # Logprobs of unknown kind may be the raw model's.
    return uncorrectable_reason(request, sampling["logprobs"] or "raw") is None


def _token_advantages(sequence: SequenceColumns, by_turn: NDArray[np.float64]) -> NDArray[np.float64]:
    """The advantage of each token, 0 where it was not sampled; the last of `by_turn` is that of all later turns."""
    return np.where(sequence.sampled, by_turn[np.minimum(sequence.turn_of_each, len(by_turn) - 1)], 0.0)


def _example(sequence: SequenceColumns, advantages: NDArray[np.float64]) -> Example:
    return Example(
        tokens=sequence.tokens[:-1],
        targets=sequence.tokens[1:],
        logprobs=np.where(sequence.targets, sequence.logprobs[1:], np.float32(0)),
        advantages=advantages[1:].astype(np.float32),
        mask=sequence.targets.astype(np.float32),
    )


def _zeroed(view: GroupView) -> set[int]:
    """Rollouts that count in the baseline but get advantage 0: Atropos overrides name single rollouts or the group."""
    if view.group["group_overrides"].get(ZEROED):
        return set(range(len(view.rollouts)))
    if ATROPOS not in view.group["provenance"]["versions"]:
        return set()
    text = view.item["item"]["atropos"].get("overrides")
    overrides = fast_json.loads(text) if text else None
    return {index for index, each in enumerate(overrides or []) if isinstance(each, dict) and each.get(ZEROED)}
