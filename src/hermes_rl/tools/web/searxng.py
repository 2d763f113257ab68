"""SearXNG: a meta search engine you run yourself. `GET /search?q=…&format=json`, no key."""

from dataclasses import dataclass

from hermes_rl.errors import ToolHostError
from hermes_rl.tools.web.provider import SearchHit
from hermes_rl.tools.web.remote import SearchAPI, distinct


@dataclass(frozen=True, slots=True)
class SearXNG:
    api: SearchAPI

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        try:
            answer = await self.api.ask("GET", "/search", query={"q": query, "format": "json"})
        except ToolHostError as error:
            # It answers 403 to a format that its operator has not enabled, and only html is from the start.
            if error.cause == "unauthorized":
                hint = "add json to search.formats in its settings.yml"
                raise ToolHostError(error.cause, f"{error}; {hint}") from None
            raise
        hits = self.api.hits(answer.get("results"), text="content")
        silent = answer.get("unresponsive_engines")
        if not hits and silent:
            # Nothing found because nobody could be asked is not the same as nothing found.
            raise ToolHostError("engines_down", f"searxng found nothing and these engines did not answer: {silent}")
        # It has no parameter for the number of results.
        return distinct(hits, limit)
