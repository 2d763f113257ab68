"""The conversation of the rollout that the current task runs, for environments whose tools answer for a whole turn.

Always true: each rollout has its own; tools, `next_user_message` and `compute_reward` of one rollout see the same. The
item, the state and the end of a rollout are the session's (`tools/session.py`).
"""

from contextvars import ContextVar

from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.core import observation
from hermes_rl.core.messages import Message

_current: ContextVar["LiveRollout | None"] = ContextVar("live_rollout", default=None)


class LiveRollout:
    """The agent loop of a rollout, which reports itself when it starts."""

    def __init__(self) -> None:
        self.loop: HermesAgentLoop | None = None

    @staticmethod
    def begin() -> "LiveRollout":
        """Expect the loop of a rollout; call it in `initial_messages`, which comes right before the loop.

        The task of a rollout has its own context, which ends with it.
        """
        live = LiveRollout()
        _current.set(live)
        observed = observation._observed  # noqa: SLF001 (`observing()` would have to end where the rollout ends)
        outer = observed.get()
        while isinstance(outer, _Observer):
            outer = outer.outer
        observed.set(_Observer(live, outer))
        return live

    @staticmethod
    def current() -> "LiveRollout | None":
        """The rollout of this task; None outside of rollouts."""
        return _current.get()

    @property
    def messages(self) -> list[Message]:
        """The conversation so far; while tools run, the last message is the one that calls them."""
        return [] if self.loop is None else self.loop.result.messages

    @property
    def prompt_length(self) -> int:
        return 0 if self.loop is None else self.loop.result.prompt_length

    def as_written(self) -> list[Message]:
        """The conversation with each answer as the endpoint sent it: reasoning that was in the text is in the text.

        The record has it apart, so a record alone cannot tell. A compacted conversation is given as recorded.
        """
        if self.loop is None or self.loop.result.compactions:
            return list(self.messages)
        sent = self.loop._context  # noqa: SLF001 (the only place that keeps the text of the endpoint)
        return [_as_sent(*pair) for pair in zip(self.messages, sent, strict=True)]


def _as_sent(recorded: Message, sent: Message) -> Message:
    split = "reasoning_content" in recorded and not any("reasoning" in name for name in sent)
    if not split or "tool_calls" in recorded:
        return recorded
    return {**{name: value for name, value in recorded.items() if name != "reasoning_content"}, **sent}


class _Observer(list[object]):
    """Takes the loop, and hands every part on to the block around it."""

    def __init__(self, live: LiveRollout, outer: list[object] | None) -> None:
        super().__init__()
        self._live, self.outer = live, outer

    def append(self, part: object) -> None:
        if isinstance(part, HermesAgentLoop):
            self._live.loop = part
        if self.outer is not None:
            self.outer.append(part)
