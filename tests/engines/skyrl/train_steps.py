"""A few steps on a real engine that move every layer: train_steps.py URL MODEL. The SDK leaves sockets open at its end.

Prints {"sequences", "logprobs": those of all targets after the steps, "sampler": where the weights are}.
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np

from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import Adam, Example
from hermes_rl.training.engines.tinker import TinkerEngine
from hermes_rl.training.utilization import BusyTimer

SEQUENCES, LENGTH, STEPS = 4, 24, 3


async def trained(url: str, model: str) -> dict[str, Any]:
    sequences = np.random.default_rng(0).integers(3, 300, (SEQUENCES, LENGTH))
    ones = np.ones(LENGTH - 1, np.float32)
    examples = [
        Example(tokens[:-1], tokens[1:], -5 * ones, ones * (-1) ** place, ones)
        for place, tokens in enumerate(sequences)
    ]
    settings = TrainerSettings(base_url=url, base_model=model, lora_rank=8, total_steps=STEPS)
    engine = await TinkerEngine.open(settings, None, busy=BusyTimer(), decode=str, context=2048)
    try:
        for _ in range(STEPS):
            await engine.step(examples, "importance_sampling", None, Adam(learning_rate=5e-3))
        sampler = await engine.save_sampler("exported")
        logprobs = [one.tolist() for one in await engine.logprobs(examples)]
    finally:
        await engine.close()
    return {"sequences": sequences.tolist(), "logprobs": logprobs, "sampler": sampler}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(trained(*sys.argv[1:]))))
