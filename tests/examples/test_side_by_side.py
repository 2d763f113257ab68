"""The comparison of docs/kinds.md: lines of code are counted from the files, and ours are played."""

import ast
import io
import re
import tokenize
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import Step, run_script, run_seat_scripts

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "side_by_side"
PAGE = (ROOT / "docs" / "kinds.md").read_text()
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENDMARKER, tokenize.ENCODING),
}
PROJECTS = ("hermes_rl", "verifiers", "openenv", "gymnasium")
# A row of the table: the task, then the lines of each project.
ROWS: dict[str, list[int]] = {
    task: [int(lines) for lines in cells.split("|")]
    for task, cells in re.findall(r"^\|[^|]*`(\w+)_\*\.py` \|([\d |]+)\|$", PAGE, re.MULTILINE)
}


def code_lines(source: str) -> int:
    """Lines with code: no blank lines, comments or docstrings."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and first.end_lineno:
                documented |= set(range(first.lineno, first.end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for token in tokens if token.type not in LAYOUT for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - documented)


def test_the_lines_are_counted_as_the_page_says() -> None:
    assert (
        code_lines('"""Doc."""\n\nimport a  # why\n\n\ndef f(\n    x,\n):\n    """Doc."""\n    # No.\n    return x\n')
        == 5
    )


def test_the_page_has_the_lines_of_every_file() -> None:
    shown = {
        f"{task}_{project}.py": lines
        for task, row in ROWS.items()
        for project, lines in zip(PROJECTS, row, strict=True)
    }
    assert shown == {path.name: code_lines(path.read_text()) for path in FOLDER.glob("*.py")}


@pytest.mark.parametrize("task", ROWS)
def test_ours_is_the_shortest_or_within_two_lines_of_it(task: str) -> None:
    ours, *others = ROWS[task]
    assert ours <= min(others) + 2


def test_the_game_on_the_page_is_the_one_that_is_counted() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    source = (FOLDER / "wordle_hermes_rl.py").read_text()
    assert source.partition("\n\n")[2] in blocks


@asynccontextmanager
async def opened(name: str) -> AsyncIterator[Any]:
    environment: Any = load_environment(str(FOLDER / name))
    env = environment(environment.env_config_cls(), [NO_MODEL.model_copy(update={"health_check": False})])
    async with env.opened():
        yield env


async def scores(name: str, item: int, *scripts: list[Step]) -> list[float | None]:
    async with opened(name) as env:
        items = env.train_items()
        return [(await run_script(env, items[item], script)).rollout.score for script in scripts]


async def test_our_wordle_is_won_by_its_word_alone() -> None:
    word = load_environment(str(FOLDER / "wordle_hermes_rl.py")).game()  # type: ignore[attr-defined]
    word.reset(seed=3)
    assert await scores("wordle_hermes_rl.py", 3, ["aaaa", word.word], ["aaaa"] * 6) == [1.0, 0.0]


async def test_our_desk_is_scored_by_its_orders() -> None:
    solved: list[Step] = [("find_orders", {"customer": "Ada"}), ("cancel_order", {"order": "o1"}), "Done."]
    wrong: list[Step] = [("cancel_order", {"order": "o2"}), "Done."]
    assert await scores("desk_hermes_rl.py", 0, solved, wrong, ["Done."]) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("buyer", "seller", "shares"),
    [
        (["OFFER 40", "ACCEPT"], ["No. OFFER $50"], (0.6, 0.4)),
        # Nobody accepts an offer of their own, or one that was withdrawn.
        (["OFFER 31", "ACCEPT"], ["No."], (0.0, 0.0)),
        (["OFFER 31 ACCEPT"], [], (0.0, 0.0)),
        (["OFFER 40"] * 4, ["OFFER 60"] * 4, (0.0, 0.0)),
    ],
)
async def test_our_negotiation_is_scored_by_the_price(
    buyer: list[Step], seller: list[Step], shares: tuple[float, float]
) -> None:
    async with opened("negotiation_hermes_rl.py") as env:
        made = await run_seat_scripts(env, env.train_items()[0], {"buyer": buyer, "seller": seller})
    scored = {seat: finished.rollout.score for seat, finished in made.items()}
    # A seat without a turn has no rollout.
    assert scored == {seat: share for seat, share in zip(env.seats, shares, strict=True) if seat in scored}
    assert scored
