"""The agent loop: ask the model, run the tools it calls, send it the results, until it stops.

Nothing the model writes raises: it becomes a message to the model, a ToolError or a StopReason. A failure that the
policy can have caused (`core/failure_causes.py`) ends its work, which is scored. Any other failure is kept in
`result.failure`, or raised for our own rollouts. The turn at `max_turns` still
runs its calls.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from hermes_rl import tracing
from hermes_rl.agent.compaction import Compaction, estimate_tokens
from hermes_rl.agent.limits import CHARACTERS_PER_TOKEN, MIN_ANSWER_TOKENS, AgentLimits, ResultBudget
from hermes_rl.agent.reasoning import split_reasoning
from hermes_rl.agent.result import AgentResult, ToolError
from hermes_rl.agent.result_spilling import ToolResult, fit_to_budget
from hermes_rl.core import fast_json
from hermes_rl.core.deadline import Deadline
from hermes_rl.core.errors import (
    ConfigError,
    ContextFullError,
    EndpointError,
    EnvironmentCodeError,
    ToolHostError,
    failure_of,
)
from hermes_rl.core.messages import Message, ToolCall, with_unique_ids
from hermes_rl.core.observation import observe
from hermes_rl.core.trajectory import Span, StopReason, Timing, ToolUse, Usage
from hermes_rl.parsers import BrokenCall, get_parser, leaked_marker
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.session import ToolOutcome, ToolSession

ARGUMENTS_EXCERPT, RESULT_EXCERPT = 200, 500
# Start of the refusal of a call beyond the limit of its turn.
NOT_RUN = "not run"

logger = logging.getLogger(__name__)

NextUserMessage = Callable[[list[Message]], Awaitable[str | None]]


class ChatServer(Protocol):
    """The model server: ours, or anything that answers like the OpenAI client."""

    async def chat_completion(self, messages: Sequence[Message], **parameters: Any) -> Any: ...


class HermesAgentLoop:
    """One agent's work on one prompt; an instance runs once."""

    def __init__(
        self,
        server: ChatServer,
        tool_schemas: Sequence[Mapping[str, Any]],
        valid_tool_names: Collection[str],
        max_turns: int = 30,
        task_id: str | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        extra_body: dict[str, Any] | None = None,
        budget_config: ResultBudget | None = None,
        *,
        session: ToolSession | None = None,
        tool_call_parser: str | None = None,
        seed: int | None = None,
        split: str | None = None,
        limits: AgentLimits | None = None,
        next_user_message: NextUserMessage | None = None,
        compaction: Compaction | None = None,
        raise_failures: bool = False,
        past: AgentResult | None = None,
    ) -> None:
        self.server = server
        self.tool_schemas = list(tool_schemas)
        self.valid_tool_names = set(valid_tool_names)
        self.task_id = task_id or str(uuid.uuid4())
        self.seed = seed
        self.limits = limits or AgentLimits()
        self.max_turns = max_turns
        self.result = AgentResult(messages=[])
        self._past = past
        self._parameters: dict[str, Any] = {"n": 1, "temperature": temperature}
        if self.tool_schemas:
            self._parameters["tools"] = self.tool_schemas
        for name, value in (("max_tokens", max_tokens), ("extra_body", extra_body), ("split", split)):
            if value is not None:
                self._parameters[name] = value
        self._max_tokens = max_tokens
        self._results = (budget_config or self.limits.results).scaled_to(self.limits.context_tokens)
        self._next_user_message = next_user_message
        self._compaction = compaction
        self._session = session
        parser_name = tool_call_parser or getattr(server, "tool_parser", None) or "hermes"
        self._raise_failures = raise_failures
        self._parser = None if getattr(server, "reads_calls", False) else get_parser(parser_name)
        self._origin = session.started_at if session else time.monotonic()
        self._context: list[Message] = []
        self._refusals: dict[str, str] = {}
        self._context_used = 0
        self._result_characters = 0
        self._tool_seconds = 0.0
        self._latest: tuple[tuple[str, str, str], ...] = ()
        self._repeats = 0

    async def run(self, messages: Sequence[Message]) -> AgentResult:
        """Run until a StopReason. The caller's list is not modified.

        When the endpoint or a sandbox fails, the result holds the work so far and `failure`, as in the seeds; with
        `raise_failures` the error is raised.
        """
        observe(self)
        result = self.result
        result.messages = list(messages)
        result.prompt_length = len(result.messages)
        if self._past is not None:
            self._continue_after(self._past)
        self._context = list(messages)
        self._context_used = estimate_tokens(self._context) if self.limits.context_tokens else 0
        self._deadline = Deadline()
        try:
            result.stop_reason = await self._run_turns()
        except Exception as error:
            if isinstance(error, ConfigError):
                raise
            if result.turns_used and self._session is not None and await self._session.charge(error):
                result.stop_reason = StopReason.CRASHED
            elif self._raise_failures:
                raise
            else:
                result.failure = failure_of(error)
                logger.warning("the agent stopped after %d turns: %s", result.turns_used, result.failure.message)
        finally:
            self._deadline.close()
            if (session := self._session) is not None:
                session.note_state()
                result.state, result.steps, result.end_reason = session.state, session.steps, session.end_reason
        result.finished_naturally = result.stop_reason is StopReason.NATURAL
        if hasattr(self.server, "get_state"):
            result.managed_state = self.server.get_state()
        return result

    def _continue_after(self, past: AgentResult) -> None:
        """Begin after turns that another agent made; `messages` are the conversation up to there."""
        result = self.result
        result.prompt_length, result.turns_used = past.prompt_length, past.turns_used
        result.tool_uses, result.tool_errors = list(past.tool_uses), list(past.tool_errors)
        result.reasoning_per_turn = list(past.reasoning_per_turn)
        # What these turns took counts towards the deadline, and the reward sees it.
        result.usage = past.usage
        self._tool_seconds = sum(timing.seconds for timing in past.timings if timing.span is Span.TOOL)
        answers = result.messages[past.prompt_length :]
        self._result_characters = sum(len(one["content"]) for one in answers if one.get("role") == "tool")

    async def _run_turns(self) -> StopReason:
        first = self.result.turns_used + 1
        with tracing.span("turn", (first,)) as span:
            for turn in range(first, self.max_turns + 1):
                if turn > first:
                    span.restart((turn,))
                stop = await self._turn(turn)
                if self._session is not None and self._session.stateful:
                    self._session.note_state()
                if stop is not None:
                    return stop
        return StopReason.MAX_TURNS

    async def _turn(self, turn: int) -> StopReason | None:
        """One model call and its tool calls; the reason to end the rollout here, or None."""
        if self._session is not None:
            self._session.turn = turn
        if not await self._ensure_context():
            return StopReason.CONTEXT_FULL
        try:
            calls, stop = await self._ask(turn)
        except ContextFullError as error:
            if turn == 1:
                raise EnvironmentCodeError(
                    "prompt_too_long", f"the prompt does not fit the model's context: {error}"
                ) from error
            # The endpoint knows better than our estimate; half of the estimate is sure to fit.
            compacted = await self._compact((self.limits.context_tokens or estimate_tokens(self._context)) // 2)
            return None if compacted else StopReason.CONTEXT_FULL
        if stop is StopReason.NATURAL and await self._append_user_message():
            return self._ended()
        if stop is StopReason.NATURAL:
            return self._ended() or stop
        return await self._run_tools(turn, calls) if stop is None else stop

    # --- asking the model ---

    async def _ask(self, turn: int) -> tuple[list[ToolCall], StopReason | None]:
        """Call the model and append its message; return the calls to run, or the reason to end the rollout here."""
        started = time.monotonic()
        # Each turn has its own seed, otherwise a model that gets the same prompt again would repeat itself.
        seeded = {} if self.seed is None else {"seed": (self.seed + turn) % 2**31}
        if self.limits.context_tokens and self._max_tokens and not getattr(self.server, "fits_context", False):
            # Engines refuse a request that could outgrow the context, however short the answer would be.
            room = self.limits.context_tokens - self._context_used - MIN_ANSWER_TOKENS
            self._parameters["max_tokens"] = max(min(self._max_tokens, room), MIN_ANSWER_TOKENS)
        try:
            completion = await self.server.chat_completion(messages=self._context, **self._parameters, **seeded)
        finally:
            self._record_timing(Span.MODEL, "chat_completion", started)
        if not completion.choices:
            raise EndpointError("empty_choices", "the server answered with an empty list of choices")
        choice = completion.choices[0]
        self.result.turns_used = turn
        self._count_usage(completion.usage)
        calls, broken, leaked = self._parse_reply(choice.message)
        if calls:
            return calls, StopReason.DEADLINE if self._past_deadline() else None
        self.result.tool_errors += [ToolError(turn, "", call.text[:ARGUMENTS_EXCERPT], call.reason) for call in broken]
        return calls, _stop_reason(choice.finish_reason, unparsed=bool(broken) or leaked)

    def _parse_reply(self, message: Any) -> tuple[list[ToolCall], tuple[BrokenCall, ...], bool]:
        """Parse a message and append it: its calls, the unparsable ones, and whether markup leaked into the text."""
        raw = message.content or ""
        reasoning, text = getattr(message, "reasoning_content", None), raw
        if reasoning is None and "think>" in raw:
            reasoning, text = split_reasoning(raw)
        calls = with_unique_ids([ToolCall.from_raw(call) for call in message.tool_calls or ()])
        broken: tuple[BrokenCall, ...] = getattr(message, "broken_calls", ())
        from_text = False
        if calls:
            calls += [self._refuse_broken_call(call) for call in broken]
        elif text and self._parser and self.valid_tool_names:
            parsed = self._parser.parse(text, self.tool_schemas)
            calls, broken, from_text = with_unique_ids(parsed.calls), parsed.broken, bool(parsed.calls)
            if from_text:
                text = parsed.content
                calls += [self._refuse_broken_call(call) for call in broken]
        recorded: Message = {"role": "assistant", "content": text}
        if reasoning:
            recorded["reasoning_content"] = reasoning
        if calls:
            recorded["tool_calls"] = [call.as_dict() for call in calls]
        self.result.reasoning_per_turn.append(reasoning)
        self.result.messages.append(recorded)
        # The model gets its own text back: an endpoint without tool calls would drop the field, and reasoning goes
        # back in the fields it came in.
        sent: Message = {"role": "assistant", "content": raw, **getattr(message, "reasoning_fields", {})}
        if calls and not from_text:
            sent["tool_calls"] = recorded["tool_calls"]
        self._context.append(sent)
        leaked = (
            bool(self.valid_tool_names)
            and not calls
            and leaked_marker(text, self._parser.markers if self._parser else ()) is not None
        )
        return calls, broken, leaked

    def _refuse_broken_call(self, broken: BrokenCall) -> ToolCall:
        """Replace an unparsable call next to valid ones with a call that returns the parse error."""
        call = ToolCall.make("", broken.text)
        self._refusals[call.id] = f"this tool call could not be read: {broken.reason}; send it again, alone"
        return call

    def _count_usage(self, usage: Any) -> None:
        if isinstance(usage, Usage):
            self.result.usage += usage
            self._context_used = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)

    # --- running the tools ---

    async def _run_tools(self, turn: int, calls: list[ToolCall]) -> StopReason | None:
        """Run a turn's calls concurrently; their results are appended in the order of the calls."""
        limits, result = self.limits, self.result
        allowed = limits.max_calls_per_turn
        if limits.max_tool_calls is not None:
            allowed = min(allowed, max(limits.max_tool_calls - len(result.tool_uses), 0))
        outcomes = await self._run_calls(calls[:allowed])
        if len(calls) > allowed:
            refused = ToolOutcome.refusal(f"{NOT_RUN}: at most {allowed} calls were allowed in this turn")
            outcomes += [refused] * (len(calls) - len(outcomes))
        budgeted = outcomes
        if sum([len(outcome.text) for outcome in outcomes]) > self._results.preview:
            budgeted = await fit_to_budget(
                [ToolResult(call.name, outcome) for call, outcome in zip(calls, outcomes, strict=True)],
                spent=self._result_characters,
                budget=self._results,
                session=self._session,
                tools=self.valid_tool_names,
                turn=turn,
            )
        for call, outcome, shown in zip(calls, outcomes, budgeted, strict=True):
            self._append_tool_result(turn, call, outcome, shown)
        return self._stop_after_tools(calls, outcomes)

    async def _run_calls(self, calls: Sequence[ToolCall]) -> list[ToolOutcome]:
        """Run calls concurrently; ToolHostError when they do not end, since every tool has a shorter timeout."""
        done_before = len(self._session.timings) if self._session else 0
        seconds = self.limits.tool_deadline
        self._deadline.begin(seconds)
        if self._session:
            self._session.time_left = self._time_left()
        try:
            run = [self._run_tool(call) for call in calls]
            return [await run[0]] if len(run) == 1 else await _gather(run)
        except asyncio.CancelledError:
            try:
                self._deadline.reraise()
            except TimeoutError:
                names = ", ".join(call.name for call in calls)
                raise ToolHostError("hang", f"{names} did not answer in {seconds:g} s") from None
        finally:
            self._deadline.end()
            if self._session:
                # Only the tools' own time: waiting for a sandbox or a slot is not the policy's fault.
                took = [timing.seconds for timing in self._session.timings[done_before:] if timing.span is Span.TOOL]
                self._tool_seconds += max(took, default=0.0)

    def _append_tool_result(self, turn: int, call: ToolCall, outcome: ToolOutcome, shown: ToolOutcome) -> None:
        """Append one result: the model gets what fits, the record keeps all of it."""
        message: Message = {"role": "tool", "tool_call_id": call.id, "content": shown.text}
        self.result.messages.append(message)
        self._context.append(message)
        self._result_characters += len(shown.text)
        self._context_used += len(shown.text) // CHARACTERS_PER_TOKEN
        self.result.tool_uses.append(ToolUse(turn, call.id, call.name, call.arguments, outcome.text, outcome.error))
        if outcome.error is not None:
            self.result.tool_errors.append(
                ToolError(
                    turn, call.name, call.arguments[:ARGUMENTS_EXCERPT], outcome.error, outcome.text[:RESULT_EXCERPT]
                )
            )

    def _stop_after_tools(self, calls: Sequence[ToolCall], outcomes: Sequence[ToolOutcome]) -> StopReason | None:
        if self._ended():
            return StopReason.ENDED
        limits = self.limits
        latest = tuple((call.name, call.arguments, outcome.text) for call, outcome in zip(calls, outcomes, strict=True))
        self._repeats = self._repeats + 1 if latest == self._latest else 1
        self._latest = latest
        if limits.max_tool_calls is not None and len(self.result.tool_uses) >= limits.max_tool_calls:
            return StopReason.TOOL_BUDGET
        if limits.max_repeated_calls is not None and self._repeats >= limits.max_repeated_calls:
            return StopReason.REPEATED_CALL
        return StopReason.DEADLINE if self._past_deadline() else None

    async def _run_tool(self, call: ToolCall) -> ToolOutcome:
        if call.id in self._refusals:
            return ToolOutcome.refusal(self._refusals[call.id])
        if call.name not in self.valid_tool_names:
            return ToolOutcome.refusal(
                f"unknown tool {call.name!r}; available: {', '.join(sorted(self.valid_tool_names))}"
            )
        try:
            arguments = fast_json.loads(call.arguments) if call.arguments.strip() else {}
        except ValueError as error:
            return ToolOutcome.refusal(f"the arguments are not valid JSON ({error}); send one JSON object")
        if not isinstance(arguments, dict):
            return ToolOutcome.refusal(f"the arguments must be one JSON object, not {type(arguments).__name__}")
        if self._session is None:
            self._session = ToolHost.current().session(self.task_id)
            self._session.turn = self.result.turns_used
        try:
            return await self._session.call(call.name, arguments, call.id)
        except ToolHostError as error:
            if not await self._session.charge(error):
                raise
            return ToolOutcome.refusal(str(error))

    # --- continuing or stopping ---

    def _ended(self) -> StopReason | None:
        """Whether a tool or the simulated user ended the rollout in this turn."""
        return StopReason.ENDED if self._session is not None and self._session.end_reason is not None else None

    async def _ensure_context(self) -> bool:
        """Whether the conversation fits the context, after compaction if necessary."""
        context = self.limits.context_tokens
        if context is None or self._context_used + MIN_ANSWER_TOKENS <= context:
            return True
        # Not to the whole context, so that the next turns need not compact again.
        return await self._compact(context * 3 // 4)

    async def _compact(self, room: int) -> bool:
        """Compact the conversation to about `room` tokens; False if that is not possible."""
        shorter = await self._compaction.compact(self._context, room) if self._compaction else None
        if shorter is None:
            return False
        self._context = shorter
        self._context_used = estimate_tokens(shorter)
        self.result.compactions += 1
        return True

    async def _append_user_message(self) -> bool:
        """Append the simulated user's reply to the answer; False if there is none."""
        if self._next_user_message is None:
            return False
        text = await self._next_user_message(self.result.messages)
        if text is None:
            return False
        message: Message = {"role": "user", "content": text}
        self.result.messages.append(message)
        self._context.append(message)
        return True

    def _past_deadline(self) -> bool:
        left = self._time_left()
        return left is not None and left < 0

    def _time_left(self) -> float | None:
        """Remaining seconds of the policy's own time; None without a deadline."""
        limits = self.limits
        if limits.deadline is None:
            return None
        tokens = self.result.usage.completion_tokens or 0
        return limits.deadline - self._tool_seconds - tokens * limits.seconds_per_token

    def _record_timing(self, span: Span, name: str, started: float) -> None:
        self.result.timings.append(Timing(span, name, started - self._origin, time.monotonic() - started))


def _stop_reason(finish_reason: str | None, *, unparsed: bool) -> StopReason:
    if finish_reason == "length":
        return StopReason.LENGTH
    if finish_reason == "context_full":
        return StopReason.CONTEXT_FULL
    if finish_reason == "content_filter":
        return StopReason.CONTENT_FILTER
    return StopReason.UNPARSED_TOOL_CALL if unparsed else StopReason.NATURAL


async def _gather(calls: Sequence[Coroutine[Any, Any, ToolOutcome]]) -> list[ToolOutcome]:
    """Run coroutines concurrently; when one raises, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
