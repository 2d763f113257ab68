"""Writes a merged model as one GGUF file for llama.cpp: dense Llama, Qwen2 and Qwen3.

Always true: anything not known to convert correctly is rejected: other architectures, other RoPE scaling, tokenizers
that llama.cpp would split differently.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.weights.merge import MergedModel
from hermes_rl.training.weights.model_folder import ModelFolder
from hermes_rl.training.weights.tensors import Floats, to_float32

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter


WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# llama.cpp's names for pre-tokenizer regexes. Others are rejected: a wrong name would go unnoticed.
PRE_TOKENIZERS = {WORDS % r"\p{N}": "qwen2", WORDS % r"\p{N}{1,3}": "llama-bpe"}


def add_tokenizer(writer: "GGUFWriter", model: ModelFolder, size: int) -> None:
    """Add tokens, merges, special tokens and the chat template; `size` is the model's vocabulary size."""
    from gguf import SpecialVocab, TokenType

    try:
        tokenizer: dict[str, Any] = json.loads((model.path / "tokenizer.json").read_text())
        vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{model.path} has no usable tokenizer.json for GGUF: {error}") from error
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer_name(tokenizer))
    tokens = [f"[PAD{number}]" for number in range(size)]
    types = [TokenType.UNUSED] * size
    for token, number in vocabulary.items():
        tokens[number], types[number] = token, TokenType.NORMAL
    for added in tokenizer.get("added_tokens") or ():
        tokens[added["id"]] = added["content"]
        types[added["id"]] = TokenType.CONTROL if added.get("special") else TokenType.USER_DEFINED
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    SpecialVocab(model.path, load_merges=True, n_vocab=size).add_to_gguf(writer, quiet=True)


def _pre_tokenizer_name(tokenizer: Mapping[str, Any]) -> str:
    if tokenizer["model"].get("type") == "BPE":
        match _pre_tokenizers(tokenizer.get("pre_tokenizer") or {}):
            case [{"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}]:
                return "gpt-2"
            case [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "use_regex": True}]:
                return "smollm"
            case [{"type": "Split", "pattern": {"Regex": expression}}, {"type": "ByteLevel", "use_regex": False}]:
                if expression in PRE_TOKENIZERS:
                    return PRE_TOKENIZERS[expression]
    raise ConfigError(
        "GGUF export does not support the pre-tokenizer of this model; export it with --to merged, and use llama.cpp's "
        "convert_hf_to_gguf.py"
    )


def _pre_tokenizers(pre_tokenizer: Mapping[str, Any]) -> list[Any]:
    return pre_tokenizer["pretokenizers"] if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]


ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
# Safetensors dtypes by llama.cpp's names.
DTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROPE_FACTORS = "rope_freqs.weight"
Progress = Callable[[int, str], None]


def write_gguf(model: MergedModel, file: Path, kind: str | None, progress: Progress) -> None:
    """`kind` is f32, f16, bf16 or q8_0; default: the base model's dtype. `progress` gets the tensors done."""
    try:
        import gguf
    except ImportError as error:
        raise ConfigError("GGUF export needs a package: pip install 'hermes-rl[gguf]'") from error
    config = model.config
    architecture = _architecture(config)
    kind = kind or DTYPES.get(model.infos[EMBEDDINGS].dtype, "f16")
    writer = gguf.GGUFWriter(file, architecture)
    _add_hyperparameters(writer, config, file.stem, kind)
    add_tokenizer(writer, model.base, int(config["vocab_size"]))
    names = _tensor_names(model, architecture)
    kinds = {name: _tensor_type(model.infos[name].shape, kind) for name in names}
    factors = _rope_factors(config)
    for name, gguf_name in names.items():
        _declare_tensor(writer, gguf_name, model.infos[name].shape, kinds[name])
    if factors is not None:
        writer.add_tensor_info(ROPE_FACTORS, factors.shape, factors.dtype, factors.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for done, name in enumerate(names, 1):
        progress(done, name)
        values = to_float32(model.tensor(name))
        if architecture == "llama":
            values = _permute_rope(values, name, config)
        writer.write_tensor_data(gguf.quantize(values, kinds[name]))
    if factors is not None:
        writer.write_tensor_data(factors)
    writer.close()


def _architecture(config: Mapping[str, Any]) -> str:
    [name, *_] = config.get("architectures") or [str(config.get("model_type"))]
    if name not in ARCHITECTURES:
        raise ConfigError(
            f"GGUF export does not support {name}, only {', '.join(ARCHITECTURES)}; export it with --to merged, and "
            "use llama.cpp's convert_hf_to_gguf.py"
        )
    return ARCHITECTURES[name]


def _add_hyperparameters(writer: "GGUFWriter", config: Mapping[str, Any], name: str, kind: str) -> None:
    from gguf import LlamaFileType

    rope = _rope(config)
    width = _head_dim(config)
    writer.add_name(name)
    writer.add_file_type(LlamaFileType["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
    writer.add_vocab_size(int(config["vocab_size"]))
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(int(config["hidden_size"]))
    writer.add_block_count(int(config["num_hidden_layers"]))
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_head_count(int(config["num_attention_heads"]))
    writer.add_head_count_kv(_kv_heads(config))
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))))


def _tensor_names(model: MergedModel, architecture: str) -> dict[str, str]:
    """Each tensor's name in the file. A head tied to the embeddings is not written."""
    import gguf

    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    known = gguf.get_tensor_name_map(numbers[architecture], int(model.config["num_hidden_layers"]))
    tied = bool(model.config.get("tie_word_embeddings"))
    names = {}
    for name in model.infos:
        if name.endswith("rotary_emb.inv_freq") or (tied and name == HEAD):
            continue
        found = known.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ConfigError(f"llama.cpp's {architecture} has no tensor for {name}; export it with --to merged")
        names[name] = found
    return names


def _tensor_type(shape: tuple[int, ...], kind: str) -> "GGMLQuantizationType":
    """Vectors stay float32, as llama.cpp requires. Rows that do not divide into blocks stay float16."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if len(shape) == 1:
        return GGMLQuantizationType.F32
    wanted = GGMLQuantizationType[kind.upper()]
    block, _ = GGML_QUANT_SIZES[wanted]
    return wanted if shape[-1] % block == 0 else GGMLQuantizationType.F16


def _declare_tensor(writer: "GGUFWriter", name: str, shape: tuple[int, ...], kind: "GGMLQuantizationType") -> None:
    from gguf import GGMLQuantizationType, quant_shape_to_byte_shape

    if kind in {GGMLQuantizationType.F32, GGMLQuantizationType.F16}:
        dtype = np.dtype(np.float32 if kind == GGMLQuantizationType.F32 else np.float16)
        writer.add_tensor_info(name, shape, dtype, math.prod(shape) * dtype.itemsize)
    else:
        packed = quant_shape_to_byte_shape(shape, kind)
        writer.add_tensor_info(name, packed, np.dtype(np.uint8), math.prod(packed), kind)


def _permute_rope(values: Floats, name: str, config: Mapping[str, Any]) -> Floats:
    """Permute Llama's query and key rows: llama.cpp rotates adjacent pairs, Hugging Face pairs the two halves."""
    if ".q_proj." in name:
        heads = int(config["num_attention_heads"])
    elif ".k_proj." in name:
        heads = _kv_heads(config)
    else:
        return values
    rows = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(values.shape)


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """RoPE settings: rope_parameters in newer files, rope_scaling in older ones."""
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in {"default", "llama3"}:
        raise ConfigError(f"GGUF export does not support {kind} RoPE; export it with --to merged")
    return rope


def _rope_factors(config: Mapping[str, Any]) -> Floats | None:
    """Llama 3.1 frequency factors: 1 for short wavelengths, `factor` for long ones, interpolated in between."""
    rope = _rope(config)
    if rope.get("rope_type", rope.get("type")) != "llama3":
        return None
    width, base = _head_dim(config), float(rope.get("rope_theta", config.get("rope_theta", 10_000.0)))
    factor, low, high = (float(rope[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(rope["original_max_position_embeddings"]) / (2 * np.pi * base ** (np.arange(0, width, 2) / width))
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _kv_heads(config: Mapping[str, Any]) -> int:
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])
