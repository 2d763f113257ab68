"""Make environments/data/swe.jsonl out of scripts/swe_repositories, one repository with a planted bug in each file.

Nothing is written before every repository is shown to be what it claims: its own tests pass with the bug and without,
the session in the report goes as shown, the reported example and at least two more hidden cases fail with the bug, at
least two pass, and all pass after the fix.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from environments.swe_env import DATA, JUDGE

SPECS = Path(__file__).with_name("swe_repositories")
HELD_OUT_EVERY = 5
REPORT = """
import doctest, os, sys

imports, report = sys.argv[1:]
names = {}
sys.path.insert(0, os.getcwd())
exec(imports, names)
session = doctest.DocTestParser().get_doctest(report, names, "report", None, 0)
sys.exit(doctest.DocTestRunner().run(session).failed)
"""
FEWEST_CASES, FEWEST_BROKEN, FEWEST_WHOLE = 7, 3, 2


def items() -> list[dict[str, Any]]:
    """The rows of the data file; every fifth repository is held out."""
    return [
        _item(path, "eval" if number % HELD_OUT_EVERY == 0 else "train")
        for number, path in enumerate(sorted(SPECS.glob("*.toml")), 1)
    ]


def repaired(item: Mapping[str, Any]) -> dict[str, str]:
    """The files after the fix."""
    files = dict(item["files"])
    for fix in item["fix"]:
        if files[fix["path"]].count(fix["old"]) != 1:
            raise ValueError(f"{item['id']}: the text to fix must be in {fix['path']} once: {fix['old']!r}")
        files[fix["path"]] = files[fix["path"]].replace(fix["old"], fix["new"])
    return files


def answers(item: Mapping[str, Any], files: Mapping[str, str]) -> list[str]:
    """What the hidden cases say to a repository with these files."""
    with tempfile.TemporaryDirectory() as folder:
        job = {"imports": item["imports"], "cases": [case for case, _ in item["cases"]]}
        repository = {f"artifacts/repo/{path}": text for path, text in files.items()}
        _write(Path(folder), {"judge.py": JUDGE, "job.json": json.dumps(job), **repository})
        said = subprocess.run([sys.executable, "-I", "judge.py"], cwd=folder, check=True, capture_output=True)
    return [json.loads(line) for line in said.stdout.splitlines()[1:]]


def own_tests_pass(files: Mapping[str, str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), files)
        command = [sys.executable, "-m", "unittest", "discover", "tests"]
        return subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode == 0


def report_holds(item: Mapping[str, Any]) -> bool:
    """Whether the package with the bug says what the session in the report shows."""
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), item["files"])
        command = [sys.executable, "-I", "-c", REPORT, item["imports"], item["issue"]]
        return subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode == 0


def faults(item: Mapping[str, Any]) -> list[str]:
    """What is wrong with an item; nothing is when it fails before the fix and passes after it."""
    files, fixed = item["files"], repaired(item)
    expected = [value for _, value in item["cases"]]
    before, after = answers(item, files), answers(item, fixed)
    broken = [said != value for said, value in zip(before, expected, strict=True)]
    tests = "\n".join(text for path, text in files.items() if path.startswith("tests/"))
    found = [
        f"{case} gives {said} after the fix, not {value}"
        for (case, value), said in zip(item["cases"], after, strict=True)
        if said != value
    ]
    found += [f"{case} stands in the visible tests" for case, _ in item["cases"] if case in tests]
    found += [] if broken[0] else [f"the reported example passes before the fix: {item['cases'][0][0]}"]
    found += [] if len(expected) >= FEWEST_CASES else [f"only {len(expected)} hidden cases"]
    found += [] if sum(broken) >= FEWEST_BROKEN else [f"only {sum(broken)} cases fail before the fix"]
    found += [] if broken.count(False) >= FEWEST_WHOLE else ["too few cases pass before the fix"]
    found += [] if report_holds(item) else ["the session in the report goes otherwise"]
    found += [] if own_tests_pass(files) else ["the visible tests fail before the fix"]
    found += [] if own_tests_pass(fixed) else ["the visible tests fail after the fix"]
    return [f"{item['id']}: {fault}" for fault in found]


def text_of(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def main() -> None:
    rows = items()
    with ThreadPoolExecutor() as pool:
        found = [fault for several in pool.map(faults, rows) for fault in several]
    if found:
        sys.exit("\n".join(found))
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(text_of(rows))
    print(f"{len(rows)} repositories, {sum(len(row['cases']) for row in rows)} hidden cases: {DATA}")


def _item(path: Path, split: str) -> dict[str, Any]:
    spec = tomllib.loads(path.read_text())
    cases = [spec["example"], *spec["cases"].strip().splitlines()]
    return {
        "id": path.stem,
        "split": split,
        "kind": spec["kind"],
        "issue": spec["issue"],
        "imports": spec["imports"],
        "cases": [[part.strip() for part in case.split(" => ")] for case in cases],
        "fix": spec["fix"],
        "files": spec["files"],
    }


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
