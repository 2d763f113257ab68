"""PEFT folders of random adapters, for models whose folders are at hand."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

ALPHA = 32


def random_adapter(model: Path, folder: Path, *, seed: int, rank: int = 8, size: float = 0.5) -> Path:
    """An adapter of all linear layers of a Llama or Qwen3 that changes what it writes; the same for the same seed."""
    config = json.loads((model / "config.json").read_text())
    hidden, heads, inner = config["hidden_size"], config["num_attention_heads"], config["intermediate_size"]
    width = config.get("head_dim") or hidden // heads
    queries, keys = heads * width, config["num_key_value_heads"] * width
    layers = {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (queries, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    chance = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in layers.items():
            place = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{place}.lora_A.weight"] = chance.normal(0, inputs**-0.5, (rank, inputs)).astype(np.float32)
            tensors[f"{place}.lora_B.weight"] = chance.normal(0, size, (outputs, rank)).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": ALPHA,
        "target_modules": sorted(name.rpartition(".")[2] for name in layers),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder
