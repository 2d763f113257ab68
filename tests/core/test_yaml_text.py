"""YAML that PyYAML reads, and YAML on which it raises something other than its own error."""

import pytest
import yaml

from hermes_rl.core.yaml_text import BadYamlError, loads

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(8)
)


@pytest.mark.parametrize(
    "text", ["", "a: 1", "- x\n- &b {c: 2026-01-02}\n- *b", "base: &b {x: 1}\nown: {<<: *b, y: 2}"]
)
def test_a_document_is_what_pyyaml_reads(text: str) -> None:
    assert loads(text) == loads(text.encode()) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: \xff", "not UTF-8: invalid start byte at byte 3"),
        ("a: 2026-13-45", "month must be in 1..12"),
        ("9" * 5_000, "4300 digits"),
        ("[" * 3_000, "nested too deeply"),
        ("!!bool x", "x"),
        ("!!timestamp x", "groupdict"),
        ("!!int ''", "out of range"),
        ("a: [", "expected"),
        ("a: 1\n---\nb: 2", "single document"),
        ("&a [*a]", "aliases expanded"),
        (LAUGHS, "more than 1,000,000 elements with its aliases expanded"),
    ],
)
def test_anything_else_is_refused_as_bad_yaml(text: bytes | str, message: str) -> None:
    with pytest.raises(BadYamlError, match=message):
        loads(text)
