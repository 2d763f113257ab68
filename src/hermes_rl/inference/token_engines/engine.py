"""TokenEngine: the routes on which a server takes token ids and gives them back, in order of preference.

Always true of an Answer made here: as many logprobs and versions as tokens, each logprob finite and of the token it
stands beside, and as many completions as were asked for. Anything else is an EndpointError.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hermes_rl.errors import EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.inference.token_engines.sampling import Logprobs, SamplingRequest
from hermes_rl.tokens.exchange import Answer, Finish, Sampled

# How an EndpointError says that the server does not have a route: ask on the next one, and keep to it.
ABSENT = ("http_403", "http_404", "http_405")
# What vLLM writes for minus infinity; SGLang writes the least number there is.
IMPOSSIBLE = -9999.0
# The name that vLLM and SGLang have for the weights they were started with.
FIRST_WEIGHTS = "default"
ENDS_IN_NUMBER = re.compile(r"(?:^|[^\d.])(\d+)$")


class Route(Protocol):
    def request(self, model: str, ids: Sequence[int], sampling: SamplingRequest) -> tuple[str, dict[str, Any]]:
        """The path below the server's root (its base_url without /v1), and the body to post there."""
        ...

    def answer(self, raw: Any, ids: Sequence[int], sampling: SamplingRequest) -> Answer:
        """What the server answered to that request, as JSON gave it; an EndpointError when it cannot be trained on."""
        ...


class TokenEngine(NamedTuple):
    """`logprobs` is what the server returns unless it was started with another setting.

    A route that the server does not have (an error whose cause is in ABSENT) is skipped for the next one.
    """

    name: str
    logprobs: Logprobs
    routes: tuple[Route, ...]


def sampled(
    tokens: Any,
    named: Any,
    logprobs: Any,
    versions: Sequence[int | None] | None,
    finish: Finish,
) -> Sampled:
    """One completion, checked. `named` are the tokens that the logprobs say they are of."""
    ids = token_ids(tokens, "sampled tokens")
    if not isinstance(logprobs, list) or not all(isinstance(one, float | int) for one in logprobs):
        raise no_logprobs(f"logprobs {shown(logprobs)}")
    if len(logprobs) != len(ids):
        raise bad_response(f"{len(logprobs)} logprobs for {len(ids)} tokens")
    if not all(IMPOSSIBLE < one < math.inf for one in logprobs):
        raise no_logprobs("a logprob that no sampled token can have")
    if list(named) != list(ids):
        raise bad_response(f"logprobs of the tokens {shown(named)} beside the tokens {shown(tokens)}")
    return Sampled(ids, tuple(map(float, logprobs)), tuple(versions or (None,) * len(ids)), finish)


def token_ids(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise bad_response(f"{what} that are not a list of ids: {shown(value)}")
    return tuple(value)


def finish_of(reason: Any, tokens: Any, sampling: SamplingRequest) -> Finish:
    """Why a completion ended. Engines say `length` for both a full context and as many tokens as were asked for."""
    if reason == "stop":
        return Finish.STOP
    if reason == "length":
        enough = sampling.max_tokens is not None and isinstance(tokens, list) and len(tokens) >= sampling.max_tokens
        return Finish.LENGTH if enough else Finish.CONTEXT
    raise RetryableEndpointError("aborted", f"the server broke a completion off, finish_reason {shown(reason)}")


def span_versions(spans: Any, tokens: Any) -> list[int | None] | None:
    """The policy version of each token, from spans `{version, start, end}` of them; None where the server says none."""
    if not isinstance(spans, list) or not isinstance(tokens, list):
        return None
    versions: list[int | None] = [None] * len(tokens)
    for span in spans:
        match span:
            case {"version": name, "start": int(start), "end": int(end)} if 0 <= start <= end <= len(tokens):
                versions[start:end] = [version_number(name)] * (end - start)
            case _:
                raise bad_response(f"a span of weight_versions that cannot be: {shown(span)}")
    return versions


def version_number(name: Any) -> int | None:
    """The number of a policy version by the name its server has for it.

    `default`, the weights it was started with, is 0; `12`, `step-12` and `v12` are 12; other names have none.
    """
    if name == FIRST_WEIGHTS:
        return 0
    found = ENDS_IN_NUMBER.search(str(name))
    return int(found[1]) if found else None


def counted(completions: Sequence[Any], sampling: SamplingRequest) -> None:
    if len(completions) != sampling.n:
        raise bad_response(f"{len(completions)} completions where {sampling.n} were asked for")


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise bad_response(f"{what} {shown(value)}")
    return value


def count(value: Any) -> int | None:
    return value if type(value) is int else None


def bad_response(what: str) -> RetryableEndpointError:
    return RetryableEndpointError("bad_response", f"the server answered with {what}")


def no_logprobs(what: str) -> EndpointError:
    return EndpointError(
        "no_logprobs",
        f"the server answered with {what}; exact tokens need the logprob of each sampled token: "
        "base_url must be the engine's own address, not that of a proxy that leaves them out",
    )


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"
