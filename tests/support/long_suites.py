"""Which long suite of tests/suites.toml a test belongs to, and tests that run more often there than in the gate."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from scripts.suites.record import Suite, declared


@cache
def _suites() -> tuple[Suite, ...]:
    return tuple(declared().values())


def suites_of(path: str) -> list[str]:
    """The suites that have this test file."""
    return [
        suite.name
        for suite in _suites()
        if any(path == chosen or path.startswith(f"{chosen}/") for chosen in suite.tests)
    ]


def check_long_tests(items: list[pytest.Item], root: Any) -> None:
    """A long test that no suite has would never run, and one that two have would run twice."""
    for item in items:
        if item.get_closest_marker("long") and len(found := suites_of(str(item.path.relative_to(root)))) != 1:
            raise pytest.UsageError(
                f"{item.nodeid} is long but in {found or 'no'} suites of tests/suites.toml, not one"
            )


def in_the_gate(values: Sequence[object], first: int) -> list[Any]:
    """Parameters of a test: the first few run in the gate, the others in a long suite."""
    return [pytest.param(value, marks=[] if at < first else [pytest.mark.long]) for at, value in enumerate(values)]
