"""Rollouts for the viewer's benchmark: made by rule from a seed, as real ones are in shape and size.

Always true: the same number gives the same bytes. A rollout takes about 10 kB of JSONL, its exact tokens included.
"""

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.trajectory import (
    Group,
    Provenance,
    Rollout,
    Sampling,
    Sequence,
    Span,
    StopReason,
    Timing,
    ToolUse,
    Usage,
)
from hermes_rl.store.records import RecordWriter, group_to_record

GROUP_SIZE = 8
# Of the text: as many words as a project's logs have, some of them rare.
VOCABULARY = 30_000
PROVENANCE = Provenance("terminal_words", "0" * 16, "a-model", {"hermes-rl": "1"}, config_hash="1" * 16)
SAMPLING = Sampling(1.0)
TOOLS = ("terminal", "read_file", "write_file", "web_search")


@cache
def words() -> list[str]:
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(rng.choices(letters, k=rng.randint(3, 11))) for _ in range(VOCABULARY)]


def groups(count: int) -> Iterator[Group]:
    known = words()
    for number in range(count):
        yield make_group(number, known)


def make_group(number: int, known: list[str]) -> Group:
    rng = random.Random(number)
    item = {"question": f"Question {number}: {_text(rng, known, 20)}", "answer": str(number)}
    return Group(
        item_id=f"item-{number % 2_000}",
        item=item,
        rollouts=tuple(_rollout(rng, known, number, index) for index in range(GROUP_SIZE)),
        provenance=PROVENANCE,
        tools=TOOLS,
        id=f"{number:016x}",
        draw=number,
        created_at=f"2026-11-16T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}+00:00",
    )


def write_lines(path: Path, count: int) -> int:
    """So many groups as JSONL; its bytes."""
    with RecordWriter(path) as writer:
        for group in groups(count):
            writer.write(group_to_record(group))
    return path.stat().st_size


def _rollout(rng: random.Random, known: list[str], group: int, index: int) -> Rollout:
    turns = rng.randint(1, 4)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a careful agent."},
        {"role": "user", "content": f"Question {group}: {_text(rng, known, 40)}"},
    ]
    uses = []
    for turn in range(turns):
        name, call = rng.choice(TOOLS), f"call_{group}_{index}_{turn}"
        arguments = f'{{"command": "grep {_text(rng, known, 2)}"}}'
        messages.append(
            {
                "role": "assistant",
                "content": _text(rng, known, 25),
                "reasoning_content": _text(rng, known, 40),
                "tool_calls": [{"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}],
            }
        )
        result = _text(rng, known, 60)
        messages.append({"role": "tool", "tool_call_id": call, "content": result})
        error = "exit code 1" if rng.random() < 0.1 else None
        uses.append(ToolUse(turn, call, name, arguments, result, error))
    messages.append({"role": "assistant", "content": _text(rng, known, 30)})
    failed = rng.random() < 0.03
    length = 40
    tokens = tuple(rng.randrange(50_000) for _ in range(length))
    mask = tuple(int(place > 10) for place in range(length))
    sequence = Sequence(
        tokens,
        mask,
        tuple(round(-rng.random(), 4) if kept else None for kept in mask),
        tuple(group // 100 if kept else None for kept in mask),
        SAMPLING,
    )
    return Rollout(
        item_id=f"item-{group % 2_000}",
        index=index,
        seed=group * 100 + index,
        messages=messages,
        score=None if failed else round(rng.random(), 3),
        stop_reason=None if failed else rng.choice((StopReason.NATURAL, StopReason.NATURAL, StopReason.MAX_TURNS)),
        failure=Failure(FailureSource.SANDBOX, "died", "the sandbox is gone") if failed else None,
        components={"tests": rng.random(), "style": rng.random()},
        turns_used=turns + 1,
        tool_uses=tuple(uses),
        usage=Usage(400 * turns, 60 * turns),
        timings=tuple(Timing(Span.MODEL, "model", float(turn), 0.5) for turn in range(turns)),
        seconds=round(rng.random() * 60, 2),
        sequences=(sequence,),
        metadata={"task_id": f"task-{group}", "prompt_length": 2},
    )


def _text(rng: random.Random, known: list[str], count: int) -> str:
    # Words come as often as in any language: the nth by 1/n, near enough.
    size = len(known)
    return " ".join(known[int(size ** rng.random()) - 1] for _ in range(count))
