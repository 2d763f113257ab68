"""The built site: complete, its links lead somewhere, and it asks no other host for anything."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from scripts.docs_hook import first_sentence

pytestmark = pytest.mark.slow

# What a browser fetches by itself, and by which attribute.
FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "video": "src",
    "embed": "src",
}


class Page(HTMLParser):
    """The anchors of a page, where it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {value for name, value in given.items() if name in {"id", "name"}}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in {"canonical", "prev", "next", "edit"}:
            self.loads.append(given.get("href", ""))
        if tag in FETCHED and FETCHED[tag] in given:
            self.loads.append(given[FETCHED[tag]])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}


def test_no_page_loads_anything_from_another_host(pages: dict[Path, Page]) -> None:
    assert {load for page in pages.values() for load in page.loads if urlsplit(load).netloc} == set()


def test_no_style_of_the_site_loads_anything_from_another_host(site: Path) -> None:
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^'\")\s]+", styles) == []


def test_every_link_of_the_site_leads_to_a_page_and_a_heading_of_it(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        # The page for what is not found is served at any depth, and names its links from the root.
        for link in page.links if path.name != "404.html" else []:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if (
                not target.is_relative_to(site.resolve())
                or not target.exists()
                or (parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids)
            ):
                broken.append((str(path.relative_to(site)), link))
    assert broken == []


def test_llms_txt_has_a_line_for_every_page(site: Path) -> None:
    lines = re.findall(r"(?m)^- \[(.+?)\]\((.+?)\)", (site / "llms.txt").read_text())
    listed = [path for _, path in lines]
    assert len(listed) == len(set(listed))
    shown = {path.relative_to(site).parent.as_posix() for path in site.rglob("index.html")} - {"."}
    assert {path.removesuffix(".md").removesuffix("/index") for path in listed} - {"index"} == shown
    assert [path for path in listed if not (site / path).is_file()] == []


def test_every_page_is_in_the_navigation_or_in_an_index_that_is() -> None:
    docs = Path(__file__).parents[2] / "docs"
    # mkdocs.yml has no tags of its own, so the plain loader reads it.
    configured = yaml.safe_load((docs.parent / "mkdocs.yml").read_text())
    named = set(re.findall(r"[\w./-]+\.md", str(configured["nav"])))
    for index in (docs / "reports" / "index.md", docs / "decisions" / "index.md"):
        links = re.findall(r"\]\(([\w./-]+\.md)", index.read_text())
        named |= {(index.parent / link).resolve().relative_to(docs.resolve()).as_posix() for link in links}
    written = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert written - named == set()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# Title\n\nOne thing. Another.\n", "One thing."),
        ("# T\n\n```text\nA block.\n\nstill\n```\n\n`code` first, [a link](x.md).\n", "`code` first, a link."),
        ("| a |\n|---|\n\n- item\n", ""),
    ],
)
def test_a_pages_line_is_its_first_sentence(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


def test_the_path_through_the_docs_stays_short() -> None:
    configured = yaml.safe_load((Path(__file__).parents[2] / "mkdocs.yml").read_text())
    path = [section for section in configured["nav"] if set(section) <= {"Start", "Guides", "Concepts"}]
    assert len(path) == 3
    assert len(re.findall(r"[\w./-]+\.md", str(path))) <= 35


def test_lines_of_prose_are_at_most_120_characters() -> None:
    long = []
    for path in sorted((Path(__file__).parents[2] / "docs").rglob("*.md")):
        code = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code ^= line.lstrip().startswith("```")
            if not code and len(line) > 120 and not line.lstrip().startswith("|"):
                long.append(f"{path}:{number}")
    assert long == []
