"""Earlier answers of one rollout, for agents that refer to an answer instead of sending it back.

Only the latest answers are stored, and a message that several of them share only once.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.gateway.dialects.reply import AgentReply, answer_id, arguments_object
from hermes_rl.gateway.request import AgentRequest
from hermes_rl.inference.completion import ChatCompletion

MAX_ANSWERS = 512


class PreviousResponse(NamedTuple):
    """A conversation that ends with an answer."""

    messages: Sequence[Message]

    @property
    def answer(self) -> Message:
        return self.messages[-1]


class PreviousResponses:
    """One per rollout. `dialect.parse_request(body, previous)` looks answers up; `add` stores every answer given."""

    def __init__(self, maximum: int = MAX_ANSWERS) -> None:
        self._maximum = maximum
        self._answers: dict[str, PreviousResponse] = {}

    def add(self, request: AgentRequest, completion: ChatCompletion) -> None:
        if not request.storable or not completion.choices:
            return
        messages = [*request.messages[request.begin :], AgentReply.from_choice(request, completion.choices[0]).message]
        before = next(reversed(self._answers.values())).messages if self._answers else ()
        shared = [old if old == new else new for new, old in zip(messages, before, strict=False)]
        self._answers[answer_id(completion)] = PreviousResponse(shared + messages[len(shared) :])
        while len(self._answers) > self._maximum:
            del self._answers[next(iter(self._answers))]

    def find(self, answer: str) -> PreviousResponse | None:
        """The answer with this id."""
        return self._answers.get(answer)

    def call_id(self, before: Sequence[Message], name: str, arguments: str) -> str | None:
        """The id of a call that an agent sends back without it: the one answered to exactly these messages."""
        for response in self._answers.values():
            if len(response.messages) == len(before) + 1 and list(response.messages[:-1]) == before:
                for call in map(ToolCall.from_raw, response.answer.get("tool_calls") or ()):
                    if (call.name, arguments_object(call.arguments)) == (name, arguments_object(arguments)):
                        return call.id
        return None
