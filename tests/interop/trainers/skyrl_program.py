"""SkyRL's types and its own check of a generator's output: ENVIRONMENT MODEL. Prints JSON.

SkyRL 0.3.0 gives typing.TypedDict to pydantic, which takes that from Python 3.12 only; here it gets the other one.
"""

import asyncio
import json
import os
import sys
import typing
from pathlib import Path
from typing import Any

import typing_extensions

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
vars(typing)["TypedDict"] = typing_extensions.TypedDict
ROOT = Path(__file__).parents[3]
# This environment has no installation of hermes-rl.
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, TrajectoryID  # noqa: E402
from skyrl.train.utils.trainer_utils import validate_generator_output  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from hermes_rl.interop.trainers.skyrl import HermesGenerator, dataset_rows  # noqa: E402

# plain_text scores the first with 1 and the second with 0.5.
SAID = ("plain", "ok!?")


class Engine:
    """Stands for SkyRL's inference engines, which need a GPU: says one of SAID in turn."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.asked: list[dict[str, Any]] = []

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        text = SAID[len(self.asked) % len(SAID)]
        self.asked.append(input_batch)
        stop = input_batch["sampling_params"]["stop_token_ids"][0]
        tokens = [*self.tokenizer.encode(text, add_special_tokens=False), stop]
        return {
            "responses": [text],
            "response_ids": [tokens],
            "stop_reasons": ["stop"],
            "response_logprobs": [[-0.5] * len(tokens)],
        }


async def main(environment: str, folder: str) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    engine = Engine(tokenizer)
    generator = HermesGenerator(environment, folder, engine)
    rows = (await dataset_rows(generator))[:2]
    batch = GeneratorInput(
        prompts=[row["prompt"] for row in rows for _ in range(2)],
        env_classes=[row["env_class"] for row in rows for _ in range(2)],
        env_extras=[{"hermes_item": row["hermes_item"]} for row in rows for _ in range(2)],
        sampling_params={"temperature": 0.7, "max_tokens": 6},
        trajectory_ids=[TrajectoryID(str(number), repetition) for number in range(2) for repetition in range(2)],
        batch_metadata=None,
    )
    output = await generator.generate(batch)
    validate_generator_output(len(batch["prompts"]), output)
    await generator.host.close()
    return {
        "interface": isinstance(generator, GeneratorInterface),
        "prompts": [tokenizer.decode(ids) for ids in output["prompt_token_ids"]],
        "rewards": sorted(output["rewards"]),
        "masks": [sorted(set(mask)) for mask in output["loss_masks"]],
        "logprobs": sorted({value for row in output["rollout_logprobs"] or [] for value in row}),
        "sampling": {name: engine.asked[0]["sampling_params"][name] for name in ("temperature", "max_tokens")},
        "sessions": len({each["session_ids"][0] for each in engine.asked}),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
