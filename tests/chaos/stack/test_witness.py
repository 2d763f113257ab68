"""The witness of the spool, beside the real spool."""

import time
from pathlib import Path

from hermes_rl.api.client.spool import Spool
from tests.chaos.stack.witness import Witness


async def test_a_group_that_was_taken_away_at_once_was_seen(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        with Witness(tmp_path) as witness:
            for draw in (4, 2, 9):
                await spool.put(draw, b"group")
                await spool.remove(await spool.oldest())
    assert witness.draws == [4, 2, 9]


def test_what_is_no_finished_group_is_not_counted(tmp_path: Path) -> None:
    with Witness(tmp_path) as witness:
        (tmp_path / "000000000001-3.part").touch()
        time.sleep(0.05)
    assert witness.draws == []
