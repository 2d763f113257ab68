"""ChatFormat: messages to token ids and back, for one model.

Always true of a format: it renders a whole conversation, or only what follows a turn the model has sampled. The second
never touches the sampled ids, and says None where the model's own template would write that past differently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from hermes_rl.messages import Message, ToolCall
from hermes_rl.parsers import BrokenCall

# OpenAI tool schemas.
Tools: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class FormatSettings:
    """What decides how a conversation is written, besides the tokenizer.

    `parser` names the format of tool calls. `renderer` is `auto`, `template` or one of the `renderers` package.
    `tool_prompt` off: the environment's own prompt teaches the tools. `keep_thinking`: thinking stays in the history
    also where the template would drop it. `template` holds further arguments of the chat template.
    """

    parser: str = "hermes"
    renderer: str = "auto"
    tool_prompt: bool = True
    keep_thinking: bool = False
    template: Mapping[str, Any] = field(default_factory=dict)


class Reply(NamedTuple):
    """What sampled tokens say. With no call that can be read, `content` holds the whole text, broken calls too."""

    content: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    broken: tuple[BrokenCall, ...] = ()


class Turn(NamedTuple):
    """A turn the model sampled: the ids it was given, the ids it sampled (its stop token too), and the conversation.

    `history` ends with the assistant message this turn was read as.
    """

    prompt: Sequence[int]
    sampled: Sequence[int]
    history: Sequence[Message]


class ChatFormat(Protocol):
    name: str
    stop_token_ids: tuple[int, ...]

    def prompt(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """The whole conversation as ids, up to where the model is to speak."""
        ...

    def continuation(self, turn: Turn, new: Sequence[Message], tools: Tools) -> list[int] | None:
        """The ids that follow `turn.prompt + turn.sampled` when these messages do; None when that past would change."""
        ...

    def reply(self, sampled: Sequence[int], prompt: Sequence[int], tools: Tools) -> Reply:
        """What the ids sampled after this prompt say; nothing a model can sample makes it raise."""
        ...

    def transcript(self, messages: Sequence[Message], tools: Tools) -> str:
        """The text of `prompt`, as the template writes it: what the ids are checked against."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens written out."""
        ...
