"""Extracts the title and the main content of an HTML page as Markdown, without menus and footers."""

import html
import logging
import re

from hermes_rl.core.errors import ConfigError

TITLE = re.compile(r"<title\b[^>]*>(.*?)</title\s*>", re.IGNORECASE | re.DOTALL)
DECLARATION = re.compile(r"\A\s*<\?xml[^>]*\?>")
# The title is near the top; searching only there is fast on pages without one.
HEAD_CHARS = 100_000
NULL_HANDLER = logging.NullHandler()


def require_trafilatura() -> None:
    """ConfigError with the install command when the extra is missing."""
    try:
        import trafilatura  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"reading HTML pages needs the web extra ({error}): pip install 'hermes-rl[web]'") from None


def extract_page(source: str) -> tuple[str, str]:
    """Title and main text; all visible text when no main content is found."""
    require_trafilatura()
    import trafilatura

    # It warns about every page with little text; with this handler the warnings do not go to stderr by default.
    logging.getLogger("trafilatura").addHandler(NULL_HANDLER)
    match = TITLE.search(source[:HEAD_CHARS])
    title = " ".join(html.unescape(match[1]).split()) if match else ""
    # lxml rejects decoded text with an encoding declaration.
    source = DECLARATION.sub("", source, count=1)
    if "<html" not in source[:HEAD_CHARS].lower():
        # trafilatura rejects a page without this tag, although HTML allows it.
        source = f"<html><body>{source}</body></html>"
    text = trafilatura.extract(
        source, output_format="markdown", include_links=True, include_tables=True, include_comments=False, fast=True
    )
    return title, text or trafilatura.html2txt(source)
