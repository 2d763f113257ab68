"""Links of the repository's Markdown, without a network."""

import subprocess
from pathlib import Path

import pytest

from scripts.links import broken


def test_every_link_leads_somewhere() -> None:
    assert broken() == []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Page\n\n## A `word` here\n\n## Twice\n\n## Twice\n")
    return tmp_path


@pytest.mark.parametrize(
    "link",
    [
        "docs/page.md",
        "docs/page.md#a-word-here",
        "docs/page.md#twice_1",
        "docs",
        "#here",
        "https://example.org/a",
        "docs/reference/settings.md#the-trainer-tinker",
    ],
)
def test_a_link_that_leads_somewhere_is_left_alone(repository: Path, link: str) -> None:
    (repository / "README.md").write_text(f"# Here\n\n[text]({link})\n")
    assert broken(repository) == []


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("docs/none.md", "there is no such file"),
        ("docs/page.md#none", "it has no such heading"),
        ("../elsewhere.md", "leads out of the repository"),
        ("https://", "no address of the web"),
        ("ftp://example.org", "no address of the web"),
    ],
)
def test_a_link_that_leads_nowhere_is_told(repository: Path, link: str, why: str) -> None:
    (repository / "README.md").write_text(f"[text]({link}) and `tests/none.py`\n")
    assert broken(repository) == [f"README.md: {link}: {why}", "README.md: tests/none.py: there is no such file"]


def test_links_in_code_are_no_links(repository: Path) -> None:
    (repository / "README.md").write_text("```text\n[a](none.md)\n```\n\n`[a](none.md)`\n")
    assert broken(repository) == []
