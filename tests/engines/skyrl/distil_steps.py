"""What saved weights say of the rollouts, and on-policy distillation: distil_steps.py URL MODEL RUN.

A process of its own, because the SDK leaves sockets open at its end. The teacher is trained first: on the base model's
own rollouts, those with the most even token ids. Then a fresh student learns from it, without a reward. Prints
{"logprobs": {"base" and "taught" (by RUN): {"good" and "bad": the mean of a sampled token}}, "metrics": of each step}.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hermes_rl.core.shutdown import StopSignal
from hermes_rl.core.trajectory import Group
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.store.codec import encode
from hermes_rl.store.records import RecordWriter, group_to_record
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.tinker import TinkerEngine
from hermes_rl.training.policy import WeightsSampler
from hermes_rl.training.run_folder import RunFolder
from hermes_rl.training.sft import run_sft
from hermes_rl.training.sft_data import RolloutChoice, SftPlan, read_sft_data
from hermes_rl.training.step import GRPOStep
from hermes_rl.training.teacher import WeightsAtEngine, find_teacher
from hermes_rl.training.utilization import BusyTimer
from tests.engines.skyrl.sft_data import BAD, GOOD, PROMPTS, RAW, group_of

TEACHER, TEACHER_EPOCHS, STEPS = "even", 4, 20
STUDIED, SAMPLES, LENGTH = 4, 64, 4


async def mean_logprob(sampler: WeightsSampler, sequences: Sequence[TokenSequence]) -> float:
    rows = await asyncio.gather(*(sampler.logprobs(sequence.tokens) for sequence in sequences))
    pairs = [(row, sequence.mask) for row, sequence in zip(rows, sequences, strict=True)]
    return float(np.mean([value for row, mask in pairs for value, sampled in zip(row, mask, strict=True) if sampled]))


async def rollouts(sampler: WeightsSampler, version: int, model: str) -> list[Group]:
    """Scored by their share of even token ids."""
    seeds = [1000 * version + number for number in range(STUDIED)]
    requests = [SamplingRequest.from_parameters({"max_tokens": LENGTH, "n": SAMPLES, "seed": seed}) for seed in seeds]
    prompts = PROMPTS[:STUDIED]
    answers = await asyncio.gather(*map(sampler.sample, prompts, requests))
    groups = []
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        scored = [
            (
                TokenSequence(
                    (*prompt, *each.tokens),
                    (0,) * len(prompt) + (1,) * len(each.tokens),
                    (None,) * len(prompt) + tuple(each.logprobs),
                    (None,) * len(prompt) + (version,) * len(each.tokens),
                    RAW,
                ),
                sum(token % 2 == 0 for token in each.tokens) / len(each.tokens),
            )
            for each in answer.completions
        ]
        groups.append(group_of(number, scored, model))
    return groups


async def train_teacher(settings: TrainerSettings, groups: Sequence[Group]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with RecordWriter(Path(folder) / "groups.jsonl") as writer:
            for group in groups:
                writer.write(group_to_record(group))
        data = read_sft_data([writer.path], RolloutChoice(top=SAMPLES // 4), 100)
    plan = SftPlan(len(data.rollouts), settings.batch_size, TEACHER_EPOCHS, settings.seed)
    await run_sft(settings, RunFolder.named(TEACHER), StopSignal(60.0), data, plan)


async def distilled(url: str, model: str, run: str) -> dict[str, Any]:
    settings = TrainerSettings(
        base_url=url, base_model=model, lora_rank=8, total_steps=STEPS, learning_rate=LR, batch_size=64, use_wandb=False
    )
    engine = await TinkerEngine.open(settings, None, busy=BusyTimer(), decode=str, context=2048)
    try:
        taught = find_teacher(settings.model_copy(update={"teacher": run}))
        assert isinstance(taught, WeightsAtEngine)
        base, samplers = await engine.sampler(None), {"taught": await engine.sampler(taught.path)}
        logprobs = {
            name: {"good": await mean_logprob(sampler, GOOD), "bad": await mean_logprob(sampler, BAD)}
            for name, sampler in {"base": base, **samplers}.items()
        }
        await train_teacher(settings, await rollouts(base, 0, model))
        step, metrics = GRPOStep(settings.model_copy(update={"teacher": TEACHER, "reward_coef": 0.0})), []
        for number in range(STEPS):
            student = await engine.sampler(await engine.save_sampler(f"student-{number}"))
            groups = [encode(group) for group in await rollouts(student, number, model)]
            metrics.append((await step.run(engine, groups, step=number, version=number)).metrics)
        return {"logprobs": logprobs, "metrics": metrics}
    finally:
        await engine.close()


LR = float(sys.argv[4]) if len(sys.argv) > 4 else 5e-3

if __name__ == "__main__":
    print(json.dumps(asyncio.run(distilled(*sys.argv[1:4]))))
