"""TokenEngine: the routes on which a server takes and returns token ids, in order of preference.

An EngineAnswer built here has one finite logprob and one version per token, each logprob belongs to its token, and
there are as many completions as requested. Anything else is an EndpointError.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hermes_rl.core.errors import EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.inference.token_engines.sampling import Logprobs, SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish, Sampled

# Causes that mean the server lacks a route: use the next one from then on.
MISSING_ROUTE = ("http_403", "http_404", "http_405")
# What vLLM writes for minus infinity; SGLang writes the smallest float.
MIN_LOGPROB = -9999.0
# The name that vLLM and SGLang give to the weights they were started with.
INITIAL_WEIGHTS = "default"
ENDS_IN_NUMBER = re.compile(r"(?:^|[^\d.])(\d+)$")


class Route(Protocol):
    def request(self, model: str, ids: Sequence[int], sampling: SamplingRequest) -> tuple[str, dict[str, Any]]:
        """The path below the server's root (its base_url without /v1), and the body to post."""
        ...

    def answer(self, raw: Any, ids: Sequence[int], sampling: SamplingRequest) -> EngineAnswer:
        """Parse the server's decoded answer to that request; EndpointError when it cannot be trained on."""
        ...


class TokenEngine(NamedTuple):
    """`logprobs` is what the server returns unless it was started with another setting.

    A route that the server lacks (an error with a cause in MISSING_ROUTE) is skipped for the next one.
    """

    name: str
    logprobs: Logprobs
    routes: tuple[Route, ...]


def build_sampled(
    tokens: Any,
    claimed_ids: Any,
    logprobs: Any,
    versions: Sequence[int | None] | None,
    finish: Finish,
) -> Sampled:
    """Check and build one completion. `claimed_ids` are the tokens that the logprobs claim to belong to."""
    ids = parse_token_ids(tokens, "sampled tokens")
    if not isinstance(logprobs, list) or not all(isinstance(logprob, float | int) for logprob in logprobs):
        raise no_logprobs(f"logprobs {excerpt(logprobs)}")
    if len(logprobs) != len(ids):
        raise bad_response(f"{len(logprobs)} logprobs for {len(ids)} tokens")
    if not all(MIN_LOGPROB < logprob < math.inf for logprob in logprobs):
        raise no_logprobs("a logprob that no sampled token can have")
    if list(claimed_ids) != list(ids):
        raise bad_response(f"logprobs of the tokens {excerpt(claimed_ids)} for the tokens {excerpt(tokens)}")
    return Sampled(ids, tuple(map(float, logprobs)), tuple(versions or (None,) * len(ids)), finish)


def parse_token_ids(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise bad_response(f"{what} that are not a list of ids: {excerpt(value)}")
    return tuple(value)


def parse_finish(reason: Any, tokens: Any, sampling: SamplingRequest) -> Finish:
    """Why a completion ended. Engines report `length` both for a full context and for reaching max_tokens."""
    if reason == "stop":
        return Finish.STOP
    if reason == "length":
        enough = sampling.max_tokens is not None and isinstance(tokens, list) and len(tokens) >= sampling.max_tokens
        return Finish.LENGTH if enough else Finish.CONTEXT
    raise RetryableEndpointError("aborted", f"the server aborted a completion, finish_reason {excerpt(reason)}")


def span_versions(spans: Any, tokens: Any) -> list[int | None] | None:
    """The policy version of each token from `{version, start, end}` spans; None when the server reports none."""
    if not isinstance(spans, list) or not isinstance(tokens, list):
        return None
    versions: list[int | None] = [None] * len(tokens)
    for span in spans:
        match span:
            case {"version": name, "start": int(start), "end": int(end)} if 0 <= start <= end <= len(tokens):
                versions[start:end] = [version_number(name)] * (end - start)
            case _:
                raise bad_response(f"an invalid span of weight_versions: {excerpt(span)}")
    return versions


def version_number(name: Any) -> int | None:
    """The policy version number in the name that a server gives to its weights.

    `default`, the weights it was started with, is 0; `12`, `step-12` and `v12` are 12; other names have no number.
    """
    if name == INITIAL_WEIGHTS:
        return 0
    found = ENDS_IN_NUMBER.search(str(name))
    return int(found[1]) if found else None


def check_count(completions: Sequence[Any], sampling: SamplingRequest) -> None:
    if len(completions) != sampling.n:
        raise bad_response(f"{len(completions)} completions instead of {sampling.n}")


def parse_mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise bad_response(f"{what} {excerpt(value)}")
    return value


def optional_int(value: Any) -> int | None:
    return value if type(value) is int else None


def bad_response(what: str) -> RetryableEndpointError:
    return RetryableEndpointError("bad_response", f"the server answered with {what}")


def no_logprobs(what: str) -> EndpointError:
    return EndpointError(
        "no_logprobs",
        f"the server answered with {what}; exact tokens need the logprob of each sampled token: "
        "base_url must be the engine's own address, not that of a proxy that drops them",
    )


def excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"
