"""What a search provider is. A new one is a file beside this one and a line in toolset.py."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result; `text` is a short part of the page."""

    title: str
    url: str
    text: str


class SearchProvider(Protocol):
    """Raises ToolUseError for a query it refuses, and ToolHostError when it cannot answer at all."""

    async def search(self, query: str, limit: int) -> list[SearchHit]: ...
