"""Brave: `GET /res/v1/web/search` with the key in X-Subscription-Token; at most 20 results."""

from dataclasses import dataclass

from hermes_rl.tools.web.provider import SearchHit
from hermes_rl.tools.web.remote import SearchAPI, distinct

BRAVE_URL = "https://api.search.brave.com"


@dataclass(frozen=True, slots=True)
class Brave:
    api: SearchAPI

    @staticmethod
    def headers(key: str) -> dict[str, str]:
        return {"X-Subscription-Token": key}

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        # Without text_decorations=false the excerpts carry <strong> tags.
        asked = {"q": query, "count": str(limit), "text_decorations": "false"}
        answer = await self.api.ask("GET", "/res/v1/web/search", query=asked)
        web = answer.get("web")
        if web is None:
            # The section is left out when nothing was found; a body that is no search answer has no type either.
            if answer.get("type") != "search":
                raise self.api.unreadable("it has neither web results nor the type of a search answer")
            return []
        if not isinstance(web, dict):
            raise self.api.unreadable(f"its web section is {type(web).__name__}")
        return distinct(self.api.hits(web.get("results"), text="description"), limit)
