"""The search provider interface. To add one, implement it and list it in toolset.py."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result; `text` is an excerpt of the page."""

    title: str
    url: str
    text: str


class SearchProvider(Protocol):
    """Raises ToolUseError for a rejected query and ToolHostError when the provider fails."""

    async def search(self, query: str, limit: int) -> list[SearchHit]: ...
