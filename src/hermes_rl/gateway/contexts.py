"""Contexts: the conversations that an agent's calls belong to, each grown as long as calls go on from it.

Always true: a message is kept once however often it is sent; an answer stands at the end of the conversation it was
given to. What a context holds is what was said; its tokens are the recorder's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes_rl.messages import Message
from hermes_rl.tokens.recorder import says_the_same


@dataclass(slots=True, eq=False)
class Context:
    """One conversation. `answers` are the places of the messages that the policy said, `calls` the calls they ended."""

    messages: list[Message] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)

    @property
    def prompt_length(self) -> int:
        """Messages before the policy's first word."""
        return self.answers[0] if self.answers else len(self.messages)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands: what it shares with a context, and the messages that come after."""

    context: Context | None
    shared: int
    following: list[Message]


class Contexts:
    """One rollout's, in the order of their first answers."""

    def __init__(self) -> None:
        self.all: list[Context] = []

    def place(self, messages: Sequence[Message]) -> Place:
        """The context that shares the most with this conversation; of two the later."""
        best, shared = None, 0
        # Branches share the messages before they part, which then are compared once.
        known: dict[int, bool] = {}
        for context in reversed(self.all):
            alike = _alike(messages, context, known)
            if alike > shared:
                best, shared = context, alike
        return Place(best, shared, list(messages[shared:]))

    def hear(self, place: Place, answer: Message, call: int) -> Context:
        """Put an answer to its conversation, which is a new one when the shared one has gone on or went elsewhere."""
        context = place.context
        if context is None or len(context.messages) != place.shared:
            context = self._branch(place)
            self.all.append(context)
        context.messages += place.following
        context.answers.append(len(context.messages))
        context.calls.append(call)
        context.messages.append(answer)
        return context

    def main(self) -> Context | None:
        """The conversation with the most answers; of two the first."""
        return max(self.all, key=lambda context: len(context.answers), default=None)

    @staticmethod
    def _branch(place: Place) -> Context:
        if place.context is None:
            return Context()
        answers = [at for at in place.context.answers if at < place.shared]
        return Context(place.context.messages[: place.shared], answers, place.context.calls[: len(answers)])


def _alike(messages: Sequence[Message], context: Context, known: dict[int, bool]) -> int:
    """How many messages the conversation and the context begin with alike. `known` tells it of the context's."""
    for place, (sent, kept) in enumerate(zip(messages, context.messages, strict=False)):
        same = known.get(id(kept))
        if same is None:
            same = known[id(kept)] = sent == kept or (place in context.answers and _returned(sent, kept))
        if not same:
            return place
    return min(len(messages), len(context.messages))


def _returned(sent: Message, kept: Message) -> bool:
    """Whether an agent sent an answer back, with its thinking or without."""
    return says_the_same(sent, kept) or says_the_same(sent, {**kept, "reasoning_content": None})
