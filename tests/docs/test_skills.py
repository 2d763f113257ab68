"""The skills are in the form that agents read, and name what is there."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))


def front_matter(path: Path) -> dict[str, str]:
    match = re.match(r"---\n(.*?)\n---\n", path.read_text(), re.DOTALL)
    assert match
    found: dict[str, str] = yaml.safe_load(match[1])
    return found


def test_there_is_one_for_authoring_and_one_for_training() -> None:
    assert [path.parent.name for path in SKILLS] == ["author-environment", "run-training"]


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_its_front_matter_has_its_name_and_when_to_use_it(path: Path) -> None:
    matter = front_matter(path)
    assert set(matter) == {"name", "description"}
    assert matter["name"] == path.parent.name
    assert re.fullmatch(r"[a-z0-9-]{1,64}", matter["name"])
    assert "Use when" in matter["description"] and len(matter["description"]) <= 1024


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_the_pages_it_names_are_there(path: Path) -> None:
    named = re.findall(r"`((?:docs|environments|skills)/[\w./-]*)`", path.read_text())
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_running_training_asks_for_inference_before_anything_else() -> None:
    text = (ROOT / "skills" / "run-training" / "SKILL.md").read_text()
    assert re.findall(r"(?m)^## (.+)$", text)[0] == "Ask first"
    assert "assume no provider" in text.lower()
    for choice in ("OpenRouter", "vLLM", "OpenAI-compatible", "training run on this machine"):
        assert choice in text.split("## Steps")[0]
