"""docs/faq.md knows every word that people meet when something fails."""

import ast
import re

import pytest

from hermes_rl.api.errors import KIND_BY_STATUS, STATUSES
from hermes_rl.core.errors import HermesRLError
from hermes_rl.rollout.filters import Withheld
from tests.docs.causes import ROOT, modules, produced

PAGE = (ROOT / "docs" / "faq.md").read_text()
# What a cause ends with where only a run tells it.
FILLED = {"endpoint/http_…": "endpoint/http_STATUS", "tool/http_…": "tool/http_STATUS"}
FILLED |= {"verifier/sandbox_…": "verifier/sandbox_CAUSE"}


@pytest.mark.parametrize("cause", sorted(produced()))
def test_every_cause_of_a_failure_is_on_the_page(cause: str) -> None:
    assert f"`{FILLED.get(cause, cause)}`" in PAGE


def test_the_page_has_no_cause_that_the_code_does_not_produce() -> None:
    told = set(re.findall(r"^\| (.+?) \|", PAGE, re.MULTILINE))
    parties = "endpoint|sandbox|tool|verifier|judge|environment|framework"
    causes = {word for cell in told for word in re.findall(rf"`((?:{parties})/\w+)`", cell)}
    known = produced() | set(FILLED.values())
    begun = tuple(cause.removesuffix("…") for cause in known if cause.endswith("…"))
    assert {cause for cause in causes if cause not in known and not cause.startswith(begun)} == set()


@pytest.mark.parametrize(
    "word", [*Withheld, "unscored_rollout", "withheld_rollout", "group_size", "no_single_sequence"]
)
def test_every_reason_to_withhold_a_group_is_on_the_page(word: str) -> None:
    assert f"`{word}`" in PAGE


def refusals() -> set[str]:
    """The kinds of the trajectory API's refusals."""
    said = {kind for _, _, kind in STATUSES} | set(KIND_BY_STATUS.values()) | {"failed", "refused"}
    for file, module in modules().items():
        if "api" not in file.parts or "client" in file.parts:
            continue
        for call in ast.walk(module):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            given = call.args[1:2] if call.func.id == "RefusedError" else []
            given += [one.value for one in call.keywords if one.arg == "kind" and call.func.id == "Problem"]
            said |= {str(one.value) for one in given if isinstance(one, ast.Constant)}
    return said


@pytest.mark.parametrize("kind", sorted(refusals()))
def test_every_refusal_of_the_trajectory_api_is_on_the_page(kind: str) -> None:
    assert f"`{kind}`" in PAGE


def exceptions() -> set[str]:
    """The names of every error of ours, found in the text: not all of their modules can be imported everywhere."""
    names, before = {HermesRLError.__name__}, 0
    classes = [one for module in modules().values() for one in module.body if isinstance(one, ast.ClassDef)]
    while len(names) != before:
        before = len(names)
        names |= {one.name for one in classes if any(isinstance(b, ast.Name) and b.id in names for b in one.bases)}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(exceptions()))
def test_every_exception_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


def said_in_the_code() -> str:
    """Every text of the package, with a mark where a value stands."""
    texts = []
    for module in modules().values():
        for node in ast.walk(module):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(str(one.value) if isinstance(one, ast.Constant) else "\0" for one in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_the_messages_that_the_page_quotes_are_those_of_the_code() -> None:
    code = said_in_the_code()
    section = PAGE.split("## Before anything begins")[1].split("\n## ")[0]
    quoted = re.findall(r"(?m)^\| \*(.+?)\*[ ,…|]", section)
    assert len(quoted) > 10
    pieces = [piece.strip() for message in quoted for piece in re.split(r"…|\b[A-Z]{4,}\b", message)]
    assert [piece for piece in pieces if len(piece) > 6 and piece not in code] == []
