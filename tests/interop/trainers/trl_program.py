"""TRL's real GRPOTrainer in the environment of scripts/interop_environment: MODEL WHAT FOLDER. Prints JSON last.

learn, learn-lora: plain_text for some steps, the mean reward of each. exact: one step, what was recorded and what TRL
computed. records: the first update on a frozen batch that has a rollout of three sequences, beside that of torch alone.
function: a step through a rollout_func.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
ROOT = Path(__file__).parents[3]
# This environment has no installation of hermes-rl.
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from hermes_rl.core.trajectory import Group  # noqa: E402
from hermes_rl.interop.trainers.trl import (  # noqa: E402
    HermesGRPOTrainer,
    OneSequenceRollouts,
    one_sequence_row,
    placeholder_dataset,
    score_reward,
)
from hermes_rl.store.codec import decode  # noqa: E402
from tests.engines.skyrl.parity.engine_updates import groups as stored_groups  # noqa: E402
from tests.engines.skyrl.parity.engine_updates import sampling_logprobs  # noqa: E402
from tests.engines.skyrl.parity.frozen_batch import FrozenSequence, frozen_batch  # noqa: E402

ENVIRONMENT = str(ROOT / "examples" / "plain_text_env.py")
SEED, STEPS = 0, {"learn": 12, "learn-lora": 14}
LORA = LoraConfig(r=8, lora_alpha=32, target_modules="all-linear")


def arguments(folder: str, **changes: Any) -> GRPOConfig:
    settings = {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "seed": SEED,
        "max_steps": 1,
        "num_generations": 8,
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "scale_rewards": "none",
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    return GRPOConfig(**{**settings, **changes})


def learn(model: str, what: str, folder: str) -> dict[str, Any]:
    lora = what == "learn-lora"
    args = arguments(folder, max_steps=STEPS[what], learning_rate=1e-2 if lora else 3e-3)
    options = {"peft_config": LORA} if lora else {}
    trainer = HermesGRPOTrainer(model, environment=ENVIRONMENT, args=args, settings={"seed": SEED}, **options)
    trainer.train()
    return {"rewards": [line["reward"] for line in trainer.state.log_history if "reward" in line]}


class Watched(HermesGRPOTrainer):
    """Keeps the groups and the tensors of a step, and TRL's own logprobs of them before it."""

    def _groups(self, count: int) -> list[Group]:
        self.groups = super()._groups(count)
        return self.groups

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self.rows = super()._generate_and_score_completions(inputs)
        ids = torch.cat([self.rows["prompt_ids"], self.rows["completion_ids"]], 1)
        there = torch.cat([self.rows["prompt_mask"], self.rows["completion_mask"]], 1)
        with torch.no_grad():
            own = self._get_per_token_logps_and_entropies(self.model, ids, there, self.rows["completion_ids"].size(1))[
                0
            ]
        sampled = self.rows["tool_mask"].bool()
        self.error = float((own - self.rows["old_per_token_logps"])[sampled].abs().max())
        self.tokens = sorted(row[keep.bool()].tolist() for row, keep in zip(ids, there, strict=True))
        return self.rows


def exact(model: str, folder: str) -> dict[str, Any]:
    trainer = Watched(
        model, environment=ENVIRONMENT, args=arguments(folder, learning_rate=3e-3), settings={"seed": SEED}
    )
    before = {name: each.detach().clone() for name, each in trainer.model.named_parameters()}
    trainer.train()
    sequences = [each for group in trainer.groups for rollout in group.rollouts for each in rollout.sequences]
    return {
        "same_tokens": trainer.tokens == sorted(list(each.tokens) for each in sequences),
        "sampled": int(trainer.rows["tool_mask"].sum()),
        "recorded": sum(sum(each.mask) for each in sequences),
        "logprob_error": trainer.error,
        "moved": sum(not torch.equal(before[name], each) for name, each in trainer.model.named_parameters()),
        "parameters": len(before),
    }


def logprobs(model: Any, batch: list[FrozenSequence]) -> list[Any]:
    """Of each target, one sequence at a time."""
    rows = [torch.tensor(each.tokens) for each in batch]
    return [model(row[None]).logits[0, :-1].log_softmax(-1).gather(-1, row[1:, None])[:, 0] for row in rows]


def records(model: str, folder: str) -> dict[str, Any]:
    batch = frozen_batch()
    own = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    now = logprobs(own, batch)
    sampling = sampling_logprobs(batch, [each.detach().numpy() for each in now])
    groups = [decode(data) for data in stored_groups(batch, sampling)]
    # Large, so that rounding of the weights does not hide the update.
    rate, first = 1e2, {name: each.detach().clone() for name, each in own.named_parameters()}

    scores = {(each.group, each.rollout): each.score for each in batch}
    means = {key[0]: float(np.mean([score for other, score in scores.items() if other[0] == key[0]])) for key in scores}
    total = sum(int(each.sampled[1:].sum()) for each in batch)
    for each, logps, old in zip(batch, now, sampling, strict=True):
        ratio = (logps - torch.tensor(old)).exp()[torch.tensor(each.sampled[1:])]
        (-(each.score - means[each.group]) * ratio.sum() / total).backward(retain_graph=True)
    expected = torch.cat([-rate * each.grad.flatten() for each in own.parameters()])

    args = arguments(
        folder,
        num_generations=3,
        per_device_train_batch_size=3,
        optim="sgd",
        learning_rate=rate,
        max_grad_norm=0.0,
        epsilon=1e9,
    )
    trainer = Watched(model, groups=groups, args=args)
    trainer.train()
    moved = torch.cat([(each.detach() - first[name]).flatten() for name, each in trainer.model.named_parameters()])
    return {
        "rows": int(trainer.rows["tool_mask"].any(1).sum()),
        "rollouts": sum(len(group.rollouts) for group in groups),
        "error": float((moved - expected).norm() / expected.norm()),
        "refused": refusal(groups),
    }


def refusal(groups: list[Group]) -> str:
    """What a rollout_func says of the rollout with several sequences."""
    [several] = [each for group in groups for each in group.rollouts if len(each.sequences) > 1]
    try:
        one_sequence_row(several)
    except Exception as error:  # noqa: BLE001 (whatever it is, the test reads it)
        return f"{type(error).__name__}: {error}"
    return "accepted"


def function(model: str, folder: str) -> dict[str, Any]:
    rollouts = OneSequenceRollouts(ENVIRONMENT)
    trainer = GRPOTrainer(
        model,
        reward_funcs=score_reward,
        args=arguments(folder, max_steps=2, learning_rate=3e-3),
        train_dataset=placeholder_dataset(64),
        rollout_func=rollouts,
    )
    trainer.train()
    rollouts.close()
    return {"rewards": [line["reward"] for line in trainer.state.log_history if "reward" in line]}


def main() -> None:
    torch.set_num_threads(1)
    model, what, folder = sys.argv[1:]
    one = {"exact": exact, "records": records, "function": function}
    print(json.dumps(one[what](model, folder) if what in one else learn(model, what, folder)))


if __name__ == "__main__":
    main()
