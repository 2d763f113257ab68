"""Fetches live web pages as text: limited in size, time and redirects, and never from a private network.

A policy that reads pages will sooner or later try addresses behind your firewall: the cloud's metadata service, the
trajectory API, a colleague's notebook. Hosts are therefore checked by the IP address actually connected to.
"""

import asyncio
import codecs
import ipaddress
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

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
# IPv6 addresses that a NAT64 gateway translates to IPv4.
NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Fetcher:
    http: aiohttp.ClientSession
    threads: ThreadPoolExecutor
    timeout: float
    allow_private: bool

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
        location = _validate_url(url, self.allow_private)
        for _ in range(MAX_REDIRECTS + 1):
            async with self.http.get(location, allow_redirects=False, headers={"User-Agent": USER_AGENT}) as response:
                if response.status in (301, 302, 303, 307, 308) and "Location" in response.headers:
                    try:
                        target = str(location.join(URL(response.headers["Location"])))
                    except ValueError:
                        raise ToolUseError(f"{url} redirects to an invalid address") from None
                    location = _validate_url(target, self.allow_private)
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
async def open_fetcher(timeout: float, *, allow_private: bool) -> AsyncIterator[Fetcher]:
    """A fetcher without cookies, so that rollouts do not share state through a site."""
    connector = aiohttp.TCPConnector(
        resolver=aiohttp.ThreadedResolver() if allow_private else _PublicResolver(), limit=64
    )
    threads = ThreadPoolExecutor(EXTRACTION_THREADS, thread_name_prefix="extracting")
    try:
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
            yield Fetcher(http, threads, timeout, allow_private)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


class _PublicResolver(AbstractResolver):
    """Resolves to public addresses only, so that a name cannot change between check and use."""

    def __init__(self) -> None:
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        public = [address for address in found if is_public(address["host"])]
        if found and not public:
            raise ToolUseError(_private_message(host))
        return public

    async def close(self) -> None:
        await self._inner.close()


def is_public(address: str) -> bool:
    """Whether an IP address is public; an IPv4 address embedded in IPv6 is checked as IPv4."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def _validate_url(url: str, allow_private: bool) -> URL:
    try:
        location = URL(url)
    except ValueError:
        location = URL()
    if location.scheme not in ("http", "https") or not location.host:
        raise ToolUseError(f"{url} is not the address of a web page; give one that starts with http:// or https://")
    try:
        private = not is_public(location.host)
    except ValueError:
        # A host name; the resolver checks its addresses.
        private = False
    if private and not allow_private:
        raise ToolUseError(_private_message(location.host))
    return location.with_fragment(None)


def _private_message(host: str) -> str:
    return f"{host} is in a private network; only pages of the public web can be read"


def _codec_name(charset: str | None) -> str:
    try:
        return codecs.lookup(charset or "utf-8").name
    except LookupError:
        return "utf-8"


def _describe(error: aiohttp.ClientError) -> str:
    return f"{type(error).__name__}: {error}"
