"""A search provider's HTTP API: one question, one JSON answer, within a deadline that retries are part of.

What the provider does wrong is a ToolHostError; a query it refuses as such (400, 422) is told to the model. Its key is
in no message, also when the provider repeats it.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp

from hermes_rl import jsontext, secrets
from hermes_rl.errors import ToolHostError
from hermes_rl.tools.tool import ToolUseError
from hermes_rl.tools.web.provider import SearchHit
from hermes_rl.waiting import seconds_asked_for

ATTEMPTS = 3
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
LARGEST_ANSWER = 4 * 1024 * 1024
BODY_SHOWN = 300
CAUSES = {401: "unauthorized", 403: "unauthorized", 429: "rate_limited"}


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
        """The answer as a JSON object; a 429, a 5xx or a lost connection is tried again while there is time."""
        try:
            async with asyncio.timeout(self.timeout):
                for attempt in range(1, ATTEMPTS + 1):
                    try:
                        return await self._once(method, path, query, body)
                    except _TryAgainError as trouble:
                        if attempt == ATTEMPTS:
                            raise trouble.error from None
                        pause = FIRST_PAUSE * 2 ** (attempt - 1) if trouble.pause is None else trouble.pause
                        await asyncio.sleep(min(pause, LONGEST_PAUSE))
        except TimeoutError:
            raise ToolHostError("timeout", f"{self.name} did not answer within {self.timeout:g} s") from None
        raise AssertionError("unreachable")

    def hits(self, results: Any, *, text: str) -> list[SearchHit]:
        """The results that have an address; `text` is the field this provider keeps its excerpt in."""
        if not isinstance(results, list):
            raise self.unreadable(f"its results are {type(results).__name__}, not a list")
        return [
            SearchHit(str(one.get("title") or one["url"]), str(one["url"]), str(one.get(text) or ""))
            for one in results
            if isinstance(one, dict) and one.get("url")
        ]

    def unreadable(self, why: str) -> ToolHostError:
        return ToolHostError("unreadable", f"{self.name} gave an answer that is not in its documented form: {why}")

    async def _once(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json", **self.headers}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = jsontext.dumps(body)
        try:
            async with self.http.request(
                method,
                self.base_url.rstrip("/") + path,
                params=query,
                data=data,
                headers=headers,
                allow_redirects=False,
            ) as response:
                raw = await read_at_most(response, LARGEST_ANSWER)
                wait = seconds_asked_for(response.headers.get("Retry-After", ""), datetime.now(UTC))
                status = response.status
        except aiohttp.ClientError as error:
            fault = ToolHostError("unreachable", f"{self.name} at {self.base_url}: {type(error).__name__}: {error}")
            raise _TryAgainError(fault) from None
        if status == 200:
            return self._read(raw)
        told = f"{self.name} answered {status}: {self._shown(raw)}"
        if status in (400, 422):
            raise ToolUseError(f"the search was refused; change the query. {told}")
        fault = ToolHostError(CAUSES.get(status, "provider_error"), told)
        if status == 429 or status >= 500:
            raise _TryAgainError(fault, wait)
        raise fault

    def _read(self, raw: bytes) -> dict[str, Any]:
        try:
            answer = jsontext.loads(raw)
        except ValueError as error:
            raise self.unreadable(f"no JSON ({error}): {self._shown(raw)}") from None
        if not isinstance(answer, dict):
            raise self.unreadable(f"{type(answer).__name__}, not an object")
        return answer

    def _shown(self, raw: bytes) -> str:
        return secrets.without(raw.decode(errors="replace"), [self.key])[:BODY_SHOWN]


class _TryAgainError(Exception):
    def __init__(self, error: ToolHostError, pause: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.pause = error, pause


async def read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body up to `limit` bytes; what comes after is not read."""
    parts: list[bytes] = []
    left = limit
    while left > 0 and (part := await response.content.read(min(left, 65536))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def distinct(hits: Iterable[SearchHit], limit: int) -> list[SearchHit]:
    """The first `limit` with different addresses."""
    return list({hit.url: hit for hit in reversed(list(hits))}.values())[::-1][:limit]
