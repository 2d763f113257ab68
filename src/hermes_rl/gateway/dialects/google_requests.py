"""Parses requests to Google's Gemini API."""

import base64
import binascii
import re
from typing import Any

from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.gateway.dialects import fields
from hermes_rl.gateway.dialects.previous_responses import PreviousResponses
from hermes_rl.gateway.dialects.reply import arguments_text, assistant_message, seal, unseal
from hermes_rl.gateway.request import AgentRequest, BadRequestError

MODES = {"AUTO": "auto", "ANY": "required", "VALIDATED": "auto", "NONE": "none", "MODE_UNSPECIFIED": "auto"}
SCHEMAS = {"responseSchema", "responseJsonSchema"}
_UNDERSCORE = re.compile(r"_([a-z])")


def parse_request(body: Any, previous: PreviousResponses | None) -> AgentRequest:
    """Parse a body. `model` and `stream` in it come from the request's path."""
    body = _object(body, "body")
    if body.get("cachedContent") is not None:
        raise BadRequestError("this is not supported with this model", "cachedContent")
    config = _object(body.get("generationConfig") or {}, "generationConfig")
    for name in SCHEMAS & {name for name, value in config.items() if value is not None}:
        # It is not in the prompt, and enforcing it would change the sampling distribution.
        raise BadRequestError("structured outputs are not supported with this model", f"generationConfig.{name}")
    tools = [tool for group in fields.read_each(body.get("tools"), "tools", _tools) for tool in group]
    thinking = _object(config.get("thinkingConfig") or {}, "generationConfig.thinkingConfig")
    return AgentRequest(
        messages=_messages(_system(body.get("systemInstruction")), body.get("contents"), previous),
        tools=tools,
        stream=body.get("stream") is True,
        model=fields.optional_text(body.get("model"), "model") or "",
        tool_choice=_choice(body.get("toolConfig"), tools),
        stop=fields.texts(config.get("stopSequences"), "generationConfig.stopSequences"),
        n=fields.count(config.get("candidateCount"), "generationConfig.candidateCount", maximum=8) or 1,
        max_tokens=fields.count(config.get("maxOutputTokens"), "generationConfig.maxOutputTokens"),
        show_reasoning=fields.flag(thinking.get("includeThoughts"), "generationConfig.thinkingConfig.includeThoughts"),
        # Calls may come back without their ids; the answer is stored to find them.
        storable=bool(tools),
    )


def _object(value: Any, param: str = "") -> dict[str, Any]:
    """The API takes `max_output_tokens` for `maxOutputTokens`."""
    read = fields.mapping(value, param)
    return {_UNDERSCORE.sub(lambda found: found[1].upper(), name): inner for name, inner in read.items()}


# --- messages ---


def _system(raw: Any) -> list[Message]:
    parts = fields.mapping(raw or {}, "systemInstruction").get("parts")
    texts = fields.read_each(parts, "systemInstruction.parts", _part_text)
    return [{"role": "system", "content": "\n".join(texts)}] if any(texts) else []


def _messages(system: list[Message], raw: Any, previous: PreviousResponses | None) -> list[Message]:
    messages = list(system)

    def take(sent: dict[str, Any]) -> None:
        role = fields.optional_text(sent.get("role"), "role") or "user"
        if role == "model":
            messages.append(_assistant(sent, messages, previous))
        elif role in {"user", "function"}:
            messages.extend(_user(sent, messages))
        else:
            raise BadRequestError(f"expected one of user, model, but got {role!r}", "role")

    fields.read_each(raw, "contents", take)
    if len(messages) == len(system):
        raise BadRequestError("contents are not specified", "contents")
    return messages


def _user(sent: dict[str, Any], before: list[Message]) -> list[Message]:
    """The user's messages and the results of functions, in order."""
    calls = [call for message in before[-1:] for call in message.get("tool_calls") or ()]
    messages: list[Message] = []

    def take(part: dict[str, Any]) -> None:
        part = _object(part)
        if "functionResponse" in part:
            messages.append(fields.read_object(part["functionResponse"], "functionResponse", result))
        elif messages and messages[-1]["role"] == "user":
            messages[-1]["content"] += "\n" + _part_text(part)
        else:
            messages.append({"role": "user", "content": _part_text(part)})

    def result(response: dict[str, Any]) -> Message:
        name, sent_id = fields.name(response.get("name"), "name"), fields.optional_text(response.get("id"), "id")
        # Without an id it is the result of the first call of that name which has none yet.
        known = sent_id or next((call["id"] for call in calls if call["function"]["name"] == name), None)
        if known is None:
            raise BadRequestError(f"no call of {name!r} precedes its result", "name")
        calls[:] = [call for call in calls if call["id"] != known]
        content = _result_text(fields.mapping(response.get("response") or {}, "response"))
        return {"role": "tool", "tool_call_id": known, "content": content}

    fields.read_each(sent.get("parts"), "parts", take)
    if not messages:
        raise BadRequestError("a content must have at least one part", "parts")
    return messages


def _assistant(sent: dict[str, Any], before: list[Message], previous: PreviousResponses | None) -> Message:
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    sealed: list[str] = []

    def take(part: dict[str, Any]) -> None:
        part = _object(part)
        reasoning = _signed(part.get("thoughtSignature"))
        if reasoning:
            sealed.append(reasoning)
        if part.get("thought"):
            thoughts.append(_part_text(part))
        elif "functionCall" in part:
            calls.append(fields.read_object(part["functionCall"], "functionCall", call))
        else:
            texts.append(_part_text(part))

    def call(called: dict[str, Any]) -> dict[str, Any]:
        name = fields.name(called.get("name"), "name")
        arguments = arguments_text(fields.mapping(called.get("args") or {}, "args"))
        known = fields.optional_text(called.get("id"), "id")
        if not known and previous is not None:
            known = previous.call_id(before, name, arguments)
        return ToolCall.make(name, arguments, known or f"call_{len(before)}_{len(calls)}").as_dict()

    fields.read_each(sent.get("parts"), "parts", take)
    return assistant_message("".join(texts), "".join(sealed or thoughts), calls)


def _part_text(part: dict[str, Any]) -> str:
    """The text of a part; the policy can only read text."""
    if "text" not in part:
        kind = next((name for name in part if name not in {"thought", "thoughtSignature"}), "nothing")
        raise BadRequestError(f"a part with {kind!r} is not supported: this model reads text only")
    return fields.text(part["text"], "text")


def _result_text(response: dict[str, Any]) -> str:
    """The text that a function returned; anything else as JSON."""
    only = response.get("output") if len(response) == 1 else None
    return only if isinstance(only, str) else arguments_text(response)


def signature(reasoning: str) -> str:
    """Our token for reasoning, in base64, which Google's SDK demands."""
    return base64.b64encode(seal(reasoning).encode()).decode()


def _signed(token: Any) -> str | None:
    try:
        return unseal(base64.urlsafe_b64decode(str(token).replace("+", "-").replace("/", "_")).decode())
    except (binascii.Error, ValueError):
        return None


# --- tools ---


def _tools(group: dict[str, Any]) -> list[dict[str, Any]]:
    group = _object(group)
    for name in group:
        if name != "functionDeclarations":
            raise BadRequestError("this is not supported with this model; declare a function", name)
    return fields.read_each(group.get("functionDeclarations"), "functionDeclarations", _tool)


def _tool(declared: dict[str, Any]) -> dict[str, Any]:
    declared = _object(declared)
    if declared.get("parametersJsonSchema") is not None:
        return fields.function(declared, "parametersJsonSchema")
    return fields.function({**declared, "parameters": _json_schema(declared.get("parameters"))})


def _json_schema(schema: Any) -> Any:
    """Google's own schema as a JSON schema: it writes types in capitals."""
    if isinstance(schema, list):
        return [_json_schema(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    read = {name: _json_schema(inner) for name, inner in schema.items()}
    return {**read, "type": read["type"].lower()} if isinstance(read.get("type"), str) else read


def _choice(raw: Any, tools: list[dict[str, Any]]) -> str | dict[str, Any] | None:
    config = _object(_object(raw or {}, "toolConfig").get("functionCallingConfig") or {}, "functionCallingConfig")
    mode = fields.optional_text(config.get("mode"), "functionCallingConfig.mode")
    if mode is None:
        return None
    if mode not in MODES:
        raise BadRequestError(f"expected one of {', '.join(MODES)}, but got {mode!r}", "functionCallingConfig.mode")
    allowed = fields.texts(config.get("allowedFunctionNames"), "functionCallingConfig.allowedFunctionNames")
    one = mode == "ANY" and len(allowed) == 1
    return fields.chosen_tool(allowed[0], tools, "allowedFunctionNames") if one else MODES[mode]
