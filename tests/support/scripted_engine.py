"""ScriptedEngine: samples by chance what a model of a family may sample: whole replies, broken and cut ones, and junk.

Always true: no two tokens it gives have the same logprob, so one in the wrong place is seen.
"""

import json
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any

from hermes_rl.inference.tokens.chat_format import Tools
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish, Sampled
from tests.support.chat_models import ChatModel

# Families whose template thinks.
THINKING = {"qwen3", "glm", "deepseek_r1"}
WORDS = (
    "Hello there.",
    "the file has 3 lines\nand a tab\there",
    "  spaced  ",
    "Grüße, 你好世界 👩‍💻",
    "∑ x² ≤ ∞ → 5",
    "नमस्ते e\u0301 \u200d",
    '{"not": "a call"}',
    "a < b && c > d",
    "",
    "\n",
    "I think so, but let me check it first.",
    "<b>bold</b>",
    "assistant",
)
VALUES: tuple[Any, ...] = (
    "ls -la",
    "你好",
    3,
    2.5,
    True,
    None,
    ["a", 1],
    {"deep": {"er": "ü"}},
    "",
    'quo"te\\',
    "a\nb",
)


class ScriptedEngine:
    def __init__(self, rng: Random, model: ChatModel, stops: Sequence[int]) -> None:
        self.rng = rng
        self.family = model.family
        self.tokenizer = model.tokenizer
        self.stops = stops
        self.other_stops = tuple(stop for stop in model.stop_ids if stop not in stops)
        self.version = 0
        self._drawn = count(1)

    def answer(self, prompt: Sequence[int], n: int, tools: Tools) -> EngineAnswer:
        told = self.rng.randrange(3)
        return EngineAnswer(
            tuple(self._completion(tools) for _ in range(n)),
            tuple(prompt) if told == 0 else None,
            len(prompt) if told == 1 else None,
        )

    def _completion(self, tools: Tools) -> Sampled:
        tokens = self._tokens(tools)
        finish = (
            Finish.STOP
            if tokens[-1:] and tokens[-1] in self.stops
            else self.rng.choice((Finish.LENGTH, Finish.CONTEXT))
        )
        versions: list[int | None] = [self.version] * len(tokens)
        if self.rng.random() < 0.15:
            self.version += 1
            swapped = self.rng.randint(0, len(tokens))
            versions[swapped:] = [self.version] * (len(tokens) - swapped)
        elif self.rng.random() < 0.05:
            versions = [None] * len(tokens)
        return Sampled(tuple(tokens), tuple(-next(self._drawn) / 1024 for _ in tokens), tuple(versions), finish)

    def _tokens(self, tools: Tools) -> list[int]:
        kind = self.rng.random()
        if kind < 0.03:
            return []
        if kind < 0.12:
            return self._junk()
        calls = [self._call(tools) for _ in range(self.rng.choice((1, 1, 1, 2, 3)))] if tools and kind < 0.6 else []
        text = self._said(calls)
        if kind > 0.92:
            place = self.rng.randint(0, len(text))
            text = text[:place] + self.rng.choice(("", "}", '"', "<", "\\")) + text[place + self.rng.randint(1, 4) :]
        tokens = self._until_stop(self.tokenizer.encode(text, add_special_tokens=False))
        if self.rng.random() < 0.12:
            return tokens[: self.rng.randint(0, len(tokens))]
        return [*tokens, self._stop(calling=bool(calls))]

    def _junk(self) -> list[int]:
        chance = Random(self.rng.randrange(2**16))
        # A few rows more than the tokenizer has, as in models whose vocabulary is padded.
        tokens = self._until_stop(chance.choices(range(len(self.tokenizer) + 2), k=chance.randint(1, 24)))
        if chance.random() < 0.3:
            tokens = self._until_stop(chance.choices(self.tokenizer.all_special_ids, k=2) + tokens)
        return [*tokens, self._stop(calling=False)] if chance.random() < 0.7 else tokens

    def _until_stop(self, tokens: list[int]) -> list[int]:
        return tokens[: next((place for place, token in enumerate(tokens) if token in self.stops), len(tokens))]

    def _stop(self, *, calling: bool) -> int:
        kind = self.rng.random()
        if kind < 0.08:
            return self.rng.choice(self.stops)
        if kind < 0.1 and self.other_stops:
            return self.rng.choice(self.other_stops)
        if self.family == "glm":
            return int(self.tokenizer.convert_tokens_to_ids("<|observation|>" if calling else "<|user|>"))
        return self.stops[0]

    def _said(self, calls: Sequence[tuple[str, Any]]) -> str:
        content = "".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(0, 2)))
        if not calls:
            content += self.rng.choice(("Yes.", "No.", "42"))
        return self._thinking() + _WRITERS[self.family](content, calls)

    def _thinking(self) -> str:
        if self.rng.random() < (0.3 if self.family in THINKING else 0.9):
            return "\n</think>\n\n" if self.family == "deepseek_r1" else ""
        thought = self.rng.choice(WORDS) + self.rng.choice(WORDS)
        match self.family:
            case "deepseek_r1":
                return f"{thought}\n</think>\n\n"
            case "glm":
                return f"\n<think>{thought}</think>\n"
            case _:
                return f"<think>\n{thought}\n</think>\n\n"

    def _call(self, tools: Tools) -> tuple[str, Any]:
        name = self.rng.choice([tool["function"]["name"] for tool in tools] + ["unknown"])
        keys = ("command", "path", "ключ")[: self.rng.randint(0, 3)]
        return name, {key: self.rng.choice(VALUES) for key in keys}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tagged(content: str, calls: Sequence[tuple[str, Any]]) -> str:
    written = [f"<tool_call>\n{_json({'name': name, 'arguments': given})}\n</tool_call>" for name, given in calls]
    return "\n".join([content, *written] if content else written)


def _llama(content: str, calls: Sequence[tuple[str, Any]]) -> str:
    return "; ".join(_json({"name": name, "parameters": given}) for name, given in calls) or content


def _mistral(content: str, calls: Sequence[tuple[str, Any]]) -> str:
    listed = [{"name": name, "arguments": given, "id": f"call{place:05}"} for place, (name, given) in enumerate(calls)]
    return f"[TOOL_CALLS] {_json(listed)}" if calls else f" {content}"


def _deepseek(content: str, calls: Sequence[tuple[str, Any]]) -> str:
    written = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(given)}\n```<｜tool▁call▁end｜>"
        for name, given in calls
    ]
    return f"{content}<｜tool▁calls▁begin｜>{chr(10).join(written)}<｜tool▁calls▁end｜>" if calls else content


def _glm(content: str, calls: Sequence[tuple[str, Any]]) -> str:
    written = [
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{value if isinstance(value, str) else _json(value)}</arg_value>\n"
            for key, value in given.items()
        )
        + "</tool_call>"
        for name, given in calls
    ]
    return "\n" + "\n".join([content, *written] if content else written)


_WRITERS: dict[str, Callable[[str, Sequence[tuple[str, Any]]], str]] = {
    "chatml": _tagged,
    "qwen3": _tagged,
    "llama3": _llama,
    "mistral": _mistral,
    "deepseek": _deepseek,
    "deepseek_r1": _deepseek,
    "glm": _glm,
}
