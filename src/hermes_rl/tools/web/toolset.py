"""The `web` toolset's tools, settings and opening. There is no default provider: an environment names its own web."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
from pydantic import Field, field_validator

from hermes_rl import secrets
from hermes_rl.errors import ConfigError, ToolHostError
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError, tool
from hermes_rl.tools.toolset import OpenToolset, Toolset, ToolsetSettings
from hermes_rl.tools.web.bm25 import BM25
from hermes_rl.tools.web.brave import BRAVE_URL, Brave
from hermes_rl.tools.web.corpus import Corpus, Page, read_corpus
from hermes_rl.tools.web.exa import EXA_URL, Exa
from hermes_rl.tools.web.extraction import need_trafilatura
from hermes_rl.tools.web.fetching import fetching
from hermes_rl.tools.web.provider import SearchProvider
from hermes_rl.tools.web.remote import SearchAPI
from hermes_rl.tools.web.searxng import SearXNG
from hermes_rl.tools.web.tavily import TAVILY_URL, Tavily

LONGEST_QUERY = 400
URLS_AT_ONCE = 5
EXCERPT_SHOWN = 600
PAGE_SHOWN, CALL_SHOWN = 20_000, 50_000
PROVIDERS = {
    "bm25": "pages on this machine, named by corpus",
    "searxng": "your own server, named by base_url",
    "tavily": "needs api_key",
    "exa": "needs api_key",
    "brave": "needs api_key",
}
HOSTED: dict[str, tuple[str, type[Tavily | Exa | Brave]]] = {
    "tavily": (TAVILY_URL, Tavily),
    "exa": (EXA_URL, Exa),
    "brave": (BRAVE_URL, Brave),
}


class WebSettings(ToolsetSettings):
    provider: Literal["bm25", "searxng", "tavily", "exa", "brave"] | None = Field(
        None, description="Who answers web_search: bm25, searxng, tavily, exa or brave. There is no default."
    )
    corpus: Path | None = Field(
        None, description="For bm25: a JSONL file of url, title and text, or a folder of text, Markdown and HTML files."
    )
    base_url: str | None = Field(None, description="Root of the provider's API; needed for searxng.")
    api_key: str | None = Field(None, repr=False, description="env:NAME or file:PATH, for tavily, exa and brave.")
    timeout: float = Field(30, gt=0, description="Seconds one search, or one page, may take.")
    max_results: int = Field(10, ge=1, le=20, description="Results of one search at most, whatever the agent asks for.")
    allow_private: bool = Field(
        False, description="Let web_extract read pages of loopback and private networks, as a test site needs."
    )
    probe: bool = Field(
        True, description="Ask a remote provider one query at start, to find a wrong key before it costs."
    )

    @field_validator("api_key")
    @classmethod
    def _is_a_reference(cls, value: str | None) -> str | None:
        # Tool settings are saved with the run as they are; a reference is no secret, a key is.
        if value is not None and secrets.is_literal(value):
            raise ValueError("give env:NAME or file:PATH, never the key itself: these settings are saved with the run")
        return value

    @field_validator("base_url")
    @classmethod
    def _is_a_web_address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("a base_url starts with http:// or https://")
        return value


@dataclass(frozen=True, slots=True)
class Web:
    """What the two tools share in one environment."""

    provider: SearchProvider
    read: Callable[[str], Any]
    max_results: int


@tool(sandboxed=False)
async def web_search(session: ToolSession, query: str, limit: Annotated[int, Field(ge=1)] = 5) -> dict[str, Any]:
    """Search the web. Each result has a title, a url and a short part of the page; read more with web_extract.

    Args:
        query: What to look for, in a few words.
        limit: How many results to return.
    """
    web: Web = session.service("web")
    asked = " ".join(query.split())
    if not asked:
        raise ToolUseError("the query is empty; say what to look for")
    if len(asked) > LONGEST_QUERY:
        raise ToolUseError(f"the query has {len(asked)} characters; at most {LONGEST_QUERY} are allowed")
    hits = await web.provider.search(asked, min(limit, web.max_results))
    return {"results": [{"title": hit.title, "url": hit.url, "text": hit.text[:EXCERPT_SHOWN]} for hit in hits]}


@tool(sandboxed=False)
async def web_extract(
    session: ToolSession, urls: Annotated[list[str], Field(min_length=1, max_length=URLS_AT_ONCE)]
) -> dict[str, Any]:
    """Read web pages: their main text, without menus and advertisements. Up to five at a time.

    Args:
        urls: Addresses of the pages.
    """
    web: Web = session.service("web")
    pages = await asyncio.gather(*(_read(web, url, CALL_SHOWN // len(urls)) for url in urls))
    answer: dict[str, Any] = {"results": pages}
    if all("error" in page for page in pages):
        answer["error"] = "; ".join(page["error"] for page in pages)
    return answer


async def _read(web: Web, url: str, room: int) -> dict[str, Any]:
    try:
        page: Page = await web.read(url)
    except ToolUseError as error:
        return {"url": url, "error": str(error)}
    shown = page.text[: min(PAGE_SHOWN, room)]
    left_out = len(page.text) - len(shown)
    note = f"\n… {left_out} characters left out …" if left_out else ""
    return {"url": page.url, "title": page.title, "content": shown + note}


@asynccontextmanager
async def open_web(settings: WebSettings) -> AsyncIterator[OpenToolset]:
    _check(settings)
    async with AsyncExitStack() as opened:
        if settings.corpus is not None:
            # A large corpus takes seconds to read; whatever else starts meanwhile goes on.
            provider = await asyncio.to_thread(lambda path: BM25(read_corpus(path)), settings.corpus)
            yield OpenToolset(WEB.tools, Web(provider, _from(provider.corpus), settings.max_results))
            return
        need_trafilatura()
        http = await opened.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))
        fetcher = await opened.enter_async_context(fetching(settings.timeout, allow_private=settings.allow_private))
        remote = _remote(settings, http)
        if settings.probe:
            await _probe(settings, remote)
        yield OpenToolset(WEB.tools, Web(remote, fetcher.page, settings.max_results))


WEB = Toolset("web", (web_search, web_extract), WebSettings, open_web)


def _check(settings: WebSettings) -> None:
    """ConfigError for a provider that lacks what it needs, or is given what it has no use for."""
    name = settings.provider
    if name is None:
        known = ", ".join(f"{one} ({need})" for one, need in PROVIDERS.items())
        raise ConfigError(f"the web toolset needs tool_settings.web.provider; choose one of: {known}")
    needed = {"bm25": {"corpus"}, "searxng": {"base_url"}}.get(name, {"api_key"})
    useful = needed | ({"base_url"} if name in HOSTED else set())
    for field in ("corpus", "base_url", "api_key"):
        given = getattr(settings, field) is not None
        if field in needed and not given:
            raise ConfigError(f"tool_settings.web: the provider {name} needs {field}")
        if given and field not in useful:
            raise ConfigError(f"tool_settings.web: the provider {name} has no use for {field}; leave it out")


def _remote(settings: WebSettings, http: aiohttp.ClientSession) -> SearchProvider:
    name = str(settings.provider)
    if name not in HOSTED:
        return SearXNG(SearchAPI(name, http, str(settings.base_url), settings.timeout))
    default_url, provider = HOSTED[name]
    key = secrets.resolved_key(str(settings.api_key), "tool_settings.web.api_key")
    api = SearchAPI(name, http, settings.base_url or default_url, settings.timeout, key, provider.headers(key))
    return provider(api)


async def _probe(settings: WebSettings, provider: SearchProvider) -> None:
    try:
        await provider.search("weather", 1)
    except (ToolHostError, ToolUseError) as error:
        raise ConfigError(f"tool_settings.web: the provider {settings.provider} does not answer: {error}") from None


def _from(corpus: Corpus) -> Callable[[str], Any]:
    async def read(url: str) -> Page:
        page = corpus.page(url)
        if page is None:
            raise ToolUseError(f"there is no page {url}; use an address that web_search returned")
        return page

    return read
