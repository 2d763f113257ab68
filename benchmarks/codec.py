"""A group of 16 rollouts of 8,192 tokens in its binary form, beside its rollouts as JSON (orjson, gzip 9), alternating.

CPU time of one process. The goals are held against the fastest of the repeats: work beside it on the same core adds up
to a half, and never takes away. *View* is opening the group and taking every number of it, checked.
*Size* is compared with the bare numbers (int32 ids, one bit of mask, float32 logprobs of the sampled tokens) and the
messages alone in zstd.
"""

import argparse
import gzip
import json
import random
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.trajectory import Group, Provenance, Rollout, Sampling, Sequence, StopReason, ToolUse
from hermes_rl.store.codec import decode, encode, open_group
from hermes_rl.store.container import json_part
from hermes_rl.store.records import rollout_from_record, rollout_to_record

ROLLOUTS, TOKENS, TURNS = 16, 8192, 16
GOALS = {"encode_ms": 30.0, "decode_ms": 40.0, "view_ms": 2.0, "size_to_bare": 1.1}


def made_group(rollouts: int, tokens: int) -> Group:
    """A quarter of each turn is given, the rest sampled; ids and words are spread as in text, few of them often."""
    chance = random.Random(7)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(20_000)]

    def often_low(below: int, count: int) -> list[int]:
        return [int(below ** chance.random()) for _ in range(count)]

    def text(count: int) -> str:
        return " ".join(words[place] for place in often_low(len(words), count))

    def sequence() -> Sequence:
        turn = tokens // TURNS
        mask = tuple(int(place % turn >= turn // 4) for place in range(tokens))
        return Sequence(
            tokens=tuple(often_low(150_000, tokens)),
            mask=mask,
            logprobs=tuple(-chance.expovariate(2.0) if sampled else None for sampled in mask),
            versions=tuple((300 + place * 2 // tokens) if sampled else None for place, sampled in enumerate(mask)),
            sampling=Sampling(1.0, logprobs="raw"),
        )

    def rollout(index: int) -> Rollout:
        messages: list[dict[str, Any]] = [{"role": "user", "content": text(200)}]
        uses = []
        # About four tokens to three words.
        spoken = tokens // TURNS * 3 // 4
        for turn in range(TURNS):
            arguments, result = fast_json.dumps({"command": text(20)}).decode(), text(spoken // 4)
            call = {"id": f"call_{turn}", "type": "function", "function": {"name": "terminal", "arguments": arguments}}
            messages += [
                {"role": "assistant", "content": text(spoken * 3 // 4 - 20), "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"call_{turn}", "content": result},
            ]
            uses.append(ToolUse(turn, f"call_{turn}", "terminal", arguments, result))
        return Rollout(
            item_id="item",
            index=index,
            seed=chance.getrandbits(63),
            messages=messages,
            score=chance.random(),
            stop_reason=StopReason.NATURAL,
            turns_used=TURNS,
            tool_uses=tuple(uses),
            sequences=(sequence(),),
        )

    return Group(
        item_id="item",
        item={"question": text(200)},
        rollouts=tuple(map(rollout, range(rollouts))),
        provenance=Provenance("bench", "hash", "model", {"hermes-rl": "0"}),
    )


def bare_size(group: Group) -> int:
    masks = [sequence.mask for rollout in group.rollouts for sequence in rollout.sequences]
    numbers = sum(4 * len(mask) + len(mask) / 8 + 4 * sum(mask) for mask in masks)
    return int(numbers) + len(json_part("messages", [rollout.messages for rollout in group.rollouts]).data)


def to_json(group: Group) -> bytes:
    return gzip.compress(fast_json.dumps([rollout_to_record(rollout) for rollout in group.rollouts]), 9)


def of_json(data: bytes) -> list[Rollout]:
    return [rollout_from_record(record) for record in fast_json.loads(gzip.decompress(data))]


def cpu_ms(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three repeats, in under half a minute")
    repeats = 3 if parser.parse_args().quick else 15
    group = made_group(ROLLOUTS, TOKENS)
    data, text = encode(group), to_json(group)
    work: dict[str, Callable[[], object]] = {
        "encode_ms": lambda: encode(group),
        "decode_ms": lambda: decode(data),
        "view_ms": lambda: open_group(data).columns,
        "json_encode_ms": lambda: to_json(group),
        "json_decode_ms": lambda: of_json(text),
    }
    runs: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, one in work.items():
            runs[name].append(cpu_ms(one))
    fastest = {name: round(min(times), 2) for name, times in runs.items()}
    measured = {**fastest, "size_to_bare": round(len(data) / bare_size(group), 3)}
    goals = {
        name: {"goal": goal, "measured": measured[name], "met": measured[name] < goal} for name, goal in GOALS.items()
    }
    figures = {
        "rollouts": ROLLOUTS,
        "tokens": TOKENS,
        "repeats": repeats,
        "fastest": fastest,
        "median": {name: round(median(times), 2) for name, times in runs.items()},
        "bytes": {"binary": len(data), "bare": bare_size(group), "json_gzip": len(text)},
        "json_to_binary": {
            "encode": round(fastest["json_encode_ms"] / fastest["encode_ms"], 1),
            "decode": round(fastest["json_decode_ms"] / fastest["decode_ms"], 1),
            "bytes": round(len(text) / len(data), 2),
        },
    }
    print(json.dumps({"benchmark": "codec", "figures": figures, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
