"""Prompt logprobs over /v1/completions, which every vLLM server has.

Always true: there is one value per prompt token, and the first is None.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_rl.inference.endpoint import RetryableEndpointError


def scoring_request(model: str, ids: Sequence[int]) -> dict[str, Any]:
    """The server samples at least one token, which is ignored."""
    return {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}


def prompt_logprobs(raw: Any, ids: Sequence[int]) -> list[float | None]:
    match raw:
        case {"choices": [{"prompt_logprobs": [None, *rows]}]} if len(rows) == len(ids) - 1:
            return [None, *(_logprob(row, token) for row, token in zip(rows, ids[1:], strict=True))]
    raise RetryableEndpointError("bad_response", f"no logprobs for {len(ids)} prompt tokens in {raw!r:.200}")


def _logprob(row: Any, token: int) -> float:
    entry = row.get(str(token)) if isinstance(row, Mapping) else None
    value = entry.get("logprob") if isinstance(entry, Mapping) else None
    if not isinstance(value, float | int) or not math.isfinite(value):
        raise RetryableEndpointError("bad_response", f"no logprob for token {token} in {row!r:.200}")
    return float(value)
