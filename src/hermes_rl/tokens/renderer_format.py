"""RendererFormat: a chat format on the hand-written renderers of the `renderers` package.

Always true: a continuation is given out only if the same renderer, asked for a whole conversation, writes the same
after such a turn.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, takewhile
from typing import Any, NamedTuple

from hermes_rl.errors import AuthorError
from hermes_rl.messages import Message, ToolCall, content_text, tool_calls
from hermes_rl.tokens.chat_format import FormatSettings, Reply, Tools, Turn
from hermes_rl.tokens.renderer_package import made_renderer, renderer_name
from hermes_rl.tokens.renderer_replies import ReplyReader
from hermes_rl.tokens.thinking import reasoning_of
from hermes_rl.tokens.tokenizer import decoded
from hermes_rl.tokens.tool_prompts import tools_text

# These write the name of the tool before its result; a message of ours has only the id of the call.
NAMED_RESULTS = frozenset({"gemma4", "gpt-oss", "inkling"})
# These have no place for tools; here is the parser's name for the calls they write.
TOOLS_NOT_SHOWN = {"deepseek-r1": "deepseek_v3", "deepseek-v3": "deepseek_v3"}
# What a renderer raises for a conversation that its template has no way to write.
UNWRITABLE = (ValueError, TypeError, LookupError, RuntimeError)
# A short conversation to see what a renderer writes before and after a turn.
THOUGHT = "thought-0"
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


def renderer_for(tokenizer: Any, settings: FormatSettings) -> "RendererFormat | None":
    """The format of the renderer that is named, or that the model's name stands for; None when it has none."""
    if settings.renderer == "template":
        return None
    if settings.renderer == "auto":
        name = renderer_name(tokenizer)
        if name is None:
            return None
        settings = replace(settings, renderer=name)
    return RendererFormat(tokenizer, settings)


class StandIn(NamedTuple):
    """A conversation of the same shape as the end of a true one, with next to nothing in it; its last turn is said."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    thought: bool

    @classmethod
    def of(cls, history: Sequence[Message], *, with_tools: bool) -> "StandIn":
        since_question = takewhile(lambda message: message.get("role") != "user", reversed(history))
        thought = any(map(reasoning_of, since_question))
        calls = [ToolCall.make(call.name, "{}", call.id).as_dict() for call in tool_calls(history[-1:])]
        said: Message = {"role": "assistant", "content": "" if calls else "a"}
        said |= {"tool_calls": calls} if calls else {}
        said |= {"reasoning_content": THOUGHT} if thought else {}
        after_tool = len(history) > 1 and history[-2].get("role") == "tool"
        before = [QUESTION, CALLED, RESULT] if after_tool else [QUESTION]
        return cls([*before, said], [TOOL] if with_tools else None, thought)

    @property
    def shape(self) -> tuple[int, bool, bool, bool]:
        return len(self.messages), bool(self.tools), self.thought, "tool_calls" in self.messages[-1]


class RendererFormat:
    def __init__(self, tokenizer: Any, settings: FormatSettings) -> None:
        self.name = settings.renderer
        self._tokenizer = tokenizer
        self._renderer = made_renderer(tokenizer, settings)
        self._tool_prompt = settings.tool_prompt
        self._openings: dict[tuple[int, bool], list[int]] = {}
        self._held: dict[tuple[int, bool, bool, bool], bool] = {}
        thinking = StandIn.of([{"role": "assistant", "reasoning_content": THOUGHT}], with_tools=False)
        # Whole renders of these drop thinking, but not the last turn's: written turn for turn, it can be kept.
        self._in_pieces = (
            settings.keep_thinking and not self._renderer.is_prefix_stable and self._holds_while_last(thinking)
        )
        self.stop_token_ids: tuple[int, ...] = tuple(self._renderer.get_stop_token_ids())
        self._stops = frozenset(self.stop_token_ids)
        self._reader = ReplyReader(self._renderer, self.decode)

    def prompt(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        shown = self._shown(tools)
        try:
            adapted = self._adapted(messages, tool_calls(messages))
            if shown and self.name in TOOLS_NOT_SHOWN:
                adapted = _taught(adapted, tools_text(TOOLS_NOT_SHOWN[self.name], shown))
            return self._kept(adapted, shown) if self._in_pieces else self._rendered(adapted, shown)
        except UNWRITABLE as error:
            raise AuthorError(
                "unrenderable",
                f"the {self.name} renderer cannot write this conversation ({error!r}); change its messages, or choose "
                "another way to write them with --env.renderer",
            ) from error

    def continuation(self, turn: Turn, new: Sequence[Message], tools: Tools) -> list[int] | None:
        try:
            return self._following(turn, self._adapted(new, tool_calls(turn.history[-1:])), self._shown(tools))
        except UNWRITABLE:
            # The whole render meets the same message, and says what is wrong with it.
            return None

    def reply(self, sampled: Sequence[int], prompt: Sequence[int], tools: Tools) -> Reply:
        return self._reader.read(sampled, self._since_last_stop(prompt), tools)

    def transcript(self, messages: Sequence[Message], tools: Tools) -> str:
        return self.decode(self.prompt(messages, tools))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return decoded(self._tokenizer, ids)

    def _rendered(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, *, speaks_next: bool = True
    ) -> list[int]:
        ids: list[int] = self._renderer.render_ids(messages, tools=tools, add_generation_prompt=speaks_next)
        return ids

    def _shown(self, tools: Tools) -> list[dict[str, Any]] | None:
        """The tools a prompt shows. None for no tools: some templates write a section for an empty list."""
        return [dict(tool) for tool in tools] if tools and self._tool_prompt else None

    def _adapted(self, messages: Iterable[Message], calls: Iterable[ToolCall]) -> list[Message]:
        names = {call.id: call.name for call in calls} if self.name in NAMED_RESULTS else {}
        return [_adapted(message, names) for message in messages]

    def _since_last_stop(self, prompt: Sequence[int]) -> list[int]:
        """The end of a prompt from its last stop token on: renderers look no further back, but copy all they get."""
        place = next((place for place in range(len(prompt) - 1, 0, -1) if prompt[place] in self._stops), 0)
        return list(prompt[place:])

    def _following(self, turn: Turn, new: list[Message], tools: list[dict[str, Any]] | None) -> list[int] | None:
        """What the renderer's bridge writes after the turn; None when a whole render has another text there."""
        recent, sampled = self._since_last_stop(turn.prompt), list(turn.sampled)
        bridge = self._renderer.bridge_to_next_turn(recent, sampled, new, tools=tools)
        past = len(recent) + len(sampled)
        if bridge is None or bridge.token_ids[:past] != recent + sampled:
            return None
        ids: list[int] = bridge.token_ids[past:]
        stand_in = StandIn.of(turn.history, with_tools=bool(tools))
        whole = self.decode(self._rendered([*stand_in.messages, *new], stand_in.tools))
        stop = [token for token in sampled[-1:] if token in self._stops]
        if not stop and ids[0] in self._stops and not whole.endswith(self.decode(ids)):
            # GLM's bridge ends a turn that was cut with a token that its template never writes.
            ids = ids[1:]
        if not whole.endswith(self.decode(stop + ids)):
            return None
        if self._in_pieces:
            held = self._held.get(stand_in.shape)
            if held is None:
                held = self._held[stand_in.shape] = self._holds_while_last(stand_in)
        else:
            held = self._holds(whole, stand_in)
        return ids if held else None

    def _holds_while_last(self, stand_in: StandIn) -> bool:
        return self._holds(self.decode(self._rendered(stand_in.messages, stand_in.tools, speaks_next=False)), stand_in)

    def _holds(self, whole: str, stand_in: StandIn) -> bool:
        """Whether a text still has what the prompt began the turn with, and the thinking in it."""
        opening = self.decode(self._opening(stand_in))
        return whole.startswith(opening) and (THOUGHT in whole or not stand_in.thought)

    def _opening(self, stand_in: StandIn) -> list[int]:
        before, tools = stand_in.messages[:-1], stand_in.tools
        key = len(before), bool(tools)
        if key not in self._openings:
            self._openings[key] = self._rendered(before, tools)
        return self._openings[key]

    def _kept(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> list[int]:
        """A whole render with each turn as it was when it was the last, so that its thinking is still there."""
        turns = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
        begin = turns[0] if turns else len(messages)
        pieces: list[list[int]] = []
        for place, end in reversed(list(pairwise([*turns, len(messages)]))):
            piece = self._piece(messages[: place + 1], messages[place + 1 : end], tools) if place else None
            if piece is None:
                # As when it happened: nothing could follow that turn, and all was written anew.
                begin = end
                break
            pieces.append(piece)
        return [*self._rendered(messages[:begin], tools), *chain.from_iterable(reversed(pieces))]

    def _piece(
        self, history: list[Message], new: list[Message], tools: list[dict[str, Any]] | None
    ) -> list[int] | None:
        """The last turn of the history and what follows it."""
        stand_in = StandIn.of(history, with_tools=bool(tools))
        opening = self._opening(stand_in)
        as_last = [*stand_in.messages[:-1], history[-1]]
        said = self.decode(self._rendered(as_last, stand_in.tools, speaks_next=False))
        turn = self.encode(said.removeprefix(self.decode(opening)))
        # At most a line end follows the token that closes a turn.
        closed = next((at for at in range(max(len(turn) - 2, 0), len(turn)) if turn[at] in self._stops), len(turn))
        following = self._following(Turn(opening, turn[:closed], history), new, tools)
        return None if following is None else turn[:closed] + following


def _adapted(message: Message, names: Mapping[str, str]) -> Message:
    """The message as renderers want it: its content a string, its thinking in one place, a result with its tool."""
    content = message.get("content")
    if isinstance(content, list):
        other = [part for part in content if not (isinstance(part, Mapping) and isinstance(part.get("text"), str))]
        if other:
            raise ValueError(f"its content has a part that is not text: {str(other[0])[:80]}")
    adapted = {**message, "content": content_text(content)}
    if "reasoning" in message:
        adapted.setdefault("reasoning_content", message["reasoning"])
    if message.get("role") == "tool" and (name := names.get(str(message.get("tool_call_id")))):
        adapted.setdefault("name", name)
    return adapted


def _taught(messages: list[Message], lesson: str) -> list[Message]:
    """The conversation with the lesson at the end of its system message."""
    if messages and messages[0].get("role") == "system":
        first, *rest = messages
        return [{**first, "content": f"{first['content']}\n\n{lesson}"}, *rest]
    return [{"role": "system", "content": lesson}, *messages]
