"""TemplateFormat: a chat format over the tokenizer's own chat template, for models without a hand-written renderer.

The template renders all text and the parser parses all calls; ids are only encoded and decoded. A continuation is
encoded together with the end of its turn, which is then dropped if the model sampled it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import EnvironmentCodeError
from hermes_rl.core.messages import Message, ToolCall, content_text, with_unique_ids
from hermes_rl.inference.tokens.chat_format import FormatSettings, Reply, Tools, Turn
from hermes_rl.inference.tokens.chat_template import ChatTemplate
from hermes_rl.inference.tokens.control_tokens import ControlTokens, CutTokenizer, written_tokens
from hermes_rl.inference.tokens.reasoning import CLOSE, OPEN, reasoning_of, split_reasoning
from hermes_rl.inference.tokens.template_bridge import TemplateBridge
from hermes_rl.inference.tokens.template_traits import PROBE_ID, generation_prompt
from hermes_rl.inference.tokens.tokenizer import decode_ids
from hermes_rl.parsers import get_parser


def find_stops(template: ChatTemplate, tokenizer: Any) -> dict[str, int]:
    """The tokens that can end a turn, by their texts: the one the template writes first, then the model's others."""
    added: dict[str, int] = {
        **{text: tokenizer.convert_tokens_to_ids(text) for text in tokenizer.all_special_tokens},
        **tokenizer.get_added_vocab(),
    }
    stops = _tokens_in(template.after_answer, added)[:1]
    between = _between_turns(template)
    if not stops:
        # GLM's turns have no end token: the model stops with the token that opens the next turn.
        stops = [text for gap in between for text in _tokens_in(gap, added)[:1]]
    elif template.traits.calls:
        stops += _end_of_calls(template, added)
    opening = generation_prompt(template.render, template.probes)
    opening += "".join(gap.partition(stops[0])[2] if stops else gap for gap in between)
    found = {text: added[text] for text in stops}
    for extra in _model_stops(tokenizer):
        text = decode_ids(tokenizer, [extra])
        # A GGUF's eos may be the token that opens a turn.
        if text and text not in opening:
            found.setdefault(text, extra)
    return found


def _between_turns(template: ChatTemplate) -> list[str]:
    """The text between an answer and the user's or a tool's message after it."""
    probes, gaps = template.probes, []
    for role in ("user", "tool"):
        messages = template.adapt([{"role": role, "tool_call_id": PROBE_ID, "content": f"{probes.past}N"}])
        try:
            text = template.render([probes.user, probes.assistant, *messages], None)
        except EnvironmentCodeError:
            continue
        gaps.append(text.partition(probes.turn)[2].partition(f"{probes.past}N")[0])
    return gaps


def _end_of_calls(template: ChatTemplate, added: Mapping[str, int]) -> list[str]:
    probes = template.probes
    call = ToolCall.make(probes.past, json.dumps({"name": probes.turn}), PROBE_ID)
    message: Message = {"role": "assistant", "content": "", "tool_calls": [call.as_dict()]}
    try:
        text = template.render(template.adapt([probes.user, message]), None, generate=False)
    except EnvironmentCodeError:
        return []
    return _tokens_in(text.rpartition(probes.turn)[2], added)[-1:]


def _model_stops(tokenizer: Any) -> list[int]:
    """The tokenizer's end of text, and the end tokens in the model's generation config."""
    stops = [tokenizer.eos_token_id]
    folder = getattr(tokenizer, "name_or_path", "")
    if folder and (config := Path(folder) / "generation_config.json").is_file():
        named = json.loads(config.read_text()).get("eos_token_id")
        stops += named if isinstance(named, list) else [named]
    return [stop for stop in stops if isinstance(stop, int)]


def _tokens_in(text: str, tokens: Mapping[str, int]) -> list[str]:
    """The tokens in the text, in order."""
    pattern = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True))
    return re.findall(pattern, text) if pattern else []


# Enough for an opening tag that is several tokens, and the whitespace after it.
OPENING_TAG_IDS = 16


class TemplateFormat:
    name = "template"

    def __init__(self, tokenizer: Any, settings: FormatSettings) -> None:
        self._tokenizer = CutTokenizer(tokenizer)
        self._parser = get_parser(settings.parser)
        self._template = ChatTemplate(self._tokenizer, settings)
        self._template.control = ControlTokens(self._tokenizer, written_tokens(self.prompt))
        stops = find_stops(self._template, tokenizer)
        self.stop_token_ids: tuple[int, ...] = tuple(stops.values())
        self._bridge = TemplateBridge(self._template, stops)

    def prompt(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        return self.encode(self._template.transcript(messages, tools))

    def transcript(self, messages: Sequence[Message], tools: Tools) -> str:
        return self._tokenizer.shown(self._template.transcript(messages, tools))

    def continuation(self, turn: Turn, new: Sequence[Message], tools: Tools) -> list[int] | None:
        if not new or any(message.get("role") == "assistant" for message in new) or self._ended_in_reasoning(turn):
            return None
        try:
            tail = self._bridge.tail(turn.history, new, tools)
        except EnvironmentCodeError:
            # The full render raises with the reason.
            return None
        if tail is None:
            return None
        ids = self.encode(tail)
        if not turn.sampled or turn.sampled[-1] not in self.stop_token_ids:
            return ids
        # Encoded together with the end of the turn, which may merge with the whitespace after it.
        return ids[1:] if ids[:1] == [turn.sampled[-1]] else None

    def reply(self, sampled: Sequence[int], prompt: Sequence[int], tools: Tools) -> Reply:
        ids = list(sampled)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        text, reasoning = self.decode(ids), None
        opened = self.decode(prompt[-OPENING_TAG_IDS:]).rstrip().endswith(OPEN)
        if self._template.traits.reasoning:
            reasoning, text = split_reasoning(text, opened=opened)
            opened = False
        if not tools:
            return Reply(text, reasoning)
        parsed = self._parser.parse(OPEN + text if opened else text, tools)
        if not parsed.calls:
            return Reply(text, reasoning, (), parsed.broken)
        content = parsed.content.removeprefix(OPEN) if opened else parsed.content
        return Reply(content, reasoning, tuple(with_unique_ids(parsed.calls)), parsed.broken)

    def encode(self, text: str) -> list[int]:
        # Templates write the tokens that a tokenizer would add by itself, such as BOS.
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        except (UnicodeEncodeError, TypeError):
            # Half a surrogate pair, which no tokenizer accepts.
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return list(self._tokenizer.encode(whole, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return decode_ids(self._tokenizer, ids)

    def _ended_in_reasoning(self, turn: Turn) -> bool:
        """Whether the turn ended inside its reasoning, which the template would close."""
        last = turn.history[-1]
        return (
            self._template.traits.reasoning
            and bool(reasoning_of(last))
            and not content_text(last.get("content"))
            and not last.get("tool_calls")
            and CLOSE not in self.decode(turn.sampled)
        )
