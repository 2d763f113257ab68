"""Every text of tests/parsers/cases.py is parsed into the calls it was built from."""

import json
from collections import Counter
from pathlib import Path

import pytest

from hermes_rl.extensions import PARSERS
from hermes_rl.parsers import get_parser
from tests.parsers.cases import CASES, FORMATS, TOOLS, Case, cases
from tests.parsers.differences import DIFFERENCES, table

DOCS = Path(__file__).parents[2] / "docs" / "parsers.md"
KINDS = sorted({(case.format, case.kind) for case in CASES})


def read(case: Case) -> tuple[list[list[object]], int]:
    parsed = get_parser(case.parser).parse(case.text, TOOLS)
    return [[call.name, json.loads(call.arguments)] for call in parsed.calls], len(parsed.broken)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_text_is_parsed_into_the_calls_it_was_built_from(name: str, kind: str) -> None:
    for case in CASES:
        if (case.format, case.kind) == (name, kind):
            calls, broken = read(case)
            assert json.dumps(calls, sort_keys=True) == json.dumps(case.calls, sort_keys=True), case.text
            assert broken == case.broken, case.text


def test_every_parser_has_at_least_150_texts() -> None:
    counted = Counter(case.parser for case in CASES)
    assert set(counted) == set(PARSERS.builtin)
    assert min(counted.values()) >= 150


def test_the_texts_are_deterministic() -> None:
    assert tuple(cases()) == CASES


def test_a_broken_call_has_a_text_and_a_reason() -> None:
    for case in CASES:
        for broken in get_parser(case.parser).parse(case.text, TOOLS).broken:
            assert broken.reason
            assert broken.text in case.text


def test_text_before_calls_is_the_content() -> None:
    for case in CASES:
        if case.kind == "words_before":
            words = case.text.split("\n\n", maxsplit=1)[0]
            assert get_parser(case.parser).parse(case.text, TOOLS).content == words


@pytest.mark.parametrize("name", [known.name for known in FORMATS])
def test_a_text_without_a_call_is_unchanged(name: str) -> None:
    for case in CASES:
        if case.format == name and case.kind == "no_call":
            assert get_parser(case.parser).parse(case.text, TOOLS).content == case.text


def test_the_listed_differences_name_existing_kinds_and_formats() -> None:
    assert {(name, entry.kind) for entry in DIFFERENCES for name in entry.counts} <= set(KINDS)


def test_the_documented_differences_are_the_listed_ones() -> None:
    assert "\n".join(table()) in DOCS.read_text()
