"""What mkdocs does besides, while it builds the site: the reference pages, the pages' sources, and llms.txt.

Always true: llms.txt names every page once, those of the navigation in its order, with the page's first sentence; each
address in it is Markdown that stands in the site under the name it has below docs/.
"""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

REFERENCE = Path(__file__).parent / "reference" / "__init__.py"
SHORT = 200
INDEXED = ("reports", "decisions")
_sources: dict[str, str] = {}
_sections: list[tuple[str, list["Page"]]] = []


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    from mkdocs.structure.files import File

    for path, text in _reference().pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_nav(nav: "Navigation", **_: object) -> None:
    _sections[:] = [(item.title or "", list(_pages(item))) for item in nav.items]


def on_env(_env: object, files: "Files", **_: object) -> None:
    """The pages that only an index links follow the navigation, one section a folder."""
    shown = {page.file.src_uri for _, pages in _sections for page in pages}
    others: dict[str, list[Page]] = {}
    for file in files.documentation_pages():
        if file.page is not None and file.src_uri not in shown:
            folder = file.src_uri.rpartition("/")[0] or "More"
            others.setdefault(folder.capitalize(), []).append(file.page)
    _sections.extend((title, sorted(pages, key=lambda page: page.file.src_uri)) for title, pages in others.items())


def on_page_markdown(markdown: str, page: "Page", **_: object) -> str:
    path = page.file.src_uri
    _sources[path] = markdown
    folder = path.rpartition("/")[0]
    if path == "faq.md":
        page.meta["search"] = {"boost": 4}  # a search for a message is for its explanation
    if folder not in INDEXED or path.endswith("/index.md"):
        return markdown
    # The navigation does not show these pages, so each leads back to the index that does.
    page.meta["search"] = {"boost": 0.3}
    lines = markdown.split("\n")
    return "\n".join([lines[0], "", f"[All {folder}](index.md)", *lines[1:]])


def on_post_build(config: "MkDocsConfig") -> None:
    site = Path(config.site_dir)
    for path, text in _sources.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for title, pages in _sections:
        lines += [f"## {title}", "", *(_line(page) for page in pages), ""]
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def first_sentence(markdown: str) -> str:
    """Of the first plain paragraph, without its links and emphasis."""
    for block in re.split(r"\n\s*\n", re.sub(r"(?ms)^```.*?^```$", "", markdown)):
        if re.match(r"\s*([#|>!<=]|- |\d+\. |---)", block) or not block.strip():
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
        sentence = re.split(r"(?<=[.?!]) (?=[A-Z`\[])", text.replace("**", ""), maxsplit=1)[0]
        return sentence if len(sentence) <= SHORT else sentence[:SHORT].rsplit(" ", 1)[0] + " …"
    return ""


def _line(page: "Page") -> str:
    said = first_sentence(_sources.get(page.file.src_uri, ""))
    return f"- [{page.title}]({page.file.src_uri})" + (f": {said.rstrip(':')}" if said else "")


def _pages(item: Any) -> Iterator["Page"]:
    if item.is_page:
        yield item
    for inner in item.children or []:
        yield from _pages(inner)


def _reference() -> Any:
    """The package beside this file. Hooks are loaded by path, so nothing but its path is known of it."""
    name = "hermes_rl_reference"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, REFERENCE)
        if spec is None or spec.loader is None:
            raise ImportError(f"{REFERENCE} cannot be loaded")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
