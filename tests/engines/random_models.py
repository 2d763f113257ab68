"""Small random models of each architecture, and what transformers makes of them: random_models.py FOLDER.

Run in vLLM's environment, which has torch. A model's folder has a `reference.json`: {"prompt", "logprobs": what the
model gives each token after that, "texts": {text: ids}}.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

tokenizers: Any = import_module("tokenizers")
torch: Any = import_module("torch")
transformers: Any = import_module("transformers")

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = (
    "It's 12345 o'clock,\n\n  isn't it?",
    "naïve  café\r\n\tπ≈3.14159",
    "<|im_end|> a<|im_end|>\nb",
    "   ",
    "DON'T 007",
)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
}


def cut(name: str) -> Any:
    pre = tokenizers.pre_tokenizers
    plain = pre.ByteLevel(add_prefix_space=False)
    if name == "qwen3":
        return plain
    if name == "llama":
        return pre.Sequence([pre.Digits(individual_digits=True), plain])
    words = tokenizers.Regex(WORDS % (r"\p{N}" if name == "qwen2" else r"\p{N}{1,3}"))
    return pre.Sequence([pre.Split(words, "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def tokenizer(name: str) -> Any:
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer, bpe.decoder = cut(name), tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([*TEXTS, " isn't it 12345 café 314 o'clock, don't 007"] * 20, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def random_model(kind: str, size: int, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        **{
            "vocab_size": size,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.2,
            "tie_word_embeddings": True,
            **settings,
        }
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.float32).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            # Fresh ones are ones and zeros, which would hide a mistake.
            if weights.dim() == 1:
                weights.add_(torch.randn_like(weights) * (0.2 if "bias" in name else 0.05))
    return model


def following(model: Any, prompt: list[int]) -> list[float]:
    # In double precision: once in CI, torch's own float32 was off by 2e-3, and the same code gives 2e-5 elsewhere.
    with torch.no_grad():
        logprobs: list[float] = model.double()(torch.tensor([prompt])).logits[0, -1].log_softmax(-1).tolist()
    return logprobs


for name, (kind, settings) in MODELS.items():
    folder = Path(sys.argv[1]) / name
    its_tokenizer = tokenizer(name)
    # Some more than the tokenizer has, as in models whose vocabulary is padded.
    model = random_model(kind, -(-len(its_tokenizer) // 64) * 64, settings)
    model.save_pretrained(folder)
    its_tokenizer.save_pretrained(folder)
    # Beyond the length that llama3's rope was made for.
    prompt = [3 + (7 * number) % 250 for number in range(100)]
    texts = {text: its_tokenizer.encode(text, add_special_tokens=False) for text in TEXTS}
    told = {"prompt": prompt, "logprobs": following(model, prompt), "texts": texts}
    (folder / "reference.json").write_text(json.dumps(told))
