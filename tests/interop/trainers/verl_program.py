"""verl's AgentLoopBase and its types: ENVIRONMENT MODEL. Prints JSON."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
ROOT = Path(__file__).parents[3]
# This environment has no installation of hermes-rl.
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from omegaconf import OmegaConf  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, DictConfigWrap  # noqa: E402
from verl.utils.dataset.rl_dataset import RLHFDataset  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402

from hermes_rl.interop.trainers.verl import HermesAgentLoop  # noqa: E402


class Client:
    """Stands for verl's client of its servers, which need a GPU."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.asked: list[dict[str, Any]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.asked.append(sampling_params)
        text = self.tokenizer.encode("ok!?", add_special_tokens=False)
        tokens = [*text, sampling_params["stop_token_ids"][0]]
        return TokenOutput(token_ids=tokens, log_probs=[-0.5] * len(tokens), stop_reason="completed")


async def main(environment: str, folder: str) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    client = Client(tokenizer)
    config = OmegaConf.create(
        {"actor_rollout_ref": {"rollout": {"response_length": 4, "prompt_length": 64}}, "data": {}}
    )
    loops = [
        HermesAgentLoop(
            DictConfigWrap(config),
            client,
            tokenizer,
            None,
            RLHFDataset,
            DictConfigWrap(config.data),
            hf_model_type="qwen3",
            environment=environment,
        )
        for _ in range(2)
    ]
    output = (await asyncio.gather(*(loop.run({"temperature": 0.7}, hermes_item=1) for loop in loops)))[0]
    shapes = {name: list(value.shape) for name, value in output.as_dict().items() if hasattr(value, "shape")}
    await loops[0].host.close()
    return {
        "base": isinstance(loops[0], AgentLoopBase),
        "shared": loops[0].host is loops[1].host,
        "prompt": tokenizer.decode(output.prompt_ids),
        "mask": output.response_mask,
        "logprobs": output.response_logprobs,
        "score": output.reward_score,
        "temperature": client.asked[0]["temperature"],
        "shapes": shapes,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
