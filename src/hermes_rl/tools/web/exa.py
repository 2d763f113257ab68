"""Exa: `POST /search` with the key in x-api-key; the beginning of each page's text comes with the results."""

from dataclasses import dataclass

from hermes_rl.tools.web.provider import SearchHit
from hermes_rl.tools.web.remote import SearchAPI, distinct

EXA_URL = "https://api.exa.ai"
TEXT_ASKED = 500


@dataclass(frozen=True, slots=True)
class Exa:
    api: SearchAPI

    @staticmethod
    def headers(key: str) -> dict[str, str]:
        return {"x-api-key": key}

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        contents = {"text": {"maxCharacters": TEXT_ASKED}}
        answer = await self.api.ask("POST", "/search", body={"query": query, "numResults": limit, "contents": contents})
        return distinct(self.api.hits(answer.get("results"), text="text"), limit)
