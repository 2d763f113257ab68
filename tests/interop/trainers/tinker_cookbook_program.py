"""tinker-cookbook's own rollout loop in the environment of scripts/interop_environment: ENVIRONMENT MODEL.

Prints JSON.
"""

import asyncio
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
ROOT = Path(__file__).parents[3]
# This environment has no installation of hermes-rl.
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import tinker  # noqa: E402
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs  # noqa: E402
from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages  # noqa: E402
from tinker_cookbook.rl.rollouts import do_group_rollout  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from hermes_rl.interop.trainers.tinker_cookbook import HermesDatasetBuilder, HermesEnvGroupBuilder  # noqa: E402

# plain_text scores the first with 1 and the second with 0.5.
SAID = ("plain", "ok!?")


class Scripted(TokenCompleter):
    """Says one of SAID in turn, with a logprob that is its position."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.calls = tokenizer, 0

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        text = SAID[self.calls % len(SAID)]
        self.calls += 1
        tokens = [*self.tokenizer.encode(text, add_special_tokens=False), int(stop[0])]
        return TokensWithLogprobs(tokens, [-0.25 * (place + 1) for place in range(len(tokens))], "stop")


async def main(environment: str, folder: str) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    dataset, _ = await HermesDatasetBuilder(
        environment=environment, tokenizer=folder, batches=3, groups_per_batch=2, group_size=4
    )()
    builders = dataset.get_batch(0)
    policy = Scripted(tokenizer)
    groups = [await do_group_rollout(builder, policy) for builder in builders]
    data, _ = assemble_training_data(groups, compute_advantages(groups))
    first = groups[0].trajectories_G[0].transitions[0]
    copy = pickle.loads(pickle.dumps(builders[0]))
    await builders[0].host.close()
    return {
        "batches": len(dataset),
        "builder": isinstance(builders[0], HermesEnvGroupBuilder),
        "rewards": [group.get_total_rewards() for group in groups],
        "prompt": tokenizer.decode(first.ob.to_ints()),
        "action": tokenizer.decode(first.ac.tokens),
        "data": len(data),
        "logprobs": [value for value in data[0].loss_fn_inputs["logprobs"].data if value],
        "copied_item": copy.item,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
