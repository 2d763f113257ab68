"""The extra `gguf`: a small model and an adapter, merged and written for llama.cpp by `hermes-rl export`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hermes_rl.training.weights.tensors import TensorInfo, to_tensor, write_tensors

HIDDEN, INNER, HEADS, WIDTH, WORDS = 16, 24, 2, 8, 40
SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (WORDS, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    "model.layers.0.input_layernorm.weight": (HIDDEN,),
    "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
    "model.layers.0.self_attn.q_norm.weight": (WIDTH,),
    "model.layers.0.self_attn.k_norm.weight": (WIDTH,),
    **{f"model.layers.0.self_attn.{one}_proj.weight": (HEADS * WIDTH, HIDDEN) for one in "qkv"},
    "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * WIDTH),
    "model.layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
    "model.layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
    "model.layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
}
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": WIDTH,
    "tie_word_embeddings": True,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 3,
}
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    "pre_tokenizer": {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False},
    "added_tokens": [{"id": 3, "content": "<end>", "special": True}],
}
UP = "base_model.model.model.layers.0.mlp.up_proj"


def main(_given: dict[str, Any]) -> str:
    base = written(Path("base"), "model.safetensors", SHAPES, "config.json", CONFIG)
    (base / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    shapes: dict[str, tuple[int, ...]] = {f"{UP}.lora_A.weight": (4, HIDDEN), f"{UP}.lora_B.weight": (INNER, 4)}
    told = {"peft_type": "LORA", "base_model_name_or_path": str(base.absolute()), "r": 4, "lora_alpha": 8}
    settings = {**told, "target_modules": ["up_proj"], "bias": "none"}
    written(Path("adapter"), "adapter_model.safetensors", shapes, "adapter_config.json", settings)
    command = [str(Path(sys.executable).with_name("hermes-rl")), "export", "adapter", "--to", "gguf", "-o", "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    from gguf import GGUFReader

    (file,) = Path("out").glob("*.gguf")
    tensors = {one.name for one in GGUFReader(file).tensors}
    assert {"token_embd.weight", "blk.0.ffn_up.weight"} <= tensors, tensors
    return f"`export --to gguf`: {len(tensors)} tensors read back"


def written(folder: Path, file: str, shapes: dict[str, tuple[int, ...]], name: str, config: Any) -> Path:
    chance = np.random.default_rng(0)
    folder.mkdir()
    tensors = {one: to_tensor(chance.normal(size=shape).astype(np.float32), "F32") for one, shape in shapes.items()}
    infos = {one: TensorInfo.for_shape("F32", shape) for one, shape in shapes.items()}
    write_tensors(folder / file, infos, tensors.__getitem__)
    (folder / name).write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
