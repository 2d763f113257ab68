"""Plain words of the code as Markdown. Always true: what stands between backticks stays as it is."""

import html
import re
from collections.abc import Sequence


def paragraphs(text: str) -> str:
    return "\n\n".join(prose(" ".join(part.split())) for part in text.split("\n\n"))


def after(text: str) -> str:
    return f": {prose(' '.join(text.split()))}" if text else ""


def prose(text: str) -> str:
    """Plain text as Markdown; what stands between backticks stays as it is."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else _plain(piece) for piece in pieces)


def _plain(text: str) -> str:
    return re.sub(r"([*_\[\]])", r"\\\1", html.escape(text, quote=False))


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [
        header,
        tuple("---" for _ in header),
        *(tuple(bars(cell.replace("\n", " ")) for cell in row) for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bars(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)
