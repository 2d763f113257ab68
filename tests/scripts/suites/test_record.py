"""A long suite counts as passed only while its inputs are those it passed with."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.suites import record as records
from scripts.suites.closure import Checkout
from scripts.suites.record import Coverage, Gate, Pass, Record, Suite

SUITE = Suite("one", "about one", tests=("tests/test_a.py",), pins=("pins.txt",))
PASSED = Pass("hash", "2026-11-17T00:00Z", minutes=4.0, cpu_minutes=6.0, tests=3)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "tests/test_a.py": "import hermes_rl.a\n",
        "src/hermes_rl/a.py": "",
        "src/hermes_rl/b.py": "",
        "pins.txt": "x==1",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def of(root: Path, suite: Suite = SUITE) -> str:
    return records.digest(Checkout(root), suite)


@pytest.mark.parametrize("path", ["tests/test_a.py", "src/hermes_rl/a.py", "pins.txt"])
def test_a_change_to_an_input_changes_the_hash(root: Path, path: str) -> None:
    before = of(root)
    (root / path).write_text((root / path).read_text() + "\nmore = 1\n")
    assert of(root) != before


@pytest.mark.parametrize("after", ['# why\nx = f("#")\n', '"""What."""\n\nx = f("#")  # ü\n'])
def test_a_comment_or_docstring_that_no_program_reads_changes_nothing(root: Path, after: str) -> None:
    module = root / "src/hermes_rl/a.py"
    module.write_text('x = f("#")\n')
    before = of(root)
    module.write_text(after)
    assert of(root) == before


@pytest.mark.parametrize(
    "code",
    [
        'class A:\n    """{}"""\n',
        '@tool\ndef f():\n    """{}"""\n',
        '"""{}"""\nprint(__doc__)\n',
        'x = """{}"""\n',
    ],
)
def test_a_docstring_that_a_program_may_read_counts(root: Path, code: str) -> None:
    module = root / "src/hermes_rl/a.py"
    module.write_text(code.format("one"))
    before = of(root)
    module.write_text(code.format("two"))
    assert of(root) != before


def test_a_change_elsewhere_does_not(root: Path) -> None:
    before = of(root)
    (root / "src/hermes_rl/b.py").write_text("x = 1\n")
    assert of(root) == before


def test_another_selection_of_tests_changes_the_hash(root: Path) -> None:
    assert of(root) != of(root, replace(SUITE, tests=("tests/test_a.py", "src/hermes_rl/a.py")))


def test_a_suite_whose_inputs_changed_is_run() -> None:
    plan = records.plan(Record(long={"one": PASSED}), {"one": "other"}, caches_empty=False)
    assert plan.to_run == ("one",) and plan.changed == ("one",)


def test_a_suite_that_never_passed_is_run() -> None:
    assert records.plan(Record(), {"one": "hash"}, caches_empty=False).changed == ("one",)


def test_a_hand_edited_record_makes_the_suite_run(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.save(Record(long={"one": replace(PASSED, inputs=of(root))}), path)
    assert records.plan(records.load(path), {"one": of(root)}, caches_empty=False).changed == ()
    data = json.loads(path.read_text())
    data["long"]["one"]["inputs"] = data["long"]["one"]["inputs"][:-1] + "x"
    path.write_text(json.dumps(data))
    assert records.plan(records.load(path), {"one": of(root)}, caches_empty=False).changed == ("one",)


def test_the_unchanged_suite_that_ci_ran_longest_ago_is_run_again() -> None:
    long = {name: replace(PASSED, ci=f"2026-11-{day}") for name, day in {"one": 12, "two": 10, "three": 11}.items()}
    plan = records.plan(Record(long=long), dict.fromkeys(long, "hash"), caches_empty=False)
    assert plan.rechecked == "two" and plan.to_run == ("two",)


def test_suites_that_ci_never_ran_take_turns_by_commit() -> None:
    long = dict.fromkeys(("one", "two", "three"), PASSED)
    digests = dict.fromkeys(long, "hash")
    chosen = {records.plan(Record(long=long), digests, caches_empty=False, salt=str(n)).rechecked for n in range(20)}
    assert chosen == set(long)


def test_a_plan_of_more_than_80_minutes_does_not_fit() -> None:
    record = Record(Gate(warm_minutes=35, empty_minutes=50), {"one": replace(PASSED, cpu_minutes=64.0)})
    assert records.plan(record, {"one": "other"}, caches_empty=False).fits
    assert not records.plan(record, {"one": "other"}, caches_empty=True).fits


def test_what_ci_has_seen_gives_dates_but_no_pass() -> None:
    seen = Record(Gate(30.0, 0.0), {"one": replace(PASSED, inputs="newer", passed="2026-11-18", ci="2026-11-18")})
    record = records.with_ci(Record(Gate(0.0, 48.0), {"one": PASSED}), seen)
    assert record.long["one"] == replace(PASSED, ci="2026-11-18") and record.gate == Gate(30.0, 48.0)


def test_a_warm_run_that_was_never_timed_is_taken_for_one_with_empty_caches() -> None:
    assert records.plan(Record(Gate(0.0, 48.0)), {}, caches_empty=False).minutes == 48


def test_a_pass_with_todays_inputs_that_ci_has_seen_is_adopted() -> None:
    newer = replace(PASSED, inputs="newer", passed="2026-11-18", ci="2026-11-18")
    ours, seen = Record(long={"one": PASSED}), Record(long={"one": newer})
    assert records.adopted(ours, seen, {"one": "newer"}).long["one"] == newer


def test_a_valid_pass_is_not_replaced_by_one_with_other_inputs() -> None:
    newer = replace(PASSED, inputs="newer", passed="2026-11-18", ci="2026-11-18")
    ours, seen = Record(long={"one": PASSED}), Record(long={"one": newer})
    assert records.adopted(ours, seen, {"one": PASSED.inputs}).long["one"] == replace(PASSED, ci="2026-11-18")


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = Record(Gate(30.0, 48.0), {"one": PASSED}, Coverage("2026-11-18T10:00Z", 96.4))
    records.save(record, tmp_path / "record.json")
    assert records.load(tmp_path / "record.json") == record


def test_lines_are_counted_again_after_a_month_unless_ci_counted_since() -> None:
    assert Coverage().is_due("2026-11-18T10:00Z")
    old, new = Coverage("2026-11-18T10:00Z", 96.4), Coverage("2026-11-20T10:00Z", 96.0)
    assert not old.is_due("2026-12-18T09:59Z")
    assert old.is_due("2026-12-18T10:01Z")
    assert records.with_ci(Record(coverage=old), Record(coverage=new)).coverage == new
    assert records.with_ci(Record(coverage=new), Record(coverage=old)).coverage == new
