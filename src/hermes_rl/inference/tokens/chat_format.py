"""ChatFormat: messages to token ids and back, for one model.

A format renders a whole conversation, or only what follows a turn that the model sampled. The latter never changes the
sampled ids, and returns None where the model's template would render the earlier conversation differently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.parsers import BrokenCall

# OpenAI tool schemas.
Tools: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class FormatSettings:
    """Settings that decide how a conversation is rendered, apart from the tokenizer.

    `parser` names the tool-call format. `renderer` is `auto`, `template` or a renderer of the `renderers` package.
    Without `tool_prompt` the environment's own prompt explains the tools. `keep_reasoning` keeps reasoning in the
    history even where the template would drop it. `template` holds further arguments of the chat template.
    """

    parser: str = "hermes"
    renderer: str = "auto"
    tool_prompt: bool = True
    keep_reasoning: bool = False
    template: Mapping[str, Any] = field(default_factory=dict)


class Reply(NamedTuple):
    """Parsed sampled tokens. If no call could be parsed, `content` holds the whole text, including broken calls."""

    content: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    broken: tuple[BrokenCall, ...] = ()


class Turn(NamedTuple):
    """A sampled turn: the prompt ids, the sampled ids (including the stop token), and the conversation.

    `history` ends with the assistant message that this turn was parsed into.
    """

    prompt: Sequence[int]
    sampled: Sequence[int]
    history: Sequence[Message]


class ChatFormat(Protocol):
    name: str
    stop_token_ids: tuple[int, ...]

    def prompt(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """Render the whole conversation to ids, up to where the model continues."""
        ...

    def continuation(self, turn: Turn, new: Sequence[Message], tools: Tools) -> list[int] | None:
        """The ids after `turn.prompt + turn.sampled` for these messages; None if the earlier ids would change."""
        ...

    def reply(self, sampled: Sequence[int], prompt: Sequence[int], tools: Tools) -> Reply:
        """Parse the ids sampled after this prompt. Never raises, whatever the model sampled."""
        ...

    def transcript(self, messages: Sequence[Message], tools: Tools) -> str:
        """The text of `prompt` as the template renders it; the ids are checked against it."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """Decode with special tokens written out."""
        ...
