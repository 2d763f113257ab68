"""TRL's real AsyncGRPOTrainer in the environment of scripts/interop_environment: MODEL WHAT FOLDER. Prints JSON last.

learn: plain_text for some steps, the mean reward of each. versions: samples before and after new weights, each against
the logprobs of the weights that its version names. server: samples through a server that speaks vLLM's token routes.

Two parts of TRL need CUDA: the name of the GPU, and the FlashAttention-3 kernel. The first is left out here, and the
second is computed by torch.
"""

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
ROOT = Path(__file__).parents[3]
# This environment has no installation of hermes-rl.
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from trl.experimental.async_grpo import (  # noqa: E402
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    async_grpo_trainer,
    packing,
)
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample  # noqa: E402

from hermes_rl.inference.tokens.chat_format import FormatSettings  # noqa: E402
from hermes_rl.inference.tokens.tokenizer import load_tokenizer  # noqa: E402
from hermes_rl.interop.trainers.trl import placeholder_dataset, unused_reward  # noqa: E402
from hermes_rl.interop.trainers.trl_async import HermesRolloutWorker, LocalWeights, ServerPolicy  # noqa: E402
from hermes_rl.training.inference_server.config import ChatFormats, InferenceSettings  # noqa: E402
from hermes_rl.training.inference_server.server import inference_server  # noqa: E402

ENVIRONMENT = str(ROOT / "examples" / "plain_text_env.py")
STEPS, GROUP, SAMPLES = 28, 8, 48
SETTINGS = {"seed": 0, "group_size": GROUP, "agent_temperature": 1.0}
# Seconds in which the rollouts of a check must come.
DEADLINE_S = 300.0


def attention(
    query: Any,
    key: Any,
    value: Any,
    begins: Any,
    path_begins: Any,
    *_: Any,
    softmax_scale: float | None,
    **__: Any,
) -> Any:
    """Variable-length causal attention whose masks are aligned at the end, as the kernel's are."""
    parts = []
    for index in range(len(begins) - 1):
        own = slice(int(begins[index]), int(begins[index + 1]))
        path = slice(int(path_begins[index]), int(path_begins[index + 1]))
        rows, columns = own.stop - own.start, path.stop - path.start
        causal = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        heads = [part.transpose(0, 1)[None] for part in (query[own], key[path], value[path])]
        output = torch.nn.functional.scaled_dot_product_attention(
            *heads, attn_mask=causal, scale=softmax_scale, enable_gqa=True
        )
        parts.append(output[0].transpose(0, 1))
    return torch.cat(parts)


def without_cuda() -> None:
    async_grpo_trainer.get_peak_flops_per_device = lambda *_, **__: None
    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attention)


def learn(model: str, folder: str) -> dict[str, Any]:
    without_cuda()
    weights = LocalWeights(model)
    worker = HermesRolloutWorker(ENVIRONMENT, weights, model, max_queued=32, settings=SETTINGS)
    args = AsyncGRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        dtype="float32",
        report_to=[],
        seed=0,
        max_steps=STEPS,
        # Samples of a micro-batch, instead of tokens.
        token_budget=0,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        max_staleness=2,
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = AsyncGRPOTrainer(
        model=model,
        args=args,
        train_dataset=placeholder_dataset(GROUP),
        reward_funcs=unused_reward,
        rollout_worker=worker,
        weight_transfer=weights,
    )
    trainer.train()
    lines = [line for line in trainer.state.log_history if "reward" in line]
    return {
        "rewards": [line["reward"] for line in lines],
        "staleness": [line["sample/staleness_mean"] for line in lines],
        "version": weights.version,
        "same_weights": all(
            torch.equal(own, copied)
            for own, copied in zip(trainer.model.parameters(), weights._copy.parameters(), strict=True)
        ),
        "threads": [thread.name for thread in threading.enumerate() if thread.name == "hermes-rl"],
    }


def taken(worker: HermesRolloutWorker, number: int) -> list[RolloutSample]:
    return [worker.rollout_buffer.get(timeout=DEADLINE_S) for _ in range(number)]


def logprob_error(model: Any, sample: RolloutSample) -> float:
    """The largest difference between a sample's logprobs and those of the model."""
    ids = torch.tensor(sample.input_ids)
    with torch.no_grad():
        own = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    sampled = torch.tensor(sample.completion_mask[1:]).bool()
    return float((own - torch.tensor(sample.old_log_probs[1:]))[sampled].abs().max())


def loaded(model: str) -> Any:
    made: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return made.eval()


def versions(model: str) -> dict[str, Any]:
    first = loaded(model)
    second = loaded(model)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(1.1)
    models = {1: first, 2: second}
    weights = LocalWeights(model)
    worker = HermesRolloutWorker(ENVIRONMENT, weights, model, max_queued=16, settings=SETTINGS)
    publish(worker, weights, models, 1)
    worker.start()
    samples = taken(worker, SAMPLES // 2)
    # While rollouts run.
    publish(worker, weights, models, 2)
    while sum(sample.model_version == 2 for sample in samples) < SAMPLES // 2:
        samples += taken(worker, 1)
    worker.check_health(DEADLINE_S)
    worker.stop()
    return {
        "versions": sorted({sample.model_version for sample in samples}),
        "own_error": max(logprob_error(models[sample.model_version], sample) for sample in samples),
        "other_error": max(logprob_error(models[3 - sample.model_version], sample) for sample in samples),
        "advantages": [sum(one.advantage for one in samples if one.group_id == group) for group in (0, 1)],
        "columns": [str(getattr(samples[0], name).dtype) for name in ("input_ids", "completion_mask", "old_log_probs")],
        "sampled": [int(sample.completion_mask.sum()) for sample in samples],
        "reward": samples[0].metrics["reward"],
    }


def publish(worker: HermesRolloutWorker, weights: LocalWeights, models: dict[int, Any], version: int) -> None:
    """In the order of TRL's `_sync_weight`."""
    weights.pause()
    weights.send_weights(iter(models[version].named_parameters()))
    weights.resume()
    worker.update_model_version(version)


async def server(model: str) -> dict[str, Any]:
    formats = ChatFormats(load_tokenizer(model), FormatSettings())
    weights = LocalWeights(model)
    served = InferenceSettings(model, weights.context_tokens, weights.vocabulary)
    async with inference_server(weights, formats, served) as url:
        worker = HermesRolloutWorker(ENVIRONMENT, ServerPolicy(url, model), model, max_queued=8, settings=SETTINGS)
        worker.update_model_version(7)
        worker.start()
        samples = await asyncio.to_thread(taken, worker, GROUP)
        await asyncio.to_thread(worker.stop)
    own = loaded(model)
    return {
        "versions": sorted({sample.model_version for sample in samples}),
        "error": max(logprob_error(own, sample) for sample in samples),
        "groups": sorted({sample.group_id for sample in samples}),
    }


def main() -> None:
    torch.set_num_threads(1)
    model, what, folder = sys.argv[1:]
    if what == "server":
        print(json.dumps(asyncio.run(server(model))))
    else:
        print(json.dumps(versions(model) if what == "versions" else learn(model, folder)))


if __name__ == "__main__":
    main()
