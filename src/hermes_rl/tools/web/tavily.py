"""Tavily: `POST /search` with a bearer key; at most 20 results."""

from dataclasses import dataclass

from hermes_rl.tools.web.provider import SearchHit
from hermes_rl.tools.web.remote import SearchAPI, distinct

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
