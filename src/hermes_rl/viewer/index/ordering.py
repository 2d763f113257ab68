"""In which order rows come, and where a page ended: a mark that the next question brings back.

Always true: a mark is only taken for the order it was made in, and holds nothing but numbers, so nobody can ask more by
one than without.
"""

import base64
from dataclasses import dataclass
from typing import Any, NamedTuple

from hermes_rl import jsontext


class BadQuestionError(ValueError):
    """What was asked makes no sense; the text says what would."""


class Last(NamedTuple):
    """Where the page before ended, and how many rows its first page counted."""

    value: float | None
    n: int
    total: int | None


@dataclass(frozen=True, slots=True)
class Order:
    """By a column one way or the other, and by number where that is the same. What has no value comes last."""

    column: str
    down: bool
    text: str
    last: Last | None

    @classmethod
    def of(cls, sort: str, columns: dict[str, str], after: str | None) -> "Order":
        name = sort.removeprefix("-")
        if name not in columns:
            raise BadQuestionError(f"sort={sort} is none of {', '.join(columns)}, each with a - before it for downward")
        return cls(columns[name], sort.startswith("-"), sort, _unmarked(after, sort) if after else None)

    def by(self, number: str) -> str:
        way = "DESC" if self.down else "ASC"
        return f"{number} {way}" if self.column == number else f"{self.column} {way} NULLS LAST, {number}"

    def condition(self, number: str) -> tuple[str, tuple[Any, ...]]:
        if self.last is None:
            return "1", ()
        value, n, _ = self.last
        beyond = "<" if self.down else ">"
        if self.column == number:
            return f"{number} {beyond} ?", (n,)
        if value is None:
            return f"({self.column} IS NULL AND {number} > ?)", (n,)
        sql = f"({self.column} {beyond} ? OR ({self.column} = ? AND {number} > ?) OR {self.column} IS NULL)"
        return sql, (value, value, n)

    def mark(self, value: Any, number: int, total: int | None) -> str:
        return base64.urlsafe_b64encode(jsontext.dumps([self.text, value, number, total])).decode().rstrip("=")


def _unmarked(mark: str, sort: str) -> Last:
    try:
        said, value, n, total = jsontext.loads(base64.urlsafe_b64decode(mark + "=" * (-len(mark) % 4)))
    except (ValueError, TypeError):
        said, value, n, total = None, None, None, None
    sound = type(n) is int and abs(n) < 2**63 and (value is None or type(value) in {int, float})
    if said != sort or not sound or not (total is None or type(total) is int):
        raise BadQuestionError("after is no `next` of an answer to the same question")
    return Last(value, n, total)
