"""A viewer with something on each of its pages, and a real Chromium to look at it."""

import json
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from hermes_rl.cli.run_access import viewed_runs
from hermes_rl.http.server import allowed_hosts, listen, serve_in_background
from hermes_rl.tools.browser.chromium import find_executable
from hermes_rl.viewer.app import create_app
from hermes_rl.viewer.service import ViewerService
from tests.support.recorded_runs import make_run, write_steps
from tests.viewer.recording import TOKEN, group, rollout, write_evaluation, write_lines

# A busy machine takes its time.
expect.set_options(timeout=60_000)

Theme = Literal["light", "dark"]
GROUPS = 70
HOSTILE, LONG = 3, 4
HIDDEN = "\u202egnp.exe\u202c \x1b[31mred\x1b[0m \x00\x07 \ud800 a" + "\u0301" * 40
SCRIPTS = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'><a href='javascript:window.ran=1'>x</a>"


@dataclass
class Visit:
    """A page of the viewer, and what went wrong on it."""

    page: Page
    url: str
    ids: dict[str, str]
    wrong: list[str] = field(default_factory=list)

    async def to(self, path: str) -> Page:
        """`{name}` in the path is the id of the source of that name."""
        await self.page.goto(self.url + path.format(**self.ids))
        await self.page.locator("main h1").first.wait_for()
        await self.settled()
        return self.page

    async def settled(self) -> None:
        # Not by a function that the page runs again and again: its policy forbids to make one of text.
        await expect(self.page.locator(".loading, [aria-busy=true]")).to_have_count(0)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    """The address of a viewer over the records that stand in the folder, with its token."""
    service = ViewerService(
        ["r1", "r2", *(str(folder / name) for name in ("words.jsonl", "first", "second"))], viewed_runs()
    )
    try:
        with listen("127.0.0.1", 0) as listening:
            port = listening.getsockname()[1]
            app = create_app(service, token=TOKEN, hosts=allowed_hosts("127.0.0.1", None), port=port)
            async with serve_in_background(app, listening) as url:
                yield f"{url}/?token={TOKEN}"
    finally:
        service.close()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_executable(None), chromium_sandbox=os.geteuid() != 0
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def visiting(browser: Browser, address: str, theme: Theme = "light") -> AsyncIterator[Visit]:
    """A visitor of their own: nothing of others is in their browser."""
    context = await browser.new_context(color_scheme=theme, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    try:
        yield await _arrived(context, address)
    finally:
        await context.close()


@asynccontextmanager
async def reading(browser: Browser, path: Path, theme: Theme = "light") -> AsyncIterator[Visit]:
    """Somebody who was sent a report, and opens it without a network; every request but for the file goes wrong."""
    context = await browser.new_context(color_scheme=theme, viewport={"width": 1280, "height": 900}, offline=True)
    context.set_default_timeout(60_000)
    try:
        page = await context.new_page()
        visit = Visit(page, f"{path.as_uri()}#", {})
        _watch(visit)
        page.on("request", lambda asked: None if _own(asked.url, path) else visit.wrong.append(asked.url))
        await page.goto(path.as_uri())
        held = json.loads(await page.locator("#answers").text_content() or "{}")
        visit.ids = _ids(held["/api/home"])
        yield visit
    finally:
        await context.close()


async def _arrived(context: BrowserContext, address: str) -> Visit:
    page = await context.new_page()
    visit = Visit(page, address.partition("/?")[0], {})
    _watch(visit)
    await page.goto(address)
    visit.ids = _ids(await page.evaluate("fetch('/api/home').then((answer) => answer.json())"))
    return visit


def _watch(visit: Visit) -> None:
    visit.page.on("pageerror", lambda error: visit.wrong.append(str(error)))
    visit.page.on("console", lambda said: visit.wrong.append(said.text) if said.type in {"error", "warning"} else None)
    visit.page.on("dialog", lambda dialog: visit.wrong.append(f"a dialog: {dialog.message}"))


def _own(url: str, path: Path) -> bool:
    return url.startswith("data:") or url.partition("#")[0] == path.as_uri()


def _ids(home: dict[str, Any]) -> dict[str, str]:
    return {source["name"].split(".")[0].split(" ")[0]: source["id"] for source in home["sources"]}


def write_everything(folder: Path) -> None:
    """A run with steps, a file of groups with hostile ones, and two evaluations."""
    places = make_run("r1")
    write_steps(places, 60, **STEP)
    write_steps(make_run("r2"), 40, **STEP)
    places.log("trainer").parent.mkdir(parents=True, exist_ok=True)
    places.log("trainer").write_text("step 59 done\nstep 60 done\n")
    groups = [group(number, *_rollouts(number)) for number in range(GROUPS)]
    groups[HOSTILE]["item"] = {"question": SCRIPTS + HIDDEN}
    write_lines(folder / "words.jsonl", *groups)
    write_evaluation(folder / "first", [0.0, 0.0, 1.0])
    write_evaluation(folder / "second", [1.0, 1.0, 1.0])


STEP = {
    "reward/std": 0.3,
    "rollouts/scored": 16,
    "staleness/mean": 1.0,
    "tokens/per_second": 900.0,
    "groups/zero_signal": 2,
    "entropy": 0.8,
    "kl/sample_train_k3": 0.0004,
}


def _rollouts(number: int) -> list[dict[str, Any]]:
    if number == HOSTILE:
        text = SCRIPTS + HIDDEN
        call = {"id": text, "function": {"name": text, "arguments": text}}
        said = {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]}
        return [rollout(0, 0.5, messages=[{"role": text, "content": text}, said, {"role": "tool", "content": text}])]
    if number == LONG:
        return [rollout(0, 0.5, "x" * 5_000_000 + " the end")]
    if number == 1:
        use = {
            "turn": 0,
            "call_id": "c1",
            "name": " terminal",
            "arguments": "{}",
            "result": "",
            "error": "unknown tool",
        }
        stopped = rollout(1, 0.25, "an orange", stop_reason="max_turns", tool_uses=[use])
        return [rollout(0, None), stopped, rollout(2, 1.0, stop_reason="unparsed_tool_call")]
    logprobs = [None, *(-math.sqrt(n) / 3 for n in range(299))]
    tokens = {"tokens": list(range(300)), "mask": [0] + [1] * 299, "logprobs": logprobs}
    sequence = {**tokens, "versions": [None] + [3] * 150 + [4] * 149, "sampling": {}}
    states = [{"turn": turn, "value": {"left": 3 - turn, "word": "banana"}} for turn in range(2)]
    steps = [{"turn": 1, "value": -0.1, "note": "wrong"}]
    played: dict[str, Any] = {"states": states, "notes": {"judge": "too long"}, "seat": "buyer", "turns_used": 1}
    said = rollout()["messages"][:2]
    metadata = {"prompt_length": 1, "step_rewards": steps, "end_reason": "lost"}
    return [
        rollout(0, 0.0, messages=said, metadata=metadata, **played),
        rollout(1, 1.0, "an apple", sequences=[sequence], seat="buyer"),
    ]
