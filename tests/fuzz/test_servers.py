"""Each HTTP surface as a real process, for a moment, and every request that ever made one fail."""

import pytest

from tests.fuzz.servers import HTTP
from tests.fuzz.surface import DefectError, Findings, Surface, fuzz

EXAMPLES = 30

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("surface", HTTP.values(), ids=HTTP)
def test_no_request_makes_a_server_fail(surface: Surface) -> None:
    found = Findings()
    with surface.open() as run:
        for name, data in surface.cases.items():
            try:
                run(data)
            except DefectError as defect:
                pytest.fail(f"{name}: {defect}")
        fuzz(surface, run, found, 1, lambda: True, EXAMPLES)
    assert found.executions >= EXAMPLES // 2
    assert not found.defects
