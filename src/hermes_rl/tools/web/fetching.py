"""Pages of the live web, as text: bounded in size, time and redirects, and never from a private network.

A policy that reads pages will sooner or later try the addresses behind your firewall: the cloud's metadata service, the
trajectory API, a colleague's notebook. Names are therefore judged by the address the connection is really made to.
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
from hermes_rl.tools.web.corpus import Page
from hermes_rl.tools.web.extraction import page_of_html
from hermes_rl.tools.web.remote import read_at_most

REDIRECTS = 5
LARGEST_PAGE = 2 * 1024 * 1024
# Extraction holds the interpreter for most of its time, so more threads would only make the event loop wait longer.
EXTRACTING_AT_ONCE = 2
HTML_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPES = ("application/json", "application/xml", "application/javascript", "application/yaml")
AGENT = "Mozilla/5.0 (compatible; hermes-rl)"
# IPv6 addresses that stand for IPv4 ones behind a translator.
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Fetcher:
    http: aiohttp.ClientSession
    threads: ThreadPoolExecutor
    timeout: float
    allow_private: bool

    async def page(self, url: str) -> Page:
        """The page behind an address; ToolUseError when it cannot be had."""
        try:
            async with asyncio.timeout(self.timeout):
                final, kind, text = await self._get(url)
                if kind not in HTML_TYPES:
                    return Page(final, "", text)
                # trafilatura is pure computation, up to a second on a large page: off the event loop, in few threads.
                loop = asyncio.get_running_loop()
                title, text = await loop.run_in_executor(self.threads, page_of_html, text)
                return Page(final, title, text)
        except TimeoutError:
            raise ToolUseError(f"{url} could not be read within {self.timeout:g} s") from None
        except aiohttp.ClientError as error:
            raise ToolUseError(f"{url} could not be read: {_reason(error)}") from None

    async def _get(self, url: str) -> tuple[str, str, str]:
        """Where the page was found after redirects, its media type, its text."""
        at = _checked(url, self.allow_private)
        for _ in range(REDIRECTS + 1):
            async with self.http.get(at, allow_redirects=False, headers={"User-Agent": AGENT}) as response:
                if response.status in (301, 302, 303, 307, 308) and "Location" in response.headers:
                    try:
                        following = str(at.join(URL(response.headers["Location"])))
                    except ValueError:
                        raise ToolUseError(f"{url} leads to an address that is none") from None
                    at = _checked(following, self.allow_private)
                    continue
                if response.status != 200:
                    raise ToolUseError(f"{at} answered with status {response.status}")
                kind = response.content_type
                if not (kind.startswith("text/") or kind in (*HTML_TYPES, *TEXT_TYPES)):
                    raise ToolUseError(f"{at} is {kind}; only text and HTML pages can be read")
                raw = await read_at_most(response, LARGEST_PAGE)
                return str(at), kind, raw.decode(_known(response.charset), errors="replace")
        raise ToolUseError(f"{url} redirects more than {REDIRECTS} times")


@asynccontextmanager
async def fetching(timeout: float, *, allow_private: bool) -> AsyncIterator[Fetcher]:
    """A fetcher whose requests share no cookies: what one rollout is told by a site, another never sends."""
    connector = aiohttp.TCPConnector(resolver=aiohttp.ThreadedResolver() if allow_private else _PublicOnly(), limit=64)
    threads = ThreadPoolExecutor(EXTRACTING_AT_ONCE, thread_name_prefix="extracting")
    try:
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
            yield Fetcher(http, threads, timeout, allow_private)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


class _PublicOnly(AbstractResolver):
    """Answers with public addresses only, so that a name cannot mean one thing when checked and another when used."""

    def __init__(self) -> None:
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        public = [one for one in found if is_public(one["host"])]
        if found and not public:
            raise ToolUseError(_refusal(host))
        return public

    async def close(self) -> None:
        await self._inner.close()


def is_public(address: str) -> bool:
    """Whether an IP address is one of the open internet, also inside the IPv6 forms that carry an IPv4 one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in TRANSLATED:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def _checked(url: str, allow_private: bool) -> URL:
    try:
        at = URL(url)
    except ValueError:
        at = URL()
    if at.scheme not in ("http", "https") or not at.host:
        raise ToolUseError(f"{url} is not the address of a web page; give one that starts with http:// or https://")
    try:
        private = not is_public(at.host)
    except ValueError:
        # A name; the resolver judges what it stands for.
        private = False
    if private and not allow_private:
        raise ToolUseError(_refusal(at.host))
    return at.with_fragment(None)


def _refusal(host: str) -> str:
    return f"{host} is in a private network, whose pages cannot be read; only those of the open web can"


def _known(charset: str | None) -> str:
    try:
        return codecs.lookup(charset or "utf-8").name
    except LookupError:
        return "utf-8"


def _reason(error: aiohttp.ClientError) -> str:
    return f"{type(error).__name__}: {error}"
