"""TextPrefixServer: a managed server that matches conversations by their text, with the defects that come of it.

It stands for the way of Atropos 0.4.0, in our own words, so that the tests of its seven defects can be seen to fail. A
prompt is rendered to text; a node whose text it begins with is gone on from, and only the rest is tokenised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp

from hermes_rl.core.messages import Message
from hermes_rl.inference.managed_server import SequenceNode
from hermes_rl.parsers import get_parser

# Stand for the tags while a template renders, so that it does not strip what is between them.
HIDDEN = {"<think>": "\ue000", "</think>": "\ue001"}


@dataclass(slots=True)
class Node:
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    masked: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, text: str, tokens: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        self.text += text
        self.tokens += tokens
        self.masked += [-100] * len(tokens) if logprobs is None else tokens
        self.logprobs += [1.0] * len(tokens) if logprobs is None else logprobs


class TextPrefixServer:
    def __init__(
        self, root: str, tokenizer: Any, *, tool_parser: str | None = None, preserve_think_blocks: bool = False
    ) -> None:
        self.root = root
        self.tokenizer = tokenizer
        self.tool_parser = tool_parser
        self.preserve_think_blocks = preserve_think_blocks
        self.nodes: list[Node] = []

    async def chat_completion(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, max_tokens: int = 256
    ) -> Any:
        parser = get_parser(self.tool_parser) if tools and self.tool_parser else None
        prompt = self._rendered(messages, tools if parser else None)
        node = next((node for node in self.nodes if prompt.startswith(node.text)), None)
        if node is None:
            node = Node()
            self.nodes.append(node)
        suffix = prompt[len(node.text) :]
        node.add(suffix, self._encoded(suffix))
        choice = await self._sampled(node.tokens, max_tokens)
        text = self._keep(node, choice, keep_special=parser is not None)
        if parser is None:
            return _completion(text, (), choice["finish_reason"])
        calls = tuple(call.as_dict() for call in parser.parse(text).calls)
        return _completion(text, calls, "tool_calls" if calls else "stop")

    async def completion(self, prompt: str, *, max_tokens: int = 256) -> list[str]:
        node = next((node for node in self.nodes if prompt.startswith(node.text)), None)
        if node is None:
            node = Node()
            self.nodes.append(node)
        tokens = node.tokens + self._encoded(prompt[len(node.text) :])
        node.text, node.tokens, node.masked, node.logprobs = "", [], [], []
        node.add(prompt, tokens)
        return [self._keep(node, await self._sampled(tokens, max_tokens), keep_special=False)]

    def trained(self) -> list[SequenceNode]:
        """What an environment takes of it, the last node."""
        return [SequenceNode(node.tokens, node.masked, node.logprobs) for node in self.nodes[-1:]]

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> str:
        hidden = {} if self.preserve_think_blocks else HIDDEN
        shown = [dict(message) for message in messages]
        for message in shown:
            for tag, letter in hidden.items():
                message["content"] = message["content"].replace(tag, letter)
        text = str(self.tokenizer.apply_chat_template(shown, tools=tools, tokenize=False, add_generation_prompt=True))
        for tag, letter in hidden.items():
            text = text.replace(letter, tag)
        return text

    def _encoded(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _keep(self, node: Node, choice: Mapping[str, Any], *, keep_special: bool) -> str:
        text = str(self.tokenizer.decode(choice["token_ids"], skip_special_tokens=not keep_special))
        node.add(text, choice["token_ids"], [entry["logprob"] for entry in choice["logprobs"]["content"]])
        return text

    async def _sampled(self, ids: list[int], max_tokens: int) -> dict[str, Any]:
        body = {"token_ids": ids, "sampling_params": {"n": 1, "max_tokens": max_tokens}}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.root}/inference/v1/generate", json=body) as response,
        ):
            answer = await response.json()
        choice: dict[str, Any] = answer["choices"][0]
        return choice


def _completion(content: str, calls: tuple[dict[str, Any], ...], finish_reason: str) -> Any:
    message = SimpleNamespace(content=content, tool_calls=calls)
    return SimpleNamespace(choices=[SimpleNamespace(message=message, finish_reason=finish_reason)])
