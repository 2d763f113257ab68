"""What trajectory_api.py posts: one made group in both forms, as any number of groups that differ in their ids.

Always true: bodies of one group share all bytes but the few that say its id, so ten thousand of them take no memory; a
body is a list of pieces, to be sent or joined.
"""

import hashlib
import json
import zlib
from dataclasses import replace
from typing import Any

from benchmarks.codec import made_group
from hermes_rl.core import fast_json
from hermes_rl.core.trajectory import Group
from hermes_rl.store.codec import encode
from hermes_rl.store.container import HEADER_OFFSET, frame, json_part, unpack_parts

ROLLOUTS = 16
SEEDS = 2**31


def bench_group(tokens: int) -> Group:
    group = made_group(ROLLOUTS, tokens)
    return replace(group, rollouts=tuple(replace(one, seed=one.seed % SEEDS) for one in group.rollouts))


class BinaryBodies:
    """Groups in their binary form. Messages are in it, which Atropos' JSON here does without."""

    def __init__(self, data: bytes) -> None:
        parts = unpack_parts(data)
        length = int.from_bytes(data[12:16], "little")
        self._about = parts.json("group")
        self._header: dict[str, Any] = fast_json.loads(data[HEADER_OFFSET : HEADER_OFFSET + length])
        body = data[HEADER_OFFSET + length + -(HEADER_OFFSET + length) % 8 :]
        self._place = next(place for place, part in enumerate(self._header["parts"]) if part["name"] == "group")
        here = self._header["parts"][self._place]
        after = self._header["parts"][self._place + 1]["offset"]
        self._before, self._after, self._moved_from = body[: here["offset"]], body[after:], after

    def pieces(self, number: int) -> list[bytes]:
        part = json_part("group", {**self._about, "id": f"group-{number}", "draw": number})
        listed = [dict(one) for one in self._header["parts"]]
        filled = part.data + bytes(-len(part.data) % 8)
        listed[self._place].update(size=part.size, length=len(part.data), crc32=zlib.crc32(part.data))
        for one in listed[self._place + 1 :]:
            one["offset"] += listed[self._place]["offset"] + len(filled) - self._moved_from
        name = hashlib.sha256(str(number).encode()).hexdigest()
        header = frame(fast_json.dumps({"id": name, "parts": listed}), b"")
        return [header, self._before, filled, self._after]

    def joined(self, number: int) -> bytes:
        return b"".join(self.pieces(number))


class JsonBodies:
    """Groups as Atropos' environments send them: tokens, masks, logprobs and scores."""

    def __init__(self, text: bytes, environment: int) -> None:
        self._text = text
        self._environment = environment

    def pieces(self, number: int) -> list[bytes]:
        scores = [number + index / ROLLOUTS for index in range(ROLLOUTS)]
        return [self._text, f', "scores": {json.dumps(scores)}, "env_id": {self._environment}}}'.encode()]


def json_text(group: Group) -> bytes:
    """All of the body but its scores, which make it another group."""
    sequences = [rollout.sequences[0] for rollout in group.rollouts]
    body = {
        "tokens": [one.tokens for one in sequences],
        "masks": [
            [token if sampled else -100 for token, sampled in zip(one.tokens, one.mask, strict=True)]
            for one in sequences
        ],
        "inference_logprobs": [[1.0 if logprob is None else logprob for logprob in one.logprobs] for one in sequences],
    }
    return json.dumps(body).encode()[:-1]


def made_bodies(tokens: int) -> tuple[bytes, bytes]:
    """A group of so many tokens a rollout, in both forms."""
    group = bench_group(tokens)
    return encode(group), json_text(group)
