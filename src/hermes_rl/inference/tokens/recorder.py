"""Recorder: streams of token ids that grow turn by turn from what was sent to a model and what it sampled.

A sampled token is in one stream with mask 1, and in others only as context. A stream grows only at its end; a
conversation that does not continue a stream starts a new one. The recorder does no I/O, so it can serve our own loop
or the gateway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message, ToolCall, content_text
from hermes_rl.core.trajectory import SampledCall, Sampling
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.inference.tokens.chat_format import ChatFormat, Reply, Tools, Turn
from hermes_rl.inference.tokens.sampled import Sampled

# Reasoning fields that an agent may send back in an assistant message; other fields do not reach a prompt.
RETURNED_REASONING = ("reasoning_content", "reasoning")


class TurnSpan(NamedTuple):
    """Position of a sampled turn in its stream: [begin, end) in tokens, and the number of messages up to it."""

    begin: int
    end: int
    messages: int


class Opening(NamedTuple):
    """A prompt that another rollout was sent, to begin with exactly these ids. `turns` are the sampled ones in it."""

    ids: Sequence[int]
    messages: Sequence[Message]
    turns: Sequence[TurnSpan]
    sampling: Sampling


class RecordedSequence(NamedTuple):
    """A finished sequence, its conversation, and its sampled turns, including those that it has as context.

    The conversation ends with the message that the last turn was parsed into. It is empty for a prompt given as text.
    """

    sequence: TokenSequence
    history: Sequence[Message]
    tools: Tools
    turns: Sequence[TurnSpan]


@dataclass(slots=True)
class _Stream:
    sampling: Sampling
    tools: Tools
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    history: list[Message] = field(default_factory=list)
    marks: list[TurnSpan] = field(default_factory=list)
    calls: list[SampledCall] = field(default_factory=list)

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


class PreparedPrompt(NamedTuple):
    """A prompt ready to send. It continues `stream` after the first `at` tokens, if it continues one."""

    ids: list[int]
    messages: list[Message]
    tools: Tools
    stream: _Stream | None = None
    at: int = 0


class Recorder:
    """Records one rollout. Call `prepare` before a request and `record` with its answer; requests may overlap."""

    def __init__(self, chat_format: ChatFormat) -> None:
        self.format = chat_format
        self._streams: list[_Stream] = []
        self._answered = 0
        self._opening: PreparedPrompt | None = None

    def begin_with(self, opening: Opening) -> None:
        """Send these ids for this conversation. Nothing in them was sampled here: they are context."""
        messages = [_freeze(message) for message in opening.messages]
        _, end, answered = opening.turns[-1] if opening.turns else TurnSpan(0, 0, 0)
        # It ends with the last sampled turn, as every stream does, so that the turns after it continue it as ever.
        stream = _Stream(opening.sampling, (), history=messages[:answered], marks=list(opening.turns))
        stream.add_context(opening.ids[:end])
        self._streams.append(stream)
        self._opening = PreparedPrompt(list(opening.ids), messages, (), stream, end)
        self._answered = len(opening.turns)

    def prepare(self, messages: Sequence[Message], tools: Tools = ()) -> PreparedPrompt:
        """Build the prompt of a conversation, from the stream that it continues if there is one."""
        known, tools = self._freeze(messages), self._freeze_tools(tools)
        if self._opening is not None and self._opening.stream is not None and known == self._opening.messages:
            self._opening.stream.tools = tools
            return self._opening._replace(ids=list(self._opening.ids), tools=tools)
        found = self._longest_match(known, tools)
        if found is not None:
            stream, mark = found
            turn = Turn(stream.tokens[: mark.begin], stream.tokens[mark.begin : mark.end], known[: mark.messages])
            following = self.format.continuation(turn, known[mark.messages :], tools)
            if following is not None and self._preserves_history(known, mark, following, tools):
                ids = stream.tokens[: mark.end]
                ids += following
                return PreparedPrompt(ids, known, tools, stream, mark.end)
        return PreparedPrompt(self.format.prompt(known, tools), known, tools)

    def prepare_text(self, prompt: str | Sequence[int]) -> PreparedPrompt:
        """Build the prompt for a text or for ids, which may continue what was sampled before."""
        for stream in reversed(self._streams):
            if isinstance(prompt, str):
                before = self.format.decode(stream.tokens)
                if prompt.startswith(before):
                    rest = self.format.encode(prompt[len(before) :])
                    return PreparedPrompt(stream.tokens + rest, [], (), stream, len(stream.tokens))
            elif list(prompt[: len(stream.tokens)]) == stream.tokens:
                return PreparedPrompt(list(prompt), [], (), stream, len(stream.tokens))
        return PreparedPrompt(self.format.encode(prompt) if isinstance(prompt, str) else list(prompt), [], ())

    def record(self, prompt: PreparedPrompt, completions: Sequence[Sampled], sampling: Sampling) -> list[Reply]:
        """Record the completions of a prompt, and parse them. Together they are one model call."""
        call = self._answered
        self._answered += 1
        replies = []
        for sampled in completions:
            reply = self.format.reply(sampled.tokens, prompt.ids, prompt.tools)
            replies.append(reply)
            if not sampled.tokens or not len(sampled.tokens) == len(sampled.logprobs) == len(sampled.versions):
                # Columns of different lengths cannot form a sequence; the wire log reports them.
                continue
            stream = self._stream_for(prompt, sampling)
            stream.calls.append(SampledCall(call, len(stream.tokens)))
            stream.add_sampled(sampled)
            stream.history = [*prompt.messages, assistant_message(reply)] if prompt.messages else []
            stream.marks.append(TurnSpan(len(prompt.ids), len(stream.tokens), len(stream.history)))
        return replies

    def sequences(self) -> list[RecordedSequence]:
        """All streams so far with sampled tokens."""
        return [
            RecordedSequence(
                TokenSequence(
                    tokens=tuple(stream.tokens),
                    mask=tuple(stream.mask),
                    logprobs=tuple(stream.logprobs),
                    versions=tuple(stream.versions),
                    sampling=stream.sampling,
                    calls=tuple(stream.calls),
                ),
                stream.history,
                stream.tools,
                stream.marks,
            )
            for stream in self._streams
            if stream.calls
        ]

    def _freeze(self, messages: Sequence[Message]) -> list[Message]:
        """Copy the messages. Those of the latest stream are not copied again: that would be quadratic in turns."""
        known = self._streams[-1].history if self._streams else []
        same = [old if old == new else _freeze(new) for new, old in zip(messages, known, strict=False)]
        return same + [_freeze(message) for message in messages[len(same) :]]

    def _freeze_tools(self, tools: Tools) -> Tools:
        known = self._streams[-1].tools if self._streams else []
        return known if known == tools else [_copy(tool) for tool in tools]

    def _preserves_history(
        self, messages: list[Message], mark: TurnSpan, following: Sequence[int], tools: Tools
    ) -> bool:
        """Whether the template leaves the history of an unusual conversation unchanged; formats handle the usual ones.

        Qwen3's template renders reasoning by the last user message, and adds empty reasoning to a last answer.
        """
        *before, turn = messages[: mark.messages]
        roles = [message.get("role") for message in before]
        if "user" in roles and roles[-1] != "assistant":
            return True
        whole, given = self.format.transcript(messages, tools), self.format.transcript(before, tools)
        after = self.format.decode(following)
        written = whole.removeprefix(given).removesuffix(after)
        return whole == given + written + after and all(word in written for word in message_texts(turn))

    def _stream_for(self, prompt: PreparedPrompt, sampling: Sampling) -> _Stream:
        """The stream that a completion joins: the one its prompt continues, unless that has grown meanwhile."""
        stream = prompt.stream
        if stream is not None and len(stream.tokens) == prompt.at and stream.sampling == sampling:
            stream.add_context(prompt.ids[prompt.at :])
            return stream
        known = [] if stream is None else [mark for mark in stream.marks if mark.end <= prompt.at]
        stream = _Stream(sampling, prompt.tools, marks=known)
        stream.add_context(prompt.ids)
        self._streams.append(stream)
        return stream

    def _longest_match(self, messages: list[Message], tools: Tools) -> tuple[_Stream, TurnSpan] | None:
        """The latest recorded turn that this conversation continues."""
        best: tuple[_Stream, TurnSpan] | None = None
        for stream in reversed(self._streams):
            if stream.tools != tools or not stream.history:
                continue
            shared = _shared_length(messages, stream)
            for mark in reversed(stream.marks):
                if mark.messages <= shared and mark.messages < len(messages):
                    # Of two equal matches prefer the one at the end of its stream; the other would need a copy.
                    last = mark is stream.marks[-1]
                    if best is None or (mark.messages, last) > (best[1].messages, best[1] is best[0].marks[-1]):
                        best = stream, mark
                    break
        return best


def assistant_message(reply: Reply) -> Message:
    """A reply as the message that an agent receives, and is expected to send back."""
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [call.as_dict() for call in reply.calls]
    return message


def _shared_length(messages: Sequence[Message], stream: _Stream) -> int:
    """How many messages this conversation shares with the start of the stream's history."""
    sampled = {mark.messages - 1 for mark in stream.marks}
    for index, (sent, recorded) in enumerate(zip(messages, stream.history, strict=False)):
        if sent is not recorded and sent != recorded and not (index in sampled and same_message(sent, recorded)):
            return index
    return min(len(messages), len(stream.history))


def same_message(sent: Message, recorded: Message, *, ids: bool = True) -> bool:
    """Whether an agent sent a sampled message back unchanged, apart from surrounding whitespace and key order.

    Calls without a name, which a loop adds to answer unparsable calls, are ignored; call ids are too, without `ids`.
    """
    if sent.get("role") != "assistant" or message_texts(sent) != message_texts(recorded):
        return False
    calls = [call for call in map(ToolCall.from_raw, sent.get("tool_calls") or ()) if call.name]
    expected = [ToolCall.from_raw(call) for call in recorded.get("tool_calls") or ()]
    return (
        len(calls) == len(expected)
        and all(map(_same_call, calls, expected))
        and (not ids or [call.id for call in calls] == [call.id for call in expected])
    )


def _same_call(call: ToolCall, other: ToolCall) -> bool:
    if call.name != other.name or call.arguments == other.arguments:
        return call.name == other.name
    try:
        return bool(fast_json.loads(call.arguments) == fast_json.loads(other.arguments))
    except ValueError:
        return False


def message_texts(message: Message) -> tuple[str, str]:
    """The content and the reasoning of a message, without surrounding whitespace."""
    reasoning = next((text for name in RETURNED_REASONING if isinstance(text := message.get(name), str)), "")
    return content_text(message.get("content")).strip(), reasoning.strip()


def _freeze(message: Mapping[str, Any]) -> Message:
    """A copy without empty fields, so that later edits by the caller do not reach it."""
    return {name: _copy(value) for name, value in message.items() if value is not None and value != []}


def _copy(value: Any) -> Any:
    if type(value) is str:
        return value
    if isinstance(value, Mapping):
        return {name: _copy(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(part) for part in value]
    return value
