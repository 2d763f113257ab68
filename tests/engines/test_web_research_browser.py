"""The bundled environment `web_research` with a real Chromium on its site, on the event loop of the product."""

import asyncio
from typing import Any

import pytest
import uvloop

from tests.environments.playing import NOTHING, Player, bundled, played


@pytest.mark.slow
def test_the_pages_are_read_in_a_browser() -> None:
    async def run() -> dict[str, Any]:
        player = Player()
        async with bundled("web_research", player, enabled_toolsets=["browser"]) as env:
            item = next(item for item in env.eval_items() if len(item["pages"]) == 2)
            assert env.site in env.format_prompt(item)
            elsewhere = [("browser_navigate", {"url": "http://127.0.0.1:1/"}), f"Answer: {item['answer']}"]
            steps = {"null": NOTHING, "oracle": env.oracle(item), "elsewhere": elsewhere}
            return {who: (await played(env, player, item, one)).score for who, one in steps.items()}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == {"null": 0.0, "oracle": 1.0, "elsewhere": 0.0}
