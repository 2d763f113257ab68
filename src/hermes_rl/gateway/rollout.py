"""GatewayRollout: what one rollout's agent did through the gateway, and the terms on which it was answered.

Always true: tokens are drawn by the run's settings, whatever the agent asks for; it can only end an answer earlier, by
fewer tokens or a stop string, which leaves the odds of every token drawn as they were. A call that the world failed
makes the rollout a Failure, and nothing is sampled for it from then on.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from hermes_rl import tracing
from hermes_rl.agent.result import AgentResult
from hermes_rl.errors import AuthorError, ContextFullError, Failure, failure_of
from hermes_rl.gateway.asked import Asked
from hermes_rl.gateway.bounds import Bounds, RefusedError, Spent
from hermes_rl.gateway.contexts import Context, Contexts
from hermes_rl.gateway.dialects.earlier import Earlier
from hermes_rl.gateway.dialects.said import Said
from hermes_rl.gateway.problems import Kind, Problem
from hermes_rl.gateway.sampling import RunSampling
from hermes_rl.gateway.transcript import transcript
from hermes_rl.inference.completion import ChatCompletion
from hermes_rl.messages import Message
from hermes_rl.trajectory import Span, StopReason, Timing, Usage

__all__ = ["ENDED", "Call", "GatewayRollout", "Policy", "RunSampling"]

# A body with more bytes than this for each token of the context cannot fit; it is not worth the time to encode it.
BYTES_PER_TOKEN = 64
ENDED = Problem(Kind.OVERLOADED, "this rollout has ended")


class Policy(Protocol):
    """What answers: ManagedServer, which keeps exact tokens, or anything else with its `chat_completion`."""

    async def chat_completion(self, messages: Sequence[Message], **parameters: Any) -> Any: ...


Outcome: TypeAlias = ChatCompletion | Problem


@dataclass(slots=True, eq=False)
class Call:
    """One request, from its arrival to its outcome. `size` are the bytes it holds until somebody has the answer."""

    number: int
    identity: tuple[str, bytes]
    asked: Asked
    size: int
    start: float
    task: "asyncio.Task[Outcome]" = field(init=False)
    listeners: int = 1
    heard: bool = False
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    finish: str | None = None
    problem: Problem | None = None
    context: Context | None = None


class GatewayRollout:
    """`failure` is the first thing that the world did wrong; `broken` is set by it."""

    def __init__(
        self,
        policy: Policy,
        sampling: RunSampling | None = None,
        bounds: Bounds | None = None,
        *,
        model: str = "policy",
        context_tokens: int | None = None,
        origin: float | None = None,
    ) -> None:
        self.policy = policy
        self.sampling = sampling or RunSampling()
        self.model = model
        self.context_tokens = context_tokens
        self.spent = Spent(bounds or Bounds())
        self.calls: list[Call] = []
        self.failure: Failure | None = None
        self.broken = asyncio.Event()
        self._unwritable: Failure | None = None
        self.closed = False
        self.seconds = 0.0
        """From the beginning to `close`."""
        self.earlier = Earlier()
        self._contexts = Contexts()
        # The agent asks from outside, where nobody knows which span that is.
        self._span = tracing.current_span()
        self._places = asyncio.Semaphore(self.spent.bounds.calls_at_once)
        self._origin = time.monotonic() if origin is None else origin
        self._undelivered: dict[tuple[str, bytes], list[Call]] = {}
        self._tasks: set[asyncio.Task[Outcome]] = set()

    # --- one call ---

    def admit(self) -> None:
        """RefusedError unless one more request may be read."""
        if self.closed:
            raise RefusedError(ENDED.kind, ENDED.message)
        if self.failure is not None:
            raise RefusedError(Kind.OVERLOADED, f"this rollout has failed: {self.failure}")
        self.spent.admit()

    def same(self, identity: tuple[str, bytes], *, repeated: bool) -> Call | None:
        """A call that this request is the second try of: nobody has its answer, and nobody waits for it any more.

        `repeated`: the caller says that it tries again, so the first try may still seem to be waited for.
        """
        calls = [call for call in self._undelivered.get(identity, ()) if call.problem is None and not call.heard]
        found = next((call for call in calls if not call.listeners), None)
        if found is None and repeated and calls:
            found = calls[0]
        if found is not None:
            found.listeners += 1
        return found

    def begin(self, asked: Asked, identity: tuple[str, bytes], size: int) -> Call:
        """Have an answer sampled; it goes on when its caller leaves, so that a second try can have it."""
        self.spent.check()
        self.spent.calls += 1
        call = Call(self.spent.calls, identity, asked, size, time.monotonic() - self._origin)
        self.calls.append(call)
        self._undelivered.setdefault(identity, []).append(call)
        call.task = asyncio.create_task(self._outcome(call))
        self._tasks.add(call.task)
        call.task.add_done_callback(self._tasks.discard)
        return call

    def unreadable(self) -> None:
        """Count a request that nobody could read."""
        self.spent.calls += 1

    def leave(self, call: Call) -> None:
        """Its caller has gone without the answer."""
        call.listeners -= 1
        if call.heard and not call.listeners:
            self._drop(call)
        kept = [one for calls in self._undelivered.values() for one in calls if one.task.done() and not one.listeners]
        for one in kept[: -self.spent.bounds.calls_at_once]:
            self._drop(one)

    def delivered(self, call: Call) -> None:
        """One of its callers has the answer."""
        call.heard = True
        call.listeners -= 1
        if not call.listeners:
            self._drop(call)

    async def _outcome(self, call: Call) -> Outcome:
        self.spent.unfinished += 1
        try:
            async with self._places:
                outcome = await self._sampled(call)
        except asyncio.CancelledError:
            # Only `close` cancels it, and its callers are to be told.
            outcome = ENDED
        finally:
            self.spent.unfinished -= 1
        if isinstance(outcome, Problem):
            call.problem = outcome
        return outcome

    async def _sampled(self, call: Call) -> Outcome:
        if self.failure is not None:
            return Problem(Kind.OVERLOADED, f"this rollout has failed: {self.failure}")
        if self.context_tokens is not None and call.size > self.context_tokens * BYTES_PER_TOKEN:
            return Problem(Kind.CONTEXT_FULL, f"{call.size} bytes do not fit {self.context_tokens} tokens")
        try:
            # Others may have used the time up while this one waited.
            self.spent.check_deadline()
        except RefusedError as refused:
            return refused.problem
        began = time.monotonic()
        try:
            with tracing.within(self._span):
                told = await self.policy.chat_completion(
                    call.asked.messages, **self.sampling.parameters(call.asked, call.number)
                )
        except AuthorError as error:
            # A conversation that the model's template cannot write, which an engine refuses too.
            self._unwritable = self._unwritable or error.failure
            return Problem(Kind.BAD_REQUEST, str(error))
        except Exception as error:  # noqa: BLE001 (here every error but a full context becomes a Failure)
            if not isinstance(error, ContextFullError):
                self.fail(failure_of(error))
            return Problem.of(error)
        finally:
            call.seconds = time.monotonic() - began
            call.start = began - self._origin
        return self._heard(call, told)

    def _heard(self, call: Call, told: ChatCompletion) -> ChatCompletion:
        asked = call.asked
        call.usage = told.usage
        call.finish = told.choices[0].finish_reason
        self.spent.tokens += told.usage.completion_tokens or 0
        for choice in told.choices:
            # As the agent has it, without a stop string of its own; but thinking is kept also where it has none.
            said = Said.of(asked, choice)._replace(thinking=choice.message.reasoning_content or "")
            call.context = self._contexts.hear(self._contexts.place(asked.messages), said.message, call.number)
        self.earlier.keep(asked, told)
        return told

    def _drop(self, call: Call) -> None:
        calls = self._undelivered.get(call.identity)
        if calls and call in calls:
            calls.remove(call)
            self.spent.bytes -= call.size
            if not calls:
                del self._undelivered[call.identity]
        call.identity = ("", b"")
        # Its messages are in a context; as parsed they would be kept once more for each call.
        call.asked = replace(call.asked, messages=[], tools=[])

    # --- the whole ---

    def fail(self, failure: Failure) -> None:
        """Keep the first failure."""
        if self.failure is None:
            self.failure = failure
            self.broken.set()

    def close(self) -> None:
        """No call is answered from here on, and none goes on."""
        if not self.closed:
            self.closed = True
            self.seconds = time.monotonic() - self._origin
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Wait until no call goes on, after `close`."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    @property
    def answered(self) -> list[Call]:
        return [call for call in self.calls if call.finish is not None]

    @property
    def contexts(self) -> list[Context]:
        """Every conversation that the agent had, in the order of their first answers."""
        return self._contexts.all

    @property
    def usage(self) -> Usage:
        return sum((call.usage for call in self.calls), Usage())

    @property
    def timings(self) -> list[Timing]:
        return [Timing(Span.MODEL, "chat_completion", call.start, call.seconds) for call in self.calls if call.seconds]

    @property
    def stop(self) -> StopReason | None:
        """Why the agent could not go on, as far as the gateway can tell; None: it could have."""
        if self.spent.reached is not None:
            return self.spent.reached
        last = max(self.calls, key=lambda call: call.start + call.seconds, default=None)
        if last is None:
            return None
        if last.finish == "context_full" or (last.problem and last.problem.kind is Kind.CONTEXT_FULL):
            return StopReason.CONTEXT_FULL
        if last.finish == "length" and self.sampling.cut_by_agent(last.asked):
            return None
        return {"length": StopReason.LENGTH, "content_filter": StopReason.CONTENT_FILTER}.get(last.finish or "")

    def verdict(self) -> Failure | None:
        """Whose fault it is that this rollout cannot be scored; None when it can."""
        if self.failure is not None or self.answered:
            return self.failure
        if self.stop is StopReason.CONTEXT_FULL:
            return AuthorError(
                "prompt_too_long", "the agent's first request does not fit the model's context; nothing was sampled"
            ).failure
        return self._unwritable

    def transcript(self) -> AgentResult:
        """The main conversation, with what all of them took."""
        main = self._contexts.main()
        result = transcript(main) if main else AgentResult(messages=[])
        result.turns_used = len(self.answered)
        result.usage = self.usage
        result.timings = self.timings
        result.stop_reason = self.stop
        if hasattr(self.policy, "get_state"):
            result.managed_state = self.policy.get_state()
        return result
