"""A merged model as one GGUF file, for llama.cpp: dense Llama, Qwen2 and Qwen3, whose rules are written out here.

Always true: what is not known to be right is refused: another architecture, another way to stretch the context, a
tokenizer that llama.cpp would read otherwise.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes_rl.errors import ConfigError
from hermes_rl.training.weights.gguf_tokenizer import add_tokenizer
from hermes_rl.training.weights.merging import MergedModel
from hermes_rl.training.weights.tensors import Floats, floats

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
# A model's own type, as llama.cpp names it.
KINDS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROPE_FACTORS = "rope_freqs.weight"
Told = Callable[[int, str], None]


def write_gguf(model: MergedModel, file: Path, kind: str | None, told: Told) -> None:
    """`kind` is f32, f16, bf16 or q8_0, the base model's own when left out. `told` how many tensors are done."""
    try:
        import gguf
    except ImportError as error:
        raise ConfigError("GGUF files need a package: pip install 'hermes-rl[gguf]'") from error
    config = model.config
    architecture = _architecture(config)
    kind = kind or KINDS.get(model.forms[EMBEDDINGS].kind, "f16")
    writer = gguf.GGUFWriter(file, architecture)
    _add_shape(writer, config, file.stem, kind)
    add_tokenizer(writer, model.base, int(config["vocab_size"]))
    names = _names(model, architecture)
    kinds = {name: _kind(model.forms[name].shape, kind) for name in names}
    factors = _rope_factors(config)
    for name, known_as in names.items():
        _announce(writer, known_as, model.forms[name].shape, kinds[name])
    if factors is not None:
        writer.add_tensor_info(ROPE_FACTORS, factors.shape, factors.dtype, factors.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for done, name in enumerate(names, 1):
        told(done, name)
        values = floats(model.tensor(name))
        if architecture == "llama":
            values = _in_llamas_order(values, name, config)
        writer.write_tensor_data(gguf.quantize(values, kinds[name]))
    if factors is not None:
        writer.write_tensor_data(factors)
    writer.close()


def _architecture(config: Mapping[str, Any]) -> str:
    [name, *_] = config.get("architectures") or [str(config.get("model_type"))]
    if name not in ARCHITECTURES:
        raise ConfigError(
            f"no GGUF file can be made of a {name}, only of {', '.join(ARCHITECTURES)}; export it with --to merged, "
            "and use llama.cpp's own convert_hf_to_gguf.py"
        )
    return ARCHITECTURES[name]


def _add_shape(writer: "GGUFWriter", config: Mapping[str, Any], name: str, kind: str) -> None:
    from gguf import LlamaFileType

    rope = _rope(config)
    width = _head_width(config)
    writer.add_name(name)
    writer.add_file_type(LlamaFileType["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
    writer.add_vocab_size(int(config["vocab_size"]))
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(int(config["hidden_size"]))
    writer.add_block_count(int(config["num_hidden_layers"]))
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_head_count(int(config["num_attention_heads"]))
    writer.add_head_count_kv(_key_heads(config))
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))))


def _names(model: MergedModel, architecture: str) -> dict[str, str]:
    """Each tensor's name in the file. A head that is the embeddings is not written twice."""
    import gguf

    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    known = gguf.get_tensor_name_map(numbers[architecture], int(model.config["num_hidden_layers"]))
    tied = bool(model.config.get("tie_word_embeddings"))
    names = {}
    for name in model.forms:
        if name.endswith("rotary_emb.inv_freq") or (tied and name == HEAD):
            continue
        found = known.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ConfigError(f"llama.cpp's {architecture} has no tensor for {name}; export it with --to merged")
        names[name] = found
    return names


def _kind(shape: tuple[int, ...], kind: str) -> "GGMLQuantizationType":
    """Vectors stay exact: they are few, and llama.cpp wants them so. Rows that no block fits into stay in half."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if len(shape) == 1:
        return GGMLQuantizationType.F32
    wanted = GGMLQuantizationType[kind.upper()]
    block, _ = GGML_QUANT_SIZES[wanted]
    return wanted if shape[-1] % block == 0 else GGMLQuantizationType.F16


def _announce(writer: "GGUFWriter", name: str, shape: tuple[int, ...], kind: "GGMLQuantizationType") -> None:
    from gguf import GGMLQuantizationType, quant_shape_to_byte_shape

    if kind in {GGMLQuantizationType.F32, GGMLQuantizationType.F16}:
        dtype = np.dtype(np.float32 if kind == GGMLQuantizationType.F32 else np.float16)
        writer.add_tensor_info(name, shape, dtype, math.prod(shape) * dtype.itemsize)
    else:
        packed = quant_shape_to_byte_shape(shape, kind)
        writer.add_tensor_info(name, packed, np.dtype(np.uint8), math.prod(packed), kind)


def _in_llamas_order(values: Floats, name: str, config: Mapping[str, Any]) -> Floats:
    """llama.cpp turns neighbours of a Llama's query or key together, where the model's own files pair its halves."""
    if ".q_proj." in name:
        heads = int(config["num_attention_heads"])
    elif ".k_proj." in name:
        heads = _key_heads(config)
    else:
        return values
    rows = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(values.shape)


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """How positions are told apart: newer files call it rope_parameters, older ones rope_scaling."""
    told: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = told.get("rope_type", told.get("type", "default"))
    if kind not in {"default", "llama3"}:
        raise ConfigError(f"no GGUF file can be made of a model with {kind} rope; export it with --to merged")
    return told


def _rope_factors(config: Mapping[str, Any]) -> Floats | None:
    """What Llama 3.1 divides each frequency by: nothing below one wavelength, all beyond another, some in between."""
    rope = _rope(config)
    if rope.get("rope_type", rope.get("type")) != "llama3":
        return None
    width, base = _head_width(config), float(rope.get("rope_theta", config.get("rope_theta", 10_000.0)))
    factor, low, high = (float(rope[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(rope["original_max_position_embeddings"]) / (2 * np.pi * base ** (np.arange(0, width, 2) / width))
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _head_width(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _key_heads(config: Mapping[str, Any]) -> int:
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])
