"""Fetches live web pages as text: limited in size, time and redirects, and never from a private network.

A policy that reads pages will sooner or later try addresses behind your firewall: the cloud's metadata service, the
trajectory API, a colleague's notebook. The network policy therefore checks every host and every address.
"""

import asyncio
import codecs
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from hermes_rl.tools.network_policy import NetworkPolicy
from hermes_rl.tools.tool import ToolUseError
from hermes_rl.tools.web.corpus import WebPage
from hermes_rl.tools.web.extraction import extract_page
from hermes_rl.tools.web.remote import read_limited

MAX_REDIRECTS = 5
MAX_PAGE_BYTES = 2 * 1024 * 1024
# Extraction holds the GIL most of the time, so more threads would only delay the event loop.
EXTRACTION_THREADS = 2
HTML_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPES = ("application/json", "application/xml", "application/javascript", "application/yaml")
USER_AGENT = "Mozilla/5.0 (compatible; hermes-rl)"


@dataclass(frozen=True, slots=True)
class Fetcher:
    http: aiohttp.ClientSession
    threads: ThreadPoolExecutor
    timeout: float
    policy: NetworkPolicy

    async def page(self, url: str) -> WebPage:
        """Fetch a page; ToolUseError when it cannot be read."""
        try:
            async with asyncio.timeout(self.timeout):
                final, media_type, text = await self._get(url)
                if media_type not in HTML_TYPES:
                    return WebPage(final, "", text)
                # trafilatura can take a second on a large page: run it off the event loop.
                loop = asyncio.get_running_loop()
                title, text = await loop.run_in_executor(self.threads, extract_page, text)
                return WebPage(final, title, text)
        except TimeoutError:
            raise ToolUseError(f"{url} could not be read within {self.timeout:g} s") from None
        except aiohttp.ClientError as error:
            raise ToolUseError(f"{url} could not be read: {_describe(error)}") from None

    async def _get(self, url: str) -> tuple[str, str, str]:
        """The final URL after redirects, the media type and the text."""
        location = _validate_url(url, self.policy)
        for _ in range(MAX_REDIRECTS + 1):
            async with self.http.get(location, allow_redirects=False, headers={"User-Agent": USER_AGENT}) as response:
                if response.status in (301, 302, 303, 307, 308) and "Location" in response.headers:
                    try:
                        target = str(location.join(URL(response.headers["Location"])))
                    except ValueError:
                        raise ToolUseError(f"{url} redirects to an invalid address") from None
                    location = _validate_url(target, self.policy)
                    continue
                if response.status != 200:
                    raise ToolUseError(f"{location} answered with status {response.status}")
                media_type = response.content_type
                if not (media_type.startswith("text/") or media_type in (*HTML_TYPES, *TEXT_TYPES)):
                    raise ToolUseError(f"{location} is {media_type}; only text and HTML pages can be read")
                raw = await read_limited(response, MAX_PAGE_BYTES)
                return str(location), media_type, raw.decode(_codec_name(response.charset), errors="replace")
        raise ToolUseError(f"{url} redirects more than {MAX_REDIRECTS} times")


@asynccontextmanager
async def open_fetcher(timeout: float, policy: NetworkPolicy) -> AsyncIterator[Fetcher]:
    """A fetcher without cookies, so that rollouts do not share state through a site."""
    connector = aiohttp.TCPConnector(resolver=_CheckingResolver(policy), limit=64)
    threads = ThreadPoolExecutor(EXTRACTION_THREADS, thread_name_prefix="extracting")
    try:
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
            yield Fetcher(http, threads, timeout, policy)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


class _CheckingResolver(AbstractResolver):
    """Resolves to addresses that the policy allows, so that a name cannot change between check and use."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self._policy = policy

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._policy.resolve(host, port)
        ]

    async def close(self) -> None:
        pass


def _validate_url(url: str, policy: NetworkPolicy) -> URL:
    try:
        location = URL(url)
    except ValueError:
        location = URL()
    if location.scheme not in ("http", "https") or not location.raw_host:
        raise ToolUseError(f"{url} is not the address of a web page; give one that starts with http:// or https://")
    # aiohttp resolves no host that looks like an address, so all spellings of one end here.
    return location.with_host(policy.check_host(location.raw_host)).with_fragment(None)


def _codec_name(charset: str | None) -> str:
    try:
        return codecs.lookup(charset or "utf-8").name
    except LookupError:
        return "utf-8"


def _describe(error: aiohttp.ClientError) -> str:
    return f"{type(error).__name__}: {error}"
