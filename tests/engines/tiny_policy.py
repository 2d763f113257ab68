"""A random Qwen3 of two layers, to sample from and to train on; for the environment of `scripts/engine_environment`.

The first line on stdin is {"vocabulary": n}. Each further line asks for one thing, and gets one line of JSON:
{"sample": {"prompt": ids, "draft": [id or null, ...], "words": n}}: a null is drawn, from the first n ids; a number is
    taken as drawn. The answer is {"tokens", "logprobs"}, the logprobs the model's own.
{"compare": {"batch": [sequence, ...], "completions": [completion, ...]}}: the gradient of one padded batch of sequences
    (tokens, mask, logprobs, advantage), as a trainer has it, beside that of the completions (prompt, tokens, logprobs,
    advantage) scored token by token, each from its own prompt.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

torch: Any = import_module("torch")
transformers: Any = import_module("transformers")


def policy(vocabulary: int) -> Any:
    # All in float64, so that gradients differ in what they mean or not at all: with float32 rounding alone is 3e-5.
    # transformers' own norm and its eager attention compute in float32 whatever they are given.
    torch.set_default_dtype(torch.float64)
    layers: Any = import_module("transformers.models.qwen3.modeling_qwen3")
    layers.Qwen3RMSNorm = torch.nn.RMSNorm
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        # The usual 0.02 leaves a model this small with nearly the same logprob everywhere.
        initializer_range=0.3,
    )
    return transformers.Qwen3ForCausalLM(config).eval()


def sample(model: Any, prompt: list[int], draft: list[int | None], words: int) -> dict[str, Any]:
    tokens: list[int] = []
    logprobs: list[float] = []
    following, cache = torch.tensor([prompt]), None
    with torch.no_grad():
        for wanted in draft:
            step = model(following, past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            scores = step.logits[0, -1].log_softmax(-1)
            token = int(torch.multinomial(scores[:words].exp(), 1)) if wanted is None else wanted
            tokens.append(token)
            logprobs.append(float(scores[token]))
            following = torch.tensor([[token]])
    return {"tokens": tokens, "logprobs": logprobs}


def compare(model: Any, batch: list[dict[str, Any]], completions: list[dict[str, Any]]) -> dict[str, float]:
    together = gradient(model, lambda: trainer_step(model, batch))
    scored: list[float] = []
    alone = gradient(model, lambda: scored.extend(token_by_token(model, completions)))
    recorded = [logprob for completion in completions for logprob in completion["logprobs"]]
    return {
        "difference": float((together - alone).abs().max()),
        "largest": float(alone.abs().max()),
        "tokens": len(scored),
        "logprob_difference": max(abs(one - other) for one, other in zip(scored, recorded, strict=True)),
    }


def gradient(model: Any, step: Any) -> Any:
    model.zero_grad(set_to_none=True)
    step()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def trainer_step(model: Any, batch: list[dict[str, Any]]) -> None:
    """Importance-weighted policy gradient over a padded batch, in one pass."""
    longest = max(len(sequence["tokens"]) for sequence in batch)

    def column(name: str) -> Any:
        rows = [[value or 0 for value in sequence[name]] for sequence in batch]
        return torch.tensor([row + [0] * (longest - len(row)) for row in rows])

    tokens, mask, sampled_at = column("tokens"), column("mask")[:, 1:], column("logprobs")[:, 1:]
    advantage = torch.tensor([sequence["advantage"] for sequence in batch])[:, None]
    logits = model(tokens, use_cache=False).logits[:, :-1]
    scores = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    (-(mask * advantage * (scores - sampled_at).exp()).sum()).backward()


def token_by_token(model: Any, completions: list[dict[str, Any]]) -> list[float]:
    """The same loss, a pass for each token; the logprob of each."""
    scored = []
    for completion in completions:
        context = list(completion["prompt"])
        for token, sampled_at in zip(completion["tokens"], completion["logprobs"], strict=True):
            score = model(torch.tensor([context]), use_cache=False).logits[0, -1].log_softmax(-1)[token]
            (-completion["advantage"] * (score - sampled_at).exp()).backward()
            scored.append(float(score.detach()))
            context.append(token)
    return scored


def main() -> None:
    torch.set_num_threads(1)
    model = policy(json.loads(sys.stdin.readline())["vocabulary"])
    verbs: dict[str, Callable[..., dict[str, Any]]] = {"sample": sample, "compare": compare}
    for line in sys.stdin:
        for verb, arguments in json.loads(line).items():
            print(json.dumps(verbs[verb](model, **arguments)), flush=True)


if __name__ == "__main__":
    main()
