"""The agent loop: ask the model, run the tools it calls, tell it the results, until it stops.

Nothing the model writes raises: it becomes a message to the model, a ToolError or a StopReason. What the world does
raises a WorldError, and `result` then holds the work so far. The turn at `max_turns` still runs its calls.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from hermes_rl import jsontext, tracing
from hermes_rl.agent.compaction import Compaction, tokens_in
from hermes_rl.agent.limits import CHARACTERS_PER_TOKEN, LEAST_ANSWER_TOKENS, AgentLimits
from hermes_rl.agent.result import AgentResult, ToolError
from hermes_rl.agent.spilling import Result, within_budget
from hermes_rl.agent.thinking import split_thinking
from hermes_rl.deadline import Deadline
from hermes_rl.errors import AuthorError, ContextFullError, EndpointError, ToolHostError
from hermes_rl.messages import Message, ToolCall, with_own_ids
from hermes_rl.parsers import BrokenCall, get_parser
from hermes_rl.parsers.markers import leaked_marker
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.session import ToolOutcome, ToolSession
from hermes_rl.trajectory import Span, StopReason, Timing, ToolUse, Usage

ARGUMENTS_SHOWN, RESULT_SHOWN = 200, 500
# How the refusal of a call begins that came after the last one allowed in its turn.
NOT_RUN = "not run"

NextUserMessage = Callable[[list[Message]], Awaitable[str | None]]


class ChatServer(Protocol):
    """What the loop asks; ours or anything that answers like the OpenAI client."""

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
        *,
        session: ToolSession | None = None,
        tool_call_parser: str = "hermes",
        seed: int | None = None,
        split: str | None = None,
        limits: AgentLimits | None = None,
        next_user_message: NextUserMessage | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        self.server = server
        self.tool_schemas = list(tool_schemas)
        self.valid_tool_names = set(valid_tool_names)
        self.task_id = task_id or str(uuid.uuid4())
        self.seed = seed
        self.limits = limits or AgentLimits()
        self.max_turns = max_turns
        self.result = AgentResult(messages=[])
        self._parameters: dict[str, Any] = {"n": 1, "temperature": temperature}
        if self.tool_schemas:
            self._parameters["tools"] = self.tool_schemas
        for name, value in (("max_tokens", max_tokens), ("extra_body", extra_body), ("split", split)):
            if value is not None:
                self._parameters[name] = value
        self._max_tokens = max_tokens
        self._results = self.limits.results.scaled_to(self.limits.context_tokens)
        self._next_user_message = next_user_message
        self._compaction = compaction
        self._session = session
        self._parser = None if getattr(server, "reads_calls", False) else get_parser(tool_call_parser)
        self._origin = session.started_at if session else time.monotonic()
        self._wire: list[Message] = []
        self._refusals: dict[str, str] = {}
        self._context_used = 0
        self._results_spent = 0
        self._tool_seconds = 0.0
        self._latest: tuple[tuple[str, str, str], ...] = ()
        self._repeats = 0

    async def run(self, messages: Sequence[Message]) -> AgentResult:
        """Work until a StopReason. The caller's list is left as it was."""
        result = self.result
        result.messages = list(messages)
        result.prompt_length = len(result.messages)
        self._wire = list(messages)
        self._context_used = tokens_in(self._wire) if self.limits.context_tokens else 0
        self._deadline = Deadline()
        try:
            result.stop_reason = await self._work()
        finally:
            self._deadline.close()
        result.finished_naturally = result.stop_reason is StopReason.NATURAL
        if hasattr(self.server, "get_state"):
            result.managed_state = self.server.get_state()
        return result

    async def _work(self) -> StopReason:
        with tracing.span("turn", (1,)) as span:
            for turn in range(1, self.max_turns + 1):
                if turn > 1:
                    span.again((turn,))
                stop = await self._turn(turn)
                if stop is not None:
                    return stop
        return StopReason.MAX_TURNS

    async def _turn(self, turn: int) -> StopReason | None:
        """One model call and the tools it calls; why the rollout ends here, or None."""
        if not await self._makes_room():
            return StopReason.CONTEXT_FULL
        try:
            calls, stop = await self._ask(turn)
        except ContextFullError as error:
            if turn == 1:
                raise AuthorError("prompt_too_long", f"the prompt does not fit the model's context: {error}") from error
            # The endpoint knows better than our estimate; half of that is sure to fit.
            compacted = await self._compacts((self.limits.context_tokens or tokens_in(self._wire)) // 2)
            return None if compacted else StopReason.CONTEXT_FULL
        if stop is StopReason.NATURAL and await self._user_goes_on():
            return None
        return await self._run_tools(turn, calls) if stop is None else stop

    # --- asking the model ---

    async def _ask(self, turn: int) -> tuple[list[ToolCall], StopReason | None]:
        """One model call: its message joins the conversation; the calls to run, or why the rollout ends here."""
        began = time.monotonic()
        # Each turn draws from its own seed, else a model that repeats a prompt would repeat itself.
        seeded = {} if self.seed is None else {"seed": (self.seed + turn) % 2**31}
        if self.limits.context_tokens and self._max_tokens and not getattr(self.server, "fits_context", False):
            # Engines refuse a request whose answer could outgrow the context, however short it would be.
            room = self.limits.context_tokens - self._context_used - LEAST_ANSWER_TOKENS
            self._parameters["max_tokens"] = max(min(self._max_tokens, room), LEAST_ANSWER_TOKENS)
        try:
            completion = await self.server.chat_completion(messages=self._wire, **self._parameters, **seeded)
        finally:
            self._note(Span.MODEL, "chat_completion", began)
        if not completion.choices:
            raise EndpointError("empty_choices", "the server answered with an empty list of choices")
        choice = completion.choices[0]
        self.result.turns_used = turn
        self._count(completion.usage)
        calls, broken, leaked = self._hear(choice.message)
        if calls:
            return calls, StopReason.DEADLINE if self._past_deadline() else None
        self.result.tool_errors += [ToolError(turn, "", call.text[:ARGUMENTS_SHOWN], call.reason) for call in broken]
        return calls, _reason_to_stop(choice.finish_reason, unparsed=bool(broken) or leaked)

    def _hear(self, message: Any) -> tuple[list[ToolCall], tuple[BrokenCall, ...], bool]:
        """Take a message apart and keep it: its calls, the ones nobody can read, and whether markup leaked into it."""
        raw = message.content or ""
        reasoning, text = getattr(message, "reasoning_content", None), raw
        if reasoning is None and "think>" in raw:
            reasoning, text = split_thinking(raw)
        calls = with_own_ids([ToolCall.of(call) for call in message.tool_calls or ()])
        broken: tuple[BrokenCall, ...] = getattr(message, "broken_calls", ())
        from_text = False
        if calls:
            calls += [self._unreadable(call) for call in broken]
        elif text and self._parser and self.valid_tool_names:
            parsed = self._parser.parse(text, self.tool_schemas)
            calls, broken, from_text = with_own_ids(parsed.calls), parsed.broken, bool(parsed.calls)
            if from_text:
                text = parsed.content
                calls += [self._unreadable(call) for call in broken]
        said: Message = {"role": "assistant", "content": text}
        if reasoning:
            said["reasoning_content"] = reasoning
        if calls:
            said["tool_calls"] = [call.as_dict() for call in calls]
        self.result.reasoning_per_turn.append(reasoning)
        self.result.messages.append(said)
        # The model is sent back its own words: an endpoint that knows no tool calls would drop the field, and
        # thinking goes back the way it came.
        sent: Message = {"role": "assistant", "content": raw, **getattr(message, "reasoning_fields", {})}
        if calls and not from_text:
            sent["tool_calls"] = said["tool_calls"]
        self._wire.append(sent)
        leaked = bool(self.valid_tool_names) and not calls and leaked_marker(text) is not None
        return calls, broken, leaked

    def _unreadable(self, broken: BrokenCall) -> ToolCall:
        """A call that could not be read beside ones that could: it is answered like them, with what was wrong."""
        call = ToolCall.make("", broken.text)
        self._refusals[call.id] = f"this tool call could not be read: {broken.reason}; send it again, alone"
        return call

    def _count(self, usage: Any) -> None:
        if isinstance(usage, Usage):
            self.result.usage += usage
            self._context_used = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)

    # --- running the tools ---

    async def _run_tools(self, turn: int, calls: list[ToolCall]) -> StopReason | None:
        """Run a turn's calls together; their results join the conversation in the order of the calls."""
        limits, result = self.limits, self.result
        allowed = limits.max_calls_per_turn
        if limits.max_tool_calls is not None:
            allowed = min(allowed, max(limits.max_tool_calls - len(result.tool_uses), 0))
        outcomes = await self._outcomes(calls[:allowed])
        if len(calls) > allowed:
            refused = ToolOutcome.refusal(f"{NOT_RUN}: at most {allowed} calls were allowed in this turn")
            outcomes += [refused] * (len(calls) - len(outcomes))
        shown = outcomes
        if sum([len(outcome.text) for outcome in outcomes]) > self._results.preview:
            shown = await within_budget(
                [Result(call.name, outcome) for call, outcome in zip(calls, outcomes, strict=True)],
                spent=self._results_spent,
                budget=self._results,
                session=self._session,
                tools=self.valid_tool_names,
                turn=turn,
            )
        for call, outcome, told in zip(calls, outcomes, shown, strict=True):
            self._tell(turn, call, outcome, told)
        return self._reason_after_tools(calls, outcomes)

    async def _outcomes(self, calls: Sequence[ToolCall]) -> list[ToolOutcome]:
        """Run calls together; ToolHostError when they do not end, since every tool keeps a shorter time of its own."""
        done_before = len(self._session.timings) if self._session else 0
        seconds = self.limits.tool_deadline
        self._deadline.begin(seconds)
        if self._session:
            self._session.time_left = self._time_left()
        try:
            run = [self._run_tool(call) for call in calls]
            return [await run[0]] if len(run) == 1 else await _together(run)
        except asyncio.CancelledError:
            try:
                self._deadline.reraise()
            except TimeoutError:
                names = ", ".join(call.name for call in calls)
                raise ToolHostError("hang", f"{names} did not answer in {seconds:g} s") from None
        finally:
            self._deadline.end()
            if self._session:
                # What the tools took themselves: waiting for a sandbox or for a place is not the policy's doing.
                took = [timing.seconds for timing in self._session.timings[done_before:] if timing.span is Span.TOOL]
                self._tool_seconds += max(took, default=0.0)

    def _tell(self, turn: int, call: ToolCall, outcome: ToolOutcome, told: ToolOutcome) -> None:
        """One result: the model is told what fits, the record keeps the whole."""
        message: Message = {"role": "tool", "tool_call_id": call.id, "content": told.text}
        self.result.messages.append(message)
        self._wire.append(message)
        self._results_spent += len(told.text)
        self._context_used += len(told.text) // CHARACTERS_PER_TOKEN
        self.result.tool_uses.append(ToolUse(turn, call.id, call.name, call.arguments, outcome.text, outcome.error))
        if outcome.error is not None:
            self.result.tool_errors.append(
                ToolError(turn, call.name, call.arguments[:ARGUMENTS_SHOWN], outcome.error, outcome.text[:RESULT_SHOWN])
            )

    def _reason_after_tools(self, calls: Sequence[ToolCall], outcomes: Sequence[ToolOutcome]) -> StopReason | None:
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
            arguments = jsontext.loads(call.arguments) if call.arguments.strip() else {}
        except ValueError as error:
            return ToolOutcome.refusal(f"the arguments are not valid JSON ({error}); send one JSON object")
        if not isinstance(arguments, dict):
            return ToolOutcome.refusal(f"the arguments must be one JSON object, not {type(arguments).__name__}")
        if self._session is None:
            self._session = ToolHost.current().session(self.task_id)
        return await self._session.call(call.name, arguments, call.id)

    # --- going on or not ---

    async def _makes_room(self) -> bool:
        """Whether the conversation fits the context, shortened if there is a strategy for that."""
        context = self.limits.context_tokens
        if context is None or self._context_used + LEAST_ANSWER_TOKENS <= context:
            return True
        # Not the whole context, so that the next turns do not have to compact again.
        return await self._compacts(context * 3 // 4)

    async def _compacts(self, room: int) -> bool:
        """Whether the conversation could be shortened to about so many tokens; if so it is."""
        shorter = await self._compaction.compact(self._wire, room) if self._compaction else None
        if shorter is None:
            return False
        self._wire = shorter
        self._context_used = tokens_in(shorter)
        self.result.compactions += 1
        return True

    async def _user_goes_on(self) -> bool:
        """Whether a simulated user has something to say to the answer; if so it joins the conversation."""
        if self._next_user_message is None:
            return False
        text = await self._next_user_message(self.result.messages)
        if text is None:
            return False
        message: Message = {"role": "user", "content": text}
        self.result.messages.append(message)
        self._wire.append(message)
        return True

    def _past_deadline(self) -> bool:
        left = self._time_left()
        return left is not None and left < 0

    def _time_left(self) -> float | None:
        """Seconds of the policy's own work that are left; None without a deadline."""
        limits = self.limits
        if limits.deadline is None:
            return None
        tokens = self.result.usage.completion_tokens or 0
        return limits.deadline - self._tool_seconds - tokens * limits.seconds_per_token

    def _note(self, span: Span, name: str, began: float) -> None:
        self.result.timings.append(Timing(span, name, began - self._origin, time.monotonic() - began))


def _reason_to_stop(finish_reason: str | None, *, unparsed: bool) -> StopReason:
    if finish_reason == "length":
        return StopReason.LENGTH
    if finish_reason == "context_full":
        return StopReason.CONTEXT_FULL
    if finish_reason == "content_filter":
        return StopReason.CONTENT_FILTER
    return StopReason.UNPARSED_TOOL_CALL if unparsed else StopReason.NATURAL


async def _together(calls: Sequence[Coroutine[Any, Any, ToolOutcome]]) -> list[ToolOutcome]:
    """Run coroutines at once; when the world fails one of them the others are cancelled and that error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
