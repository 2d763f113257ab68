"""The data of supervised fine-tuning: rollouts chosen from group files, and which of them each step trains on.

Always true: an example has the recorded token ids, and weight 1 on exactly the sampled ones: prompts and tool output
are context. The same files, choice and seed give the same steps. What is not trained on is counted under its reason.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.tolerance import distinct_scores, passes
from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.inference.tokens.tokenizer import differing_id
from hermes_rl.rollout.filters import Withheld
from hermes_rl.store.records import read_groups
from hermes_rl.training.engines.protocol import Example

# A group withheld for these has too little to compare, which says nothing against its single rollouts.
COMPARISONS = frozenset({Withheld.TOO_FEW_SCORED, Withheld.EQUAL_SCORES})


class SftSkipReason(StrEnum):
    EVALUATION = "rollouts_of_evaluations"
    UNSCORED = "rollouts_without_a_score"
    WITHHELD = "rollouts_withheld"
    NO_TOKENS = "rollouts_without_usable_tokens"
    """No sequence has sampled tokens, or all that have are too long."""
    NOT_CHOSEN = "rollouts_not_chosen"
    TOO_LONG = "sequences_too_long"


@dataclass(frozen=True, slots=True)
class RolloutChoice:
    """Which rollouts of a group to train on.

    With `min_score`: those that have at least this score. Without: those above the mean of their group, so none if all
    scores are equal. `top` keeps the best of them; without `min_score` it is 1 by default.
    """

    min_score: float | None = None
    top: int | None = None

    def choose(self, scores: Sequence[float], usable: Iterable[int]) -> list[int]:
        """Indices into `scores` of the chosen rollouts, best first. Only `usable` ones are chosen."""
        if self.min_score is not None:
            wanted = [index for index in usable if passes(scores[index], self.min_score)]
        elif len(distinct_scores(scores)) > 1:
            mean = fmean(scores)
            wanted = [index for index in usable if scores[index] > mean]
        else:
            wanted = []
        best = sorted(wanted, key=lambda index: -scores[index])
        return best[: self.top or (1 if self.min_score is None else None)]


@dataclass(slots=True)
class SftData:
    """Chosen rollouts, each as its sequences; and counts of everything read."""

    rollouts: list[tuple[Example, ...]] = field(default_factory=list)
    groups: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    """Chosen rollouts by the model that sampled them."""
    environments: set[str] = field(default_factory=set)

    @property
    def highest_token(self) -> int:
        return max(
            (int(max(each.tokens.max(), each.targets.max())) for rollout in self.rollouts for each in rollout),
            default=-1,
        )

    def digest(self) -> str:
        """A hash of all tokens and masks, in order."""
        hashed = hashlib.sha256()
        for rollout in self.rollouts:
            hashed.update(b"rollout")
            for example in rollout:
                hashed.update(len(example.targets).to_bytes(8))
                for column in (example.tokens[:1], example.targets, example.mask):
                    hashed.update(column.tobytes())
        return hashed.hexdigest()


@dataclass(frozen=True, slots=True)
class SftPlan:
    """The order of training: each epoch is a permutation of all rollouts, in batches; its last one may be smaller."""

    rollouts: int
    batch_size: int
    epochs: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.rollouts // self.batch_size)

    @property
    def total_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def batch(self, step: int) -> list[int]:
        """The rollouts of the 0-based `step`."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order: list[int] = np.random.default_rng([self.seed, epoch]).permutation(self.rollouts).tolist()
        return order[place * self.batch_size : (place + 1) * self.batch_size]


def read_sft_data(
    files: Sequence[Path],
    choice: RolloutChoice,
    max_tokens: int,
    on_group: Callable[[SftData], object] = lambda _: None,
) -> SftData:
    """Choose rollouts from group files; ConfigError if there are none. Sequences over `max_tokens` are skipped."""
    data = SftData()
    for path in files:
        for group in read_groups(path):
            data.groups += 1
            _add_group(data, group, choice, max_tokens)
            on_group(data)
    data.skipped = +data.skipped
    if not data.rollouts:
        reasons = "; ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in data.skipped.most_common())
        raise ConfigError(
            f"no rollout to train on in {data.groups} groups ({reasons or 'the files are empty'}); choose others with "
            "--min-score and --top"
        )
    return data


def check_tokens(data: SftData, tokenizer: Any, base_model: str, vocabulary: int) -> list[str]:
    """Refuse rollouts with other token ids than the model's, as far as this can be known; returns warnings."""
    if data.highest_token >= vocabulary:
        raise ConfigError(
            f"the rollouts have the token id {data.highest_token}, but {base_model} has {vocabulary} tokens: they come "
            f"from another tokenizer ({', '.join(sorted(data.models))}); make new rollouts with this model"
        )
    warnings = []
    for model, count in sorted(data.models.items()):
        if model == base_model:
            continue
        if (token := differing_id(tokenizer, model)) is not None:
            raise ConfigError(
                f"{count} rollouts come from {model!r}, whose token {token} is not that of {base_model}; make new "
                "rollouts with this model"
            )
        warnings.append(
            f"{count} rollouts come from {model!r}, not from {base_model}; their token ids are used as they are, so "
            "both must have the same tokenizer"
        )
    return warnings


def _add_group(data: SftData, group: Group, choice: RolloutChoice, max_tokens: int) -> None:
    skipped = data.skipped
    if group.split == "eval":
        skipped[SftSkipReason.EVALUATION] += len(group.rollouts)
        return
    scored = list(filter(lambda rollout: _comparable(group, rollout, skipped), group.rollouts))
    examples = [_examples(rollout, max_tokens, skipped) for rollout in scored]
    usable = [index for index, made in enumerate(examples) if made]
    skipped[SftSkipReason.NO_TOKENS] += len(scored) - len(usable)
    chosen = choice.choose([float(rollout.score or 0.0) for rollout in scored], usable)
    skipped[SftSkipReason.NOT_CHOSEN] += len(usable) - len(chosen)
    data.rollouts += [examples[index] for index in chosen]
    if chosen:
        data.models[group.provenance.model] += len(chosen)
        data.environments.add(group.provenance.environment)


def _comparable(group: Group, rollout: Rollout, skipped: Counter[str]) -> bool:
    if not rollout.scored:
        skipped[SftSkipReason.UNSCORED] += 1
    elif rollout.withheld is not None or (group.withheld is not None and group.withheld not in COMPARISONS):
        skipped[SftSkipReason.WITHHELD] += 1
    else:
        return True
    return False


def _examples(rollout: Rollout, max_tokens: int, skipped: Counter[str]) -> tuple[Example, ...]:
    made = []
    for sequence in rollout.sequences:
        if not any(sequence.mask[1:]):
            continue
        if len(sequence.tokens) > max_tokens:
            skipped[SftSkipReason.TOO_LONG] += 1
        else:
            made.append(_example(sequence))
    return tuple(made)


def _example(sequence: TokenSequence) -> Example:
    tokens = np.array(sequence.tokens, np.int64)
    sampled = np.array(sequence.mask[1:], np.float32)
    return Example(tokens[:-1], tokens[1:], np.zeros_like(sampled), sampled, sampled)
