"""Rollouts of random tokens for the tiny model: for each prompt a good and a bad one, each with tool output."""

from pathlib import Path

import numpy as np

from hermes_rl.core.trajectory import Group, Provenance, Rollout, Sampling, Sequence, StopReason
from hermes_rl.store.records import RecordWriter, group_to_record

PROMPTS: list[list[int]] = np.random.default_rng(1).integers(3, 300, (8, 12)).tolist()
TOOL_OUTPUT = [7, 8, 9]
TURN = 4
RAW = Sampling(1.0, logprobs="raw")


def token_sequence(prompt: list[int], seed: int) -> Sequence:
    """Two turns of random tokens after the prompt, with tool output between them."""
    first, second = np.random.default_rng([seed, *prompt]).integers(3, 300, (2, TURN)).tolist()
    tokens = [*prompt, *first, *TOOL_OUTPUT, *second]
    mask = [0] * len(prompt) + [1] * TURN + [0] * len(TOOL_OUTPUT) + [1] * TURN
    return Sequence(tuple(tokens), tuple(mask), (None,) * len(tokens), (None,) * len(tokens), RAW)


GOOD = [token_sequence(prompt, 1) for prompt in PROMPTS]
BAD = [token_sequence(prompt, 2) for prompt in PROMPTS]


def group_of(number: int, scored: list[tuple[Sequence, float]], model: str) -> Group:
    rollouts = tuple(
        Rollout(
            item_id=str(number),
            index=index,
            seed=0,
            messages=[],
            score=score,
            stop_reason=StopReason.NATURAL,
            sequences=(sequence,),
        )
        for index, (sequence, score) in enumerate(scored)
    )
    return Group(
        item_id=str(number), item=None, rollouts=rollouts, provenance=Provenance("random", "", model, {}), draw=number
    )


def write_groups(path: Path, model: str) -> Path:
    with RecordWriter(path) as writer:
        for number, (good, bad) in enumerate(zip(GOOD, BAD, strict=True)):
            writer.write(group_to_record(group_of(number, [(bad, 0.0), (good, 1.0)], model)))
    return path
