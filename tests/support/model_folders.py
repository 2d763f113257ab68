"""Folders of small random models in the form of their publishers, without torch: for what reads weights and no more."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from hermes_rl.training.weights.tensors import TensorInfo, to_tensor, write_tensors

LAYERS, HIDDEN, INNER, HEADS, KEY_HEADS, WIDTH, VOCABULARY = 2, 16, 24, 4, 2, 8, 40


def small_model(folder: Path, *, kind: str = "F32", shards: int = 1, **config: Any) -> Path:
    """A Qwen3 whose head and embeddings are one, in one file of weights or several."""
    chance = np.random.default_rng(0)
    tensors = {name: to_tensor(chance.normal(size=shape).astype(np.float32), kind) for name, shape in _shapes().items()}
    infos = {name: TensorInfo.for_shape(one.dtype, one.shape) for name, one in tensors.items()}
    folder.mkdir(parents=True)
    told = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": WIDTH,
        "tie_word_embeddings": True,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "tokenizer.json").write_text("{}")
    names = list(infos)
    parts = [names[start::shards] for start in range(shards)]
    files = ["model.safetensors"] if shards == 1 else [f"model-{n}-of-{shards}.safetensors" for n in range(shards)]
    for file, part in zip(files, parts, strict=True):
        write_tensors(folder / file, {name: infos[name] for name in part}, tensors.__getitem__)
    if shards > 1:
        places = {name: file for file, part in zip(files, parts, strict=True) for name in part}
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _shapes() -> dict[str, tuple[int, ...]]:
    queries, keys = HEADS * WIDTH, KEY_HEADS * WIDTH
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (queries, HIDDEN),
        "self_attn.k_proj": (keys, HIDDEN),
        "self_attn.v_proj": (keys, HIDDEN),
        "self_attn.o_proj": (HIDDEN, queries),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
        "input_layernorm": (HIDDEN,),
    }
    shapes = {f"model.layers.{n}.{name}.weight": shape for n in range(LAYERS) for name, shape in layer.items()}
    return {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), **shapes}
