"""OpenAPI descriptions of the HTTP surfaces that do not publish one: the gateway, the viewer and MCP."""

from typing import Any

TEXT: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "number"}
WHOLE: dict[str, Any] = {"type": "integer"}
ANYTHING: dict[str, Any] = {}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": 4}


def _object(required: str = "", **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


def _document(paths: dict[str, Any]) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "fuzzed", "version": "1"}, "paths": paths}


def _post(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "post": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {"200": {"description": "answered"}},
        }
    }


def _get(path: str, **query: dict[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "schema": schema} for name, schema in query.items()
    ]
    for name, values in (
        ("source", ["groups", "evaluation", "x"]),
        ("group", ["1", "2", "99", "-1", "x"]),
        ("rollout", ["1-0", "2-1", "9-9", "x"]),
    ):
        if f"{{{name}}}" in path:
            schema: dict[str, Any] = {"anyOf": [{"enum": values}, {"type": "string", "minLength": 1}]}
            parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    return {"get": {"parameters": parameters, "responses": {"200": {"description": "answered"}}}}


# The gateway: the parts of three providers' requests that it reads.
_CALL = _object("id", id=TEXT, type=TEXT, function=_object("name", name=TEXT, arguments=TEXT))
_PART = _object(
    "type", type={"enum": ["text", "input_text", "image_url", "tool_use", "tool_result", "thinking"]}, text=TEXT
)
_CONTENT = {"anyOf": [TEXT, _list(_PART), {"type": "null"}]}
_ROLE = {"enum": ["system", "developer", "user", "assistant", "tool"]}
_MESSAGE = _object("role", role=_ROLE, content=_CONTENT, tool_calls=_list(_CALL), tool_call_id=TEXT, name=TEXT)
_SCHEMA = _object("type", type={"enum": ["object"]}, properties={"type": "object"})
_TOOL = _object("type function", type={"enum": ["function"]}, function=_object("name", name=TEXT, parameters=_SCHEMA))
_SAMPLING = {"temperature": NUMBER, "top_p": NUMBER, "stream": {"type": "boolean"}, "model": TEXT}
_ITEM = _object(
    "type",
    type={"enum": ["message", "function_call", "function_call_output", "reasoning"]},
    role=_ROLE,
    content=_CONTENT,
    call_id=TEXT,
    name=TEXT,
    arguments=TEXT,
    output=TEXT,
)
GATEWAY = _document(
    {
        "/v1/chat/completions": _post(
            _object(
                "messages",
                messages=_list(_MESSAGE),
                tools=_list(_TOOL),
                max_tokens=WHOLE,
                n={"enum": [1, 2]},
                stop=_list(TEXT),
                **_SAMPLING,
            )
        ),
        "/v1/messages": _post(
            _object(
                "messages max_tokens",
                messages=_list(_MESSAGE),
                system=_CONTENT,
                max_tokens=WHOLE,
                stop_sequences=_list(TEXT),
                tools=_list(_object("name input_schema", name=TEXT, input_schema=_SCHEMA)),
                thinking=_object(type=TEXT),
                **_SAMPLING,
            )
        ),
        "/v1/responses": _post(
            _object(
                "input",
                input={"anyOf": [TEXT, _list(_ITEM)]},
                instructions=TEXT,
                max_output_tokens=WHOLE,
                previous_response_id=TEXT,
                tools=_list(_object("type name", type={"enum": ["function"]}, name=TEXT, parameters=_SCHEMA)),
                **_SAMPLING,
            )
        ),
        "/v1/models": _get("/v1/models"),
    }
)

_SOURCE, _GROUP, _ROLLOUT = "/api/s/{source}", "/api/s/{source}/groups/{group}", "/api/s/{source}/rollouts/{rollout}"
_PAGE = {"sort": {"enum": ["n", "-n", "mean", "-spread", "score", "x"]}, "after": TEXT, "limit": WHOLE}
_FILTER = {"min_score": NUMBER, "max_score": NUMBER, "stop_reason": TEXT, "failure": TEXT, "tool": TEXT, "q": TEXT}
_QUERIES: dict[str, dict[str, Any]] = {
    "/api/home": {},
    "/api/compare": {"a": TEXT, "b": TEXT},
    _SOURCE: {},
    f"{_SOURCE}/curve": {},
    f"{_SOURCE}/live": {},
    f"{_SOURCE}/metrics": {},
    f"{_SOURCE}/groups": _PAGE,
    _GROUP: {},
    f"{_GROUP}.jsonl": {},
    f"{_SOURCE}/rollouts": {**_PAGE, **_FILTER},
    _ROLLOUT: {},
    f"{_ROLLOUT}.jsonl": {},
    f"{_ROLLOUT}/messages": {"from": WHOLE, "limit": WHOLE},
    f"{_ROLLOUT}/text": {
        "message": WHOLE,
        "part": {"anyOf": [{"enum": ["content", "reasoning", "call-0"]}, TEXT]},
        "from": WHOLE,
    },
    f"{_ROLLOUT}/tokens": {"sequence": WHOLE, "from": WHOLE, "limit": WHOLE},
}
VIEWER = _document({path: _get(path, **query) for path, query in _QUERIES.items()})

# Starting and testing are left out: a request that happens to be right would begin a run.
_TOOLS = ["rl_list_environments", "rl_get_current_config", "rl_edit_config", "rl_check_status", "rl_stop_training"]
_TOOLS += ["rl_get_results", "rl_list_runs"]
_METHODS = ["initialize", "ping", "tools/list", "tools/call", "resources/list", "resources/read", "prompts/list", "x"]
_METHODS += ["notifications/initialized", "notifications/cancelled", "completion/complete", "logging/setLevel"]
_PARAMS = _object(
    name={"enum": _TOOLS},
    arguments={"type": "object"},
    uri=TEXT,
    protocolVersion=TEXT,
    capabilities={"type": "object"},
    clientInfo=_object("name version", name=TEXT, version=TEXT),
    requestId=ANYTHING,
    level=TEXT,
    cursor=TEXT,
)
_ID = {"type": ["integer", "string"]}
MCP = _document(
    {
        "/mcp": _post(
            _object("jsonrpc method", jsonrpc={"enum": ["2.0"]}, id=_ID, method={"enum": _METHODS}, params=_PARAMS)
        )
    }
)
