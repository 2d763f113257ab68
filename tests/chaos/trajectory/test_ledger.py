from pathlib import Path

from tests.chaos.trajectory.ledger import Ledger, read


def test_half_a_line_that_a_kill_left_is_no_line(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger").write(finished=1)
    with (tmp_path / "ledger").open("ab") as file:
        file.write(b'{"finished": 2')
    assert read(tmp_path / "ledger") == [{"finished": 1}]


def test_the_next_life_writes_nothing_onto_half_a_line(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_bytes(b'{"finished": 1}\n{"fini')
    Ledger(tmp_path / "ledger").write(finished=2)
    assert read(tmp_path / "ledger") == [{"finished": 1}, {"finished": 2}]
