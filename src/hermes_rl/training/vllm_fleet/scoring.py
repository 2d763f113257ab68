"""What vLLM's model gives each token of a prompt, on /v1/completions, which every server has.

Always true of what is read here: as many values as tokens, each of the token it stands beside, and None for the first.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_rl.inference.endpoint import RetryableEndpointError


def scoring_request(model: str, ids: Sequence[int]) -> dict[str, Any]:
    """The server computes one token at least; it is not looked at."""
    return {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}


def prompt_logprobs(raw: Any, ids: Sequence[int]) -> list[float | None]:
    match raw:
        case {"choices": [{"prompt_logprobs": [None, *rows]}]} if len(rows) == len(ids) - 1:
            return [None, *(_logprob(row, token) for row, token in zip(rows, ids[1:], strict=True))]
    raise RetryableEndpointError("bad_response", f"no logprobs of {len(ids)} prompt tokens in {raw!r:.200}")


def _logprob(row: Any, token: int) -> float:
    told = row.get(str(token)) if isinstance(row, Mapping) else None
    value = told.get("logprob") if isinstance(told, Mapping) else None
    if not isinstance(value, float | int) or not math.isfinite(value):
        raise RetryableEndpointError("bad_response", f"no logprob of token {token} in {row!r:.200}")
    return float(value)
