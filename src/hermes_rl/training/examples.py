"""From the groups of a leased batch to examples.

Always true: each example is one sequence with a sampled token at least, its logprobs and advantages 0 where nothing was
sampled. Baselines are of all rollouts that were scored and not withheld, also of those whose own tokens cannot be
trained on.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.inference.token_engines import SamplingRequest, cannot_correct
from hermes_rl.store.codec import GroupView, open_group
from hermes_rl.training.advantages import ScoredTurns, group_advantages
from hermes_rl.training.batch import LeftOut, Origin, Outcome, TrainingBatch
from hermes_rl.training.columns import SequenceColumns, scores_of, sequences_of
from hermes_rl.training.engine import Example
from hermes_rl.training.settings import TrainerSettings

log = logging.getLogger(__name__)

# The optimizer squares gradients, and what is squared must stay within float32.
LARGEST_ADVANTAGE = 1e19
# The part of a group's provenance that says it came by Atropos' protocol.
ATROPOS = "atropos-protocol"
ZEROED = "set_advantage_to_zero"


@dataclass(slots=True)
class _Share:
    """What one group gives."""

    examples: list[tuple[Example, Origin]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    left_out: Counter[LeftOut] = field(default_factory=Counter)

    @property
    def tokens(self) -> int:
        return sum(len(example.tokens) + 1 for example, _ in self.examples)


def training_batch(groups: Iterable[bytes], settings: TrainerSettings, version: int) -> TrainingBatch:
    """What to train on of a batch's groups, the oldest first. `version` is the policy's now.

    Groups are taken whole until one does not fit into `max_batch_tokens`; one that never would is passed over.
    """
    shares = [_read(data, number, settings, version) for number, data in enumerate(groups)]
    examples: list[tuple[Example, Origin]] = []
    left_out: Counter[LeftOut] = Counter()
    limit, used, full = settings.max_batch_tokens or float("inf"), 0, False
    for share in shares:
        left_out.update(share.left_out)
        full = full or used + share.tokens > limit >= share.tokens
        if share.examples and (full or share.tokens > limit):
            left_out[LeftOut.BEYOND_BATCH] += 1
        else:
            examples += share.examples
            used += share.tokens
    return TrainingBatch(
        groups=len(shares),
        examples=tuple(example for example, _ in examples),
        origins=tuple(origin for _, origin in examples),
        outcomes=tuple(outcome for share in shares for outcome in share.outcomes),
        left_out=left_out,
    )


def _read(data: bytes, number: int, settings: TrainerSettings, version: int) -> _Share:
    try:
        return _share(open_group(data), number, settings, version)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        # The API does not look into everything, and one group must not end a run each time it is leased.
        log.warning("group %d of the batch cannot be read: %s: %s", number, type(error).__name__, error)
        return _Share(left_out=Counter({LeftOut.UNREADABLE: 1}))


def _share(view: GroupView, number: int, settings: TrainerSettings, version: int) -> _Share:
    share = _Share()
    if view.group["withheld"] is not None:
        share.left_out[LeftOut.GROUP_WITHHELD] += 1
        return share
    sequences = sequences_of(view.columns)
    share.outcomes = list(_outcomes(view, number, sequences, share.left_out))
    advantages = _advantages(view, share, settings)
    largest = max((float(np.abs(one).max(initial=0.0)) for one in advantages.values()), default=0.0)
    if largest == 0 or largest > LARGEST_ADVANTAGE:
        share.left_out[LeftOut.ZERO_SIGNAL if largest == 0 else LeftOut.OVERFLOW] += 1
        return share
    for outcome, worth in advantages.items():
        ways = view.rollouts[outcome.rollout]["sampling"]
        turn = 0
        for index, (sequence, way) in enumerate(zip(sequences[outcome.rollout], ways, strict=True)):
            reason = _reason(sequence, way, settings, version)
            if reason is None:
                origin = Origin(outcome, index, int(version - sequence.oldest_version))
                share.examples.append((_example(sequence, worth[turn : turn + sequence.turns]), origin))
            else:
                share.left_out[reason] += 1
            turn += sequence.turns
    return share


def _outcomes(
    view: GroupView, number: int, sequences: list[list[SequenceColumns]], left_out: Counter[LeftOut]
) -> Iterator[Outcome]:
    environment = str(view.group["provenance"].get("environment"))
    for index, (score, about) in enumerate(zip(scores_of(view.columns), view.rollouts, strict=True)):
        if score is None:
            left_out[LeftOut.UNSCORED] += 1
        elif about["withheld"] is not None:
            left_out[LeftOut.WITHHELD] += 1
        else:
            turns = sum(sequence.turns for sequence in sequences[index])
            components = {name: float(value) for name, value in about["components"].items()}
            yield Outcome(environment, number, index, score, components, turns)


def _advantages(view: GroupView, share: _Share, settings: TrainerSettings) -> dict[Outcome, NDArray[np.float64]]:
    """By rollout, one a turn."""
    compared: dict[Outcome, ScoredTurns] = {}
    for outcome in share.outcomes:
        turn_scores = tuple(map(float, view.rollouts[outcome.rollout]["turn_scores"]))
        scored = ScoredTurns(outcome.score, outcome.turns, turn_scores)
        if settings.per_turn and len(scored.turn_scores) > scored.turns:
            share.left_out[LeftOut.UNMATCHED_TURNS] += 1
        else:
            compared[outcome] = scored
    advantages = group_advantages(list(compared.values()), settings.advantage, per_turn=settings.per_turn)
    zeroed = _zeroed(view)
    return {
        outcome: np.zeros_like(worth) if outcome.rollout in zeroed else worth
        for outcome, worth in zip(compared, advantages, strict=True)
    }


def _reason(
    sequence: SequenceColumns, sampling: Mapping[str, Any], settings: TrainerSettings, version: int
) -> LeftOut | None:
    """Why a sequence cannot be trained on; None when it can."""
    checks = (
        (len(sequence.tokens) > settings.max_token_trainer_length, LeftOut.TOO_LONG),
        (not sequence.targets.any(), LeftOut.UNSAMPLED),
        (np.isnan(sequence.logprobs[1:][sequence.targets]).any(), LeftOut.NO_LOGPROBS),
        (np.isnan(sequence.oldest_version), LeftOut.NO_VERSIONS),
        (version - sequence.oldest_version > settings.max_staleness, LeftOut.STALE),
        (not _correctable(sampling), LeftOut.UNCORRECTABLE),
    )
    return next((reason for holds, reason in checks if holds), None)


def _correctable(sampling: Mapping[str, Any]) -> bool:
    try:
        request = SamplingRequest.of({name: sampling[name] for name in ("temperature", "top_p", "top_k")})
    except ConfigError:
        return False
    # Where nobody said what the logprobs are of, they may be the raw model's.
    return cannot_correct(request, sampling["logprobs"] or "raw") is None


def _example(sequence: SequenceColumns, advantages: NDArray[np.float64]) -> Example:
    worth = np.zeros(len(sequence.targets), np.float32)
    worth[sequence.targets] = advantages[sequence.turn_of_each[1:][sequence.targets]]
    return Example(
        tokens=sequence.tokens[:-1],
        targets=sequence.tokens[1:],
        logprobs=np.where(sequence.targets, sequence.logprobs[1:], np.float32(0)),
        advantages=worth,
        mask=sequence.targets.astype(np.float32),
    )


def _zeroed(view: GroupView) -> set[int]:
    """The rollouts that are to be compared with and not learned from, as Atropos' overrides say of one or of all."""
    if view.group["group_overrides"].get(ZEROED):
        return set(range(len(view.rollouts)))
    if ATROPOS not in view.group["provenance"]["versions"]:
        return set()
    kept = view.item["item"]["atropos"].get("overrides")
    each = jsontext.loads(kept) if kept else None
    return {index for index, one in enumerate(each or []) if isinstance(one, dict) and one.get(ZEROED)}
