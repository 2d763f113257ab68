"""Refusals in the form that both dialects of OpenAI share."""

import re
from typing import Any

from hermes_rl.gateway.problems import Kind, Problem

# Status, type and code, as the OpenAI API gives them.
FORMS: dict[Kind, tuple[int, str, str | None]] = {
    Kind.BAD_REQUEST: (400, "invalid_request_error", None),
    Kind.UNAUTHORIZED: (401, "invalid_request_error", "invalid_api_key"),
    Kind.NOT_FOUND: (404, "invalid_request_error", None),
    Kind.CONTEXT_FULL: (400, "invalid_request_error", "context_length_exceeded"),
    Kind.TOO_MANY: (429, "requests", "rate_limit_exceeded"),
    Kind.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    Kind.OVERLOADED: (503, "server_error", "server_overloaded"),
    Kind.SERVER: (500, "server_error", None),
}


def refusal(problem: Problem, conversation: str) -> tuple[int, dict[str, Any]]:
    """The status and body. `conversation` is the field to blame for a context that is full."""
    status, kind, code = FORMS[problem.kind]
    message, param = problem.message, None
    if problem.param is not None:
        # The way to a field is written messages[0].content there.
        param = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", problem.param)
        message = f"Invalid '{param}': {message}."
    if problem.kind is Kind.CONTEXT_FULL:
        message, param = _context_full(problem), conversation
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _context_full(problem: Problem) -> str:
    """In the provider's words: agents look for them to know that they must compact."""
    tokens = problem.tokens
    if tokens is None:
        return f"This model's maximum context length was exceeded: {problem.message}."
    return (
        f"This model's maximum context length is {tokens[1]} tokens. However, your messages resulted in {tokens[0]} "
        "tokens. Please reduce the length of the messages."
    )


def bearer(headers: Any) -> str | None:
    """The key of an Authorization header."""
    scheme, _, key = (headers.get("authorization") or "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None
