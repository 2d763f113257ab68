"""A model that writes terminal_test's word into its file or, in half of the rollouts, another one.

It speaks vLLM's protocol over a socket and knows its tokens: what it sampled can be told from a record alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.support.chat_models import chat_model
from tests.support.token_servers import Asked, Tokens, VLLMServer, logprob_of

CHAT_MODEL = chat_model("chatml")
UNSAMPLED_MASK, UNSAMPLED_LOGPROB = -100, 1.0
# Logprobs travel as float32.
ROUNDING = 1e-6


class WordModel(VLLMServer):
    """Which word it writes is settled by the seed of the request alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(writes_a_word)
        self.folder = CHAT_MODEL.save(folder)

    @property
    def flags(self) -> list[str]:
        """The endpoint as an environment's command line takes it."""
        endpoint = ["--openai.base_url", self.base_url, "--openai.model_name", self.model_name]
        return [*endpoint, "--openai.server_type", "vllm", "--env.tokenizer_name", str(self.folder)]


def writes_a_word(asked: Asked) -> Tokens:
    text = CHAT_MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False)
    word = text.rpartition("<|im_start|>user\nEcho ")[2].partition(" into out.txt")[0]
    right = asked.body["sampling_params"]["seed"] % 2 == 0
    call = {"name": "terminal", "arguments": {"command": f"echo {word if right else 'nothing'} > out.txt"}}
    said = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return Tokens((*CHAT_MODEL.tokenizer.encode(said, add_special_tokens=False), CHAT_MODEL.stop_ids[0]))


def is_exact(tokens: Sequence[int], mask: Sequence[int], logprobs: Sequence[float], score: float) -> bool:
    """Whether these columns are a rollout of the model as it was sampled, with the score of what it wrote."""
    sampled = sampled_exactly(tokens, mask, logprobs)
    if sampled is None:
        return False
    prompt = tuple(tokens[: len(tokens) - len(sampled)])
    right, wrong = (writes_a_word(Asked(prompt, 1, None, {"sampling_params": {"seed": seed}})).ids for seed in (0, 1))
    return tuple(sampled) == (right if score == 1.0 else wrong)


def sampled_exactly(tokens: Sequence[int], mask: Sequence[int], logprobs: Sequence[float]) -> list[int] | None:
    """The tokens that Atropos' columns call sampled; None unless each has the logprob it was sampled with."""
    sampled = [token for token, kept in zip(tokens, mask, strict=True) if kept != UNSAMPLED_MASK]
    wanted = [UNSAMPLED_LOGPROB if kept == UNSAMPLED_MASK else logprob_of(kept) for kept in mask]
    same = all(abs(one - other) < ROUNDING for one, other in zip(logprobs, wanted, strict=True))
    return sampled if same and sampled == [kept for kept in mask if kept != UNSAMPLED_MASK] else None
