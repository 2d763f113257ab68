"""A local corpus of pages that replaces the web, read once.

Either a JSONL file of {"url", "title", "text"}, optionally compressed (.gz), or a folder of text, Markdown and HTML
files with URLs `https://corpus.test/PATH`. Pages are in file order, or sorted by path.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.tools.web.extraction import extract_page

# The .test domain is reserved, so no such host can exist.
FOLDER_URL = "https://corpus.test/"
# A small .gz file may hold a line of many gigabytes.
MAX_LINE_BYTES = 64 * 2**20
PLAIN_SUFFIXES, HTML_SUFFIXES = (".txt", ".md", ".markdown", ".rst"), (".html", ".htm")


@dataclass(frozen=True, slots=True)
class WebPage:
    url: str
    title: str
    text: str


class Corpus:
    def __init__(self, pages: Iterable[WebPage]) -> None:
        self.pages: Sequence[WebPage] = tuple(pages)
        self._by_url: dict[str, WebPage] = {}
        for page in self.pages:
            self._by_url.setdefault(_normalize_url(page.url), page)

    def page(self, url: str) -> WebPage | None:
        """The page at a URL; scheme, fragment and trailing slash are ignored."""
        return self._by_url.get(_normalize_url(url))


def read_corpus(path: Path) -> Corpus:
    """Read a file or folder; ConfigError names the file and line that cannot be read."""
    try:
        pages = list(_read_folder(path) if path.is_dir() else _read_jsonl(path))
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"tool_settings.web.corpus: {path} cannot be read: {error}") from None
    if not pages:
        raise ConfigError(
            f"tool_settings.web.corpus: {path} contains no pages; give a JSONL file of url, title and text, or a "
            f"folder of {' '.join((*PLAIN_SUFFIXES, *HTML_SUFFIXES))} files"
        )
    return Corpus(pages)


def _read_jsonl(path: Path) -> Iterator[WebPage]:
    seen: dict[str, int] = {}
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(line) > MAX_LINE_BYTES:
                raise ConfigError(
                    f"tool_settings.web.corpus: line {number} of {path} has more than {MAX_LINE_BYTES} bytes, the limit"
                )
            if not line.strip():
                continue
            location = f"tool_settings.web.corpus: line {number} of {path}"
            page = _parse_page(line, location)
            if page.url in seen:
                raise ConfigError(f"{location} has the url of line {seen[page.url]}: {page.url}")
            seen[page.url] = number
            yield page


def _parse_page(line: bytes, location: str) -> WebPage:
    try:
        row: Any = fast_json.loads(line)
    except (ValueError, UnicodeError) as error:
        raise ConfigError(f"{location} is not JSON: {error}") from None
    parts = [row.get(name) for name in ("url", "title", "text")] if isinstance(row, dict) else [None]
    if not all(isinstance(part, str) for part in parts) or not parts[0]:
        raise ConfigError(f'{location} is not {{"url": …, "title": …, "text": …}} with three strings')
    return WebPage(*parts)


def _read_folder(folder: Path) -> Iterator[WebPage]:
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in (*PLAIN_SUFFIXES, *HTML_SUFFIXES)):
        if not path.is_file():
            continue
        relative = path.relative_to(folder)
        title, text = path.stem, path.read_text(errors="replace")
        if path.suffix.lower() in HTML_SUFFIXES:
            found, text = extract_page(text)
            title = found or title
        elif heading := next((line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("#")), ""):
            title = heading
        yield WebPage(FOLDER_URL + quote(relative.as_posix()), title, text)


def _normalize_url(url: str) -> str:
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return url
    return f"{parts.netloc.lower()}{parts.path.rstrip('/')}{'?' if parts.query else ''}{parts.query}"
