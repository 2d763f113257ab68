"""The text of an HTML page: its title, and its content as Markdown without menus and footers."""

import html
import logging
import re

from hermes_rl.errors import ConfigError

TITLE = re.compile(r"<title\b[^>]*>(.*?)</title\s*>", re.IGNORECASE | re.DOTALL)
DECLARATION = re.compile(r"\A\s*<\?xml[^>]*\?>")
# A title stands near the top; looking no further keeps the search short on pages that have none.
HEAD = 100_000
UNHEARD = logging.NullHandler()


def need_trafilatura() -> None:
    """ConfigError with the line to run when the extra is not installed."""
    try:
        import trafilatura  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"reading HTML pages needs the web extra ({error}): pip install 'hermes-rl[web]'") from None


def page_of_html(source: str) -> tuple[str, str]:
    """Title and text; everything that is shown when no main content can be told from the rest."""
    need_trafilatura()
    import trafilatura

    # It warns of every page it finds little on; whoever has set up logging still reads that, a terminal does not.
    logging.getLogger("trafilatura").addHandler(UNHEARD)
    found = TITLE.search(source[:HEAD])
    title = " ".join(html.unescape(found[1]).split()) if found else ""
    # It names an encoding, which decoded text no longer has; lxml refuses such a text.
    source = DECLARATION.sub("", source, count=1)
    if "<html" not in source[:HEAD].lower():
        # trafilatura takes what lacks this tag, which HTML allows, for no page at all.
        source = f"<html><body>{source}</body></html>"
    text = trafilatura.extract(
        source, output_format="markdown", include_links=True, include_tables=True, include_comments=False, fast=True
    )
    return title, text or trafilatura.html2txt(source)
