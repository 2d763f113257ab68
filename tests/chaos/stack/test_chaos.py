"""A chaos of several parts, cut off and gone on with; the parts themselves are stand-ins."""

import json
import sys
from pathlib import Path

import pytest

from tests.chaos.stack.chaos import carried_out
from tests.chaos.stack.report import PROMISES

RESULT = {
    "seed": 5,
    "minutes": 1.0,
    "seconds": 60,
    "planned": 0,
    "counts": {},
    "breaches": {name: [] for name in PROMISES},
    "faults": [],
}
NOWHERE = Path("nowhere")


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that writes its result at once, and a line that it began; the third is cut off where a file says so."""
    program = f"""
import json, sys
from pathlib import Path
folder, number = Path(sys.argv[3]), int(sys.argv[6])
with (folder.parent / "begun").open("a") as file:
    file.write(sys.argv[6])
if number == 2 and (folder.parent / "cut").exists():
    sys.exit(9)
(folder / "result.json").write_text(json.dumps({RESULT!r} | {{"part": number}}))
"""
    monkeypatch.setattr("tests.chaos.stack.chaos.inside", lambda *words: [sys.executable, "-c", program, *words])


def test_a_chaos_that_was_cut_off_goes_on_with_the_part_that_was_under_way(tmp_path: Path) -> None:
    (tmp_path / "cut").touch()
    with pytest.raises(Exception, match="status 9"):
        carried_out(tmp_path, 5, [1.0] * 4, NOWHERE, NOWHERE)
    (tmp_path / "cut").unlink()
    told = carried_out(tmp_path, 5, [1.0] * 4, NOWHERE, NOWHERE)
    assert (tmp_path / "begun").read_text() == "012" + "23"
    assert (told["parts"], told["cut_off"]) == (4, 1)


def test_a_chaos_that_is_over_is_only_told_again(tmp_path: Path) -> None:
    first = carried_out(tmp_path, 5, [1.0], NOWHERE, NOWHERE)
    assert carried_out(tmp_path, 5, [1.0], NOWHERE, NOWHERE) == first
    assert (tmp_path / "begun").read_text() == "0"


def test_the_report_of_the_parts_so_far_is_on_disk(tmp_path: Path) -> None:
    (tmp_path / "cut").touch()
    with pytest.raises(Exception, match="status 9"):
        carried_out(tmp_path, 5, [1.0] * 4, NOWHERE, NOWHERE)
    assert json.loads((tmp_path / "report.json").read_text())["parts"] == 2
    assert "seed 5" in (tmp_path / "report.md").read_text()
