"""GatewayRollout: what one rollout's agent did through the gateway, and how its calls are sampled.

Tokens are sampled with the run's settings, whatever the agent asks for. An agent can only end an answer earlier, by
fewer tokens or a stop string, which leaves the probability of every sampled token unchanged. An infrastructure error in
a call makes the rollout a Failure, and nothing is sampled for it from then on.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from hermes_rl import tracing
from hermes_rl.agent.result import AgentResult
from hermes_rl.core.errors import ContextFullError, EnvironmentCodeError, Failure, failure_of
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Span, StopReason, Timing, Usage
from hermes_rl.gateway.conversations import Conversation, Conversations
from hermes_rl.gateway.dialects.previous_responses import PreviousResponses
from hermes_rl.gateway.dialects.reply import AgentReply
from hermes_rl.gateway.errors import ErrorKind, RequestProblem
from hermes_rl.gateway.limits import GatewayLimits, LimitUsage, RequestRefusedError
from hermes_rl.gateway.request import AgentRequest
from hermes_rl.gateway.run_sampling import RunSampling
from hermes_rl.gateway.transcript import transcript
from hermes_rl.inference.completion import ChatCompletion

__all__ = ["ENDED", "Call", "GatewayPolicy", "GatewayRollout", "RunSampling"]

# A body with more bytes than this per token of the context cannot fit and is not worth encoding.
BYTES_PER_TOKEN = 64
ENDED = RequestProblem(ErrorKind.OVERLOADED, "this rollout has ended")


class GatewayPolicy(Protocol):
    """Answers calls: ManagedServer, which records exact tokens, or anything else with its `chat_completion`."""

    async def chat_completion(self, messages: Sequence[Message], **parameters: Any) -> Any: ...


Outcome: TypeAlias = ChatCompletion | RequestProblem


@dataclass(slots=True, eq=False)
class Call:
    """One request, from arrival to outcome. `size` is the number of bytes it holds until the answer is delivered."""

    number: int
    identity: tuple[str, bytes]
    request: AgentRequest
    size: int
    start: float
    task: "asyncio.Task[Outcome]" = field(init=False)
    listeners: int = 1
    received: bool = False
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    finish: str | None = None
    problem: RequestProblem | None = None


class GatewayRollout:
    """`failure` is the first infrastructure error; it sets the event `failed`."""

    def __init__(
        self,
        policy: GatewayPolicy,
        sampling: RunSampling | None = None,
        limits: GatewayLimits | None = None,
        *,
        model: str = "policy",
        context_tokens: int | None = None,
        origin: float | None = None,
    ) -> None:
        self.policy = policy
        self.sampling = sampling or RunSampling()
        self.model = model
        self.context_tokens = context_tokens
        self.used = LimitUsage(limits or GatewayLimits())
        self.calls: list[Call] = []
        self.failure: Failure | None = None
        self.failed = asyncio.Event()
        self._render_failure: Failure | None = None
        self.closed = False
        self.seconds = 0.0
        """From the start to `close`."""
        self.previous = PreviousResponses()
        self._conversations = Conversations()
        # The agent's requests come from outside and do not carry this span.
        self._span = tracing.current_span()
        self._slots = asyncio.Semaphore(self.used.limits.calls_at_once)
        self._origin = time.monotonic() if origin is None else origin
        self._undelivered: dict[tuple[str, bytes], list[Call]] = {}
        self._tasks: set[asyncio.Task[Outcome]] = set()

    # --- one call ---

    def admit(self) -> None:
        """RequestRefusedError unless one more request may be read."""
        if self.closed:
            raise RequestRefusedError(ENDED.kind, ENDED.message)
        if self.failure is not None:
            raise RequestRefusedError(ErrorKind.OVERLOADED, f"this rollout has failed: {self.failure}")
        self.used.admit()

    def find_retry(self, identity: tuple[str, bytes], *, repeated: bool) -> Call | None:
        """The call that this request retries: its answer is not delivered and has no waiter.

        `repeated`: the caller declares a retry, so the first attempt may still seem to have a waiter.
        """
        calls = [call for call in self._undelivered.get(identity, ()) if call.problem is None and not call.received]
        found = next((call for call in calls if not call.listeners), None)
        if found is None and repeated and calls:
            found = calls[0]
        if found is not None:
            found.listeners += 1
        return found

    def begin(self, request: AgentRequest, identity: tuple[str, bytes], size: int) -> Call:
        """Start sampling an answer. It continues when the caller disconnects, so that a retry can get it."""
        self.used.check()
        self.used.calls += 1
        call = Call(self.used.calls, identity, request, size, time.monotonic() - self._origin)
        self.calls.append(call)
        self._undelivered.setdefault(identity, []).append(call)
        call.task = asyncio.create_task(self._outcome(call))
        self._tasks.add(call.task)
        call.task.add_done_callback(self._tasks.discard)
        return call

    def count_unreadable(self) -> None:
        """Count a request that could not be parsed."""
        self.used.calls += 1

    def abandon(self, call: Call) -> None:
        """The caller disconnected without the answer."""
        call.listeners -= 1
        if call.received and not call.listeners:
            self._drop(call)
        finished = [other for calls in self._undelivered.values() for other in calls if other.task.done()]
        unclaimed = [other for other in finished if not other.listeners]
        for other in unclaimed[: -self.used.limits.calls_at_once]:
            self._drop(other)

    def delivered(self, call: Call) -> None:
        """A caller has received the answer."""
        call.received = True
        call.listeners -= 1
        if not call.listeners:
            self._drop(call)

    async def _outcome(self, call: Call) -> Outcome:
        self.used.running_calls += 1
        try:
            async with self._slots:
                outcome = await self._sample(call)
        except asyncio.CancelledError:
            # Only `close` cancels the task, and its callers still need an answer.
            outcome = ENDED
        finally:
            self.used.running_calls -= 1
        if isinstance(outcome, RequestProblem):
            call.problem = outcome
        return outcome

    async def _sample(self, call: Call) -> Outcome:
        if self.failure is not None:
            return RequestProblem(ErrorKind.OVERLOADED, f"this rollout has failed: {self.failure}")
        if self.context_tokens is not None and call.size > self.context_tokens * BYTES_PER_TOKEN:
            return RequestProblem(ErrorKind.CONTEXT_FULL, f"{call.size} bytes do not fit {self.context_tokens} tokens")
        try:
            # Others may have used up the time while this call waited.
            self.used.check_deadline()
        except RequestRefusedError as refused:
            return refused.problem
        began = time.monotonic()
        try:
            with tracing.use_span(self._span):
                completion = await self.policy.chat_completion(
                    call.request.messages, **self.sampling.parameters(call.request, call.number)
                )
        except EnvironmentCodeError as error:
            # A conversation that the model's template cannot render, which an engine would refuse too.
            self._render_failure = self._render_failure or error.failure
            return RequestProblem(ErrorKind.BAD_REQUEST, str(error))
        except Exception as error:  # noqa: BLE001 (here every error but a full context becomes a Failure)
            if not isinstance(error, ContextFullError):
                self.fail(failure_of(error))
            return RequestProblem.from_error(error)
        finally:
            call.seconds = time.monotonic() - began
            call.start = began - self._origin
        return self._record(call, completion)

    def _record(self, call: Call, completion: ChatCompletion) -> ChatCompletion:
        request = call.request
        call.usage = completion.usage
        call.finish = completion.choices[0].finish_reason
        self.used.tokens += completion.usage.completion_tokens or 0
        for choice in completion.choices:
            # As the agent receives it, without its own stop string; but reasoning is kept even if the agent gets none.
            reply = AgentReply.from_choice(request, choice)._replace(reasoning=choice.message.reasoning_content or "")
            position = self._conversations.locate(request.messages)
            self._conversations.add_answer(position, reply.message, call.number, request.tools)
        self.previous.add(request, completion)
        return completion

    def _drop(self, call: Call) -> None:
        calls = self._undelivered.get(call.identity)
        if calls and call in calls:
            calls.remove(call)
            self.used.bytes -= call.size
            if not calls:
                del self._undelivered[call.identity]
        call.identity = ("", b"")
        # Its messages are in a conversation; keeping them parsed would store them once more for each call.
        call.request = replace(call.request, messages=[], tools=[])

    # --- the rollout ---

    def fail(self, failure: Failure) -> None:
        """Store the first failure."""
        if self.failure is None:
            self.failure = failure
            self.failed.set()

    def close(self) -> None:
        """Stop answering, and cancel running calls."""
        if not self.closed:
            self.closed = True
            self.seconds = time.monotonic() - self._origin
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no call is running, after `close`."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    @property
    def answered(self) -> list[Call]:
        return [call for call in self.calls if call.finish is not None]

    @property
    def conversations(self) -> list[Conversation]:
        """All conversations of the agent, in the order of their first answers."""
        return self._conversations.all

    @property
    def usage(self) -> Usage:
        return sum((call.usage for call in self.calls), Usage())

    @property
    def timings(self) -> list[Timing]:
        return [Timing(Span.MODEL, "chat_completion", call.start, call.seconds) for call in self.calls if call.seconds]

    @property
    def stop(self) -> StopReason | None:
        """Why the agent could not continue, as far as the gateway can tell; None if it could."""
        if self.used.reached is not None:
            return self.used.reached
        last = max(self.calls, key=lambda call: call.start + call.seconds, default=None)
        if last is None:
            return None
        if last.finish == "context_full" or (last.problem and last.problem.kind is ErrorKind.CONTEXT_FULL):
            return StopReason.CONTEXT_FULL
        if last.finish == "length" and self.sampling.cut_by_agent(last.request):
            return None
        return {"length": StopReason.LENGTH, "content_filter": StopReason.CONTENT_FILTER}.get(last.finish or "")

    def final_failure(self) -> Failure | None:
        """Why this rollout cannot be scored; None when it can."""
        if self.failure is not None or self.answered:
            return self.failure
        if self.stop is StopReason.CONTEXT_FULL:
            return EnvironmentCodeError(
                "prompt_too_long", "the agent's first request does not fit the model's context; nothing was sampled"
            ).failure
        return self._render_failure

    def transcript(self) -> AgentResult:
        """The main conversation, with the usage and timings of all of them."""
        main = self._conversations.main()
        result = transcript(main) if main else AgentResult(messages=[])
        result.turns_used = len(self.answered)
        result.usage = self.usage
        result.timings = self.timings
        result.stop_reason = self.stop
        if hasattr(self.policy, "get_state"):
            result.managed_state = self.policy.get_state()
        return result
