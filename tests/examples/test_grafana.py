"""The example board asks for figures that the servers really give."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hermes_rl.store.database.store import open_store
from tests.store.database.making import make_group
from tests.support.inference import USER, inference, saying
from tests.support.trajectory_api import Caller, served

BOARD = Path(__file__).parents[2] / "examples" / "grafana" / "hermes-rl.json"
METRIC = re.compile(r"\bhermes_rl_\w+")


def board() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(BOARD.read_text())
    return read


def expressions() -> list[str]:
    return [target["expr"] for panel in board()["panels"] for target in panel.get("targets", ())]


@pytest.fixture
async def api_figures(tmp_path: Path) -> AsyncIterator[str]:
    async with (
        open_store(str(tmp_path / "trajectories.db")) as store,
        served(store) as url,
        aiohttp.ClientSession(url) as session,
    ):
        api = Caller(session)
        await api.train(4, max_staleness=2)
        await api.post(await api.register("words"), make_group(4))
        yield (await api("GET", "/metrics"))[1].decode()


async def inference_figures() -> str:
    async with inference(saying("Yes.")) as server:
        await server.right("/v1/chat/completions", {"messages": [USER]})
        return str((await server("/metrics"))[1].decode())


def names(figures: str) -> set[str]:
    """Those of all series, and of all that are announced and have none yet."""
    lines = figures.splitlines()
    announced = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    return announced | {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}


async def test_every_figure_of_the_board_is_among_those_that_the_servers_give(api_figures: str) -> None:
    given = names(api_figures) | names(await inference_figures())
    asked = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert asked and asked <= given, asked - given


def test_panels_of_the_board_have_numbers_of_their_own_and_do_not_lie_on_each_other() -> None:
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken) and max(x for x, _ in taken) < 24


def test_brackets_of_every_expression_are_closed() -> None:
    for expression in expressions():
        for opening, closing in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closing), expression
