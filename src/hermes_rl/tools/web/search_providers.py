"""Hosted search providers: Tavily, SearXNG, Exa and Brave. The fifth provider, bm25.py, searches a local corpus."""

from dataclasses import dataclass

from hermes_rl.core.errors import ToolHostError
from hermes_rl.tools.web.provider import SearchHit
from hermes_rl.tools.web.remote import SearchAPI, distinct

# Tavily: `POST /search` with a bearer key; at most 20 results.

TAVILY_URL = "https://api.tavily.com"


@dataclass(frozen=True, slots=True)
class Tavily:
    api: SearchAPI

    @staticmethod
    def headers(key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        answer = await self.api.ask("POST", "/search", body={"query": query, "max_results": limit})
        return distinct(self.api.hits(answer.get("results"), text="content"), limit)


# SearXNG: a meta search engine you run yourself. `GET /search?q=…&format=json`, no key.


@dataclass(frozen=True, slots=True)
class SearXNG:
    api: SearchAPI

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        try:
            answer = await self.api.ask("GET", "/search", query={"q": query, "format": "json"})
        except ToolHostError as error:
            # It answers 403 for a format that is not enabled, and only html is enabled by default.
            if error.cause == "unauthorized":
                hint = "add json to search.formats in its settings.yml"
                raise ToolHostError(error.cause, f"{error}; {hint}") from None
            raise
        hits = self.api.hits(answer.get("results"), text="content")
        silent = answer.get("unresponsive_engines")
        if not hits and silent:
            # No results because no engine answered is a failure, not an empty result.
            raise ToolHostError("engines_down", f"searxng found nothing and these engines did not answer: {silent}")
        # It has no parameter for the number of results.
        return distinct(hits, limit)


# Exa: `POST /search` with the key in x-api-key; results include the start of each page's text.

EXA_URL = "https://api.exa.ai"
EXCERPT_CHARS = 500


@dataclass(frozen=True, slots=True)
class Exa:
    api: SearchAPI

    @staticmethod
    def headers(key: str) -> dict[str, str]:
        return {"x-api-key": key}

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        contents = {"text": {"maxCharacters": EXCERPT_CHARS}}
        answer = await self.api.ask("POST", "/search", body={"query": query, "numResults": limit, "contents": contents})
        return distinct(self.api.hits(answer.get("results"), text="text"), limit)


# Brave: `GET /res/v1/web/search` with the key in X-Subscription-Token; at most 20 results.

BRAVE_URL = "https://api.search.brave.com"


@dataclass(frozen=True, slots=True)
class Brave:
    api: SearchAPI

    @staticmethod
    def headers(key: str) -> dict[str, str]:
        return {"X-Subscription-Token": key}

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        # Without text_decorations=false the excerpts carry <strong> tags.
        parameters = {"q": query, "count": str(limit), "text_decorations": "false"}
        answer = await self.api.ask("GET", "/res/v1/web/search", query=parameters)
        web = answer.get("web")
        if web is None:
            # The section is missing when nothing was found; a body that is not a search response has no type either.
            if answer.get("type") != "search":
                raise self.api.unreadable("it has neither web results nor the type of a search response")
            return []
        if not isinstance(web, dict):
            raise self.api.unreadable(f"its web section is {type(web).__name__}")
        return distinct(self.api.hits(web.get("results"), text="description"), limit)
