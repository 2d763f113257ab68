"""The tools and settings of the `web` toolset. There is no default provider: an environment must set one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
from pydantic import Field, field_validator

from hermes_rl.core import secrets
from hermes_rl.core.errors import ConfigError, ToolHostError
from hermes_rl.tools.network_policy import ALLOW_PRIVATE, AllowPrivate, NetworkPolicy
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError, tool
from hermes_rl.tools.toolset import OpenToolset, Toolset, ToolsetSettings
from hermes_rl.tools.web.bm25 import BM25
from hermes_rl.tools.web.corpus import Corpus, WebPage, read_corpus
from hermes_rl.tools.web.extraction import require_trafilatura
from hermes_rl.tools.web.fetch import open_fetcher
from hermes_rl.tools.web.provider import SearchProvider
from hermes_rl.tools.web.remote import SearchAPI
from hermes_rl.tools.web.search_providers import BRAVE_URL, EXA_URL, TAVILY_URL, Brave, Exa, SearXNG, Tavily

MAX_QUERY_CHARS = 400
MAX_URLS = 5
MAX_EXCERPT_CHARS = 600
MAX_PAGE_CHARS, MAX_CALL_CHARS = 20_000, 50_000
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
        default=None, description="Provider of web_search: bm25, searxng, tavily, exa or brave. There is no default."
    )
    corpus: Path | None = Field(
        default=None,
        description="For bm25: a JSONL file of url, title and text, or a folder of text, Markdown and HTML files.",
    )
    base_url: str | None = Field(default=None, description="Base URL of the provider's API; required for searxng.")
    api_key: str | None = Field(
        default=None, repr=False, description="env:NAME or file:PATH, for tavily, exa and brave."
    )
    timeout: float = Field(default=30, gt=0, description="Timeout of a search or a page in seconds.")
    max_results: int = Field(
        default=10, ge=1, le=20, description="Maximum results per search, whatever the agent asks for."
    )
    allow_private: AllowPrivate = Field(default=False, description=ALLOW_PRIVATE)
    probe: bool = Field(
        default=True, description="Send one query to a remote provider at start, to detect a wrong key early."
    )

    @field_validator("api_key")
    @classmethod
    def _require_reference(cls, value: str | None) -> str | None:
        # Tool settings are saved with the run, so they may hold a reference but not a key.
        if value is not None and secrets.is_literal(value):
            raise ValueError("give env:NAME or file:PATH, never the key itself: these settings are saved with the run")
        return value

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("a base_url starts with http:// or https://")
        return value


@dataclass(frozen=True, slots=True)
class Web:
    """The service that the two tools share in one environment."""

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
    normalized = " ".join(query.split())
    if not normalized:
        raise ToolUseError("the query is empty; say what to look for")
    if len(normalized) > MAX_QUERY_CHARS:
        raise ToolUseError(f"the query has {len(normalized)} characters; at most {MAX_QUERY_CHARS} are allowed")
    hits = await web.provider.search(normalized, min(limit, web.max_results))
    return {"results": [{"title": hit.title, "url": hit.url, "text": hit.text[:MAX_EXCERPT_CHARS]} for hit in hits]}


@tool(sandboxed=False)
async def web_extract(
    session: ToolSession, urls: Annotated[list[str], Field(min_length=1, max_length=MAX_URLS)]
) -> dict[str, Any]:
    """Read web pages: their main text, without menus and advertisements. Up to five at a time.

    Args:
        urls: Addresses of the pages.
    """
    web: Web = session.service("web")
    pages = await asyncio.gather(*(_read(web, url, MAX_CALL_CHARS // len(urls)) for url in urls))
    answer: dict[str, Any] = {"results": pages}
    if all("error" in page for page in pages):
        answer["error"] = "; ".join(page["error"] for page in pages)
    return answer


async def _read(web: Web, url: str, max_chars: int) -> dict[str, Any]:
    try:
        page: WebPage = await web.read(url)
    except ToolUseError as error:
        return {"url": url, "error": str(error)}
    content = page.text[: min(MAX_PAGE_CHARS, max_chars)]
    left_out = len(page.text) - len(content)
    note = f"\n… {left_out} characters left out …" if left_out else ""
    return {"url": page.url, "title": page.title, "content": content + note}


@asynccontextmanager
async def open_web(settings: WebSettings) -> AsyncIterator[OpenToolset]:
    _check(settings)
    async with AsyncExitStack() as opened:
        if settings.corpus is not None:
            # A large corpus takes seconds to read: do not block the event loop.
            provider = await asyncio.to_thread(lambda path: BM25(read_corpus(path)), settings.corpus)
            yield OpenToolset(WEB.tools, Web(provider, _corpus_reader(provider.corpus), settings.max_results))
            return
        require_trafilatura()
        policy = NetworkPolicy.from_settings(settings.allow_private)
        http = await opened.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))
        fetcher = await opened.enter_async_context(open_fetcher(settings.timeout, policy))
        remote = _make_remote(settings, http)
        if settings.probe:
            await _probe(settings, remote)
        yield OpenToolset(WEB.tools, Web(remote, fetcher.page, settings.max_results))


WEB = Toolset("web", (web_search, web_extract), WebSettings, open_web)


def _check(settings: WebSettings) -> None:
    """ConfigError when a provider's setting is missing or not used by it."""
    name = settings.provider
    if name is None:
        known = ", ".join(f"{provider} ({need})" for provider, need in PROVIDERS.items())
        raise ConfigError(f"the web toolset needs tool_settings.web.provider; choose one of: {known}")
    needed = {"bm25": {"corpus"}, "searxng": {"base_url"}}.get(name, {"api_key"})
    allowed = needed | ({"base_url"} if name in HOSTED else set())
    for field in ("corpus", "base_url", "api_key"):
        given = getattr(settings, field) is not None
        if field in needed and not given:
            raise ConfigError(f"tool_settings.web: the provider {name} needs {field}")
        if given and field not in allowed:
            raise ConfigError(f"tool_settings.web: the provider {name} does not use {field}; remove it")


def _make_remote(settings: WebSettings, http: aiohttp.ClientSession) -> SearchProvider:
    name = str(settings.provider)
    if name not in HOSTED:
        return SearXNG(SearchAPI(name, http, str(settings.base_url), settings.timeout))
    default_url, provider = HOSTED[name]
    key = secrets.resolve_key(str(settings.api_key), "tool_settings.web.api_key")
    api = SearchAPI(name, http, settings.base_url or default_url, settings.timeout, key, provider.headers(key))
    return provider(api)


async def _probe(settings: WebSettings, provider: SearchProvider) -> None:
    try:
        await provider.search("weather", 1)
    except (ToolHostError, ToolUseError) as error:
        raise ConfigError(f"tool_settings.web: the provider {settings.provider} does not answer: {error}") from None


def _corpus_reader(corpus: Corpus) -> Callable[[str], Any]:
    async def read(url: str) -> WebPage:
        page = corpus.page(url)
        if page is None:
            raise ToolUseError(f"there is no page {url}; use an address that web_search returned")
        return page

    return read
