"""Both ends of the gateway's dialects: what a policy may say, and agents that speak through the official SDKs.

The SDKs talk to a transport in the same process, which answers as a gateway would with one thing to say.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import openai
from google import genai
from hypothesis import strategies as st

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.core.trajectory import Usage
from hermes_rl.gateway.dialects import ANTHROPIC, CHAT, GOOGLE, RESPONSES, Dialect, PreviousResponses
from hermes_rl.gateway.errors import RequestProblem
from hermes_rl.gateway.request import AgentRequest
from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice

LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look somewhere.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}

# --- what may be said ---

words = st.text(st.characters(codec="utf-8"), max_size=60)
spoken = words.filter(bool)
call_ids = st.uuids().map(lambda one: f"call_{one.hex[:24]}")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(words | st.just("INVALID_JSON"), values, max_size=3)
written = objects.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1)) | objects.map(json.dumps)
arguments = written | words | values.map(json.dumps)
"""What a model writes as arguments: mostly an object, in a layout of its own; sometimes no JSON at all."""


@st.composite
def calls(draw: st.DrawFn, made: st.SearchStrategy[str] = arguments) -> tuple[ToolCall, ...]:
    ids = draw(st.lists(call_ids, max_size=3, unique=True))
    return tuple(ToolCall.make(draw(st.sampled_from(["look", "run_it", "mcp__a-b"])), draw(made), one) for one in ids)


@st.composite
def assistants(draw: st.DrawFn, made: st.SearchStrategy[str] = arguments) -> Message:
    message: Message = {"role": "assistant", "content": draw(words)}
    if thought := draw(words):
        message["reasoning_content"] = thought
    if called := draw(calls(made)):
        message["tool_calls"] = [call.as_dict() for call in called]
    return message


@st.composite
def conversations(draw: st.DrawFn, made: st.SearchStrategy[str] = arguments) -> list[Message]:
    """As agents hold them: each call has its result, an assistant never speaks twice in a row."""
    messages: list[Message] = [{"role": "system", "content": draw(spoken)}] if draw(st.booleans()) else []
    messages.append({"role": "user", "content": draw(words)})
    for _ in range(draw(st.integers(0, 4))):
        said = draw(assistants(made))
        messages.append(said)
        called = said.get("tool_calls", ())
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(words)} for call in called]
        if not called or draw(st.booleans()):
            messages.append({"role": "user", "content": draw(words)})
    return messages


def told(
    text: str | None = "",
    *called: ToolCall,
    thinking: str | None = None,
    finish: str = "stop",
    number: int = 0,
    usage: Usage | None = None,
) -> ChatCompletion:
    """An answer of the policy."""
    said = ChatMessage("assistant", text, called, thinking, {"reasoning_content": thinking} if thinking else {})
    reason = "tool_calls" if called and finish == "stop" else finish
    return ChatCompletion(f"chatcmpl-{number:032x}", "policy", (Choice(0, said, reason),), usage or Usage(11, 7))


def answers() -> st.SearchStrategy[ChatCompletion]:
    return st.builds(
        lambda text, thinking, called, finish: told(text, *called, thinking=thinking or None, finish=finish),
        words,
        words,
        calls(),
        st.sampled_from(["stop", "stop", "length", "context_full", "content_filter"]),
    )


# --- the gateway's side ---


@dataclass
class Line:
    """A gateway with these answers to give, one a request; what was asked of it is in `asked`."""

    dialect: Dialect
    answers: Sequence[ChatCompletion | RequestProblem]
    asked: list[AgentRequest] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    earlier: PreviousResponses = field(default_factory=PreviousResponses)
    pings: int = 2

    def answer_to(self, asked: AgentRequest) -> ChatCompletion | RequestProblem:
        return self.answers[len(self.asked)]

    def _answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str, bytes]:
        route = self.dialect.match(path)
        assert route is not None
        self.headers.append(headers)
        self.bodies.append(fast_json.loads(body))
        asked = self.dialect.parse_request({**self.bodies[-1], **route}, self.earlier)
        given = self.answer_to(asked)
        self.asked.append(asked)
        if isinstance(given, RequestProblem):
            status, refused = self.dialect.refusal(given)
            return status, "application/json", fast_json.dumps(refused)
        self.earlier.add(asked, given)
        if not asked.stream:
            return 200, "application/json", fast_json.dumps(self.dialect.answer(asked, given))
        stream = [self.dialect.ping()] * self.pings + list(self.dialect.events(asked, given))
        return 200, "text/event-stream", b"".join(self.streamed(stream))

    def streamed(self, events: list[bytes]) -> list[bytes]:
        return events

    def client(self) -> httpx2.Client:
        def answer(request: httpx2.Request) -> httpx2.Response:
            status, kind, body = self._answer(request.url.path, dict(request.headers), request.content)
            return httpx2.Response(status, content=body, headers={"content-type": kind})

        return httpx2.Client(transport=httpx2.MockTransport(answer))

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(api_key="key-1", base_url="http://gateway/v1", http_client=self.client(), max_retries=0)

    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(api_key="key-1", base_url="http://gateway", http_client=self.client(), max_retries=0)

    def google(self) -> genai.Client:
        options = genai.types.HttpOptions(base_url="http://gateway", httpx_client=self.client())
        return genai.Client(api_key="key-1", http_options=options)


# --- the agents' side: the same conversation as an agent writes it in each dialect ---


def chat_body(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **({"tools": list(tools)} if tools else {})}


def responses_body(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            output = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output", **output})
        elif message["role"] == "assistant":
            items += _answer_items(message)
        else:
            items.append({"role": message["role"], "content": message["content"]})
    flat = [{"type": "function", **tool["function"]} for tool in tools]
    return {"model": "m", "input": items, **({"tools": flat} if flat else {})}


def anthropic_body(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    system = "".join(message["content"] for message in messages if message["role"] == "system")
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant":
            turns.append({"role": "assistant", "content": _answer_blocks(message)})
        elif message["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            if turns[-1]["role"] == "assistant":
                turns.append({"role": "user", "content": []})
            turns[-1]["content"].append(result)
        elif message["role"] == "user":
            if not turns or turns[-1]["role"] == "assistant":
                turns.append({"role": "user", "content": []})
            turns[-1]["content"].append({"type": "text", "text": message["content"]})
    body: dict[str, Any] = {"model": "m", "max_tokens": 64, "messages": turns, "thinking": {"type": "adaptive"}}
    if system:
        body["system"] = system
    if tools:
        renamed = {"name": "name", "description": "description", "parameters": "input_schema"}
        body["tools"] = [{renamed[name]: value for name, value in tool["function"].items()} for tool in tools]
    return body


def google_body(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    system = "".join(message["content"] for message in messages if message["role"] == "system")
    contents: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        if message["role"] == "assistant":
            names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
            contents.append(_answer_content(message))
        elif message["role"] != "system":
            if not contents or contents[-1]["role"] == "model":
                contents.append({"role": "user", "parts": []})
            call, text = message.get("tool_call_id"), message["content"]
            result = {"functionResponse": {"id": call, "name": names.get(str(call), ""), "response": {"output": text}}}
            contents[-1]["parts"].append({"text": text} if call is None else result)
    body: dict[str, Any] = {"model": "m", "contents": contents}
    body["generationConfig"] = {"thinkingConfig": {"includeThoughts": True}}
    if system:
        body["systemInstruction"] = {"parts": [{"text": system}]}
    if tools:
        declared = [{**tool["function"]} for tool in tools]
        for one in declared:
            one["parametersJsonSchema"] = one.pop("parameters")
        body["tools"] = [{"functionDeclarations": declared}]
    return body


BODIES = {
    CHAT.name: chat_body,
    RESPONSES.name: responses_body,
    ANTHROPIC.name: anthropic_body,
    GOOGLE.name: google_body,
}


def _answer_of(message: Message) -> ChatCompletion:
    called = [ToolCall.from_raw(call) for call in message.get("tool_calls", ())]
    return told(message["content"], *called, thinking=message.get("reasoning_content"))


def _answer_items(message: Message) -> list[dict[str, Any]]:
    """The items that a gateway gave for it, without their ids, as agents send them that keep nothing there."""
    asked = RESPONSES.parse_request({"input": "x", "include": ["reasoning.encrypted_content"], "store": False})
    output = RESPONSES.answer(asked, _answer_of(message))["output"]
    return [{name: value for name, value in item.items() if name != "id"} for item in output]


def _answer_blocks(message: Message) -> list[dict[str, Any]]:
    asked = ANTHROPIC.parse_request(
        {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "thinking": {"type": "adaptive"}}
    )
    blocks: list[dict[str, Any]] = ANTHROPIC.answer(asked, _answer_of(message))["content"]
    return blocks


def _answer_content(message: Message) -> dict[str, Any]:
    asked = GOOGLE.parse_request(
        {"contents": [{"parts": [{"text": "x"}]}], "generationConfig": {"thinkingConfig": {"includeThoughts": True}}}
    )
    content: dict[str, Any] = GOOGLE.answer(asked, _answer_of(message))["candidates"][0]["content"]
    return content
