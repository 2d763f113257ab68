"""First updates of the real engine on the frozen batch, through the trainer's own step: URL MODEL OUT.npz.

A process of its own, because the SDK leaves sockets open at its end. Writes `start/NAME` for each tensor of the
adapter, `sampling/N` with the sampling logprobs of each sequence, and `CASE/NAME` for each update. With `--steps N` it
writes `steps/K/NAME` instead: the adapter after K of N steps with the default optimizer.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hermes_rl.core.trajectory import Group, Provenance, Rollout, Sampling, StopReason
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.store.codec import encode
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import Example
from hermes_rl.training.engines.tinker import TinkerEngine
from hermes_rl.training.step import GRPOStep
from hermes_rl.training.utilization import BusyTimer
from hermes_rl.training.weights.adapter import TENSORS
from hermes_rl.training.weights.download import Remote, download_adapter
from hermes_rl.training.weights.tensors import TensorFile, to_float32
from tests.engines.skyrl.parity.cases import BASE, CASES
from tests.engines.skyrl.parity.frozen_batch import FrozenSequence, frozen_batch, step_batches

Tensors = dict[str, NDArray[np.float32]]
SOURCE = Provenance("frozen", "hash", "model", {"hermes-rl": "0"})


async def opened(url: str, model: str, initial: str | None = None) -> TinkerEngine:
    settings = TrainerSettings(base_url=url, base_model=model, lora_rank=8, seed=3, total_steps=100)
    return await TinkerEngine.open(settings, None, busy=BusyTimer(), decode=str, context=2048, initial=initial)


async def adapter(engine: TinkerEngine, url: str, name: str) -> Tensors:
    with tempfile.TemporaryDirectory() as folder:
        await download_adapter(Remote(await engine.save_sampler(name), base_url=url), Path(folder))
        file = TensorFile(Path(folder) / TENSORS)
        return {name: np.array(to_float32(file[name])) for name in file.infos}


def examples(batch: Sequence[FrozenSequence]) -> list[Example]:
    zeros = [np.zeros(len(each.tokens) - 1, np.float32) for each in batch]
    return [
        Example(each.tokens[:-1], each.tokens[1:], zero, zero, each.sampled[1:].astype(np.float32))
        for each, zero in zip(batch, zeros, strict=True)
    ]


def groups(batch: Sequence[FrozenSequence], sampling: Sequence[NDArray[np.float32]]) -> list[bytes]:
    """The batch as the trajectory API would give it."""
    rollouts: dict[tuple[int, int], list[TokenSequence]] = {}
    for each, logprobs in zip(batch, sampling, strict=True):
        kept = [None, *(float(value) if on else None for value, on in zip(logprobs, each.sampled[1:], strict=True))]
        versions = [0 if on else None for on in each.sampled]
        made = TokenSequence(
            tuple(each.tokens.tolist()),
            tuple(map(int, each.sampled)),
            tuple(kept),
            tuple(versions),
            Sampling(1.0, logprobs="raw"),
        )
        rollouts.setdefault((each.group, each.rollout), []).append(made)
    scores = {(each.group, each.rollout): each.score for each in batch}
    return [
        encode(
            Group(
                item_id=str(number),
                item=None,
                rollouts=tuple(
                    Rollout(
                        item_id=str(number),
                        index=key[1],
                        seed=0,
                        messages=[],
                        score=scores[key],
                        stop_reason=StopReason.NATURAL,
                        failure=None,
                        sequences=tuple(sequences),
                    )
                    for key, sequences in rollouts.items()
                    if key[0] == number
                ),
                provenance=SOURCE,
            )
        )
        for number in sorted({key[0] for key in rollouts})
    ]


def sampling_logprobs(batch: Sequence[FrozenSequence], now: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """Those of a policy a little off the first weights."""
    pairs = zip(batch, now, strict=True)
    return [
        np.where(each.sampled[1:], np.minimum(logprobs - each.noise[1:], -1e-4), 0.0).astype(np.float32)
        for each, logprobs in pairs
    ]


async def updates(url: str, model: str) -> dict[str, Any]:
    batch = frozen_batch()
    engine = await opened(url, model)
    try:
        start, now = await adapter(engine, url, "start"), await engine.logprobs(examples(batch))
    finally:
        await engine.close()
    sampling = sampling_logprobs(batch, now)
    result = {f"start/{name}": value for name, value in start.items()}
    result |= {f"sampling/{number}": each for number, each in enumerate(sampling)}
    for case, changed in CASES.items():
        settings = TrainerSettings(base_url=url, base_model=model, total_steps=100, **BASE | changed)
        engine = await opened(url, model)
        try:
            await GRPOStep(settings).run(engine, groups(batch, sampling), step=0, version=0)
            after = await adapter(engine, url, "after")
        finally:
            await engine.close()
        result |= {f"{case}/{name}": after[name] - start[name] for name in start}
    return result


async def warm_state(url: str, model: str, settings: TrainerSettings) -> str:
    """The state of an adapter after a few steps: its B is not 0."""
    batch = step_batches()[0]
    engine = await opened(url, model)
    try:
        stored = groups(batch, sampling_logprobs(batch, await engine.logprobs(examples(batch))))
        step = GRPOStep(settings)
        for number in range(WARM_STEPS):
            await step.run(engine, stored, step=number, version=0)
        return (await engine.save("warm")).state
    finally:
        await engine.close()


async def steps(url: str, model: str, count: int) -> dict[str, Any]:
    """The adapter after some of `count` steps with the default optimizer, starting from a B that is not 0."""
    batches = step_batches()
    settings = TrainerSettings(base_url=url, base_model=model, total_steps=100, **STEPS_SETTINGS)
    engine = await opened(url, model, await warm_state(url, model, settings))
    try:
        result: dict[str, NDArray[np.float32]] = {}
        start = await adapter(engine, url, "start")
        result |= {f"start/{name}": value for name, value in start.items()}
        stored = []
        for number, batch in enumerate(batches):
            sampling = sampling_logprobs(batch, await engine.logprobs(examples(batch)))
            result |= {f"sampling/{number}/{index}": each for index, each in enumerate(sampling)}
            stored.append(groups(batch, sampling))
        step = GRPOStep(settings)
        for number in range(count):
            await step.run(engine, stored[number % len(stored)], step=number, version=0)
            if number + 1 in {1, 3, 10, count}:
                after = await adapter(engine, url, f"step-{number + 1}")
                result |= {f"steps/{number + 1}/{name}": value for name, value in after.items()}
        return result
    finally:
        await engine.close()


STEPS_SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "adam_eps": 1e-8, "max_staleness": 0}
WARM_STEPS = 5


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int)
    chosen = parser.parse_args()
    made = asyncio.run(
        steps(chosen.url, chosen.model, chosen.steps) if chosen.steps else updates(chosen.url, chosen.model)
    )
    np.savez(chosen.out, **made)
