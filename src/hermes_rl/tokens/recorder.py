"""The recorder: streams of token ids, grown turn by turn from what was sent to a model and what it sampled.

Always true: a sampled token stands in one stream with mask 1, and in others only as context. A stream grows only at its
end; a conversation that does not continue one begins another. Nothing here talks to an engine, so it can stand behind
a loop of ours or behind a URL.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hermes_rl import jsontext
from hermes_rl.messages import Message, ToolCall, content_text
from hermes_rl.tokens.chat_format import ChatFormat, Reply, Tools, Turn
from hermes_rl.tokens.exchange import Sampled
from hermes_rl.trajectory import Sampling
from hermes_rl.trajectory import Sequence as TokenSequence

# What an agent may send back of an assistant message; anything else in it does not reach a prompt.
REASONING = ("reasoning_content", "reasoning")


class Mark(NamedTuple):
    """Where a sampled turn stands in its stream: its first token, the one after its last, and the messages so far."""

    begin: int
    end: int
    messages: int


class Recorded(NamedTuple):
    """A finished sequence with the conversation it holds, and its sampled turns, those it has as context among them.

    The conversation ends with the message that the last turn was read as; there is none for a prompt given as text.
    """

    sequence: TokenSequence
    history: Sequence[Message]
    tools: Tools
    turns: Sequence[Mark]


@dataclass(slots=True)
class _Stream:
    sampling: Sampling
    tools: Tools
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    history: list[Message] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def add_context(self, ids: Sequence[int]) -> None:
        self.tokens += ids
        self.mask += [0] * len(ids)
        self.logprobs += [None] * len(ids)
        self.versions += [None] * len(ids)

    def add_sampled(self, sampled: Sampled) -> None:
        self.tokens += sampled.tokens
        self.mask += [1] * len(sampled.tokens)
        self.logprobs += sampled.logprobs
        self.versions += sampled.versions


class Ask(NamedTuple):
    """A prompt ready to be sent. `stream` is the one it continues, from its first `at` tokens."""

    ids: list[int]
    messages: list[Message]
    tools: Tools
    stream: _Stream | None = None
    at: int = 0


class Recorder:
    """One rollout's. `ask` before a request, `hear` with its answer; requests may overlap."""

    def __init__(self, chat_format: ChatFormat) -> None:
        self.format = chat_format
        self._streams: list[_Stream] = []

    def ask(self, messages: Sequence[Message], tools: Tools = ()) -> Ask:
        """The prompt for a conversation: the stream it continues and what follows, or the whole of it anew."""
        known, tools = self._frozen(messages), self._frozen_tools(tools)
        found = self._longest_match(known, tools)
        if found is not None:
            stream, mark = found
            turn = Turn(stream.tokens[: mark.begin], stream.tokens[mark.begin : mark.end], known[: mark.messages])
            following = self.format.continuation(turn, known[mark.messages :], tools)
            if following is not None and self._keeps_its_past(known, mark, following, tools):
                ids = stream.tokens[: mark.end]
                ids += following
                return Ask(ids, known, tools, stream, mark.end)
        return Ask(self.format.prompt(known, tools), known, tools)

    def ask_text(self, prompt: str | Sequence[int]) -> Ask:
        """The prompt for a text, or for ids, that may go on from what was sampled before."""
        for stream in reversed(self._streams):
            if isinstance(prompt, str):
                before = self.format.decode(stream.tokens)
                if prompt.startswith(before):
                    rest = self.format.encode(prompt[len(before) :])
                    return Ask(stream.tokens + rest, [], (), stream, len(stream.tokens))
            elif list(prompt[: len(stream.tokens)]) == stream.tokens:
                return Ask(list(prompt), [], (), stream, len(stream.tokens))
        return Ask(self.format.encode(prompt) if isinstance(prompt, str) else list(prompt), [], ())

    def hear(self, ask: Ask, completions: Sequence[Sampled], sampling: Sampling) -> list[Reply]:
        """Keep what was sampled to a prompt; what each completion says."""
        replies = []
        for sampled in completions:
            reply = self.format.reply(sampled.tokens, ask.ids, ask.tools)
            replies.append(reply)
            if not sampled.tokens or not len(sampled.tokens) == len(sampled.logprobs) == len(sampled.versions):
                # Columns that do not fit cannot be a sequence; the ledger tells of them.
                continue
            stream = self._stream_for(ask, sampling)
            stream.add_sampled(sampled)
            stream.history = [*ask.messages, assistant_message(reply)] if ask.messages else []
            stream.marks.append(Mark(len(ask.ids), len(stream.tokens), len(stream.history)))
        return replies

    def recorded(self) -> list[Recorded]:
        """Every stream, as it stands; in each something was sampled."""
        return [
            Recorded(
                TokenSequence(
                    tokens=tuple(stream.tokens),
                    mask=tuple(stream.mask),
                    logprobs=tuple(stream.logprobs),
                    versions=tuple(stream.versions),
                    sampling=stream.sampling,
                ),
                stream.history,
                stream.tools,
                stream.marks,
            )
            for stream in self._streams
        ]

    def _frozen(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as they are now. Those of the latest stream are not copied again: that is quadratic in turns."""
        kept = self._streams[-1].history if self._streams else []
        same = [old if old == new else _frozen(new) for new, old in zip(messages, kept, strict=False)]
        return same + [_frozen(message) for message in messages[len(same) :]]

    def _frozen_tools(self, tools: Tools) -> Tools:
        kept = self._streams[-1].tools if self._streams else []
        return kept if kept == tools else [_copied(tool) for tool in tools]

    def _keeps_its_past(self, messages: list[Message], mark: Mark, following: Sequence[int], tools: Tools) -> bool:
        """Whether the template leaves the past of an odd conversation as it is; formats know how it treats others.

        Qwen3's writes thinking by where the last user spoke, and empty thinking into an answer that stands last.
        """
        *before, turn = messages[: mark.messages]
        if before and before[-1].get("role") != "assistant" and any(one.get("role") == "user" for one in before):
            return True
        whole, given = self.format.transcript(messages, tools), self.format.transcript(before, tools)
        after = self.format.decode(following)
        written = whole.removeprefix(given).removesuffix(after)
        return whole == given + written + after and all(word in written for word in spoken(turn))

    def _stream_for(self, ask: Ask, sampling: Sampling) -> _Stream:
        """The stream a completion joins: the one its prompt continues, unless that has gone on meanwhile."""
        stream = ask.stream
        if stream is not None and len(stream.tokens) == ask.at and stream.sampling == sampling:
            stream.add_context(ask.ids[ask.at :])
            return stream
        known = [] if stream is None else [mark for mark in stream.marks if mark.end <= ask.at]
        stream = _Stream(sampling, ask.tools, marks=known)
        stream.add_context(ask.ids)
        self._streams.append(stream)
        return stream

    def _longest_match(self, messages: list[Message], tools: Tools) -> tuple[_Stream, Mark] | None:
        """The turn after which this conversation goes on, the latest there is."""
        best: tuple[_Stream, Mark] | None = None
        for stream in reversed(self._streams):
            if stream.tools != tools or not stream.history:
                continue
            alike = _alike(messages, stream)
            for mark in reversed(stream.marks):
                if mark.messages <= alike and mark.messages < len(messages):
                    # Of two that go as far, the one that ends there grows; the other would have to be copied.
                    last = mark is stream.marks[-1]
                    if best is None or (mark.messages, last) > (best[1].messages, best[1] is best[0].marks[-1]):
                        best = stream, mark
                    break
        return best


def assistant_message(reply: Reply) -> Message:
    """A reply as the message an agent is given and is expected to send back."""
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [call.as_dict() for call in reply.calls]
    return message


def _alike(messages: Sequence[Message], stream: _Stream) -> int:
    """How many messages of the stream's history begin this conversation."""
    sampled = {mark.messages - 1 for mark in stream.marks}
    for place, (sent, kept) in enumerate(zip(messages, stream.history, strict=False)):
        if sent is not kept and sent != kept and not (place in sampled and says_the_same(sent, kept)):
            return place
    return min(len(messages), len(stream.history))


def says_the_same(sent: Message, kept: Message, *, ids: bool = True) -> bool:
    """Whether an agent sent a sampled message back as it got it, space around it and key order apart.

    Calls without a name, which a loop adds to answer what nobody could read, do not count; nor the calls' ids, if told.
    """
    if sent.get("role") != "assistant" or spoken(sent) != spoken(kept):
        return False
    calls = [call for call in map(ToolCall.of, sent.get("tool_calls") or ()) if call.name]
    expected = [ToolCall.of(call) for call in kept.get("tool_calls") or ()]
    return (
        len(calls) == len(expected)
        and all(map(_same_call, calls, expected))
        and (not ids or [call.id for call in calls] == [call.id for call in expected])
    )


def _same_call(one: ToolCall, other: ToolCall) -> bool:
    if one.name != other.name or one.arguments == other.arguments:
        return one.name == other.name
    try:
        return bool(jsontext.loads(one.arguments) == jsontext.loads(other.arguments))
    except ValueError:
        return False


def spoken(message: Message) -> tuple[str, str]:
    """What a message says and thinks, without the space around it."""
    thought = next((text for name in REASONING if isinstance(text := message.get(name), str)), "")
    return content_text(message.get("content")).strip(), thought.strip()


def _frozen(message: Mapping[str, Any]) -> Message:
    """The message as it is now, without what says nothing; a later edit of the caller's does not reach it."""
    return {name: _copied(value) for name, value in message.items() if value is not None and value != []}


def _copied(value: Any) -> Any:
    if type(value) is str:
        return value
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(part) for part in value]
    return value
