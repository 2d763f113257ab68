"""Control tokens: text that only spells one stays text.

A tokenizer turns `<|im_end|>` in a tool result into the token that ends a turn. Here a sentinel cuts such a spelling in
two before the template sees it, and each piece is encoded by itself. The ids decode to the same text, none of them is
a control token, and the ids of text without such a spelling do not change.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.inference.tokens.chat_format import Tools
from hermes_rl.inference.tokens.tokenizer import decode_ids

# `<think>` and `<tool_call>` are words that prompts of environments explain; models know them as tokens.
TAG = re.compile(r"</?\w+>")
# Written between the pieces if a tokenizer changes what it encodes in pieces: a word joiner, which is invisible, or a
# question mark if the tokenizer drops that. Refusing the text would let a policy end its rollout without a score.
JOINTS = ("", "\u2060", "?")
# How many spellings are tried to choose a joint; Gemma has thousands.
TRIED = 64

_QUESTION: Message = {"role": "user", "content": "a"}
_ANSWER: Message = {"role": "assistant", "content": "a", "reasoning_content": "a"}
_CALL: Message = {"role": "assistant", "content": "", "tool_calls": [ToolCall.make("f", "{}", "call_0").as_dict()]}
_RESULT: Message = {"role": "tool", "tool_call_id": "call_0", "name": "f", "content": "a"}
_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "f", "parameters": {"type": "object", "properties": {}}},
}
_PROBES: tuple[tuple[list[Message], Tools], ...] = (
    ([{"role": "system", "content": "a"}, _QUESTION, _ANSWER, _QUESTION], ()),
    ([_QUESTION, _CALL, _RESULT], [_TOOL]),
    ([_QUESTION, _CALL, _RESULT, _ANSWER, _QUESTION], [_TOOL]),
)


class CutTokenizer:
    """A tokenizer that encodes the pieces of a text between sentinels by themselves, or with `joint` between them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # Random: no message can contain it. Letters and digits pass through JSON and a template's filters.
        self.sentinel = f"cut{secrets.token_hex(6)}"
        self.joint = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **options: Any) -> list[int]:
        return [token for piece in self._pieces(text) for token in self._tokenizer.encode(piece, **options)]

    def __call__(self, text: str, **options: Any) -> Mapping[str, Any]:
        """Ids and offsets, as the renderers ask for them."""
        if self.sentinel not in text:
            encoded: Mapping[str, Any] = self._tokenizer(text, **options)
            return encoded
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        at = 0
        for piece in self._pieces(text):
            encoded = self._tokenizer(piece, **options)
            ids += encoded["input_ids"]
            offsets += [(at + begin, at + end) for begin, end in encoded["offset_mapping"]]
            at += len(piece) + len(self.sentinel)
        return {"input_ids": ids, "offset_mapping": offsets}

    def shown(self, text: str) -> str:
        """Rendered text as its ids decode."""
        return text.replace(self.sentinel, self.joint)

    def _pieces(self, text: str) -> list[str]:
        return [self.shown(text)] if self.joint else text.split(self.sentinel)


class ControlTokens:
    """Cuts the spellings of control tokens: those that a tokenizer marks as special, and `written` ones."""

    def __init__(self, tokenizer: CutTokenizer, written: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        special = {str(token) for token in tokenizer.all_special_tokens}
        added = {text: tokenizer.convert_tokens_to_ids(text) for text in special} | tokenizer.get_added_vocab()
        decoder = getattr(tokenizer, "added_tokens_decoder", {})
        special |= {str(token) for token in decoder.values() if getattr(token, "special", False)}
        ids = frozenset(written)
        control = {
            text: token for text, token in added.items() if len(text.strip()) > 1 and (text in special or token in ids)
        }
        self._anywhere = _pattern(control)
        self._in_prompts = _pattern(text for text in control if text in special or not TAG.fullmatch(text))
        # Those that the template writes come first.
        tried = list(islice(sorted(control, key=lambda text: control[text] not in ids), TRIED))
        for joint in JOINTS:
            tokenizer.joint = joint
            if self._stay_text(tried, frozenset(control.values())):
                break

    def in_prompt(self, text: str) -> str:
        """The text of a system or user message, cut; tags that are not special stay tokens."""
        return self._cut(text, self._in_prompts)

    def in_result(self, text: str) -> str:
        """The text of a tool result, cut."""
        return self._cut(text, self._anywhere)

    def in_tools(self, tools: Tools) -> Tools:
        """Tool schemas with all their texts cut: a server may have written them."""
        return [self._in_value(tool) for tool in tools]

    def _in_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.in_result(value)
        if isinstance(value, Mapping):
            return {self.in_result(str(name)): self._in_value(part) for name, part in value.items()}
        return [self._in_value(part) for part in value] if isinstance(value, list | tuple) else value

    def _cut(self, text: str, pattern: re.Pattern[str]) -> str:
        # Again for spellings that overlap.
        while pattern.search(text):
            text = pattern.sub(lambda match: match[0][0] + self._tokenizer.sentinel + match[0][1:], text)
        return text

    def _stay_text(self, spellings: Iterable[str], control: frozenset[int]) -> bool:
        """Whether cut spellings are encoded as text and, for a tokenizer without `joint`, decode to themselves."""
        tokenizer = self._tokenizer
        for text in spellings:
            ids = tokenizer.encode(text[0] + tokenizer.sentinel + text[1:], add_special_tokens=False)
            if not control.isdisjoint(ids) or (not tokenizer.joint and decode_ids(tokenizer, ids) != text):
                return False
        return True


def written_tokens(prompt: Callable[[Sequence[Message], Tools], list[int]]) -> set[int]:
    """The ids that a format writes for short conversations, among them those between messages, calls and results."""
    found: set[int] = set()
    for messages, tools in _PROBES:
        try:
            found.update(prompt(messages, tools))
        except Exception:  # noqa: BLE001, S112 (a template or renderer may refuse a probe in any way)
            continue
    return found


def _pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of these words; as a trie, so that thousands of them cost no more than a few."""
    trie: dict[str, Any] = {}
    for word in words:
        node = trie
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}
    return re.compile(_source(trie) or "(?!)")


def _source(node: Mapping[str, Any]) -> str:
    branches = [re.escape(letter) + _source(below) for letter, below in sorted(node.items()) if letter]
    joined = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""
    return f"(?:{joined})?" if joined and "" in node else joined
