"""Each reader of outside bytes, for a moment, and every input that ever made one fail. Under 1 s of CPU for most."""

import pytest

from tests.fuzz.readers import READERS
from tests.fuzz.surface import DefectError, Findings, Surface, fuzz

EXAMPLES = 60

each_reader = pytest.mark.parametrize("surface", READERS.values(), ids=READERS)


@each_reader
def test_any_bytes_are_read_or_refused(surface: Surface) -> None:
    found = Findings()
    with surface.open() as run:
        fuzz(surface, run, found, 1, lambda: True, EXAMPLES)
    assert found.executions >= EXAMPLES // 2
    assert not found.defects


@each_reader
def test_inputs_that_failed_once_are_read_or_refused(surface: Surface) -> None:
    with surface.open() as run:
        for name, data in surface.cases.items():
            try:
                run(data)
            except DefectError as defect:
                pytest.fail(f"{name}: {defect}")
