"""Words and numbers for a page of HTML: escaped always, short where they are long, and safe to encode."""

import html
import json
import re
from typing import Any

TEXT_SHOWN = 6_000
# What HTML has no place for, as the pictures Unicode has of it; line feed and tab stay.
CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t\r"} | {0x7F: 0x2421}
SURROGATES = re.compile("[\ud800-\udfff]")


def escaped(text: str) -> str:
    """Escaped, for elements and quoted attributes alike."""
    return html.escape(text.translate(CONTROLS), quote=True)


def excerpt(text: str, length: int = TEXT_SHOWN) -> str:
    """Escaped, the middle of a long text left out, and that told."""
    if len(text) <= length:
        return escaped(text)
    tail = length // 4
    left = len(text) - length
    return f"{escaped(text[: length - tail])}<span class=cut>{left:,} characters left out</span>{escaped(text[-tail:])}"


def one_line(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def pretty(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)


def encoded(piece: str) -> bytes:
    return SURROGATES.sub("\ufffd", piece).encode()


def chip(text: str) -> str:
    return f"<span class=chip>{escaped(text)}</span>"


def spaced(name: str | None) -> str:
    return (name or "").replace("_", " ")


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.6g}"


def quantity(value: int) -> str:
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if value >= size:
            return f"{value / (1000 if unit == 'k' else size):,.1f}{unit}"
    return f"{value:,}"


def moment(stamp: str) -> str:
    return escaped(stamp[:16].replace("T", " "))
