"""Sort orders and page cursors.

Always true: a cursor is only valid for its sort order, and holds nothing but numbers, so it gives no further access.
"""

import base64
from dataclasses import dataclass
from typing import Any, NamedTuple

from hermes_rl.core import fast_json


class BadQueryError(ValueError):
    """Invalid query parameters."""


class PageEnd(NamedTuple):
    """The end of the previous page, and the total counted for the first page."""

    value: float | None
    n: int
    total: int | None


@dataclass(frozen=True, slots=True)
class SortOrder:
    """By a column, then by number. Rows without a value come last."""

    column: str
    descending: bool
    text: str
    last: PageEnd | None

    @classmethod
    def parse(cls, sort: str, columns: dict[str, str], after: str | None) -> "SortOrder":
        name = sort.removeprefix("-")
        if name not in columns:
            raise BadQueryError(f"sort={sort} must be one of {', '.join(columns)}, with a - prefix for descending")
        return cls(columns[name], sort.startswith("-"), sort, _parse_cursor(after, sort) if after else None)

    def order_by(self, number: str) -> str:
        way = "DESC" if self.descending else "ASC"
        return f"{number} {way}" if self.column == number else f"{self.column} {way} NULLS LAST, {number}"

    def condition(self, number: str) -> tuple[str, tuple[Any, ...]]:
        if self.last is None:
            return "1", ()
        value, n, _ = self.last
        beyond = "<" if self.descending else ">"
        if self.column == number:
            return f"{number} {beyond} ?", (n,)
        if value is None:
            return f"({self.column} IS NULL AND {number} > ?)", (n,)
        sql = f"({self.column} {beyond} ? OR ({self.column} = ? AND {number} > ?) OR {self.column} IS NULL)"
        return sql, (value, value, n)

    def cursor(self, value: Any, number: int, total: int | None) -> str:
        return base64.urlsafe_b64encode(fast_json.dumps([self.text, value, number, total])).decode().rstrip("=")


def _parse_cursor(cursor: str, sort: str) -> PageEnd:
    try:
        cursor_sort, value, n, total = fast_json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError):
        cursor_sort, value, n, total = None, None, None, None
    valid = type(n) is int and abs(n) < 2**63 and (value is None or type(value) in {int, float})
    if cursor_sort != sort or not valid or not (total is None or type(total) is int):
        raise BadQueryError("`after` must be the `next` value of an earlier response to the same query")
    return PageEnd(value, n, total)
