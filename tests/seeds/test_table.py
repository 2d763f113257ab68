"""docs/seeds.md: every row has a verdict and a test that exists, and every field the default that the code has."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from hermes_rl import HermesAgentEnvConfig
from hermes_rl.rollout.config import BaseEnvConfig
from hermes_rl.training.config import TrainerSettings
from tests.seeds.parts import FIXTURES

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "seeds.md"
# The second seed's fields, as its author's own class has them.
SEED_FIELDS = re.findall(r"^    (\w+): .* = Field\(", (FIXTURES / "own_base_env.py").read_text(), re.MULTILINE)


@cache
def rows() -> list[tuple[str, list[str]]]:
    """The cells of each row, with the heading above it."""
    found, heading = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        elif line.startswith("| ") and not line.endswith("| test |"):
            found.append((heading, [cell.strip() for cell in line.strip("|").split(" | ")]))
    return found


@cache
def functions_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def fields() -> list[tuple[type[BaseModel], list[str]]]:
    models: dict[str, type[BaseModel]] = {
        "Fields of HermesAgentEnvConfig": HermesAgentEnvConfig,
        "The trainer": TrainerSettings,
    }
    return [(models[heading], cells) for heading, cells in rows() if heading in models and len(cells) == 5]


def test_every_row_says_what_became_of_it() -> None:
    wrong = [cells for _, cells in rows() if not re.match(r"(same|better|different)\b", cells[-2])]
    assert wrong == []


def test_every_named_test_exists() -> None:
    named = [re.fullmatch(r"`(\S+\.py)::(\w+)`", cells[-1]) for _, cells in rows()]
    assert all(named), [cells for (_, cells), match in zip(rows(), named, strict=True) if not match]
    missing = [
        f"{path}::{name}"
        for path, name in (match.groups() for match in named if match)
        if not (TESTS / path).exists() or name not in functions_in(TESTS / path)
    ]
    assert missing == []


@pytest.mark.parametrize(("model", "cells"), fields(), ids=[cells[0].strip("`") for _, cells in fields()])
def test_a_field_has_the_default_that_the_table_says(model: type[BaseModel], cells: list[str]) -> None:
    name, seed, here, verdict, _ = cells
    default = model.model_fields[name.strip("`")].default
    assert here == f"`{default!r}`"
    assert seed == here or verdict.startswith("different")


def test_every_field_of_the_second_seed_is_in_the_table() -> None:
    listed = {cells[0].strip("`") for model, cells in fields() if model is HermesAgentEnvConfig}
    own = HermesAgentEnvConfig.model_fields.keys() - BaseEnvConfig.model_fields.keys()
    assert len(SEED_FIELDS) == 15
    assert set(SEED_FIELDS) <= listed & own
