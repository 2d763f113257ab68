"""Why a request to the gateway is refused, independent of the provider; a dialect formats it."""

from dataclasses import dataclass
from enum import StrEnum

from hermes_rl.core.errors import ContextFullError, EndpointError
from hermes_rl.gateway.request import BadRequestError


class ErrorKind(StrEnum):
    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    CONTEXT_FULL = "context_full"
    TOO_MANY = "too_many"
    TOO_LARGE = "too_large"
    OVERLOADED = "overloaded"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class RequestProblem:
    """`param` is the path of the invalid field in the request, as in `messages.0.content`.

    `tokens` are the length of a prompt that is too long and the model's context size, if known.
    """

    kind: ErrorKind
    message: str
    param: str | None = None
    tokens: tuple[int, int] | None = None

    @classmethod
    def from_error(cls, error: Exception) -> "RequestProblem":
        """What an agent learns about an error; details of internal errors are left out."""
        if isinstance(error, BadRequestError):
            return cls(ErrorKind.BAD_REQUEST, str(error), error.param)
        if isinstance(error, ContextFullError):
            return cls(
                ErrorKind.CONTEXT_FULL, "the conversation is longer than the model's context", tokens=error.tokens
            )
        if isinstance(error, EndpointError):
            return cls(ErrorKind.OVERLOADED, "the model is not available at the moment")
        return cls(ErrorKind.SERVER, "the server had an error while processing your request")
