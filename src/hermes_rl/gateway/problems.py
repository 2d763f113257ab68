"""Why a request to the gateway is refused, in our own words; a dialect gives it the form its provider has for it."""

from dataclasses import dataclass
from enum import StrEnum

from hermes_rl.errors import ContextFullError, EndpointError
from hermes_rl.gateway.asked import BadRequestError


class Kind(StrEnum):
    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    CONTEXT_FULL = "context_full"
    TOO_MANY = "too_many"
    TOO_LARGE = "too_large"
    OVERLOADED = "overloaded"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Problem:
    """`param` is the field of the request to blame, if one is: the way to it, as in `messages.0.content`.

    `tokens` are those of a prompt that is too long and those the model has room for, where they are known.
    """

    kind: Kind
    message: str
    param: str | None = None
    tokens: tuple[int, int] | None = None

    @classmethod
    def of(cls, error: Exception) -> "Problem":
        """What an agent is told of an error; one that is no business of its own is not spelt out to it."""
        if isinstance(error, BadRequestError):
            return cls(Kind.BAD_REQUEST, str(error), error.param)
        if isinstance(error, ContextFullError):
            return cls(Kind.CONTEXT_FULL, "the conversation is longer than the model's context", tokens=error.tokens)
        if isinstance(error, EndpointError):
            return cls(Kind.OVERLOADED, "the model is not available at the moment")
        return cls(Kind.SERVER, "the server had an error while processing your request")
