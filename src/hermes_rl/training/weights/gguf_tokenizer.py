"""A model's tokenizer in the keys of a GGUF file.

Always true: llama.cpp cuts text as the tokenizer itself does. It knows ways to cut by name; a tokenizer whose way has
no name here is refused, since a wrong one would go unnoticed.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hermes_rl.errors import ConfigError
from hermes_rl.training.weights.model_folder import ModelFolder

if TYPE_CHECKING:
    from gguf import GGUFWriter

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Regular expressions that cut text into words, by llama.cpp's names for them.
EXPRESSIONS = {WORDS % r"\p{N}": "qwen2", WORDS % r"\p{N}{1,3}": "llama-bpe"}


def add_tokenizer(writer: "GGUFWriter", model: ModelFolder, size: int) -> None:
    """Tokens, merges, special tokens and the chat template; `size` is that of the model's vocabulary."""
    from gguf import SpecialVocab, TokenType

    try:
        told: dict[str, Any] = json.loads((model.path / "tokenizer.json").read_text())
        vocabulary: dict[str, int] = told["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{model.path} has no tokenizer.json that a GGUF file can be made of: {error}") from error
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_way_to_cut(told))
    tokens = [f"[PAD{number}]" for number in range(size)]
    types = [TokenType.UNUSED] * size
    for token, number in vocabulary.items():
        tokens[number], types[number] = token, TokenType.NORMAL
    for added in told.get("added_tokens") or ():
        tokens[added["id"]] = added["content"]
        types[added["id"]] = TokenType.CONTROL if added.get("special") else TokenType.USER_DEFINED
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    SpecialVocab(model.path, load_merges=True, n_vocab=size).add_to_gguf(writer, quiet=True)


def _way_to_cut(told: Mapping[str, Any]) -> str:
    """llama.cpp's name for it."""
    if told["model"].get("type") == "BPE":
        steps = _steps(told.get("pre_tokenizer") or {})
        match steps:
            case [{"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}]:
                return "gpt-2"
            case [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "use_regex": True}]:
                return "smollm"
            case [{"type": "Split", "pattern": {"Regex": expression}}, {"type": "ByteLevel", "use_regex": False}]:
                if expression in EXPRESSIONS:
                    return EXPRESSIONS[expression]
    raise ConfigError(
        "no GGUF file can be made of this tokenizer, which cuts text in a way unknown here; export it with --to "
        "merged, and use llama.cpp's own convert_hf_to_gguf.py"
    )


def _steps(pre_tokenizer: Mapping[str, Any]) -> list[Any]:
    return pre_tokenizer["pretokenizers"] if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]
