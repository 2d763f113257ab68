"""An independent implementation in torch: MODEL UPDATES.npz [--trl | --steps N]. Prints JSON.

It shares no code with hermes-rl but the frozen batch and the names of the cases. The adapter is written by hand: one A
for q, k and v, and one for gate and up, as the engine has them. Prints the relative error of the update of all B for
each case; with `--trl` that of TRL's own losses; with `--steps` the distance of the parameters after steps with Adam.
"""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.engines.skyrl.parity.cases import BASE, CASES, SCALE
from tests.engines.skyrl.parity.frozen_batch import FrozenSequence, frozen_batch, step_batches

torch: Any = import_module("torch")
transformers: Any = import_module("transformers")

RANK, ALPHA = 8, 32.0
FUSED = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


class LoRA(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, base: Any, a: Any, b: Any) -> None:
        super().__init__()
        self.base, self.a, self.b = base, a, b

    def forward(self, x: Any) -> Any:
        return self.base(x) + (x @ self.a.T @ self.b.T) * (ALPHA / RANK)


class Reference:
    """The model with the adapter of `start`. `parameters` are by PEFT name; a shared A has that of its first module."""

    def __init__(self, folder: str, start: dict[str, Any]) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        self.model.requires_grad_(False)
        self.parameters: dict[str, Any] = {}
        for number, layer in enumerate(self.model.model.layers):
            for modules in FUSED:
                shared = None
                for module in modules:
                    part = layer.self_attn if hasattr(layer.self_attn, module) else layer.mlp
                    place = "self_attn" if part is layer.self_attn else "mlp"
                    name = f"base_model.model.model.layers.{number}.{place}.{module}"
                    a, b = (torch.tensor(start[f"{name}.lora_{side}.weight"]) for side in "AB")
                    if shared is None:
                        shared = torch.nn.Parameter(a)
                        self.parameters[f"{name}.lora_A.weight"] = shared
                    assert torch.equal(shared.data, a), f"{name} has an A of its own"
                    self.parameters[f"{name}.lora_B.weight"] = outer = torch.nn.Parameter(b)
                    setattr(part, module, LoRA(getattr(part, module), shared, outer))

    def logprobs(self, sequence: FrozenSequence) -> Any:
        tokens = torch.tensor(sequence.tokens)
        logits = self.model(tokens[None, :-1]).logits[0]
        return logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]


def advantages(batch: list[FrozenSequence]) -> list[float]:
    """The score less the mean of the group's rollouts."""
    groups: dict[int, dict[int, float]] = {}
    for each in batch:
        groups.setdefault(each.group, {})[each.rollout] = each.score
    return [each.score - sum(groups[each.group].values()) / len(groups[each.group]) for each in batch]


def normalisers(batch: list[FrozenSequence], settings: dict[str, Any]) -> list[float]:
    sampled, count = [int(each.sampled[1:].sum()) for each in batch], len(batch)
    kind = settings.get("loss_aggregation", "token_mean")
    return {
        "token_mean": [1 / sum(sampled)] * count,
        "token_sum": [1.0] * count,
        "constant": [1 / (count * settings.get("loss_constant", 1.0))] * count,
        "sequence_mean": [1 / (count * tokens) for tokens in sampled],
    }[kind]


def sequence_loss(now: Any, old: Any, sampled: Any, advantage: float, settings: dict[str, Any]) -> Any:
    """The sum over the sampled tokens, by autograd and as the papers write it."""
    now, old = now[sampled], old[sampled]
    log_ratio = now - old
    if settings.get("ratio_level") == "sequence":
        # GSPO-token: the value of the sequence's ratio, the gradient of the token's.
        log_ratio = log_ratio.mean().detach() + now - now.detach()
    ratio = log_ratio.exp()
    low, high = settings.get("clip_low", 0.8), settings.get("clip_high", 1.2)
    keep = torch.ones_like(ratio)
    if band := settings.get("ratio_band"):
        keep = ((ratio >= band[0]) & (ratio <= band[1])).float()
    if limit := settings.get("max_probability_change"):
        moved = now.exp() - old.exp()
        keep = (moved <= limit).float() if advantage > 0 else (-moved <= limit).float()
    cap = settings.get("max_importance_weight")
    if cap is not None and settings.get("loss") != "cispo":
        # A ratio beyond the limit counts with the weight of the limit.
        ratio = ratio * (ratio.detach().clamp(max=cap) / ratio.detach())
    match settings.get("loss", "importance_sampling"):
        case "importance_sampling":
            terms = ratio * advantage
        case "ppo":
            unclipped = log_ratio.exp()
            bounded = torch.where(unclipped < low, low, torch.where(unclipped > high, high, ratio))
            terms = (
                torch.minimum(ratio * advantage, bounded * advantage)
                if cap is None
                else torch.where(
                    (unclipped > high) if advantage > 0 else (unclipped < low), bounded * advantage, ratio * advantage
                )
            )
        case "cispo":
            terms = ratio.detach().clamp(low, high) * advantage * now
        case "reinforce":
            terms = advantage * now
        case other:
            raise ValueError(other)
    return -(terms * keep.detach()).sum()


def backward(reference: Reference, batch: list[FrozenSequence], sampling: list[Any], settings: dict[str, Any]) -> None:
    factors = normalisers(batch, settings)
    for each, old, advantage, factor in zip(batch, sampling, advantages(batch), factors, strict=True):
        now = reference.logprobs(each)
        loss = sequence_loss(now, torch.tensor(old), torch.tensor(each.sampled[1:]), advantage, settings)
        (loss * factor).backward()


def relative_error(wanted: dict[str, Any], got: dict[str, Any]) -> float:
    return float(
        np.sqrt(sum(((got[name] - wanted[name]) ** 2).sum() for name in wanted))
        / np.sqrt(sum((wanted[name] ** 2).sum() for name in wanted))
    )


def first_update(gradients: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Adam's first update with learning rate and epsilon SCALE."""
    norm = np.sqrt(sum((each**2).sum() for each in gradients.values()))
    limit = settings["grad_clip_norm"]
    scale = limit / norm if limit and norm > limit else 1.0
    return {name: -each * scale * SCALE / (np.abs(each * scale) + SCALE) for name, each in gradients.items()}


def prefixed(arrays: Any, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}


def compare_updates(model: str, arrays: Any) -> dict[str, float]:
    batch = frozen_batch()
    sampling = [arrays[f"sampling/{number}"] for number in range(len(batch))]
    reference = Reference(model, prefixed(arrays, "start/"))
    errors = {}
    for case, changed in CASES.items():
        settings = BASE | changed
        for parameter in reference.parameters.values():
            parameter.grad = None
        backward(reference, batch, sampling, settings)
        gradients = {name: each.grad.numpy() for name, each in reference.parameters.items() if "lora_B" in name}
        errors[case] = relative_error(first_update(gradients, settings), prefixed(arrays, f"{case}/"))
    return errors


def compare_steps(model: str, arrays: Any, count: int, rate: float, eps: float) -> dict[str, Any]:
    """The distance to the engine's parameters, relative to the distance travelled, after some of the steps."""
    batches = step_batches()
    start = prefixed(arrays, "start/")
    assert all(np.abs(value).max() > 0 for name, value in start.items() if "lora_B" in name), "B is 0 at the start"
    reference = Reference(model, start)
    adam = torch.optim.Adam(list(reference.parameters.values()), lr=rate, betas=(0.9, 0.95), eps=eps)
    distances: dict[str, float] = {}
    for number in range(count):
        adam.zero_grad()
        chosen = number % len(batches)
        sampling = [arrays[f"sampling/{chosen}/{index}"] for index in range(len(batches[chosen]))]
        backward(reference, batches[chosen], sampling, {"max_importance_weight": 2.0})
        torch.nn.utils.clip_grad_norm_(list(reference.parameters.values()), 1.0)
        adam.step()
        if engine := prefixed(arrays, f"steps/{number + 1}/"):
            travelled = {name: each.detach().numpy() - start[name] for name, each in reference.parameters.items()}
            distances[str(number + 1)] = relative_error(
                travelled, {name: engine[name] - start[name] for name in travelled}
            )
    return distances


def compare_trl(model: str, arrays: Any) -> dict[str, float]:
    """TRL's own losses on the same batch. PEFT does not share A, which the first update of B does not depend on."""
    datasets, peft, trl = import_module("datasets"), import_module("peft"), import_module("trl")
    batch = frozen_batch()
    sampling = [arrays[f"sampling/{number}"] for number in range(len(batch))]

    def padded(rows: list[Any]) -> Any:
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)

    tokens = padded([each.tokens for each in batch])
    mask = padded([each.sampled[1:].astype(np.int64) for each in batch])
    inputs = {
        "prompt_ids": tokens[:, :1],
        "prompt_mask": torch.ones_like(tokens[:, :1]),
        "completion_ids": tokens[:, 1:],
        "completion_mask": padded([np.ones(len(each.tokens) - 1, np.int64) for each in batch]),
        "tool_mask": mask,
        "old_per_token_logps": padded(sampling),
        "advantages": torch.tensor(advantages(batch), dtype=torch.float32),
        "num_items_in_batch": mask.sum(),
    }
    pairs = (
        ("dapo", 1e9, "token", "token_mean"),
        ("grpo", 1e9, "token", "sequence_mean"),
        ("dr_grpo", 1e9, "token", "constant"),
        ("dapo", 0.2, "token", "ppo"),
        ("grpo", 0.2, "token", "ppo, sequence_mean"),
        ("grpo", 0.02, "sequence", "gspo"),
    )
    errors = {}
    for loss, epsilon, level, case in pairs:
        options = trl.GRPOConfig(
            output_dir="out",
            use_cpu=True,
            bf16=False,
            report_to=[],
            num_generations=len(batch),
            per_device_train_batch_size=len(batch),
            max_completion_length=64,
            loss_type=loss,
            epsilon=epsilon,
            importance_sampling_level=level,
            disable_tqdm=True,
        )
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=options,
            train_dataset=datasets.Dataset.from_list([{"prompt": "a"}] * len(batch)),
            peft_config=peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=[m for part in FUSED for m in part]),
        )
        named = dict(trainer.model.named_parameters())
        start = prefixed(arrays, "start/")
        inside = {name: name.replace(".weight", ".default.weight") for name in start}
        for name, value in start.items():
            named[inside[name]].data = torch.tensor(value)
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        trainer._compute_loss(trainer.model, inputs).backward()
        gradients = {name: named[inside[name]].grad.numpy() for name in start if "lora_B" in name}
        errors[f"{loss}, {case}"] = relative_error(first_update(gradients, BASE), prefixed(arrays, f"{case}/"))
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("updates")
    parser.add_argument("--trl", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--eps", type=float, default=1e-8)
    chosen = parser.parse_args()
    made = np.load(chosen.updates)
    if chosen.steps:
        result: Any = compare_steps(chosen.model, made, chosen.steps, chosen.rate, chosen.eps)
    else:
        result = compare_trl(chosen.model, made) if chosen.trl else compare_updates(chosen.model, made)
    print(json.dumps(result))
