"""The trainer of docs/trainers.md, as it stands there."""

import ast
import asyncio
import sys
from pathlib import Path

from hermes_rl.store.database.views import OutcomeTally
from tests.api.client.running_api import RunningApi
from tests.store.database.making import make_group

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "trainer_in_20_lines.py"


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "trainers.md").read_text()
    assert f"```python\n{EXAMPLE.read_text()}```\n" in page


def test_the_example_has_about_twenty_lines() -> None:
    main = next(node for node in ast.parse(EXAMPLE.read_text()).body if isinstance(node, ast.AsyncFunctionDef))
    assert main.end_lineno is not None
    assert main.end_lineno - main.lineno < 20


async def test_the_example_trains_on_every_batch_once(api: RunningApi) -> None:
    environment = await api.store.register_environment("e")
    for _ in range(2 * 8):
        await api.store.add(environment.id, make_group(4))
    process = await asyncio.create_subprocess_exec(sys.executable, EXAMPLE, api.url, "2")
    async with asyncio.timeout(60):
        assert await process.wait() == 0
    assert await api.store.version() == 2
    assert await api.store.tallies() == [OutcomeTally(environment.id, "trained", "", 16, 64)]
