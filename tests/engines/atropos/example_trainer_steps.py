"""Atropos' example trainer, as its train_legacy goes but for the vLLM that it starts and stops: a line a step.

example_trainer_steps.py PACKAGES URL STEPS BATCH_SIZE [MODEL]

Run where torch is; PACKAGES is the folder that holds example_trainer. Without a model it stops at the tensors.
"""

import json
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    packages, url, steps, batch_size = sys.argv[1:5]
    # At the end: what both environments have is this one's.
    sys.path.append(packages)
    api, data, training, trainers = (
        import_module(f"example_trainer.{name}") for name in ("api", "data", "training", "trainers")
    )
    folder = next(iter(sys.argv[5:]), None)
    config = trainers.TrainingConfig(
        model_name=folder or "none",
        training_steps=int(steps),
        batch_size=int(batch_size),
        gradient_accumulation_steps=1,
        lr=1e-7,
        device="cpu",
        atropos_url=url,
        use_wandb=False,
    )
    model = folder and import_module("transformers").AutoModelForCausalLM.from_pretrained(folder)
    optimizer = model and trainers.create_optimizer(model, config)
    if not api.check_atropos_api(url=config.atropos_url, timeout=30):
        raise RuntimeError("the API does not answer")
    api.register_trainer(config)
    batches: list[Any] = []
    for step in range(config.training_steps):
        if not batches:
            batches, _ = data.get_data(
                config.batch_size, config.seq_len, config.atropos_url, extract_inference_logprobs=True
            )
        tokens, labels, advantages, temperatures, logprobs = batches.pop(0)
        told = {"tokens": tokens, "labels": labels, "logprobs": logprobs, "temperatures": temperatures}
        line: dict[str, Any] = {name: [one.tolist() for one in value] for name, value in told.items()}
        if model:
            line = training.run_training_step(
                model, optimizer, tokens, labels, advantages, temperatures, config, step, logprobs
            )
            line |= training._logprob_alignment_stats
        print("step:", json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
