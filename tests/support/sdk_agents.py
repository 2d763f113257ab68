"""Agents in plain SDK code, as people write them: each asks, reads the answer by the SDK's types, sends it back."""

from typing import Any, NamedTuple, Protocol

import anthropic
import openai
from google import genai
from openai.lib.streaming.chat import ChatCompletionStreamState

from hermes_rl.gateway.dialects import ANTHROPIC, CHAT, GOOGLE, RESPONSES
from tests.support.dialects import LOOK


class Heard(NamedTuple):
    """An answer as the SDK reads it. A call is its id, name and arguments: text, but an object with Anthropic."""

    text: str
    thinking: str
    calls: list[tuple[str, str, Any]]
    finish: str | None
    tokens: tuple[int, int]


class Agent(Protocol):
    """It keeps its history in the dialect's own form."""

    def ask(self, text: str) -> Heard: ...

    def give(self, call: str, result: str) -> None: ...

    def go_on(self) -> Heard: ...


class Provider(Protocol):
    """What an agent takes for a provider: clients that reach it."""

    def openai(self) -> openai.OpenAI: ...

    def anthropic(self) -> anthropic.Anthropic: ...

    def google(self) -> genai.Client: ...


class ChatAgent:
    dialect = CHAT

    def __init__(self, line: Provider, *, stream: bool = False, **more: Any) -> None:
        self._client: openai.OpenAI = line.openai()
        self._stream, self._more = stream, more
        self.messages: list[Any] = []

    def ask(self, text: str) -> Heard:
        self.messages.append({"role": "user", "content": text})
        return self.go_on()

    def give(self, call: str, result: str) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call, "content": result})

    def go_on(self) -> Heard:
        given: dict[str, Any] = {"model": "m", "messages": self.messages, "tools": [LOOK], **self._more}
        if self._stream:
            # What `completions.stream` does, which raises when an answer with tools was cut.
            state = ChatCompletionStreamState()
            given["stream_options"] = {"include_usage": True}
            for chunk in self._client.chat.completions.create(**given, stream=True):
                state.handle_chunk(chunk)
            completion: Any = state.current_completion_snapshot
        else:
            completion = self._client.chat.completions.create(**given)
        choice = completion.choices[0]
        sent_back = choice.message.model_dump(exclude_unset=True)
        for call in sent_back.get("tool_calls") or ():
            # What the SDK's stream adds for its own use.
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
        sent_back.pop("parsed", None)
        self.messages.append(sent_back)
        return Heard(
            choice.message.content or "",
            getattr(choice.message, "reasoning_content", None) or "",
            [(one.id, one.function.name, one.function.arguments) for one in choice.message.tool_calls or ()],
            choice.finish_reason,
            (completion.usage.prompt_tokens, completion.usage.completion_tokens),
        )


class ResponsesAgent:
    """`by_id`: it names the answer before instead of sending it back."""

    dialect = RESPONSES

    def __init__(self, line: Provider, *, stream: bool = False, by_id: bool = False, **more: Any) -> None:
        self._client: openai.OpenAI = line.openai()
        self._stream, self._by_id, self._more = stream, by_id, more
        self._previous: str | None = None
        self.items: list[Any] = []

    def ask(self, text: str) -> Heard:
        self.items.append({"role": "user", "content": text})
        return self.go_on()

    def give(self, call: str, result: str) -> None:
        self.items.append({"type": "function_call_output", "call_id": call, "output": result})

    def go_on(self) -> Heard:
        tool = {"type": "function", "strict": False, **LOOK["function"]}
        given: dict[str, Any] = {"model": "m", "input": self.items, "tools": [tool], **self._more}
        if self._by_id and self._previous is not None:
            given["previous_response_id"] = self._previous
        if self._stream:
            with self._client.responses.stream(**given) as stream:
                response: Any = _last_response(stream)
        else:
            response = self._client.responses.create(**given)
        self._previous = response.id
        if self._by_id:
            self.items = []
        else:
            self.items += [_plain_item(item) for item in response.output]
        thoughts = [item for item in response.output if item.type == "reasoning"]
        return Heard(
            response.output_text,
            "".join(part.text for item in thoughts for part in item.content),
            [(item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"],
            response.incomplete_details.reason if response.incomplete_details else response.status,
            (response.usage.input_tokens, response.usage.output_tokens),
        )


def _last_response(stream: Any) -> Any:
    """The SDK's own accumulation knows no response that was cut; its last event has the whole."""
    last = None
    for event in stream:
        last = event
    assert last is not None and last.type in {"response.completed", "response.incomplete"}
    return last.response


def _plain_item(item: Any) -> dict[str, Any]:
    plain: dict[str, Any] = item.model_dump(exclude_unset=True)
    plain.pop("parsed_arguments", None)
    for part in plain.get("content") or ():
        part.pop("parsed", None)
    return plain


class AnthropicAgent:
    dialect = ANTHROPIC

    def __init__(self, line: Provider, *, stream: bool = False, **more: Any) -> None:
        self._client: anthropic.Anthropic = line.anthropic()
        self._stream, self._more = stream, {"thinking": {"type": "adaptive"}, **more}
        self.messages: list[Any] = []

    def ask(self, text: str) -> Heard:
        self._tell({"type": "text", "text": text})
        return self.go_on()

    def give(self, call: str, result: str) -> None:
        self._tell({"type": "tool_result", "tool_use_id": call, "content": result})

    def _tell(self, block: dict[str, Any]) -> None:
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages[-1]["content"].append(block)
        else:
            self.messages.append({"role": "user", "content": [block]})

    def go_on(self) -> Heard:
        function = LOOK["function"]
        tool = {
            "name": function["name"],
            "description": function["description"],
            "input_schema": function["parameters"],
        }
        given: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": self.messages, "tools": [tool]}
        if self._stream:
            with self._client.messages.stream(**given, **self._more) as stream:
                message: Any = stream.get_final_message()
        else:
            message = self._client.messages.create(**given, **self._more)
        self.messages.append({"role": "assistant", "content": message.content})
        return Heard(
            "".join(block.text for block in message.content if block.type == "text"),
            "".join(block.thinking for block in message.content if block.type == "thinking"),
            [(block.id, block.name, block.input) for block in message.content if block.type == "tool_use"],
            message.stop_reason,
            (message.usage.input_tokens, message.usage.output_tokens),
        )


class GoogleAgent:
    dialect = GOOGLE

    def __init__(self, line: Provider, *, stream: bool = False, **more: Any) -> None:
        self._client = line.google()
        self._stream, self._more = stream, more
        self._names: dict[str, str] = {}
        self.contents: list[Any] = []

    def ask(self, text: str) -> Heard:
        self._tell({"text": text})
        return self.go_on()

    def give(self, call: str, result: str) -> None:
        response = {"id": call, "name": self._names[call], "response": {"output": result}}
        self._tell({"function_response": response})

    def _tell(self, part: dict[str, Any]) -> None:
        if self.contents and self.contents[-1]["role"] == "user":
            self.contents[-1]["parts"].append(part)
        else:
            self.contents.append({"role": "user", "parts": [part]})

    def go_on(self) -> Heard:
        function = dict(LOOK["function"])
        function["parameters_json_schema"] = function.pop("parameters")
        config: Any = {
            "tools": [{"function_declarations": [function]}],
            "thinking_config": {"include_thoughts": True},
            "automatic_function_calling": {"disable": True},
            **self._more,
        }
        given: dict[str, Any] = {"model": "m", "contents": self.contents, "config": config}
        models = self._client.models
        answers = list(models.generate_content_stream(**given)) if self._stream else [models.generate_content(**given)]
        candidates = [answer.candidates[0] for answer in answers if answer.candidates]
        parts = [part for candidate in candidates for part in (candidate.content and candidate.content.parts) or ()]
        self.contents.append({"role": "model", "parts": [part.model_dump(exclude_none=True) for part in parts]})
        calls = [part.function_call for part in parts if part.function_call]
        self._names |= {str(call.id): str(call.name) for call in calls}
        usage, finish = answers[-1].usage_metadata, candidates[-1].finish_reason
        assert usage is not None
        return Heard(
            "".join(part.text or "" for part in parts if not part.thought),
            "".join(part.text or "" for part in parts if part.thought),
            [(str(call.id), str(call.name), call.args) for call in calls],
            finish and finish.value,
            (usage.prompt_token_count or 0, usage.candidates_token_count or 0),
        )


AGENTS: dict[str, type[ChatAgent] | type[ResponsesAgent] | type[AnthropicAgent] | type[GoogleAgent]] = {
    "chat": ChatAgent,
    "responses": ResponsesAgent,
    "anthropic": AnthropicAgent,
    "google": GoogleAgent,
}
