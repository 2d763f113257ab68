"""A corpus: pages on this machine that stand for the web, read once and never changed.

Either a JSONL file of {"url", "title", "text"}, which may be compressed (.gz), or a folder of text, Markdown and HTML
files, whose addresses are `https://corpus.test/` and their path in it. The order of pages is that of the file, or of
the sorted paths.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.tools.web.extraction import page_of_html

# A name that the standards keep for tests: no such host can ever exist.
FOLDER_URL = "https://corpus.test/"
PLAIN, HTML = (".txt", ".md", ".markdown", ".rst"), (".html", ".htm")


@dataclass(frozen=True, slots=True)
class Page:
    url: str
    title: str
    text: str


class Corpus:
    def __init__(self, pages: Iterable[Page]) -> None:
        self.pages: Sequence[Page] = tuple(pages)
        self._by_address: dict[str, Page] = {}
        for page in self.pages:
            self._by_address.setdefault(_address(page.url), page)

    def page(self, url: str) -> Page | None:
        """The page at an address; scheme, fragment and a last slash make no difference."""
        return self._by_address.get(_address(url))


def read_corpus(path: Path) -> Corpus:
    """The pages of a file or folder; ConfigError with the place of whatever cannot be read."""
    try:
        pages = list(_pages_of_folder(path) if path.is_dir() else _pages_of_jsonl(path))
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"tool_settings.web.corpus: {path} cannot be read: {error}") from None
    if not pages:
        raise ConfigError(
            f"tool_settings.web.corpus: {path} holds no page; give a JSONL file of url, title and text, or a folder "
            f"of {' '.join((*PLAIN, *HTML))} files"
        )
    return Corpus(pages)


def _pages_of_jsonl(path: Path) -> Iterator[Page]:
    seen: dict[str, int] = {}
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"tool_settings.web.corpus: line {number} of {path}"
            page = _page_of(line, where)
            if page.url in seen:
                raise ConfigError(f"{where} has the url of line {seen[page.url]}: {page.url}")
            seen[page.url] = number
            yield page


def _page_of(line: bytes, where: str) -> Page:
    try:
        row: Any = jsontext.loads(line)
    except (ValueError, UnicodeError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None
    parts = [row.get(name) for name in ("url", "title", "text")] if isinstance(row, dict) else [None]
    if not all(isinstance(part, str) for part in parts) or not parts[0]:
        raise ConfigError(f'{where} is not {{"url": …, "title": …, "text": …}} with three strings')
    return Page(*parts)


def _pages_of_folder(folder: Path) -> Iterator[Page]:
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in (*PLAIN, *HTML)):
        if not path.is_file():
            continue
        relative = path.relative_to(folder)
        title, text = path.stem, path.read_text(errors="replace")
        if path.suffix.lower() in HTML:
            found, text = page_of_html(text)
            title = found or title
        elif heading := next((line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("#")), ""):
            title = heading
        yield Page(FOLDER_URL + quote(relative.as_posix()), title, text)


def _address(url: str) -> str:
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return url
    return f"{parts.netloc.lower()}{parts.path.rstrip('/')}{'?' if parts.query else ''}{parts.query}"
