"""Our parsers beside vLLM's own over the same texts: the same calls, or a difference that is listed with its reason."""

import json
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.parsers.cases import CASES, FORMATS, TOOLS, Case
from tests.parsers.differences import DIFFERENCES

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def vllm_calls() -> list[list[list[Any]]]:
    """What vLLM reads in each of the cases, in their order."""
    home = subprocess.check_output([ROOT / "scripts" / "engine_environment", "vllm"], text=True, timeout=2200).strip()
    texts: dict[str, list[str]] = defaultdict(list)
    for case in CASES:
        texts[case.format].append(case.text)
    done = subprocess.run(
        [f"{home}/bin/python", str(Path(__file__).with_name("vllm_parsers.py"))],
        input=json.dumps({"tools": TOOLS, "texts": texts}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {name: iter(results) for name, results in json.loads(done.stdout).items()}
    return [next(found[case.format]) for case in CASES]


def reading(calls: Any) -> str:
    """Calls as text, so that 1, 1.0 and true differ."""
    return json.dumps(calls, sort_keys=True)


def parsed(calls: list[list[Any]]) -> list[list[Any]]:
    return [[name, value_of(arguments)] for name, arguments in calls]


def value_of(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return {"not JSON": arguments}


def differs(case: Case, calls: list[list[Any]]) -> bool:
    return reading(parsed(calls)) != reading(case.calls)


@pytest.mark.parametrize("name", [known.name for known in FORMATS])
def test_vllm_reads_the_same_calls_but_for_the_listed_differences(name: str, vllm_calls: list[list[list[Any]]]) -> None:
    differing = [
        (case, calls)
        for case, calls in zip(CASES, vllm_calls, strict=True)
        if case.format == name and differs(case, calls)
    ]
    counted = Counter(case.kind for case, _ in differing)
    listed = {entry.kind: entry.counts[name] for entry in DIFFERENCES if name in entry.counts}
    unlisted = [
        f"{case.kind}: {case.text!r}\n  vLLM {parsed(calls)}\n  ours {case.calls}"
        for case, calls in differing
        if case.kind not in listed
    ]
    assert not unlisted, "\n".join(unlisted)
    assert dict(counted) == listed
