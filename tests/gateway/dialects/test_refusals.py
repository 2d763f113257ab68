"""Refusals: the official SDKs raise what they would raise of the provider's own."""

import anthropic
import openai
import pytest
from google import genai

from hermes_rl.core.errors import ConfigError, ContextFullError, EndpointError
from hermes_rl.gateway.dialects import ANTHROPIC, CHAT, DIALECTS, GOOGLE, RESPONSES, Dialect
from hermes_rl.gateway.errors import ErrorKind, RequestProblem
from hermes_rl.gateway.request import BadRequestError
from tests.support.dialects import Line, told
from tests.support.sdk_agents import AGENTS

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
FULL = RequestProblem.from_error(ContextFullError("context_full", "http://engine has no room", (9000, 8192)))

OPENAI: dict[ErrorKind, tuple[type[openai.APIStatusError], int]] = {
    ErrorKind.BAD_REQUEST: (openai.BadRequestError, 400),
    ErrorKind.UNAUTHORIZED: (openai.AuthenticationError, 401),
    ErrorKind.NOT_FOUND: (openai.NotFoundError, 404),
    ErrorKind.CONTEXT_FULL: (openai.BadRequestError, 400),
    ErrorKind.TOO_MANY: (openai.RateLimitError, 429),
    ErrorKind.TOO_LARGE: (openai.APIStatusError, 413),
    ErrorKind.OVERLOADED: (openai.InternalServerError, 503),
    ErrorKind.SERVER: (openai.InternalServerError, 500),
}
CLAUDE: dict[ErrorKind, tuple[type[anthropic.APIStatusError], int, str]] = {
    ErrorKind.BAD_REQUEST: (anthropic.BadRequestError, 400, "invalid_request_error"),
    ErrorKind.UNAUTHORIZED: (anthropic.AuthenticationError, 401, "authentication_error"),
    ErrorKind.NOT_FOUND: (anthropic.NotFoundError, 404, "not_found_error"),
    ErrorKind.CONTEXT_FULL: (anthropic.BadRequestError, 400, "invalid_request_error"),
    ErrorKind.TOO_MANY: (anthropic.RateLimitError, 429, "rate_limit_error"),
    ErrorKind.TOO_LARGE: (anthropic.APIStatusError, 413, "request_too_large"),
    ErrorKind.OVERLOADED: (anthropic.APIStatusError, 529, "overloaded_error"),
    ErrorKind.SERVER: (anthropic.InternalServerError, 500, "api_error"),
}

GEMINI: dict[ErrorKind, tuple[type[genai.errors.APIError], int, str]] = {
    ErrorKind.BAD_REQUEST: (genai.errors.ClientError, 400, "INVALID_ARGUMENT"),
    ErrorKind.UNAUTHORIZED: (genai.errors.ClientError, 401, "UNAUTHENTICATED"),
    ErrorKind.NOT_FOUND: (genai.errors.ClientError, 404, "NOT_FOUND"),
    ErrorKind.CONTEXT_FULL: (genai.errors.ClientError, 400, "INVALID_ARGUMENT"),
    ErrorKind.TOO_MANY: (genai.errors.ClientError, 429, "RESOURCE_EXHAUSTED"),
    ErrorKind.TOO_LARGE: (genai.errors.ClientError, 413, "INVALID_ARGUMENT"),
    ErrorKind.OVERLOADED: (genai.errors.ServerError, 503, "UNAVAILABLE"),
    ErrorKind.SERVER: (genai.errors.ServerError, 500, "INTERNAL"),
}


@pytest.mark.parametrize("kind", ErrorKind)
@pytest.mark.parametrize("dialect", [CHAT, RESPONSES], ids=lambda dialect: dialect.name)
def test_the_openai_sdk_raises_its_own_error(dialect: Dialect, kind: ErrorKind) -> None:
    error, status = OPENAI[kind]
    with pytest.raises(error) as raised:
        AGENTS[dialect.name](Line(dialect, [RequestProblem(kind, "because")])).ask("hello")
    assert raised.value.status_code == status
    assert "because" in raised.value.message


@pytest.mark.parametrize("kind", ErrorKind)
def test_the_anthropic_sdk_raises_its_own_error(kind: ErrorKind) -> None:
    error, status, word = CLAUDE[kind]
    with pytest.raises(error) as raised:
        AGENTS["anthropic"](Line(ANTHROPIC, [RequestProblem(kind, "because")])).ask("hello")
    assert raised.value.status_code == status
    body = raised.value.body
    assert isinstance(body, dict) and body["error"]["type"] == word and "because" in body["error"]["message"]


@pytest.mark.parametrize("kind", ErrorKind)
def test_the_google_sdk_raises_its_own_error(kind: ErrorKind) -> None:
    error, status, word = GEMINI[kind]
    with pytest.raises(error) as raised:
        AGENTS["google"](Line(GOOGLE, [RequestProblem(kind, "because")])).ask("hello")
    assert (raised.value.code, raised.value.status) == (status, word)
    assert "because" in str(raised.value.message)


def test_a_full_context_is_told_in_openais_words() -> None:
    error = CHAT.refusal(FULL)[1]["error"]
    assert error["code"] == "context_length_exceeded" and error["param"] == "messages"
    assert error["message"].startswith("This model's maximum context length is 8192 tokens.")
    assert RESPONSES.refusal(FULL)[1]["error"]["param"] == "input"


def test_a_full_context_is_told_in_anthropics_words() -> None:
    assert ANTHROPIC.refusal(FULL)[1]["error"]["message"] == "prompt is too long: 9000 tokens > 8192 maximum"


def test_a_full_context_is_told_in_googles_words() -> None:
    message = GOOGLE.refusal(FULL)[1]["error"]["message"]
    assert message == "The input token count (9000) exceeds the maximum number of tokens allowed (8192)."


@each_dialect
def test_a_full_context_of_unknown_size_is_told_too(dialect: Dialect) -> None:
    error = dialect.refusal(RequestProblem(ErrorKind.CONTEXT_FULL, "no room"))[1]["error"]
    assert "no room" in error["message"]


def test_the_field_to_blame_is_written_as_openai_does() -> None:
    error = CHAT.refusal(RequestProblem(ErrorKind.BAD_REQUEST, "expected a string", "messages.0.content.12.text"))[1][
        "error"
    ]
    assert error["param"] == "messages[0].content[12].text"
    assert error["message"] == "Invalid 'messages[0].content[12].text': expected a string."


def test_the_field_to_blame_is_written_as_anthropic_does() -> None:
    error = ANTHROPIC.refusal(RequestProblem(ErrorKind.BAD_REQUEST, "Field required", "max_tokens"))[1]["error"]
    assert error["message"] == "max_tokens: Field required"


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES], ids=lambda dialect: dialect.name)
def test_a_stream_that_breaks_off_raises_in_the_openai_sdk(dialect: Dialect) -> None:
    line = Broken(dialect, [told("half")])
    with pytest.raises(openai.APIError, match="gone"):
        AGENTS[dialect.name](line, stream=True).ask("hello")


def test_a_stream_that_breaks_off_raises_in_the_anthropic_sdk() -> None:
    with pytest.raises(anthropic.APIStatusError, match="gone"):
        AGENTS["anthropic"](Broken(ANTHROPIC, [told("half")]), stream=True).ask("hello")


def test_a_stream_that_breaks_off_raises_in_the_google_sdk() -> None:
    with pytest.raises(genai.errors.APIError, match="gone"):
        AGENTS["google"](Broken(GOOGLE, [told("half")]), stream=True).ask("hello")


class Broken(Line):
    """A line that breaks off when the stream has only begun."""

    def streamed(self, events: list[bytes]) -> list[bytes]:
        return [*events[:4], self.dialect.interruption(RequestProblem(ErrorKind.SERVER, "gone"))]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequestError("no", "n"), ErrorKind.BAD_REQUEST),
        (ContextFullError("context_full", "full"), ErrorKind.CONTEXT_FULL),
        (EndpointError("refused", "http://engine refused"), ErrorKind.OVERLOADED),
        (ConfigError("secret setting"), ErrorKind.SERVER),
    ],
)
def test_an_error_of_ours_has_its_kind(error: Exception, kind: ErrorKind) -> None:
    assert RequestProblem.from_error(error).kind is kind


@pytest.mark.parametrize("kind", [EndpointError, ContextFullError])
def test_an_agent_is_not_told_where_the_engine_is(kind: type[EndpointError]) -> None:
    assert "engine" not in RequestProblem.from_error(kind("refused", "http://engine refused")).message
