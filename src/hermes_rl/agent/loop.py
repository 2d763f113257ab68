"""The agent loop: ask the model, run the tools it calls, tell it the results, until it stops.

Nothing the model writes raises: it becomes a message to the model, a ToolError or a StopReason. What the world does
raises a WorldError, and `result` then holds the work so far. The turn at `max_turns` still runs its calls.
"""

import asyncio
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from hermes_rl import jsontext
from hermes_rl.agent.result import AgentResult, ToolError
from hermes_rl.errors import EndpointError
from hermes_rl.messages import Message, ToolCall
from hermes_rl.parsers import BrokenCall, get_parser
from hermes_rl.tools import ToolHost, ToolOutcome, ToolSession
from hermes_rl.trajectory import Span, StopReason, Timing, ToolUse, Usage

ARGUMENTS_SHOWN, RESULT_SHOWN = 200, 500


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
    ) -> None:
        self.server = server
        self.tool_schemas = list(tool_schemas)
        self.valid_tool_names = set(valid_tool_names)
        self.max_turns = max_turns
        self.task_id = task_id or str(uuid.uuid4())
        self.seed = seed
        self.result = AgentResult(messages=[])
        self._parameters: dict[str, Any] = {"n": 1, "temperature": temperature}
        if self.tool_schemas:
            self._parameters["tools"] = self.tool_schemas
        for name, value in (("max_tokens", max_tokens), ("extra_body", extra_body), ("split", split)):
            if value is not None:
                self._parameters[name] = value
        self._session = session
        self._parser = get_parser(tool_call_parser)
        self._origin = session.started_at if session else time.monotonic()
        self._wire: list[Message] = []

    async def run(self, messages: Sequence[Message]) -> AgentResult:
        """Work until a StopReason. The caller's list is left as it was."""
        result = self.result
        result.messages = list(messages)
        result.prompt_length = len(result.messages)
        self._wire = list(messages)
        for turn in range(1, self.max_turns + 1):
            calls, stop = await self._ask(turn)
            if stop is not None:
                result.stop_reason = stop
                break
            await self._run_tools(turn, calls)
        else:
            result.stop_reason = StopReason.MAX_TURNS
        result.finished_naturally = result.stop_reason is StopReason.NATURAL
        if hasattr(self.server, "get_state"):
            result.managed_state = self.server.get_state()
        return result

    async def _ask(self, turn: int) -> tuple[tuple[ToolCall, ...], StopReason | None]:
        """One model call: its message joins the conversation; the calls to run, or why the rollout ends here."""
        began = time.monotonic()
        # Each turn draws from its own seed, else a model that repeats a prompt would repeat itself.
        seeded = {} if self.seed is None else {"seed": (self.seed + turn) % 2**31}
        try:
            completion = await self.server.chat_completion(messages=self._wire, **self._parameters, **seeded)
        finally:
            self._note(Span.MODEL, "chat_completion", began)
        if not completion.choices:
            raise EndpointError("empty_choices", "the server answered with an empty list of choices")
        choice = completion.choices[0]
        result = self.result
        result.turns_used = turn
        if isinstance(completion.usage, Usage):
            result.usage += completion.usage
        message = choice.message
        text = message.content or ""
        reasoning = getattr(message, "reasoning_content", None)
        result.reasoning_per_turn.append(reasoning)
        calls = tuple(ToolCall.of(raw) for raw in message.tool_calls or ())
        broken: tuple[BrokenCall, ...] = ()
        wire_text: str | None = None
        if text and not calls and self.valid_tool_names:
            parsed = self._parser.parse(text)
            calls, broken = parsed.calls, parsed.broken
            if calls:
                # The endpoint knows no tool calls, so the model must see its own words again, not a field it drops.
                wire_text, text = text, parsed.content
        said: Message = {"role": "assistant", "content": text}
        if reasoning:
            said["reasoning_content"] = reasoning
        if calls:
            said["tool_calls"] = [call.as_dict() for call in calls]
        result.messages.append(said)
        self._wire.append(said if wire_text is None else {"role": "assistant", "content": wire_text})
        result.tool_errors += [ToolError(turn, "", call.text[:ARGUMENTS_SHOWN], call.reason) for call in broken]
        return calls, None if calls else _reason_to_stop(choice.finish_reason, broken)

    async def _run_tools(self, turn: int, calls: Sequence[ToolCall]) -> None:
        """Run a turn's calls together; their results join the conversation in the order of the calls."""
        if len(calls) == 1:
            outcomes = [await self._run_tool(calls[0])]
        else:
            outcomes = await _together([self._run_tool(call) for call in calls])
        for call, outcome in zip(calls, outcomes, strict=True):
            told: Message = {"role": "tool", "tool_call_id": call.id, "content": outcome.text}
            self.result.messages.append(told)
            self._wire.append(told)
            self.result.tool_uses.append(ToolUse(turn, call.id, call.name, call.arguments, outcome.text, outcome.error))
            if outcome.error is not None:
                self.result.tool_errors.append(
                    ToolError(
                        turn, call.name, call.arguments[:ARGUMENTS_SHOWN], outcome.error, outcome.text[:RESULT_SHOWN]
                    )
                )

    async def _run_tool(self, call: ToolCall) -> ToolOutcome:
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
        return await self._session.call(call.name, arguments)

    def _note(self, span: Span, name: str, began: float) -> None:
        self.result.timings.append(
            Timing(span, name, round(began - self._origin, 6), round(time.monotonic() - began, 6))
        )


def _reason_to_stop(finish_reason: str | None, broken: Sequence[BrokenCall]) -> StopReason:
    if finish_reason == "length":
        return StopReason.LENGTH
    return StopReason.UNPARSED_TOOL_CALL if broken else StopReason.NATURAL


async def _together(calls: list[Any]) -> list[ToolOutcome]:
    """Run coroutines at once; when the world fails one of them the others are cancelled and that error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
