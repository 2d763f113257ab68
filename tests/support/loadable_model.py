"""A random Llama of 0.2 MB that real engines load, with a byte-level tokenizer that splits digits and a template."""

import json
from pathlib import Path

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from hermes_rl.training.local_model.chat_template import CHAT_TEMPLATE
from hermes_rl.training.weights.tensors import TensorInfo, to_tensor, write_tensors

LAYERS, HIDDEN, INNER, HEADS, KEY_HEADS, WIDTH, CONTEXT = 2, 64, 96, 2, 1, 32, 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def loadable_model(folder: Path) -> Path:
    """Write the model's folder; the same weights each time."""
    folder.mkdir(parents=True)
    tokens = [*SPECIAL, *sorted(ByteLevel.alphabet()), "hi"]
    chance = np.random.default_rng(0)
    tensors = {
        name: to_tensor(chance.normal(0, 0.3, shape).astype(np.float32), "F32")
        for name, shape in _shapes(len(tokens)).items()
    }
    infos = {name: TensorInfo.for_shape(one.dtype, one.shape) for name, one in tensors.items()}
    write_tensors(folder / "model.safetensors", infos, tensors.__getitem__)
    for name, content in {
        "config.json": _config(len(tokens)),
        "tokenizer.json": _tokenizer(tokens),
        "tokenizer_config.json": {
            "bos_token": SPECIAL[1],
            "eos_token": SPECIAL[2],
            "pad_token": SPECIAL[2],
            "unk_token": SPECIAL[0],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


def _shapes(size: int) -> dict[str, tuple[int, ...]]:
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
        "post_attention_layernorm": (HIDDEN,),
    }
    shapes = {f"model.layers.{n}.{name}.weight": shape for n in range(LAYERS) for name, shape in layer.items()}
    return {"model.embed_tokens.weight": (size, HIDDEN), **shapes, "model.norm.weight": (HIDDEN,)}


def _config(size: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": size,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": WIDTH,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "unk_token_id": 0,
    }


def _tokenizer(tokens: list[str]) -> dict[str, object]:
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for number, token in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [["h", "i"]],
        },
    }
