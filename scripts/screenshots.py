"""Pictures of the viewer's pages in light and dark, from real records: docs/images/viewer-PAGE-THEME.png.

    python scripts/screenshots.py RUN FILE EVALUATION EVALUATION      # what `hermes-rl view` takes
    python scripts/screenshots.py --output /tmp/pictures --pages run,group

Each page is shown with the first source that has something for it; pages without one are skipped with a message. The
pictures of docs/viewer.md show the records of scripts/viewer_examples.py. Needs playwright and Chromium
(hermes-rl[browser]).
"""

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.async_api import Browser, Page, async_playwright, expect

from hermes_rl.cli.run_access import viewed_runs
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.http.server import allowed_hosts, listen, serve_in_background
from hermes_rl.tools.browser.chromium import find_executable
from hermes_rl.viewer.app import create_app
from hermes_rl.viewer.service import ViewerService

LARGEST = 150_000
WIDTH, HEIGHT, TALLEST = 1280, 800, 1000
PHONE = 390
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PAGES = (
    "sources", "phone", "run", "logs", "overlay", "evaluation", "compare", "groups", "group", "rollouts", "rollout",
    "timeline", "tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Picture:
    name: str
    path: str
    width: int = WIDTH


async def main(targets: list[str], output: Path, wanted: set[str]) -> int:
    """The number of pictures that are too large; ConfigError when a target holds nothing to show."""
    token = secrets.token_urlsafe(24)
    service = await asyncio.to_thread(ViewerService, targets, viewed_runs())
    too_large = 0
    try:
        await asyncio.to_thread(service.find)
        with listen("127.0.0.1", 0) as listening:
            port = listening.getsockname()[1]
            app = create_app(service, token=token, hosts=allowed_hosts("127.0.0.1", None), port=port)
            async with serve_in_background(app, listening) as url, async_playwright() as playwright:
                browser = await playwright.chromium.launch(
                    executable_path=find_executable(None), chromium_sandbox=os.geteuid() != 0
                )
                for theme in THEMES:
                    too_large += await _taken(browser, f"{url}/?token={token}", theme, output, wanted)
                await browser.close()
    finally:
        await asyncio.to_thread(service.close)
    return too_large


async def _taken(
    browser: Browser, address: str, theme: Literal["light", "dark"], output: Path, wanted: set[str]
) -> int:
    context = await browser.new_context(color_scheme=theme, viewport={"width": WIDTH, "height": HEIGHT})
    page = await context.new_page()
    page.set_default_timeout(120_000)
    await page.goto(address)
    too_large = 0
    pictures = [one async for one in _pictures(page)]
    if missing := (wanted or set(PAGES)) - {picture.name for picture in pictures}:
        print(f"skipped, no source has anything to show: {', '.join(sorted(missing))}", file=sys.stderr)
    for picture in pictures:
        if wanted and picture.name not in wanted:
            continue
        await page.set_viewport_size({"width": picture.width, "height": HEIGHT})
        await page.goto(address.partition("/?")[0] + picture.path)
        await page.locator("main h1").first.wait_for()
        await expect(page.locator(".loading, [aria-busy=true], .indexing")).to_have_count(0, timeout=60_000)
        path = output / f"viewer-{picture.name}-{theme}.png"
        height = int(await page.evaluate("document.documentElement.scrollHeight"))
        await page.set_viewport_size({"width": picture.width, "height": max(HEIGHT, min(height, TALLEST))})
        await page.screenshot(path=path)
        size = path.stat().st_size
        too_large += size > LARGEST
        print(f"{path} {size:,} bytes{' TOO LARGE' if size > LARGEST else ''}")
    await context.close()
    return too_large


async def _pictures(page: Page) -> AsyncIterator[Picture]:
    """What to show of which source: the most telling group and rollout of the first that has any."""

    async def ask(path: str) -> Any:
        answer = await page.evaluate("(path) => fetch(path).then((answer) => answer.json())", path)
        if "error" in answer:
            raise ConfigError(f"{path}: {answer['error']['message']}; {answer['error']['next_step']}")
        return answer

    sources = (await ask("/api/home"))["sources"]
    for source in sources:
        while (await ask(f"/api/s/{source['id']}"))["indexing"] is not None:  # noqa: ASYNC110 (another process indexes)
            await asyncio.sleep(0.2)
    yield Picture("sources", "/")
    yield Picture("phone", "/", PHONE)
    runs = [source["id"] for source in sources if source["kind"] == "run"]
    for name in runs[:1]:
        yield Picture("run", f"/s/{name}")
        yield Picture("logs", f"/s/{name}/logs")
    if len(runs) > 1:
        yield Picture("overlay", f"/overlay?runs={','.join(runs)}&smooth=5")
    evaluations = [source["id"] for source in sources if source["kind"] == "evaluation"]
    for name in evaluations[:1]:
        yield Picture("evaluation", f"/s/{name}")
    if len(evaluations) > 1:
        yield Picture("compare", f"/compare?a={evaluations[0]}&b={evaluations[1]}")
    for source in sources:
        groups = (await ask(f"/api/s/{source['id']}/groups?sort=-spread&limit=1"))["rows"]
        rollouts = (await ask(f"/api/s/{source['id']}/rollouts?sort=-tool_calls&limit=1"))["rows"]
        if not groups or not rollouts:
            continue
        base, rollout = f"/s/{source['id']}", f"/s/{source['id']}/rollouts/{rollouts[0]['id']}"
        yield Picture("groups", f"{base}/groups")
        yield Picture("group", f"{base}/groups/{groups[0]['id']}")
        yield Picture("rollouts", f"{base}/rollouts?sort=-score")
        yield Picture("rollout", rollout)
        yield Picture("timeline", f"{rollout}?view=timeline")
        yield Picture("tokens", f"{rollout}?view=tokens")
        return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="what `hermes-rl view` takes; nothing means all of this machine")
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    parser.add_argument("--pages", default="", help="names of pages with commas between, all by default")
    given = parser.parse_args()
    chosen = set(filter(None, given.pages.split(",")))
    if unknown := chosen - set(PAGES):
        parser.error(f"there is no page {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}")
    given.output.mkdir(parents=True, exist_ok=True)
    try:
        sys.exit(bool(asyncio.run(main(given.targets, given.output, chosen))))
    except HermesRLError as error:
        sys.exit(f"error: {error}")
