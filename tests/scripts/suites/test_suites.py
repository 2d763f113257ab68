"""The declared suites of this checkout hold together."""

from pathlib import Path

from scripts.suites import record as records
from scripts.suites.closure import Checkout
from scripts.suites.gate import gate_jobs
from tests.support.long_suites import suites_of

ROOT = Path(__file__).parents[3]


def test_every_test_file_is_in_exactly_one_part_of_the_gate() -> None:
    files = [path for path in Checkout(ROOT).files if path.startswith("tests/") and Path(path).name.startswith("test_")]
    chosen = dict.fromkeys(files, 0)
    for job in gate_jobs():
        ignored = [word.removeprefix("--ignore=") for word in job.pytest if word.startswith("--ignore=")]
        for path in files:
            below = [word for word in job.pytest if _below(path, word)]
            chosen[path] += bool(below) and not any(_below(path, word) for word in ignored)
    assert len(files) > 300
    assert {path: count for path, count in chosen.items() if count != 1} == {}


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def test_every_declared_input_exists() -> None:
    checkout = Checkout(ROOT)
    assert all(records.inputs(checkout, suite) for suite in records.declared().values())


def test_a_long_test_is_found_in_its_suite_and_nowhere_else() -> None:
    assert suites_of("tests/engines/test_sandbox_conformance.py") == ["conformance"]
    assert suites_of("tests/agent/test_loop.py") == []
