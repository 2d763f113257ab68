"""The conversations that an agent's calls belong to. Each grows as long as calls continue it.

A message is stored once, however often it is sent; an answer is at the end of the conversation it was given to.
Conversations hold messages only; their tokens are in the recorder.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core.messages import Message
from hermes_rl.inference.tokens.recorder import same_message


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation. `answers` are the indices of the policy's messages, `calls` the numbers of their calls.

    `tools` are the last ones that the agent offered in it.
    """

    messages: list[Message] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)

    @property
    def prompt_length(self) -> int:
        """Number of messages before the policy's first answer."""
        return self.answers[0] if self.answers else len(self.messages)


@dataclass(frozen=True, slots=True)
class CallPosition:
    """Where a call continues: the conversation, how many messages it shares with it, and the messages after that."""

    conversation: Conversation | None
    shared: int
    new: list[Message]


class Conversations:
    """One rollout's conversations, in the order of their first answers."""

    def __init__(self) -> None:
        self.all: list[Conversation] = []

    def locate(self, messages: Sequence[Message]) -> CallPosition:
        """Find the conversation that shares the most messages with these, the later one of two."""
        best, shared = None, 0
        # Branches share the messages before they diverge, so each is compared only once.
        known: dict[int, bool] = {}
        for conversation in reversed(self.all):
            common = _shared_length(messages, conversation, known)
            if common > shared:
                best, shared = conversation, common
        return CallPosition(best, shared, list(messages[shared:]))

    def add_answer(
        self, position: CallPosition, answer: Message, call: int, tools: Sequence[dict[str, Any]] = ()
    ) -> Conversation:
        """Append an answer to its conversation, or to a new branch if that one has continued or diverged."""
        conversation = position.conversation
        if conversation is None or len(conversation.messages) != position.shared:
            conversation = self._branch(position)
            self.all.append(conversation)
        conversation.messages += position.new
        conversation.answers.append(len(conversation.messages))
        conversation.calls.append(call)
        conversation.messages.append(answer)
        conversation.tools = list(tools) or conversation.tools
        return conversation

    def main(self) -> Conversation | None:
        """The conversation with the most answers, the first one of two."""
        return max(self.all, key=lambda conversation: len(conversation.answers), default=None)

    @staticmethod
    def _branch(position: CallPosition) -> Conversation:
        if position.conversation is None:
            return Conversation()
        answers = [at for at in position.conversation.answers if at < position.shared]
        return Conversation(
            position.conversation.messages[: position.shared], answers, position.conversation.calls[: len(answers)]
        )


def _shared_length(messages: Sequence[Message], conversation: Conversation, known: dict[int, bool]) -> int:
    """How many messages the conversation shares with the start of these. `known` caches comparisons by message id."""
    for index, (sent, recorded) in enumerate(zip(messages, conversation.messages, strict=False)):
        same = known.get(id(recorded))
        if same is None:
            same = known[id(recorded)] = sent == recorded or (
                index in conversation.answers and _is_sent_back(sent, recorded)
            )
        if not same:
            return index
    return min(len(messages), len(conversation.messages))


def _is_sent_back(sent: Message, recorded: Message) -> bool:
    """Whether an agent sent an answer back, with or without its reasoning."""
    return same_message(sent, recorded) or same_message(sent, {**recorded, "reasoning_content": None})
