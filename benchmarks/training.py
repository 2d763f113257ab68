"""A step of the trainer beside a bare loop over the tinker SDK, on the same engine and the same data, alternating.

Both train on the same recorded samples and have new weights to sample from at the end of a step. The bare loop keeps
nothing else; ours leases the batch from a trajectory API, computes advantages and metrics, saves a checkpoint with the
optimizer's state, acknowledges the batch and publishes the version.

benchmarks/training.py            SmolLM2-135M, two groups of eight a step, as the recipe for laptops has it
benchmarks/training.py --quick    a random model of two layers, on which a step takes less than waiting for its answer:
                                  no goal is held against it

*Idle* is the part of a step in which the engine had nothing to do.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from uuid import uuid4

import tinker

from hermes_rl.api.client.connection import ApiConnection
from hermes_rl.api.client.trainer import TrainerClient
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.core.trajectory import Group, Provenance, Rollout, Sampling, StopReason
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.store.codec import decode, encode
from hermes_rl.store.database.store import open_store
from hermes_rl.training.batch import training_batch
from hermes_rl.training.checkpoints import Lineage
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import TrainingEngine
from hermes_rl.training.engines.tinker.engine import TinkerEngine, to_datums
from hermes_rl.training.step import GRPOStep
from hermes_rl.training.trainer import Trainer
from hermes_rl.training.utilization import BusyTimer
from hermes_rl.training.weight_sync import EngineWeightSync
from scripts.hf_model import model_folder
from tests.support.api_process import ApiProcess
from tests.support.skyrl_engine import SkyrlEngine

GOAL = 1.15
RANK, RATE = 16, 1e-5


@dataclass(frozen=True)
class Size:
    """`prompt` and `sampled` are in tokens; `rounds` of `steps` each are timed on both sides."""

    model: str
    groups: int
    rollouts: int
    prompt: int
    sampled: int
    steps: int
    rounds: int


WHOLE = Size("smollm2", groups=2, rollouts=8, prompt=136, sampled=48, steps=3, rounds=3)
QUICK = Size("tiny", groups=4, rollouts=16, prompt=16, sampled=8, steps=5, rounds=2)


async def recorded(engine: TinkerEngine, size: Size) -> list[bytes]:
    """One batch, sampled from the engine, with scores of which every other one is 1."""
    sampler = await engine.sampler(await engine.save_sampler("recorded"))
    groups = []
    for number in range(size.groups):
        prompt = [3 + (number * 7 + place) % 200 for place in range(size.prompt)]
        request = SamplingRequest.from_parameters({"max_tokens": size.sampled, "n": size.rollouts, "seed": number})
        answer = await sampler.sample(prompt, request)
        rollouts = tuple(
            Rollout(
                item_id=str(number),
                index=index,
                seed=index,
                messages=[],
                score=float(index % 2),
                stop_reason=StopReason.LENGTH,
                sequences=(
                    TokenSequence(
                        (*prompt, *one.tokens),
                        (*[0] * len(prompt), *[1] * len(one.tokens)),
                        (*[None] * len(prompt), *one.logprobs),
                        (*[None] * len(prompt), *[0] * len(one.tokens)),
                        Sampling(1.0, logprobs="raw"),
                    ),
                ),
            )
            for index, one in enumerate(answer.completions)
        )
        provenance = Provenance("benchmark", "", size.model, {})
        groups.append(encode(Group(item_id=str(number), item={}, rollouts=rollouts, provenance=provenance)))
    return groups


async def bare_seconds(settings: TrainerSettings, data: list[tinker.types.Datum], steps: int) -> list[float]:
    """The loop that anybody would write."""
    service = tinker.ServiceClient(base_url=settings.base_url, api_key="tml-benchmark")
    training = await service.create_lora_training_client_async(settings.base_model, rank=RANK, seed=0)
    seconds = []
    for step in range(steps + 1):
        began = time.monotonic()
        passed = training.forward_backward(data, "importance_sampling")
        moved = training.optim_step(tinker.AdamParams(learning_rate=RATE, beta1=0.9, beta2=0.95, eps=1e-8))
        await passed.result_async()
        await moved.result_async()
        saved = await training.save_weights_for_sampler(f"bare-{step}").result_async()
        await asyncio.to_thread(service.create_sampling_client, saved.path)
        seconds.append(time.monotonic() - began)
    await service.close("success")
    # The first may have compiled.
    return seconds[1:]


async def our_seconds(
    settings: TrainerSettings, groups: Sequence[bytes], steps: int, place: Path
) -> tuple[list[float], list[float]]:
    """Of each step, and the part of it that the engine was idle."""
    settings = settings.model_copy(update={"total_steps": steps + 1})
    database = str(place / "store.db")
    async with open_store(database) as store:
        environment = await store.register_environment("benchmark")
        for _ in range(steps + 1):
            for group in groups:
                await store.add(environment.id, _with_new_id(group))
    busy, seconds, idle = BusyTimer(), list[float](), list[float]()

    async def open_engine(state: str | None) -> TrainingEngine:
        return await TinkerEngine.open(settings, state, busy=busy, decode=str, context=2048)

    def told(_: int, metrics: dict[str, float]) -> None:
        spent = metrics["time/step"]
        seconds.append(spent)
        idle.append(max(0.0, 1 - busy.take() / spent))

    with ApiProcess(database) as api:
        async with ApiConnection(api.url) as connection:
            trainer = Trainer(
                settings,
                Lineage(place / "lineage.jsonl"),
                TrainerClient(connection, "benchmark"),
                open_engine,
                GRPOStep(settings),
                EngineWeightSync(60.0),
                told,
            )
            await trainer.run(StopSignal(60.0))
    return seconds[1:], idle[1:]


def _with_new_id(group: bytes) -> bytes:
    """To the store the same content is the same group."""
    return encode(replace(decode(group), id=uuid4().hex))


async def measured(size: Size, engine: SkyrlEngine) -> dict[str, float]:
    settings = TrainerSettings(
        base_url=engine.url,
        base_model=engine.model,
        lora_rank=RANK,
        batch_size=size.groups * size.rollouts,
        learning_rate=RATE,
        max_staleness=1000,
    )
    first = await TinkerEngine.open(settings, None, busy=BusyTimer(), decode=str, context=2048)
    groups = await recorded(first, size)
    await first.close()
    examples = training_batch(groups, settings, 0).examples
    data = to_datums(examples)
    bare, ours, idle = list[float](), list[float](), list[float]()
    for number in range(size.rounds):
        bare += await bare_seconds(settings, data, size.steps)
        with tempfile.TemporaryDirectory() as place:
            seconds, shares = await our_seconds(settings, groups, size.steps, Path(place))
        ours += seconds
        idle += shares
        print(f"round {number + 1}: bare {median(bare):.2f} s a step, ours {median(ours):.2f} s", file=sys.stderr)
    return {
        "bare_seconds": median(bare),
        "our_seconds": median(ours),
        "ratio": median(ours) / median(bare),
        "engine_idle_share": median(idle),
        "steps": float(len(ours)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the tiny model, within two minutes")
    size = QUICK if parser.parse_args().quick else WHOLE
    options = [
        "--rank",
        str(RANK),
        "--samples",
        str(size.rollouts),
        "--micro-batch",
        str(size.rollouts),
        "--adapters",
        "16",
    ]
    with (
        tempfile.TemporaryDirectory() as home,
        SkyrlEngine(model_folder(size.model), Path(home), *options) as engine,
    ):
        figures = asyncio.run(measured(size, engine))
    goals = {}
    if size is WHOLE:
        goals["ratio"] = {"goal": GOAL, "measured": figures["ratio"], "met": figures["ratio"] <= GOAL}
    print(json.dumps({"benchmark": "training", "figures": figures, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
