"""Simulated users: whom the agent talks to in a conversation; a model on an endpoint of its own, or a script.

Always true: the user hears the agent's answers only, never its tool calls, their results or its reasoning. What the
user says is a user message of the rollout, and no token to train on. A user that cannot answer is a failure, never a
score.
"""

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from hermes_rl.agent.reasoning import split_reasoning
from hermes_rl.core.errors import ConfigError, ContextFullError, EndpointError, EnvironmentCodeError
from hermes_rl.core.messages import Message, content_text
from hermes_rl.core.trajectory import Span
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.rewards.judge import REFUSED_CAUSES
from hermes_rl.tools.session import ToolSession

STOP = "###STOP###"
OPENING = "Hi! How can I help you today?"
"""What the model that plays the user is told first, so that roles alternate from the beginning."""
RULES = (
    "You are the user in this conversation; the other side is an assistant. Write only what the user says, in one "
    "short message at a time. Do not help the assistant and do not speak for it. Tell what you know only when it is "
    "asked for or needed, and invent nothing that is not in your instructions. When your goal is reached, or it is "
    f"clear that it cannot be reached, write {STOP} and nothing else."
)
"""Follows the prompt of a SimulatedUser, with its stop marker."""
SAID_NOTHING = "(no answer)"

Prompt: TypeAlias = str | Callable[..., str]
"""A text with fields of the item, or a function of the item; with a parameter `session` it gets the session too."""
Stop: TypeAlias = str | Callable[..., bool]
"""A marker in the user's words, or a function of them; with a parameter `session` it gets the session too."""


class UserServers:
    """The model servers of an environment's simulated users: the shared one, and those of users with their own."""

    def __init__(self, shared: ServerManager | None = None) -> None:
        self.shared = shared
        self._own: dict[str, ServerManager] = {}

    def get(self, endpoint: APIServerConfig | None) -> ServerManager | None:
        """The server of an endpoint, or the shared one; None when there is none."""
        if endpoint is None:
            return self.shared
        key = str(endpoint.model_dump())
        if key not in self._own:
            self._own[key] = ServerManager([endpoint])
        return self._own[key]

    async def close(self) -> None:
        """Close the servers of users with their own endpoint."""
        for server in self._own.values():
            await server.close()


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation as its user knows it, at the moment when the user speaks.

    In `messages` the user's own words are the `assistant`'s and the agent's answers the `user`'s, in turn. `record` is
    what the rollout's metadata keeps of the user.
    """

    item: Any
    session: ToolSession | None
    messages: list[Message]
    record: dict[str, Any]
    servers: UserServers

    @property
    def state(self) -> Any:
        """The state of the rollout."""
        return None if self.session is None else self.session.state

    @property
    def answer(self) -> str:
        """What the agent said last."""
        return str(self.messages[-1]["content"])

    @property
    def replies(self) -> int:
        """How often the user has replied; the first message of the conversation is no reply."""
        return [message["role"] for message in self.messages].count("assistant") - 1

    @property
    def seed(self) -> int | None:
        """A seed for this reply, which follows from the rollout's."""
        return None if self.session is None else (self.session.seed + self.replies) % 2**31

    def end(self, reason: str, last_words: str | None = None) -> None:
        """Record why the user ends the conversation, and words that the agent no longer hears."""
        self.record["ended"] = reason
        if last_words:
            self.record["last_words"] = last_words

    async def ask(
        self, messages: Sequence[Message], *, endpoint: APIServerConfig | None = None, **parameters: Any
    ) -> str:
        """Ask the model that plays the user; its tokens and cost are recorded with the rollout.

        Without `endpoint`, it is the environment's `user_endpoint`.
        """
        server = self.servers.get(endpoint)
        if server is None:
            raise EnvironmentCodeError("user", f"the simulated user has no model: {_ADVICE}")
        try:
            completion = await server.chat_completion(messages, **parameters)
        except EndpointError as error:
            # What the endpoint refuses holds the agent's words, which may be the reason.
            if isinstance(error, ContextFullError) or error.cause in REFUSED_CAUSES:
                raise EnvironmentCodeError("user_refused", f"the simulated user's model refused: {error}") from error
            raise EndpointError("user", f"the simulated user's model failed: {error}") from error
        self._count(server.configs[0], completion.usage.prompt_tokens, completion.usage.completion_tokens)
        choice = completion.choices[0]
        text = split_reasoning(choice.message.content or "")[1].strip()
        if not text:
            cut = "; it ran out of tokens, raise max_tokens" if choice.finish_reason == "length" else ""
            raise EnvironmentCodeError(
                "user_refused", f"the simulated user's model wrote nothing (finish_reason {choice.finish_reason}){cut}"
            )
        return text

    def _count(self, config: APIServerConfig, prompt: int | None, completion: int | None) -> None:
        record = self.record
        record["model"] = config.model_name
        for name, tokens in (("prompt_tokens", prompt), ("completion_tokens", completion)):
            record[name] = record.get(name, 0) + (tokens or 0)
        if config.prompt_price is not None and config.completion_price is not None:
            spent = (prompt or 0) * config.prompt_price + (completion or 0) * config.completion_price
            record["cost"] = round(record.get("cost", 0.0) + spent / 1_000_000, 9)


class User(Protocol):
    """Whom the agent talks to. One object serves all rollouts: what is known of one conversation is in the Dialogue."""

    async def reply(self, dialogue: Dialogue) -> str | None:
        """The user's next message; None ends the conversation."""
        ...


class SimulatedUser:
    """A model that plays the user: `user = SimulatedUser("You are {name}. {goal}")` on an environment's class.

    `prompt` says who the user is and what it wants; the `rules` of its role follow. `stop` ends the conversation: a
    marker in its words, which `rules` tells it, or a function of them. It replies at most `max_turns` times, with at
    most `max_tokens` tokens each.
    """

    def __init__(
        self,
        prompt: Prompt,
        *,
        stop: Stop = STOP,
        max_turns: int = 20,
        max_tokens: int = 512,
        endpoint: APIServerConfig | None = None,
        rules: str = RULES,
        temperature: float = 0.0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if max_turns < 1 or max_tokens < 1:
            raise ConfigError(
                f"a SimulatedUser has max_turns and max_tokens of 1 or more, got {max_turns}, {max_tokens}"
            )
        if not stop:
            raise ConfigError("stop of a SimulatedUser is a marker or a function, got an empty text")
        self.prompt, self.stop, self.max_turns, self.endpoint = prompt, stop, max_turns, endpoint
        self._rules = rules.replace(STOP, stop) if isinstance(stop, str) else rules
        self._parameters: dict[str, Any] = {
            "temperature": temperature,
            "max_tokens": max_tokens,
            "extra_body": dict(extra_body or {}) or None,
        }

    async def reply(self, dialogue: Dialogue) -> str | None:
        """The model's next words; None when they hold the stop marker, or all turns are used."""
        if dialogue.replies >= self.max_turns:
            dialogue.end("max_turns")
            return None
        messages = [
            {"role": "system", "content": self.instructions(dialogue)},
            {"role": "user", "content": OPENING},
            *dialogue.messages,
        ]
        seed = dialogue.seed if self._parameters["temperature"] else None
        text = await dialogue.ask(messages, endpoint=self.endpoint, seed=seed, **self._parameters)
        if self._stops(text, dialogue):
            dialogue.end("stop", text.replace(self.stop, "").strip() if isinstance(self.stop, str) else text)
            return None
        return text

    def instructions(self, dialogue: Dialogue) -> str:
        """The system message of the model that plays the user."""
        if callable(self.prompt):
            prompt = _call(self.prompt, dialogue.item, dialogue.session)
        else:
            prompt = _fill(self.prompt, dialogue.item, dialogue.state)
        return "\n\n".join(filter(None, (prompt, self._rules)))

    def _stops(self, text: str, dialogue: Dialogue) -> bool:
        return self.stop in text if isinstance(self.stop, str) else bool(_call(self.stop, text, dialogue.session))


class ScriptedUser:
    """A user that says these lines, one after each answer of the agent, and then ends the conversation.

    A line may be a function of the Dialogue; None, from a function, ends the conversation too.
    """

    def __init__(self, lines: Iterable[str | Callable[[Dialogue], str | None]]) -> None:
        self.lines = tuple(lines)

    async def reply(self, dialogue: Dialogue) -> str | None:
        """The next line; None after the last."""
        line = self.lines[dialogue.replies] if dialogue.replies < len(self.lines) else None
        text = line(dialogue) if callable(line) else line
        if text is None:
            dialogue.end("script")
        return text


async def next_reply(
    user: User, servers: UserServers, item: Any, messages: Sequence[Message], session: ToolSession | None
) -> str | None:
    """The user's reply to a conversation that ends with the agent's answer, timed and recorded with the rollout."""
    if session is not None and session.replayed_reply is not None:
        return session.replayed_reply[0]
    record: dict[str, Any] = {} if session is None else session.metadata.setdefault("user", {})
    if not record:
        users = [index for index, message in enumerate(messages) if message["role"] == "user"]
        # Before the first reply the last user message is the prompt. Worked examples stand before it.
        record["first_message"] = users[0 if session is None else -1] if users else 0
    dialogue = Dialogue(item, session, _as_user(messages[record["first_message"] :]), record, servers)
    began = time.monotonic()
    try:
        text = await user.reply(dialogue)
    finally:
        record["seconds"] = round(record.get("seconds", 0.0) + time.monotonic() - began, 6)
        if session is not None:
            session.record_timing(Span.USER, "reply", began)
    if text is not None and not isinstance(text, str):
        raise TypeError(f"{type(user).__name__}.reply returned {text!r}; return the user's words, or None to end")
    record["replies"] = dialogue.replies + (text is not None)
    return text


def require_user_endpoint(user: object, endpoint: APIServerConfig | None) -> None:
    """ConfigError when an environment's user is a model and nothing says which."""
    if isinstance(user, SimulatedUser) and user.endpoint is None and endpoint is None:
        raise ConfigError(f"this environment talks to a simulated user, and that has no model: {_ADVICE}")


_ADVICE = (
    'pass --env.user_endpoint \'{"base_url": "http://HOST:PORT/v1", "model_name": "MODEL"}\', or set '
    "endpoint= of SimulatedUser"
)
_SIDES = {"user": "assistant", "assistant": "user"}


def _as_user(messages: Iterable[Message]) -> list[Message]:
    """The conversation with the roles reversed, without the agent's tool calls and their results."""
    return [
        {"role": _SIDES[message["role"]], "content": content_text(message.get("content")) or SAID_NOTHING}
        for message in messages
        if message["role"] in _SIDES and not message.get("tool_calls")
    ]


def _fill(prompt: str, item: Any, state: Any) -> str:
    fields = {"item": item, "state": state, **(item if isinstance(item, Mapping) else {})}
    try:
        return prompt.format_map(fields)
    except (LookupError, AttributeError, ValueError) as error:
        raise EnvironmentCodeError(
            "user",
            f"the prompt of SimulatedUser cannot be filled in ({type(error).__name__}: {error}); its fields are "
            f"{', '.join(map(str, fields))}; write a brace that is text twice: {{{{ or }}}}",
        ) from error


def _call(function: Callable[..., Any], argument: Any, session: ToolSession | None) -> Any:
    takes_session = "session" in inspect.signature(function).parameters
    return function(argument, session=session) if takes_session else function(argument)
