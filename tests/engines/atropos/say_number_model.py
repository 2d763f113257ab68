"""The model of fixtures/say_number_env.py, in the protocol of the vLLM server that atroposlib brings.

Of the completions of a request every second one says the number that was asked for, the others say another.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.engines.atropos.word_model import CHAT_MODEL, sampled_exactly
from tests.support.scripted_model import Status
from tests.support.token_servers import Asked, Tokens, TokenServer, logprob_of


class SayNumberModel(TokenServer):
    routes = ("/generate",)

    def __init__(self, folder: Path) -> None:
        super().__init__(says_numbers)
        self.folder = CHAT_MODEL.save(folder)

    @property
    def flags(self) -> list[str]:
        endpoint = ["--openai.base_url", self.base_url, "--openai.model_name", self.model_name]
        tokenizer = ["--openai.tokenizer_name", str(self.folder), "--env.tokenizer_name", str(self.folder)]
        return [*endpoint, "--openai.server_type", "vllm", "--openai.api_key", "none", *tokenizer]

    def asked(self, body: Mapping[str, Any]) -> Asked:
        return Asked(tuple(body["prompt"]["prompt_token_ids"]), body.get("n", 1), body.get("max_tokens"), body)

    def refusal(self, asked: Asked) -> Status | None:
        return None

    def answer(self, asked: Asked, completions: Sequence[Tokens]) -> Any:
        logprobs = [[[{str(one): logprob_of(one)}] for one in tokens.ids] for tokens in completions]
        return {"logprobs": logprobs, "finish_reasons": [tokens.finish for tokens in completions]}


def says_numbers(asked: Asked) -> list[Tokens]:
    text = CHAT_MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False)
    number = text.rpartition("<|im_start|>user\nSay ")[2].partition("<|im_end|>")[0]
    return [said(number if place % 2 == 0 else "nothing") for place in range(asked.n)]


def said(what: str) -> Tokens:
    text = f"I say {what}"
    return Tokens((*CHAT_MODEL.tokenizer.encode(text, add_special_tokens=False), CHAT_MODEL.stop_ids[0]))


def is_exact(tokens: Sequence[int], mask: Sequence[int], logprobs: Sequence[float], score: float) -> bool:
    """Whether these columns are an answer of the model as it was sampled, with the score of what it said."""
    sampled = sampled_exactly(tokens, mask, logprobs)
    if sampled is None:
        return False
    prompt = tuple(tokens[: len(tokens) - len(sampled)])
    right, wrong = (answer.ids for answer in says_numbers(Asked(prompt, 2, None, {})))
    return tuple(sampled) == (right if score == 1.0 else wrong)
