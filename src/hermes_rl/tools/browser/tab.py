"""One rollout's browser: the page it looks at, what can be done with it, and what its console said.

Calls run one at a time, in the order they came, each within a deadline. What the page does (not loading, covering a
button, hanging) is told to the model; a browser or page that crashed is a ToolHostError, in this call and all after.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from hermes_rl.errors import ToolHostError
from hermes_rl.tools.browser.settings import BrowserSettings
from hermes_rl.tools.tool import ToolUseError

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, WebError

# A click that cannot be done, because something covers the button, is told long before a page load would be given up.
ACTION_TIMEOUT = 10.0
LOAD_WAIT = 5.0
# Scripts answer a click a moment later: measured on pages that set location in a handler, 50 ms was enough.
SETTLE = 0.2
# Playwright's own deadlines come first; this is for what has none, as a page whose script never returns.
GRACE = 5.0
RESPONSE_WAIT = 2.0
SNAPSHOT_SHOWN = 20_000
CONSOLE_KEPT, CONSOLE_TEXT = 100, 500
PAGES = 8
IMAGES_SHOWN = 50
MESSAGE_SHOWN = 600
REF = re.compile(r"\[?(?:ref=)?@?(?P<ref>(?:f\d+)?e\d+)\]?")
LIST_IMAGES = """limit => [...document.images].slice(0, limit).map(image => ({
    url: image.currentSrc.slice(0, 500), alt: image.alt.slice(0, 200),
    width: image.naturalWidth, height: image.naturalHeight}))"""
WHERE_SCROLLED = """() => { const page = document.scrollingElement || document.documentElement;
    return {position: Math.round(page.scrollTop), height: page.scrollHeight, window: innerHeight}; }"""
OPENS_A_TAB = "element => element.closest('a[href][target=_blank]') !== null"
OPTIONS = "element => element.tagName === 'SELECT' ? [...element.options].map(option => option.label) : null"


class Tab:
    def __init__(self, browser: "Browser", context: "BrowserContext", settings: BrowserSettings) -> None:
        self.console: deque[dict[str, str]] = deque(maxlen=CONSOLE_KEPT)
        self._browser, self._context, self._settings = browser, context, settings
        self._page: Page | None = None
        self._adopted = asyncio.Event()
        self._crashed = False
        self._turn = asyncio.Lock()

    @classmethod
    async def opened(cls, browser: "Browser", context: "BrowserContext", settings: BrowserSettings) -> "Tab":
        tab = cls(browser, context, settings)
        context.set_default_timeout(min(ACTION_TIMEOUT, settings.timeout) * 1000)
        context.set_default_navigation_timeout(settings.timeout * 1000)
        context.on("page", tab._adopt)
        context.on("console", tab._heard)
        context.on("weberror", tab._failed)
        async with tab._acting():
            return tab

    async def navigate(self, url: str) -> dict[str, Any]:
        self._check(url)
        async with self._acting() as page:
            response = await self._goto(page, url)
            await _settled(page)
            return {**await _where(page), "status": response.status if response else None}

    async def snapshot(self, part: int) -> dict[str, Any]:
        async with self._acting() as page:
            parts = _parts(await page.aria_snapshot(mode="ai"), SNAPSHOT_SHOWN)
            if part > len(parts):
                raise ToolUseError(f"the snapshot has {len(parts)} parts; there is no part {part}")
            shown = {**await _where(page), "snapshot": parts[part - 1]}
            return shown if len(parts) == 1 else {**shown, "part": part, "parts": len(parts)}

    async def click(self, ref: str) -> dict[str, Any]:
        async with self._acting() as page:
            element = await _element(page, ref)
            # First whether it can be clicked, which is soon known; then the click, which waits for where it leads.
            await element.click(trial=True)
            opens = await element.evaluate(OPENS_A_TAB)
            self._adopted.clear()
            await element.click(timeout=self._settings.timeout * 1000)
            if opens:
                await self._another()
            return await self._after()

    async def type(self, ref: str, text: str, submit: bool) -> dict[str, Any]:
        async with self._acting() as page:
            element = await _element(page, ref)
            options = await element.evaluate(OPTIONS)
            if options is None:
                await element.fill(text)
            elif text in options:
                await element.select_option(label=text)
            else:
                raise ToolUseError(f"{ref} has no option {text!r}; it has: {', '.join(options)[:MESSAGE_SHOWN]}")
            if submit:
                await element.press("Enter", timeout=self._settings.timeout * 1000)
            return await self._after()

    async def scroll(self, direction: Literal["up", "down"]) -> dict[str, Any]:
        async with self._acting() as page:
            width, height = self._settings.viewport
            await page.mouse.move(width / 2, height / 2)
            # With the wheel, so that a list with a scroll bar of its own moves when the page itself cannot.
            await page.mouse.wheel(0, height * (0.8 if direction == "down" else -0.8))
            await asyncio.sleep(SETTLE)
            seen = await page.evaluate(WHERE_SCROLLED)
            return {**seen, "at_end": seen["position"] + seen["window"] >= seen["height"] - 1}

    async def back(self) -> dict[str, Any]:
        async with self._acting() as page:
            before = page.url
            await page.go_back(wait_until="domcontentloaded")
            if page.url in (before, "about:blank"):
                if len(self._context.pages) == 1:
                    if page.url != before:
                        await page.go_forward(wait_until="domcontentloaded")
                    raise ToolUseError("there is no page to go back to")
                # A page that opened in a tab of its own: the one it came from is behind it.
                await page.close()
                self._page = None
            return await self._after()

    async def press(self, key: str) -> dict[str, Any]:
        async with self._acting() as page:
            await page.keyboard.press(key)
            return await self._after()

    async def images(self) -> list[dict[str, Any]]:
        async with self._acting() as page:
            found: list[dict[str, Any]] = await page.evaluate(LIST_IMAGES, IMAGES_SHOWN)
            return found

    @asynccontextmanager
    async def _acting(self) -> "AsyncIterator[Page]":
        """The page to act on, alone; whatever goes wrong comes out as one of our two errors."""
        from playwright.async_api import Error

        async with self._turn:
            self._check_alive()
            try:
                async with asyncio.timeout(self._settings.timeout + GRACE):
                    yield await self._current()
                self._check_alive()
            except (Error, TimeoutError) as error:
                raise await self._told(error) from None

    async def _told(self, error: Exception) -> Exception:
        """What is said of a failed call, and by whose fault it failed."""
        message = str(error)
        if "closed" in message or "crashed" in message:
            # That the browser is gone can arrive after the call has failed for it.
            await asyncio.sleep(SETTLE)
        self._check_alive()
        page = self._page
        if page is not None and page.is_closed():
            return ToolUseError("the page closed itself; take a snapshot to see where you are now")
        if "has been closed" in message:
            return ToolHostError("browser_closed", f"the browser broke off: {message[:MESSAGE_SHOWN]}")
        if page is not None and type(error).__name__ == "TimeoutError" and not await _responds(page):
            self._page = None
            await _closed(page)
            return ToolUseError("the page did not respond and was closed; navigate to another")
        text = re.sub(r"^(Page|Locator|Keyboard|Mouse)\.\w+: ", "", message)
        if not text or "waiting for scheduled navigations" in text:
            return ToolUseError(f"the page that this leads to did not load within {self._settings.timeout:g} s")
        # What was tried explains a timeout (something covers the button) and nothing else.
        return ToolUseError(text[:MESSAGE_SHOWN] if text.startswith("Timeout") else text.partition("\n")[0])

    def _check_alive(self) -> None:
        if not self._browser.is_connected():
            raise ToolHostError("browser_closed", "Chromium ended while this rollout was using it")
        if self._crashed:
            raise ToolHostError("page_crashed", "the page crashed in Chromium")

    async def _current(self) -> "Page":
        """The newest page that is open; a new one when there is none."""
        if self._page is None or self._page.is_closed():
            pages = self._context.pages
            self._page = pages[-1] if pages else await self._context.new_page()
        return self._page

    async def _after(self) -> dict[str, Any]:
        """Where the rollout stands once the page has answered an action, in a new tab perhaps."""
        await asyncio.sleep(SETTLE)
        page = await self._current()
        await _settled(page)
        return await _where(page)

    async def _another(self) -> None:
        """Wait for the tab that a link opens: a busy machine may take longer for it than a page takes to settle."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOAD_WAIT):
                await self._adopted.wait()

    async def _goto(self, page: "Page", url: str) -> Any:
        from playwright.async_api import Error

        for attempt in (1, 2):
            try:
                return await page.goto(url, wait_until="domcontentloaded")
            except Error as error:
                message = str(error)
                if "net::ERR" in message:
                    await _error_page(page)
                # A page that was on its way somewhere else itself, by a script.
                if attempt == 2 or "interrupted by another navigation" not in message:
                    raise
                await asyncio.sleep(SETTLE)
        raise AssertionError("unreachable")

    def _check(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname
        except ValueError:
            parts, host = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not host:
            raise ToolUseError(f"{url[:200]} is not the address of a web page; give one with http:// or https://")
        if not self._settings.allows(host):
            allowed = ", ".join(self._settings.allowed_hosts or []) or "none"
            raise ToolUseError(f"{host} may not be visited; allowed: {allowed}")

    async def _adopt(self, page: "Page") -> None:
        page.on("crash", self._noted_crash)
        if len(self._context.pages) > PAGES:
            await _closed(page)
        else:
            self._page = page
            self._adopted.set()

    def _noted_crash(self, _: "Page") -> None:
        self._crashed = True

    def _heard(self, message: "ConsoleMessage") -> None:
        self.console.append({"type": message.type, "text": message.text[:CONSOLE_TEXT]})

    def _failed(self, error: "WebError") -> None:
        self.console.append({"type": "exception", "text": str(error.error)[:CONSOLE_TEXT]})


async def _element(page: "Page", ref: str) -> "Locator":
    """The element that the latest snapshot gave this name."""
    found = REF.fullmatch(ref.strip())
    if found is None:
        raise ToolUseError(f"{ref[:100]!r} is no ref; give one from browser_snapshot, like e12")
    element = page.get_by_ref(found["ref"])
    if await element.count() == 0:
        raise ToolUseError(f"{found['ref']} is not on the page (any more); take a new snapshot")
    return element


async def _error_page(page: "Page") -> None:
    """Wait for Chromium's own page about a failure, which would break off the next navigation if it came later."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLE * 5):
            while not page.url.startswith("chrome-error:"):  # noqa: ASYNC110 (Playwright has no event that is certain)
                await asyncio.sleep(SETTLE / 10)


async def _settled(page: "Page") -> None:
    from playwright.async_api import Error

    # Pictures may take longer; a page is usable before its last one.
    with suppress(Error):
        await page.wait_for_load_state("load", timeout=LOAD_WAIT * 1000)


async def _responds(page: "Page") -> bool:
    """Whether the page runs a script, once it is no longer loading; one caught in a script of its own never will."""
    with suppress(Exception):
        async with asyncio.timeout(RESPONSE_WAIT):
            devtools = await page.context.new_cdp_session(page)
            await devtools.send("Page.stopLoading")
            await devtools.detach()
            return bool(await page.evaluate("true"))
    return False


async def _closed(page: "Page") -> None:
    with suppress(Exception):
        async with asyncio.timeout(GRACE):
            await page.close()


async def _where(page: "Page") -> dict[str, Any]:
    if page.url.startswith("chrome-error:"):
        raise ToolUseError("the page could not be loaded: its host is down, unknown or may not be visited; go back")
    return {"url": page.url, "title": (await page.title())[:200]}


def _parts(text: str, size: int) -> list[str]:
    """The text in parts of about that size, cut between lines."""
    parts: list[str] = []
    lines: list[str] = []
    taken = 0
    for line in text.splitlines():
        if lines and taken + len(line) > size:
            parts.append("\n".join(lines))
            lines, taken = [], 0
        lines.append(line[:size])
        taken += len(lines[-1]) + 1
    return [*parts, "\n".join(lines)]
