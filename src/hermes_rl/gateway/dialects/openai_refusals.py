"""Errors in the format that both OpenAI dialects share."""

import re
from typing import Any

from hermes_rl.gateway.errors import ErrorKind, RequestProblem

# Status, type and code, as the OpenAI API gives them.
ERROR_FORMATS: dict[ErrorKind, tuple[int, str, str | None]] = {
    ErrorKind.BAD_REQUEST: (400, "invalid_request_error", None),
    ErrorKind.UNAUTHORIZED: (401, "invalid_request_error", "invalid_api_key"),
    ErrorKind.NOT_FOUND: (404, "invalid_request_error", None),
    ErrorKind.CONTEXT_FULL: (400, "invalid_request_error", "context_length_exceeded"),
    ErrorKind.TOO_MANY: (429, "requests", "rate_limit_exceeded"),
    ErrorKind.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    ErrorKind.OVERLOADED: (503, "server_error", "server_overloaded"),
    ErrorKind.SERVER: (500, "server_error", None),
}


def refusal(problem: RequestProblem, conversation: str) -> tuple[int, dict[str, Any]]:
    """The status and body. `conversation` is the field to name when the context is full."""
    status, kind, code = ERROR_FORMATS[problem.kind]
    message, param = problem.message, None
    if problem.param is not None:
        # OpenAI writes the path of a field as messages[0].content.
        param = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", problem.param)
        message = f"Invalid '{param}': {message}."
    if problem.kind is ErrorKind.CONTEXT_FULL:
        message, param = _context_full(problem), conversation
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _context_full(problem: RequestProblem) -> str:
    """In the provider's words: agents search for them to know that they must compact."""
    tokens = problem.tokens
    if tokens is None:
        return f"This model's maximum context length was exceeded: {problem.message}."
    return (
        f"This model's maximum context length is {tokens[1]} tokens. However, your messages resulted in {tokens[0]} "
        "tokens. Please reduce the length of the messages."
    )


def bearer_key(headers: Any) -> str | None:
    """The key in an Authorization header."""
    scheme, _, key = (headers.get("authorization") or "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None
