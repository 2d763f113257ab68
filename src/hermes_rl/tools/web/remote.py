"""HTTP client of search providers: one request, one JSON response, within a deadline that includes retries.

A provider failure raises ToolHostError; a rejected query (400, 422) is reported to the model. The API key is redacted
from all messages.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp

from hermes_rl.core import fast_json, secrets
from hermes_rl.core.backoff import parse_retry_after
from hermes_rl.core.errors import ToolHostError
from hermes_rl.tools.tool import ToolUseError
from hermes_rl.tools.web.provider import SearchHit

ATTEMPTS = 3
INITIAL_BACKOFF, MAX_BACKOFF = 0.5, 10.0
MAX_RESPONSE_BYTES = 4 * 1024 * 1024
MAX_BODY_CHARS = 300
ERROR_CAUSES = {401: "unauthorized", 403: "unauthorized", 429: "rate_limited"}


@dataclass(frozen=True, slots=True)
class SearchAPI:
    name: str
    http: aiohttp.ClientSession
    base_url: str
    timeout: float
    key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    async def ask(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The response as a JSON object; a 429, a 5xx or a lost connection is retried while there is time."""
        try:
            async with asyncio.timeout(self.timeout):
                for attempt in range(1, ATTEMPTS + 1):
                    try:
                        return await self._request(method, path, query, body)
                    except _RetryableError as retryable:
                        if attempt == ATTEMPTS:
                            raise retryable.error from None
                        pause = INITIAL_BACKOFF * 2 ** (attempt - 1) if retryable.pause is None else retryable.pause
                        await asyncio.sleep(min(pause, MAX_BACKOFF))
        except TimeoutError:
            raise ToolHostError("timeout", f"{self.name} did not answer within {self.timeout:g} s") from None
        raise AssertionError("unreachable")

    def hits(self, results: Any, *, text: str) -> list[SearchHit]:
        """The results that have a URL; `text` is the provider's field for the excerpt."""
        if not isinstance(results, list):
            raise self.unreadable(f"its results are {type(results).__name__}, not a list")
        return [
            SearchHit(str(result.get("title") or result["url"]), str(result["url"]), str(result.get(text) or ""))
            for result in results
            if isinstance(result, dict) and result.get("url")
        ]

    def unreadable(self, why: str) -> ToolHostError:
        return ToolHostError("unreadable", f"{self.name} returned an undocumented response: {why}")

    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json", **self.headers}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = fast_json.dumps(body)
        try:
            async with self.http.request(
                method,
                self.base_url.rstrip("/") + path,
                params=query,
                data=data,
                headers=headers,
                allow_redirects=False,
            ) as response:
                raw = await read_limited(response, MAX_RESPONSE_BYTES)
                wait = parse_retry_after(response.headers.get("Retry-After", ""), datetime.now(UTC))
                status = response.status
        except aiohttp.ClientError as error:
            failure = ToolHostError("unreachable", f"{self.name} at {self.base_url}: {type(error).__name__}: {error}")
            raise _RetryableError(failure) from None
        if status == 200:
            return self._parse(raw)
        message = f"{self.name} answered {status}: {self._redacted_body(raw)}"
        if status in (400, 422):
            raise ToolUseError(f"the search was rejected; change the query. {message}")
        failure = ToolHostError(ERROR_CAUSES.get(status, "provider_error"), message)
        if status == 429 or status >= 500:
            raise _RetryableError(failure, wait)
        raise failure

    def _parse(self, raw: bytes) -> dict[str, Any]:
        try:
            answer = fast_json.loads(raw)
        except ValueError as error:
            raise self.unreadable(f"not JSON ({error}): {self._redacted_body(raw)}") from None
        if not isinstance(answer, dict):
            raise self.unreadable(f"{type(answer).__name__}, not an object")
        return answer

    def _redacted_body(self, raw: bytes) -> str:
        return secrets.redact(raw.decode(errors="replace"), [self.key])[:MAX_BODY_CHARS]


class _RetryableError(Exception):
    def __init__(self, error: ToolHostError, pause: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.pause = error, pause


async def read_limited(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read at most `limit` bytes of the body."""
    parts: list[bytes] = []
    left = limit
    while left > 0 and (part := await response.content.read(min(left, 65536))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def distinct(hits: Iterable[SearchHit], limit: int) -> list[SearchHit]:
    """The first `limit` hits with distinct URLs."""
    return list({hit.url: hit for hit in reversed(list(hits))}.values())[::-1][:limit]
