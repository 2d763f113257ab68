"""Converts a GGUF file of the small model's kind to the folder that engines and transformers load, in float32.

Always true: only what is known to convert correctly is accepted: Llama with a byte-level BPE that splits digits. The
folder appears complete or not at all.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.private_files import private_folder
from hermes_rl.training.local_model.chat_template import CHAT_TEMPLATE
from hermes_rl.training.local_model.gguf_reader import GgufFile
from hermes_rl.training.weights.tensors import Floats, Tensor, TensorInfo, to_tensor, write_tensors

CONTROL_TOKEN = 3
EMBEDDINGS = "token_embd.weight"
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER = {EMBEDDINGS: "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
Progress = Callable[[int, int, str], None]


def convert_gguf(file: Path, folder: Path, progress: Progress = lambda *_: None) -> Path:
    """Write the folder, unless it exists. `progress` gets the tensors done, the total, and the name of the next."""
    if (folder / "config.json").exists():
        return folder
    model = GgufFile(file)
    config = _config(model)
    private_folder(folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write_weights(model, config, temporary / "model.safetensors", progress)
        for name, content in {
            "config.json": config,
            "generation_config.json": {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
            "tokenizer.json": _tokenizer(model.metadata),
            "tokenizer_config.json": _tokenizer_config(model.metadata),
        }.items():
            (temporary / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (temporary / "chat_template.jinja").write_text(CHAT_TEMPLATE)
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _write_weights(model: GgufFile, config: Mapping[str, Any], file: Path, progress: Progress) -> None:
    names = {_hugging_face_name(name): name for name in model.names}
    infos = {name: TensorInfo.for_shape("F32", model.shape(names[name])) for name in sorted(names)}
    done = 0

    def tensor(name: str) -> Tensor:
        nonlocal done
        done += 1
        progress(done, len(names), name)
        return to_tensor(_halves_of_heads(model.tensor(names[name]), name, config), "F32")

    write_tensors(file, infos, tensor)


def _hugging_face_name(name: str) -> str:
    match name.split("."):
        case ["blk", number, part, "weight"] if part in PARTS:
            return f"model.layers.{number}.{PARTS[part]}.weight"
    if name not in OUTER:
        raise ConfigError(f"the tensor {name} is not part of a Llama with tied embeddings, the only kind converted")
    return OUTER[name]


def _halves_of_heads(values: Floats, name: str, config: Mapping[str, Any]) -> Floats:
    """The reverse of gguf_file: llama.cpp rotates adjacent pairs of rows, Hugging Face pairs the two halves."""
    for projection, count in ((".q_proj.", "num_attention_heads"), (".k_proj.", "num_key_value_heads")):
        if projection in name:
            rows = values.reshape(config[count], -1, 2, *values.shape[1:])
            return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(values.shape)
    return values


def _config(model: GgufFile) -> dict[str, Any]:
    told = model.metadata
    kind = tuple(told.get(name) for name in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"))
    if kind != ("llama", "gpt2", "smollm"):
        raise ConfigError(f"{model.path} is a {' '.join(map(str, kind))} model; only llama gpt2 smollm is converted")
    width = int(told["llama.embedding_length"])
    heads = int(told["llama.attention.head_count"])
    theta = float(told["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": model.shape(EMBEDDINGS)[0],
        "hidden_size": width,
        "intermediate_size": int(told["llama.feed_forward_length"]),
        "num_hidden_layers": int(told["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(told["llama.attention.head_count_kv"]),
        "head_dim": width // heads,
        "max_position_embeddings": int(told["llama.context_length"]),
        "rms_norm_eps": float(told["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "bos_token_id": told["tokenizer.ggml.bos_token_id"],
        "eos_token_id": told["tokenizer.ggml.eos_token_id"],
        "pad_token_id": told["tokenizer.ggml.padding_token_id"],
        "unk_token_id": told["tokenizer.ggml.unknown_token_id"],
    }


def _tokenizer(told: Mapping[str, Any]) -> dict[str, Any]:
    tokens: list[str] = told["tokenizer.ggml.tokens"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytes_as_text = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": tokens[number], **plain}
            for number, kind in enumerate(told["tokenizer.ggml.token_type"])
            if kind == CONTROL_TOKEN
        ],
        "normalizer": None,
        # llama.cpp's `smollm`: each digit is a token of its own, which the converters of other projects leave out.
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_as_text],
        },
        "post_processor": None,
        "decoder": {**bytes_as_text, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in told["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(told: Mapping[str, Any]) -> dict[str, Any]:
    tokens: list[str] = told["tokenizer.ggml.tokens"]
    named = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {
        **{f"{short}_token": tokens[told[f"tokenizer.ggml.{name}_token_id"]] for short, name in named.items()},
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(told["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
    }
