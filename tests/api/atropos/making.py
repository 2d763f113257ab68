"""Bodies as atroposlib sends them."""

import random
from itertools import count
from typing import Any

NUMBERS = count(1)


def make_scored_data(size: int = 4, length: int = 6, **fields: Any) -> dict[str, Any]:
    """A group of its own; a third of each sequence is the prompt. A field that is None is left out."""
    noise = random.Random(next(NUMBERS))
    prompt = length // 3
    tokens = [[noise.randrange(150_000) for _ in range(length)] for _ in range(size)]
    logprobs = [[1.0] * prompt + [-noise.random() for _ in range(length - prompt)] for _ in range(size)]
    made = {
        "tokens": tokens,
        "masks": [[-100] * prompt + row[prompt:] for row in tokens],
        "scores": [noise.random() for _ in range(size)],
        "inference_logprobs": logprobs,
        **fields,
    }
    return {name: value for name, value in made.items() if value is not None}


def make_registration(batch_size: int = 8, **fields: Any) -> dict[str, Any]:
    return {
        "wandb_group": "group",
        "wandb_project": "project",
        "batch_size": batch_size,
        "max_token_len": 4096,
        "checkpoint_dir": "checkpoints",
        "save_checkpoint_interval": 5,
        "starting_step": 0,
        "num_steps": 100,
        **fields,
    }


def make_environment(group_size: int = 4, **fields: Any) -> dict[str, Any]:
    return {"max_token_length": 4096, "desired_name": "words", "weight": 1.0, "group_size": group_size, **fields}
