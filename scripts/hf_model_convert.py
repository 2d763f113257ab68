"""Writes a model's folder: hf_model_convert.py FOLDER [GGUF]; a tiny random one when no GGUF is named.

Run by scripts/hf_model.py inside the environment of `scripts/engine_environment vllm`, the only one that has torch.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
PADDING, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEXT = "The quick brown fox jumps over the lazy dog. user assistant system tool 0 1 2 3 4 5 6 7 8 9 + - = ?"
CONTEXT = 2048
SEED = 0


def from_gguf(weights: Path, folder: Path) -> None:
    torch, transformers = import_module("torch"), import_module("transformers")
    place: dict[str, Any] = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    # The GGUF names <|im_start|>, which no turn ends with.
    tokenizer.eos_token = tokenizer.pad_token = END
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **place,
        dtype=torch.float32,
        # Weights that stay packed cannot be saved.
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    save(model, tokenizer, folder)


def tiny(folder: Path) -> None:
    torch, transformers = import_module("torch"), import_module("transformers")
    tokenizer = tiny_tokenizer(transformers)
    torch.manual_seed(SEED)
    config = transformers.Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        # vLLM's attention on the CPU knows none below.
        head_dim=32,
        max_position_embeddings=CONTEXT,
        # The usual 0.02 makes every token about as likely as any other.
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    save(transformers.Qwen3ForCausalLM(config).to(torch.float32), tokenizer, folder)


def tiny_tokenizer(transformers: Any) -> Any:
    tokenizers = import_module("tokenizers")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[PADDING, START, END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([TEXT] * 10, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PADDING, chat_template=CHAT_TEMPLATE
    )


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    model.config.architectures = [type(model).__name__]
    for settings in (model.config, model.generation_config):
        settings.eos_token_id, settings.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    [target, *named] = map(Path, sys.argv[1:])
    if named:
        from_gguf(named[0].resolve(), target)
    else:
        tiny(target)
