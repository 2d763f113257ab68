"""TemplateFormat: a chat format over the tokenizer's own chat template, for models nobody wrote a renderer for.

Always true: the template writes all text, and the parser reads all calls; ids are only encoded from the one and decoded
for the other. A continuation is encoded with the end of its turn, and given without it where the model sampled that.
"""

from collections.abc import Sequence
from typing import Any

from hermes_rl.errors import AuthorError
from hermes_rl.messages import Message, content_text, with_own_ids
from hermes_rl.parsers import get_parser
from hermes_rl.tokens.chat_format import FormatSettings, Reply, Tools, Turn
from hermes_rl.tokens.chat_template import ChatTemplate
from hermes_rl.tokens.template_bridge import TemplateBridge
from hermes_rl.tokens.template_stops import found_stops
from hermes_rl.tokens.thinking import CLOSE, OPEN, reasoning_of, split_thinking
from hermes_rl.tokens.tokenizer import decoded

# Enough for an opening tag that is no token of its own, and the space behind it.
OPENING_IDS = 16


class TemplateFormat:
    name = "template"

    def __init__(self, tokenizer: Any, settings: FormatSettings) -> None:
        self._tokenizer = tokenizer
        self._parser = get_parser(settings.parser)
        self._template = ChatTemplate(tokenizer, settings)
        stops = found_stops(self._template, tokenizer)
        self.stop_token_ids: tuple[int, ...] = tuple(stops.values())
        self._bridge = TemplateBridge(self._template, stops)

    def prompt(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        return self.encode(self.transcript(messages, tools))

    def transcript(self, messages: Sequence[Message], tools: Tools) -> str:
        return self._template.transcript(messages, tools)

    def continuation(self, turn: Turn, new: Sequence[Message], tools: Tools) -> list[int] | None:
        if not new or any(message.get("role") == "assistant" for message in new) or self._still_thinking(turn):
            return None
        try:
            tail = self._bridge.tail(turn.history, new, tools)
        except AuthorError:
            # The full render says what is wrong.
            return None
        if tail is None:
            return None
        ids = self.encode(tail)
        if not turn.sampled or turn.sampled[-1] not in self.stop_token_ids:
            return ids
        # Tokenised with the end of the turn, which may take the space behind it.
        return ids[1:] if ids[:1] == [turn.sampled[-1]] else None

    def reply(self, sampled: Sequence[int], prompt: Sequence[int], tools: Tools) -> Reply:
        ids = list(sampled)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        said, reasoning = self.decode(ids), None
        opened = self.decode(prompt[-OPENING_IDS:]).rstrip().endswith(OPEN)
        if self._template.traits.reasoning:
            reasoning, said = split_thinking(said, opened=opened)
            opened = False
        if not tools:
            return Reply(said, reasoning)
        parsed = self._parser.parse(OPEN + said if opened else said, tools)
        if not parsed.calls:
            return Reply(said, reasoning, (), parsed.broken)
        content = parsed.content.removeprefix(OPEN) if opened else parsed.content
        return Reply(content, reasoning, tuple(with_own_ids(parsed.calls)), parsed.broken)

    def encode(self, text: str) -> list[int]:
        # What a tokenizer adds by itself, such as a first token, templates write themselves.
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        except (UnicodeEncodeError, TypeError):
            # Half a surrogate pair, which no tokenizer knows.
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return list(self._tokenizer.encode(whole, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return decoded(self._tokenizer, ids)

    def _still_thinking(self, turn: Turn) -> bool:
        """Whether the turn ended in its thinking, which the template would close."""
        last = turn.history[-1]
        return (
            self._template.traits.reasoning
            and bool(reasoning_of(last))
            and not content_text(last.get("content"))
            and not last.get("tool_calls")
            and CLOSE not in self.decode(turn.sampled)
        )
