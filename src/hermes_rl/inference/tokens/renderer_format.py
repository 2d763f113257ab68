"""RendererFormat: a chat format that uses the hand-written renderers of the `renderers` package.

A continuation is returned only if the same renderer, given the whole conversation, renders the same text after the
turn.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise, takewhile
from typing import Any, NamedTuple

from hermes_rl.core import fast_json
from hermes_rl.core.errors import EnvironmentCodeError
from hermes_rl.core.messages import Message, ToolCall, content_text, tool_calls
from hermes_rl.inference.tokens.chat_format import FormatSettings, Reply, Tools, Turn
from hermes_rl.inference.tokens.control_tokens import ControlTokens, CutTokenizer, written_tokens
from hermes_rl.inference.tokens.reasoning import CLOSE, reasoning_of
from hermes_rl.inference.tokens.renderer_package import create_renderer, package, renderer_name
from hermes_rl.inference.tokens.tokenizer import decode_ids
from hermes_rl.parsers import BrokenCall, get_parser
from hermes_rl.parsers.json_span import json_span

# Parses sampled ids with a renderer of the `renderers` package. Calls are found by the ids of their markers, so text
# that only looks like a call is text. Nothing that a model samples is lost or raises: what cannot be parsed becomes
# the reply's content and is reported as a broken call.

# What a parser may raise for a model's output: a number of 5,000 digits, JSON 10,000 levels deep.
PARSE_ERRORS = (ValueError, TypeError, LookupError, RuntimeError, AttributeError)
OPENING_BRACE = re.compile(r"\{")


class ReplyReader:
    def __init__(self, renderer: Any, decode: Callable[[Sequence[int]], str]) -> None:
        self._renderer = renderer
        self._decode = decode
        self._stops = frozenset(renderer.get_stop_token_ids())
        self._ok = package().ToolCallParseStatus.OK

    def read(self, sampled: Sequence[int], prompt: list[int], tools: Tools) -> Reply:
        """Parse sampled ids. `prompt` may start at its last stop token."""
        ids = list(sampled)
        end = next((index for index, token in enumerate(ids) if token in self._stops), len(ids))
        schemas = [dict(tool) for tool in tools] or None
        try:
            parsed = self._renderer.parse_response(ids, tools=schemas, prompt_ids=prompt)
            # Without tools there are no calls: Llama writes any JSON object with a name like a call.
            attempts = [self._call(attempt) for attempt in parsed.tool_calls if tools]
            calls = tuple(call for call in attempts if isinstance(call, ToolCall))
            broken = tuple(call for call in attempts if isinstance(call, BrokenCall))
            text = parsed.content.strip()
            if not calls and parsed.reasoning_complete is not False:
                text = self._full_text(ids[:end], parsed, prompt)
        except PARSE_ERRORS as error:
            text = self._decode(ids[:end])
            return Reply(text, broken=(BrokenCall(text, f"it cannot be parsed: {error}"),))
        reasoning = parsed.reasoning_content
        return Reply(text, reasoning and reasoning.strip(), calls, broken)

    def _call(self, attempt: Any) -> ToolCall | BrokenCall:
        if attempt.status != self._ok:
            return BrokenCall(attempt.raw, str(attempt.status.value).replace("_", " "))
        if not isinstance(attempt.name, str):
            return BrokenCall(attempt.raw, "the name is not a string")
        return ToolCall.make(attempt.name, _arguments(attempt.arguments, attempt.raw), attempt.id)

    def _full_text(self, ids: list[int], parsed: Any, prompt: list[int]) -> str:
        """All text except the reasoning: a parser drops what it took for a call, and what follows it."""
        text = str(parsed.content).strip()
        if text and not parsed.tool_calls and self._decode(ids).rstrip().endswith(text):
            return text
        first = min((attempt.token_span[0] for attempt in parsed.tool_calls if attempt.token_span), default=len(ids))
        text = str(self._renderer.parse_response(ids[:first], prompt_ids=prompt).content).strip()
        before, rest = self._decode(ids[:first]), self._decode(ids[first:])
        if text and (start := before.rfind(text)) >= 0:
            return (before[start:] + rest).strip()
        _, closed, after = before.rpartition(CLOSE)
        return ((after if closed or not parsed.reasoning_content else "") + rest).strip()


def _arguments(value: Any, raw: str) -> str:
    """A call's arguments as JSON text, as the model wrote them if it wrote JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        # They are the first object in the text, or inside it next to the name.
        for brace in islice(OPENING_BRACE.finditer(raw), 2):
            span = json_span(raw, brace.start())
            text = raw[span.begin : span.end]
            if not span.problem and _load_json(text) == value:
                return text
    return "{}" if value is None else fast_json.dumps(value).decode()


def _load_json(text: str) -> Any:
    try:
        return fast_json.loads(text)
    except ValueError:
        return None


# These render the tool's name before its result; our messages have only the id of the call.
NAMED_RESULTS = frozenset({"gemma4", "gpt-oss", "inkling"})
# These do not render tools; the value is the parser for the calls they write.
PARSER_FOR_TOOLS = {"deepseek-r1": "deepseek_v3", "deepseek-v3": "deepseek_v3"}
# What a renderer raises for a conversation that its template cannot express.
RENDER_ERRORS = (ValueError, TypeError, LookupError, RuntimeError)
# A short conversation that shows what a renderer writes before and after a turn.
REASONING = "thought-0"
QUESTION: Message = {"role": "user", "content": "a"}
CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [ToolCall.make("f", "{}", "call_0").as_dict()],
}
RESULT: Message = {"role": "tool", "tool_call_id": "call_0", "name": "f", "content": "a"}
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "f", "parameters": {"type": "object", "properties": {}}},
}


def renderer_format(tokenizer: Any, settings: FormatSettings) -> "RendererFormat | None":
    """The format of the configured renderer, or of the one for the model's name; None if there is none."""
    if settings.renderer == "template":
        return None
    if settings.renderer == "auto":
        name = renderer_name(tokenizer)
        if name is None:
            return None
        settings = replace(settings, renderer=name)
    return RendererFormat(tokenizer, settings)


class ProbeConversation(NamedTuple):
    """A minimal conversation with the same shape as the end of a real one; its last message is the assistant's."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    has_reasoning: bool

    @classmethod
    def from_history(cls, history: Sequence[Message], *, with_tools: bool) -> "ProbeConversation":
        since_question = takewhile(lambda message: message.get("role") != "user", reversed(history))
        has_reasoning = any(map(reasoning_of, since_question))
        calls = [ToolCall.make(call.name, "{}", call.id).as_dict() for call in tool_calls(history[-1:])]
        answer: Message = {"role": "assistant", "content": "" if calls else "a"}
        answer |= {"tool_calls": calls} if calls else {}
        answer |= {"reasoning_content": REASONING} if has_reasoning else {}
        after_tool = len(history) > 1 and history[-2].get("role") == "tool"
        before = [QUESTION, CALLED, RESULT] if after_tool else [QUESTION]
        return cls([*before, answer], [TOOL] if with_tools else None, has_reasoning)

    @property
    def shape(self) -> tuple[int, bool, bool, bool]:
        return len(self.messages), bool(self.tools), self.has_reasoning, "tool_calls" in self.messages[-1]


class RendererFormat:
    def __init__(self, tokenizer: Any, settings: FormatSettings) -> None:
        self.name = settings.renderer
        self._tokenizer = CutTokenizer(tokenizer)
        self._control = ControlTokens(self._tokenizer)
        self._renderer = create_renderer(self._tokenizer, settings)
        self._tool_prompt = settings.tool_prompt
        self._openings: dict[tuple[int, bool], list[int]] = {}
        self._stable_shapes: dict[tuple[int, bool, bool, bool], bool] = {}
        reasoning_probe = ProbeConversation.from_history(
            [{"role": "assistant", "reasoning_content": REASONING}], with_tools=False
        )
        # These renderers drop reasoning except in the last turn. Rendered turn by turn, it can be kept.
        self._by_turn = (
            settings.keep_reasoning
            and not self._renderer.is_prefix_stable
            and self._preserves_last_turn(reasoning_probe)
        )
        self.stop_token_ids: tuple[int, ...] = tuple(self._renderer.get_stop_token_ids())
        self._stops = frozenset(self.stop_token_ids)
        self._reader = ReplyReader(self._renderer, self.decode)
        self._control = ControlTokens(self._tokenizer, written_tokens(self.prompt))

    def prompt(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        shown = self._shown_tools(tools)
        try:
            adapted = self._adapt(messages, tool_calls(messages))
            if shown and self.name in PARSER_FOR_TOOLS:
                adapted = _add_tools_section(
                    adapted, get_parser(PARSER_FOR_TOOLS[self.name]).tool_format.tools_text(shown)
                )
            return self._render_by_turn(adapted, shown) if self._by_turn else self._render(adapted, shown)
        except RENDER_ERRORS as error:
            raise EnvironmentCodeError(
                "unrenderable",
                f"the {self.name} renderer cannot render this conversation ({error!r}); change its messages, or choose "
                "another renderer with --env.renderer",
            ) from error

    def continuation(self, turn: Turn, new: Sequence[Message], tools: Tools) -> list[int] | None:
        try:
            return self._bridge(turn, self._adapt(new, tool_calls(turn.history[-1:])), self._shown_tools(tools))
        except RENDER_ERRORS:
            # The full render raises for the same message, with the reason.
            return None

    def reply(self, sampled: Sequence[int], prompt: Sequence[int], tools: Tools) -> Reply:
        return self._reader.read(sampled, self._since_last_stop(prompt), tools)

    def transcript(self, messages: Sequence[Message], tools: Tools) -> str:
        return self.decode(self.prompt(messages, tools))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return decode_ids(self._tokenizer, ids)

    def _render(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, *, generate: bool = True
    ) -> list[int]:
        ids: list[int] = self._renderer.render_ids(messages, tools=tools, add_generation_prompt=generate)
        return ids

    def _shown_tools(self, tools: Tools) -> list[dict[str, Any]] | None:
        """The tools that a prompt shows, None without any: some templates write a section for an empty list."""
        return [dict(tool) for tool in self._control.in_tools(tools)] if tools and self._tool_prompt else None

    def _adapt(self, messages: Iterable[Message], calls: Iterable[ToolCall]) -> list[Message]:
        names = {call.id: call.name for call in calls} if self.name in NAMED_RESULTS else {}
        return [self._cut(_adapt(message, names)) for message in messages]

    def _cut(self, message: Message) -> Message:
        """Cut the spellings of control tokens, except in what the model wrote itself."""
        if message.get("role") == "assistant":
            return message
        cut = self._control.in_result if message.get("role") == "tool" else self._control.in_prompt
        return {**message, "content": cut(message["content"])}

    def _since_last_stop(self, prompt: Sequence[int]) -> list[int]:
        """The prompt from its last stop token on: renderers look no further back, but copy all they get."""
        start = next((index for index in range(len(prompt) - 1, 0, -1) if prompt[index] in self._stops), 0)
        return list(prompt[start:])

    def _bridge(self, turn: Turn, new: list[Message], tools: list[dict[str, Any]] | None) -> list[int] | None:
        """What the renderer's bridge writes after the turn; None if a full render differs."""
        recent, sampled = self._since_last_stop(turn.prompt), list(turn.sampled)
        bridge = self._renderer.bridge_to_next_turn(recent, sampled, new, tools=tools)
        past = len(recent) + len(sampled)
        if bridge is None or bridge.token_ids[:past] != recent + sampled:
            return None
        ids: list[int] = bridge.token_ids[past:]
        probe = ProbeConversation.from_history(turn.history, with_tools=bool(tools))
        whole = self.decode(self._render([*probe.messages, *new], probe.tools))
        stop = [token for token in sampled[-1:] if token in self._stops]
        if not stop and ids[0] in self._stops and not whole.endswith(self.decode(ids)):
            # GLM's bridge ends a truncated turn with a token that its template never writes.
            ids = ids[1:]
        if not whole.endswith(self.decode(stop + ids)):
            return None
        if self._by_turn:
            stable = self._stable_shapes.get(probe.shape)
            if stable is None:
                stable = self._stable_shapes[probe.shape] = self._preserves_last_turn(probe)
        else:
            stable = self._preserves_turn(whole, probe)
        return ids if stable else None

    def _preserves_last_turn(self, probe: ProbeConversation) -> bool:
        return self._preserves_turn(self.decode(self._render(probe.messages, probe.tools, generate=False)), probe)

    def _preserves_turn(self, whole: str, probe: ProbeConversation) -> bool:
        """Whether a text still starts with the prompt of the turn, and contains its reasoning."""
        opening = self.decode(self._opening(probe))
        return whole.startswith(opening) and (REASONING in whole or not probe.has_reasoning)

    def _opening(self, probe: ProbeConversation) -> list[int]:
        before, tools = probe.messages[:-1], probe.tools
        key = len(before), bool(tools)
        if key not in self._openings:
            self._openings[key] = self._render(before, tools)
        return self._openings[key]

    def _render_by_turn(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> list[int]:
        """Render with each turn as it was when it was the last, so that its reasoning is kept."""
        turns = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
        begin = turns[0] if turns else len(messages)
        pieces: list[list[int]] = []
        for index, end in reversed(list(pairwise([*turns, len(messages)]))):
            piece = self._render_turn(messages[: index + 1], messages[index + 1 : end], tools) if index else None
            if piece is None:
                # As at the time: nothing could continue that turn, and everything was rendered again.
                begin = end
                break
            pieces.append(piece)
        return [*self._render(messages[:begin], tools), *chain.from_iterable(reversed(pieces))]

    def _render_turn(
        self, history: list[Message], new: list[Message], tools: list[dict[str, Any]] | None
    ) -> list[int] | None:
        """Render the last turn of the history, and what follows it."""
        probe = ProbeConversation.from_history(history, with_tools=bool(tools))
        opening = self._opening(probe)
        as_last = [*probe.messages[:-1], history[-1]]
        text = self.decode(self._render(as_last, probe.tools, generate=False))
        turn = self.encode(text.removeprefix(self.decode(opening)))
        # At most a newline follows the token that closes a turn.
        closed = next((at for at in range(max(len(turn) - 2, 0), len(turn)) if turn[at] in self._stops), len(turn))
        following = self._bridge(Turn(opening, turn[:closed], history), new, tools)
        return None if following is None else turn[:closed] + following


def _adapt(message: Message, names: Mapping[str, str]) -> Message:
    """Adapt a message to the renderers: content as a string, reasoning in one field, a result with its tool's name."""
    content = message.get("content")
    if isinstance(content, list):
        other = [part for part in content if not (isinstance(part, Mapping) and isinstance(part.get("text"), str))]
        if other:
            raise ValueError(f"the content has a part that is not text: {str(other[0])[:80]}")
    adapted = {**message, "content": content_text(content)}
    if "reasoning" in message:
        adapted.setdefault("reasoning_content", message["reasoning"])
    if message.get("role") == "tool" and (name := names.get(str(message.get("tool_call_id")))):
        adapted.setdefault("name", name)
    return adapted


def _add_tools_section(messages: list[Message], section: str) -> list[Message]:
    """Append the tools section to the system message."""
    if messages and messages[0].get("role") == "system":
        first, *rest = messages
        return [{**first, "content": f"{first['content']}\n\n{section}"}, *rest]
    return [{"role": "system", "content": section}, *messages]
